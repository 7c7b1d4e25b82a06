"""What goes wrong because of what a user gave us, said in one sentence.

Every room raises `UserError` for such cases; the entry points print it without a stack trace and leave with
a non-zero exit code. Programming errors stay ordinary exceptions, stack trace and all.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
from typing import Callable, Iterable

# The exit code of a program that was stopped by Ctrl-C.
INTERRUPTED = 130


class UserError(ValueError):
    """A mistake in the input. Its text says what was found, where, what was expected and what to do."""


class StoppedError(Exception):
    """The user has stopped the work. Its text says what was kept and how to go on."""


def unknown(kind: str, name: object, available: Iterable[str]) -> UserError:
    """The error for a name that does not exist: lists what does, and suggests the nearest.

    Args:
      kind: what was asked for, e.g. `task`.
      name: the name that was given.
      available: the names that exist.

    Returns:
      The error, to be raised by the caller.
    """
    names = list(available)
    by_folded_name = {option.lower(): option for option in names}
    near = difflib.get_close_matches(str(name).lower(), list(by_folded_name), n=1, cutoff=0.5)
    hint = f" Did you mean '{by_folded_name[near[0]]}'?" if near else ""
    return UserError("Unknown {} '{}'.{} Available: {}.".format(kind, name, hint, ", ".join(names)))


def check_int(name: str, value: object, minimum: int = 1) -> None:
    """Raise a `UserError` unless the value is an integer of at least `minimum`; `name` is a flag or an argument."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UserError(f"{name} must be an integer of at least {minimum}, found {value!r}.")


def reason(error: BaseException) -> str:
    """The first line of another library's exception, without its full stop: to be quoted in a sentence."""
    return str(getattr(error, "message", None) or error).strip().split("\n")[0].rstrip(".")


def exits_on_user_error(main: Callable[..., None]) -> Callable[..., None]:
    """Wraps an entry point's `main`: a `UserError` becomes one line on stderr and exit code 1, a stop 130."""

    @functools.wraps(main)
    def wrapped(*args: object) -> None:
        try:
            main(*args)
        except UserError as error:
            sys.exit(f"{os.path.basename(sys.argv[0])}: error: {error}")
        except StoppedError as stop:
            print(f"{os.path.basename(sys.argv[0])}: {stop}", file=sys.stderr)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # of `| head`, which has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except KeyboardInterrupt:
            print(f"{os.path.basename(sys.argv[0])}: interrupted.", file=sys.stderr)
            sys.exit(INTERRUPTED)

    return wrapped
