"""The search space: the paper's Table 5, or a part of it that the user sets. Imports neither TensorFlow nor Optuna."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from adapter_bert.baselines.presets import STAND_INS
from adapter_bert.baselines.settings import ACTIVATIONS, NORMS, ROWS, NetworkSettings
from adapter_bert.common import errors, files


class Range(NamedTuple):
    """All numbers from `low` to `high`: integers if both are."""

    low: float
    high: float


Values = Union[Range, Sequence[Any]]
_LEARNING_RATES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
_L2 = (0.0, 0.0001, 0.001, 0.01)

# Row of Table 5 -> its values, in the order of the rows.
TABLE: Dict[str, Values] = {
    "hub_module": tuple(dict.fromkeys(STAND_INS.values())),
    "fine_tune_module": (True, False),
    "lowercase_text": (True, False),
    "remove_non_alphanumeric": (True, False),
    "use_convolution": (True, False),
    "conv_activation": ACTIVATIONS,
    "conv_batch_norm": (True, False),
    "conv_max_ngram": (2, 3),
    "conv_dropout": Range(0.0, 0.4),
    "conv_filters": Range(50, 200),
    "conv_embedding_dropout": Range(0.0, 0.4),
    "hidden_layers": (0, 1, 2, 3, 5),
    "hidden_size": (64, 128, 256),
    "hidden_activation": ACTIVATIONS,
    "hidden_norm": NORMS,
    "hidden_dropout": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    "deep_learning_rate": _LEARNING_RATES,
    "deep_l2": _L2,
    "wide_learning_rate": _LEARNING_RATES,
    "wide_l2": _L2,
    "num_train_samples": (100_000, 200_000, 500_000, 1_000_000, 2_000_000),
}
assert tuple(TABLE) == ROWS


def read(path: Optional[str], given: Mapping[str, Any]) -> Dict[str, Values]:
    """Return Table 5 with the changes of a TOML file and of single values, e.g. from the command line.

    In the file, `conv_filters = [50, 100]` lists values, and `conv_filters = {low = 50, high = 100}` is a range. Raises
    a `UserError` for unknown rows, empty lists and ranges, and values that the flag does not accept.
    """
    found = dict(TABLE)
    if path:
        found.update({name: _parse(name, value, path) for name, value in _read_toml(path).items()})
    found.update({name: (value,) for name, value in given.items() if name in TABLE})
    defaults: Any = NetworkSettings(hub_module="x")
    for name, values in found.items():
        for value in values:
            dataclasses.replace(defaults, **{name: value}).validate()
    return found


def _read_toml(path: str) -> Dict[str, Any]:
    try:
        import tomllib
    except ImportError:
        import tomli as tomllib  # type: ignore[no-redef]
    data = files.read_bytes(path, f"Cannot read the search space {path}")
    try:
        return dict(tomllib.loads(data.decode("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.UserError(f"{path} is not TOML: {errors.reason(error)}.") from None


def _parse(name: str, value: Any, path: str) -> Values:
    if name not in TABLE:
        raise errors.UserError(f"{path}: {errors.unknown('row of the search space', name, TABLE)}")
    kind = str(NetworkSettings.__dataclass_fields__[name].type).replace("Optional[", "").rstrip("]")
    if isinstance(value, dict):
        if set(value) != {"low", "high"} or kind not in ("int", "float"):
            raise errors.UserError(f"{path}: {name} = {value}: expected a list, or {{low = …, high = …}} of numbers.")
        values: Sequence[Any] = (value["low"], value["high"])
    else:
        values = tuple(value) if isinstance(value, list) else (value,)
    for each in values:
        numbers = (int, float) if kind == "float" else (int,)
        expected: Any = {"str": str, "bool": bool}.get(kind, numbers)
        if not isinstance(each, expected) or (kind != "bool" and isinstance(each, bool)):
            raise errors.UserError(f"{path}: {name} = {each!r}: expected {kind}.")
    if isinstance(value, dict) and values[0] > values[1]:
        raise errors.UserError(f"{path}: {name}: the range from {values[0]} to {values[1]} is empty.")
    if not values:
        raise errors.UserError(f"{path}: {name} has no values to choose from.")
    if isinstance(value, dict):
        low, high = (int(each) if kind == "int" else float(each) for each in values)
        return Range(low, high)
    return values


def describe(space: Mapping[str, Values]) -> Dict[str, Any]:
    """Return a space in a canonical JSON form."""
    return {
        name: {"low": values.low, "high": values.high} if isinstance(values, Range) else list(values)
        for name, values in space.items()
    }


def from_description(described: Mapping[str, Any]) -> Dict[str, Values]:
    """Return the space that `describe` described."""
    return {
        name: Range(values["low"], values["high"]) if isinstance(values, dict) else tuple(values)
        for name, values in described.items()
    }


def sample(trial: Any, space: Mapping[str, Values]) -> Dict[str, Any]:
    """Let an Optuna trial choose a value for every row."""
    return {name: _suggest(trial, name, values) for name, values in space.items()}


def _suggest(trial: Any, name: str, values: Values) -> Any:
    if not isinstance(values, Range):
        return trial.suggest_categorical(name, list(values))
    if isinstance(values.low, int):
        return trial.suggest_int(name, values.low, int(values.high))
    return trial.suggest_float(name, values.low, values.high)


def names(space: Mapping[str, Values]) -> List[str]:
    """Return the rows that have more than one value."""
    return [name for name, values in space.items() if not (len(values) == 1 or len(set(values)) == 1)]
