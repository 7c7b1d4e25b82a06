"""Errors that a user can fix.

All packages raise `UserError` for wrong input; entry points print it on one line, without a traceback, and exit with a
non-zero code. Programming errors stay ordinary exceptions.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
from typing import Callable, Iterable, List, Mapping, Optional

from adapter_bert.common import streams

# Exit codes of a program that was stopped by Ctrl-C, and of one whose output nobody reads, e.g. because of `| head`.
INTERRUPTED, BROKEN_PIPE = 130, 141

# Names from damaged or hostile files can be many and long: these are compared, listed, and shown of each.
_COMPARED_NAMES, _LISTED_NAMES, _NAME_LENGTH = 1000, 50, 255
_MESSAGE_LENGTH = 4000


class _MessageError(Exception):
    """An exception that IPython shows as its message, without a traceback."""

    def _render_traceback_(self) -> List[str]:
        return [f"{type(self).__name__}: {streams.printable(self)}"]


class UserError(_MessageError, ValueError):
    """Wrong input. The text says what was found, where, what was expected and what to do."""


class DivergedError(UserError):
    """Training has diverged: its loss is not finite.

    Attributes:
      step: the step of the loss.
      parameters: counts of the model, `total` and `trained`.
    """

    def __init__(self, text: str, step: int, parameters: Mapping[str, int]) -> None:
        super().__init__(text)
        self.step, self.parameters = step, parameters


class StoppedError(_MessageError):
    """The user stopped the work. The text says what was saved and how to continue."""


def unknown(kind: str, name: object, available: Iterable[str]) -> UserError:
    """Return an error that lists the available names and suggests a similar one; `kind` is e.g. `task`."""
    names = list(available)
    by_folded_name = {option.lower(): option for option in names}
    near = difflib.get_close_matches(str(name).lower(), list(by_folded_name)[:_COMPARED_NAMES], n=1, cutoff=0.5)
    hint = f" Did you mean '{by_folded_name[near[0]]}'?" if near else ""
    return UserError(f"Unknown {kind} '{name!s:.100}'.{hint} Available: {first_names(names, _LISTED_NAMES)}.")


def first_names(names: Iterable[object], limit: int = 5) -> str:
    """Return the first names and the number of others, e.g. `a, b and 3 more`; `nothing` if there are none."""
    texts = [str(name) for name in names]
    shown = [text if len(text) <= _NAME_LENGTH else text[: _NAME_LENGTH - 1] + "…" for text in texts[:limit]]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return (", ".join(shown) or "nothing") + more


def check_int(name: str, value: object, minimum: int = 1, maximum: Optional[int] = None) -> None:
    """Raise a `UserError` unless the value is an integer within the limits; `name` is a flag or an argument."""
    most = "" if maximum is None else f" and at most {maximum}"
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum or (maximum and value > maximum):
        raise UserError(f"{name} must be an integer of at least {minimum}{most}, found {value!r:.110}.")


def reason(error: BaseException) -> str:
    """Return the decisive line of another library's exception, without its full stop, to quote in a sentence."""
    if isinstance(error, FileNotFoundError) and not error.filename:  # only `os.getcwd` names no file
        return "the working directory no longer exists; change to another one"
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        return f"{error.strerror}: {' -> '.join(names)}" if names else error.strerror
    lines = [line for line in str(getattr(error, "message", None) or error).strip().split("\n") if line] or [""]
    # The first line or, in an error of a TensorFlow graph, the one before the first operation.
    operation = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[[")), 1)
    return lines[max(operation - 1, 0)].rstrip(".")


def check_output() -> None:
    """Flush stdout; raise an error if text was lost. For commands whose only result is what they print."""
    sys.stdout.flush()
    failure = getattr(sys.stdout, "failure", None)
    if isinstance(failure, BrokenPipeError):
        raise failure
    if failure:
        raise UserError(f"Cannot write to standard output: {reason(failure)}.")


def exits_on_user_error(main: Callable[..., None]) -> Callable[..., None]:
    """Decorate `main`: print an error that a user can fix as one line on stderr, and exit with a code other than 0.

    Until then, make the standard streams safe: see `streams`.
    """

    @functools.wraps(main)
    def wrapped(*args: object, **kwargs: object) -> None:
        streams.protect()
        program = os.path.basename(sys.argv[0])
        try:
            _check_arguments(sys.argv[1:])
            main(*args, **kwargs)
        except BrokenPipeError:
            sys.exit(BROKEN_PIPE)
        except (UserError, OSError, UnicodeEncodeError) as error:
            sys.exit(streams.printable(f"{program}: error: {_message(error)}"))
        except (StoppedError, KeyboardInterrupt) as stop:
            print(streams.printable(f"{program}: {str(stop) or 'interrupted.'}"), file=sys.stderr)
            sys.exit(INTERRUPTED)

    return wrapped


def _check_arguments(arguments: Iterable[str]) -> None:
    """Raise a `UserError` for an argument that is not UTF-8: TensorFlow accepts no such path."""
    for argument in arguments:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(_message(error)) from None


def _message(error: Exception) -> str:
    text = _text(error)
    # Values from damaged or hostile files can be long.
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[: _MESSAGE_LENGTH // 2]} … {text[-_MESSAGE_LENGTH // 2 :]}"


def _text(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        found = error.object[max(error.start - 80, 0) : error.end + 80]
        return f"'{found}' cannot be encoded as {error.encoding}: rename the file; or set PYTHONUTF8=1 if it is UTF-8."
    return str(error) if isinstance(error, UserError) else f"{reason(error)}."
