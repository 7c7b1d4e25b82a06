"""Registry of tasks. Look-ups ignore case, hyphens and underscores."""

from __future__ import annotations

from typing import Dict, List

from adapter_bert.common import errors
from adapter_bert.tasks.task import Task

_TASKS: Dict[str, Task] = {}


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


def register(task: Task) -> Task:
    """Add a task under its name and aliases; raise a ValueError if one of them is taken."""
    keys = {_key(name) for name in (task.name,) + task.aliases}
    for key in keys:
        if key in _TASKS:
            raise ValueError(f"The task name '{key}' is taken by {_TASKS[key].name}.")
    _TASKS.update(dict.fromkeys(keys, task))
    return task


def names() -> List[str]:
    """Return the names of all tasks in order of registration."""
    return list(dict.fromkeys(task.name for task in _TASKS.values()))


def get(name: str) -> Task:
    """Return a task by name or alias; raise a `UserError` that lists all tasks if there is none."""
    if _key(name) not in _TASKS:
        raise errors.unknown("task", name, names())
    return _TASKS[_key(name)]
