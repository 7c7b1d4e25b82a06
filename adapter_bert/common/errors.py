"""Errors that a user can fix.

All packages raise `UserError` for wrong input; entry points print it on one line, without a traceback, and exit with a
non-zero code. Programming errors stay ordinary exceptions.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
from typing import Callable, Iterable

# Exit code of a program that was stopped by Ctrl-C.
INTERRUPTED = 130


class UserError(ValueError):
    """Wrong input. The text says what was found, where, what was expected and what to do."""


class StoppedError(Exception):
    """The user stopped the work. The text says what was saved and how to continue."""


def unknown(kind: str, name: object, available: Iterable[str]) -> UserError:
    """Return an error that lists the available names and suggests a similar one; `kind` is e.g. `task`."""
    names = list(available)
    by_folded_name = {option.lower(): option for option in names}
    near = difflib.get_close_matches(str(name).lower(), list(by_folded_name), n=1, cutoff=0.5)
    hint = f" Did you mean '{by_folded_name[near[0]]}'?" if near else ""
    return UserError("Unknown {} '{}'.{} Available: {}.".format(kind, name, hint, ", ".join(names)))


def first_names(names: Iterable[object], limit: int = 5) -> str:
    """Return the first names and the number of others, e.g. `a, b and 3 more`; `nothing` if there are none."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return (", ".join(texts[:limit]) or "nothing") + more


def check_int(name: str, value: object, minimum: int = 1) -> None:
    """Raise a `UserError` unless the value is an integer of at least `minimum`; `name` is a flag or an argument."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UserError(f"{name} must be an integer of at least {minimum}, found {value!r}.")


def reason(error: BaseException) -> str:
    """Return the first line of another library's exception, without its full stop, to quote in a sentence."""
    return str(getattr(error, "message", None) or error).strip().split("\n")[0].rstrip(".")


def exits_on_user_error(main: Callable[..., None]) -> Callable[..., None]:
    """Decorate `main`: print a `UserError` as one line on stderr and exit with code 1; exit with 130 on Ctrl-C."""

    @functools.wraps(main)
    def wrapped(*args: object, **kwargs: object) -> None:
        program = os.path.basename(sys.argv[0])
        try:
            main(*args, **kwargs)
        except UserError as error:
            sys.exit(f"{program}: error: {error}")
        except (StoppedError, KeyboardInterrupt) as stop:
            print(f"{program}: {str(stop) or 'interrupted.'}", file=sys.stderr)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # e.g. from `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    return wrapped
