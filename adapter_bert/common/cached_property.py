"""`functools.cached_property`, which Python 3.7 lacks."""

from __future__ import annotations

from typing import Any, Callable, Optional


class cached_property:  # noqa: N801  (named as in functools)
    """A property that is computed on first access and then stored in the instance, even if it is a frozen dataclass."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Optional[type] = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._function.__name__] = self._function(instance)
        return value
