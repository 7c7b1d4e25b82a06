"""Frozen dataclasses whose fields are command-line flags.

To add a flag, add a field with a default, help text and limits. Its scope says when the value must equal that of the
recorded run: `MODEL` (to evaluate the run or to continue its training), `TRAINING` (only to continue it) or None.

Imports no TensorFlow, so that a mistake on the command line is reported before TensorFlow's slow import.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import math
import os
import sys
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from absl import app, flags

from adapter_bert.common import errors, paths, system
from adapter_bert.common.lazy_tensorflow import tf

# Assign flags to the script that defines them, not to this module: `--help` lists them under its name.
flags.disclaim_key_flags()

MODEL = "model"
TRAINING = "training"
# Old name -> current name.
ALIASES = {"recompute": "gradient_checkpointing"}
_DEFINE: Dict[str, Callable] = {
    "str": flags.DEFINE_string,
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "bool": flags.DEFINE_bool,
}
# Flag -> the default it was defined with.
_DEFINED_DEFAULTS: Dict[str, Any] = {}


class Limits(NamedTuple):
    """Valid values of a setting. NaN is never valid; infinity only if a bound is infinite."""

    minimum: float = -math.inf
    maximum: float = sys.float_info.max
    choices: Tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Raise `errors.UserError` for a value outside the limits. None and empty strings mean "not set"."""
        if self.choices and value and value not in self.choices:
            raise errors.unknown(f"--{name}", value, self.choices)
        if isinstance(value, (int, float)) and not self.minimum <= value <= self.maximum:
            expected = "a number" if math.isinf(self.minimum) else f"{self.minimum} or more"
            if self.maximum < sys.float_info.max:
                expected = f"from {self.minimum} to {self.maximum}"
            raise errors.UserError(f"--{name} must be {'finite' if value == math.inf else expected}, found {value}.")


ANY = Limits(maximum=math.inf)
POSITIVE = Limits(1)
NOT_NEGATIVE = Limits(0)


def setting(
    default: Any,
    help_text: str,
    scope: Optional[str] = None,
    limits: Limits = ANY,
    kind: str = "value",
    legacy: Optional[Any] = None,
) -> Any:
    """Declare a field that is also a flag; the module's docstring describes `scope`.

    `kind` says how to compare runs: by `value`, by absolute `path`, or by the content of a `file`. `legacy` is the
    value in effect before the flag existed, if it is not the default.
    """
    legacy = default if legacy is None else legacy
    metadata = {"help": help_text, "scope": scope, "limits": limits, "kind": kind, "legacy": legacy}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class FlagGroup:
    """Base class of settings; groups combine by inheritance."""

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations. Does not access files.

        A group with rules about several of its values extends this method.
        """
        for field in dataclasses.fields(self):
            field.metadata["limits"].check(field.name, getattr(self, field.name))

    def needed_paths(self) -> Dict[str, str]:
        """Return flag -> kind of path it must name: `file`, `folder`, `file or folder` or `checkpoint`."""
        return {}

    def check_paths(self) -> None:
        """Raise `errors.UserError` for a local path that does not exist. Readers check the content."""
        for name, kind in self.needed_paths().items():
            path = getattr(self, name)
            if path and not paths.is_remote(path) and not _exists(path, kind):
                raise errors.UserError(f"--{name}={path}: no such {kind}. Paths are relative to {os.getcwd()}.")

    def comparable_values(self, scopes: Sequence[str]) -> Dict[str, Any]:
        """Return the values that distinguish two runs, in a canonical JSON form."""
        return {
            field.name: _comparable(getattr(self, field.name), field.metadata["kind"])
            for field in dataclasses.fields(self)
            if field.metadata["scope"] in scopes
        }

    def training_values(self) -> Dict[str, Any]:
        """Return the training settings that are meaningful on other machines, i.e. without paths."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["scope"] == TRAINING and field.metadata["kind"] == "value"
        }


def _exists(path: str, kind: str) -> bool:
    if kind in ("file", "folder"):
        return os.path.isfile(path) if kind == "file" else os.path.isdir(path)
    return os.path.exists(path) or (kind == "checkpoint" and bool(glob.glob(glob.escape(path) + ".*")))


def _comparable(value: Any, kind: str) -> Any:
    if value is None or kind == "value":
        return value
    if kind == "file":
        with tf.gfile.GFile(value, "rb") as reader:
            return "sha256:" + hashlib.sha256(reader.read()).hexdigest()[:16]
    return value if paths.is_remote(value) else os.path.realpath(value)


# Type of a setting -> types of values for it.
_TYPES = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}

SettingsClass = TypeVar("SettingsClass", bound=FlagGroup)


def define_flags(settings_class: Type[FlagGroup], values: flags.FlagValues = flags.FLAGS) -> None:
    """Define a flag for every field, and the old names of renamed flags; skip those that exist.

    A program may import several modules that define the same flags, and may define some of them itself, before or
    afterwards.
    """
    for field in dataclasses.fields(settings_class):
        if field.name not in values:
            define = _DEFINE[str(field.type).replace("Optional[", "").rstrip("]")]
            define(field.name, field.default, field.metadata["help"], flag_values=values, allow_override=True)
            _DEFINED_DEFAULTS[field.name] = field.default
    for alias, name in ALIASES.items():
        if name in values and alias not in values:
            flags.DEFINE_alias(alias, name, flag_values=values)


def from_flags(settings_class: Type[SettingsClass], values: flags.FlagValues) -> SettingsClass:
    """Return the settings that flags describe, parsed or not (in a notebook)."""
    return settings_class(**{field.name: _flag_value(field, values) for field in dataclasses.fields(settings_class)})


def from_values(kind: Type[Any], given: Mapping[str, Any], required: Sequence[str]) -> Any:
    """Return settings of a kind; raise a `UserError` for unknown or missing names, and for values of the wrong type."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    values = {}
    for name, value in given.items():
        if name not in fields:
            raise errors.unknown("argument", name, fields)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        expected = fields[name].replace("Optional[", "").rstrip("]")
        is_right = isinstance(value, _TYPES[expected]) and (expected == "bool") == isinstance(value, bool)
        if not is_right and not (value is None and fields[name].startswith("Optional")):
            raise errors.UserError(f"{name} must be of type {expected}, found {value!r:.80}.")
        values[name] = value
    missing = [name for name in required if not values.get(name)]
    if missing:
        raise errors.UserError(f"The argument {missing[0]} is missing.")
    return kind(**values)


def _flag_value(field: dataclasses.Field, values: flags.FlagValues) -> Any:
    flag = values[field.name]
    # If another settings class has defined the flag, its default may differ.
    is_unchanged = flag.using_default_value and flag.value == _DEFINED_DEFAULTS.get(field.name, flag)
    return field.default if is_unchanged else flag.value


def checked_settings(
    settings_class: Type[SettingsClass], values: flags.FlagValues, required: Sequence[str]
) -> SettingsClass:
    """Return the settings that flags describe; raise `errors.UserError` if they are incomplete or invalid."""
    settings = from_flags(settings_class, values)
    missing = [f"--{name}" for name in required if getattr(settings, name) is None]
    if missing:
        raise errors.UserError(f"Set {', '.join(missing)}.")
    settings.validate()
    settings.check_paths()
    return settings


def verbosity(values: flags.FlagValues) -> int:
    """Return absl's `--verbosity`; 0, which shows progress, unless it is given."""
    flag = values["verbosity"]
    return int(flag.value or 0) if flag.present else 0


def reject_positional_args(argv: Sequence[str]) -> None:
    """Raise `errors.UserError` for arguments that are not flags."""
    # absl reads `--do_train true` as a flag and an argument `true`; the original scripts ignore the latter.
    surplus = [argument for argument in argv[1:] if argument.lower() != "true"]
    if surplus:
        hint = " (a flag without a value means true)" if surplus[0].lower() == "false" else ""
        raise errors.UserError(f"Unexpected argument '{surplus[0]}': write flags as --name=value{hint}.")


@errors.exits_on_user_error
def check_command_line(settings_class: Type[FlagGroup], values: flags.FlagValues, required: Sequence[str]) -> None:
    """Exit with a message if this program's command line is invalid, or with the help text for `--help`.

    Configure TensorFlow, too: call this at the top of an entry point, before anything imports it. `app.run` parses the
    same flags again.
    """
    flags.mark_flags_as_required(list(required), values)
    app.define_help_flags()
    reject_positional_args(app.parse_flags_with_usage(sys.argv))
    system.configure_tensorflow(verbose=verbosity(values) > 0)  # remote paths are checked with TensorFlow
    checked_settings(settings_class, values, required)
