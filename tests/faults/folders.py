"""Compare folders: what a command has written, without what differs between two runs of the same command."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from typing import Any, Dict, Iterable, List

from adapter_bert.common import errors, system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf

from adapter_bert.weights import checkpoints, packs

# Relative path -> content, as text or as a hash.
Content = Dict[str, str]

# Paths of temporary files: ours, and those of TensorFlow's checkpoints.
TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.(partial|old)\b|\.tempstate\d*|_temp(_[0-9a-f]+)?(/|$)|checkpoint\.tmp")
_EVENTS = re.compile(r"events\.out\.tfevents\.[^/]*$")
# Keys of JSON files, and tags of summaries, that hold dates and times, or depend on them (the checksum of a pack), or
# count the steps that were computed, including those lost in a kill. The losses of steps that a killed process computed
# and did not record are missing.
_TIMES = re.compile(r"created|date|second|time|/sec|checksum|^steps$|^steps_computed$|^examples$|^losses$")


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in sorted(value.items()) if not _TIMES.search(key)}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    if isinstance(value, str) and value.startswith("{"):  # JSON in the header of a pack
        return _without_times(json.loads(value))
    return value


def _content(path: str, folder: str) -> str:
    """Return what counts of a file in a folder."""
    if os.path.islink(path):
        return "link to " + os.readlink(path)
    with open(path, "rb") as file:
        data = file.read().replace(os.path.realpath(folder).encode(), b"<folder>")
    try:
        if path.endswith(".json"):
            return json.dumps(_without_times(json.loads(data)))
        if path.endswith(packs.ENDING):
            header, end = json.JSONDecoder().raw_decode(data[8:].decode("latin-1"))
            return json.dumps(_without_times(header)) + " " + hashlib.sha256(data[8 + end :].lstrip(b" ")).hexdigest()
    except ValueError:
        pass  # incomplete: compare bytes
    return hashlib.sha256(data).hexdigest()


def read(folder: str) -> Content:
    """Return the content of all files below a folder, and empty folders. Events count as one file per folder."""
    found = {}
    for top, folders, names in os.walk(folder):
        for name in names + [each for each in folders if os.path.islink(os.path.join(top, each))]:
            path = os.path.join(top, name)
            key = os.path.relpath(path, folder)
            if _EVENTS.search(key):
                found[_EVENTS.sub("events", key)] = "events"
            else:
                found[key] = _content(path, folder)
        if not folders and not names:
            found[os.path.relpath(top, folder) + "/"] = "empty folder"
    return found


def visible(content: Content) -> Content:
    """Return the content without temporary files."""
    return {path: value for path, value in content.items() if not TEMPORARY.search(path)}


def state_key(content: Content) -> str:
    """Return a text that is equal for folders that differ only in names and contents of temporary files."""
    named = {}
    for path, value in content.items():
        is_temporary = TEMPORARY.search(path)
        named[re.sub(r"[0-9a-f]{8,}|\d{8,}", "#", path) if is_temporary else path] = "" if is_temporary else value
    return json.dumps(sorted(named.items()))


def differences(found: Content, expected: Content) -> List[str]:
    """Return descriptions of paths that differ."""
    return (
        [f"missing {path}" for path in sorted(set(expected) - set(found))]
        + [f"left {path}" for path in sorted(set(found) - set(expected))]
        + [f"changed {path}" for path in sorted(set(found) & set(expected)) if found[path] != expected[path]]
    )


def all_events(folder: str) -> Dict[str, Dict[str, Dict[int, float]]]:
    """Return subfolder -> tag -> step -> value of the scalar summaries; of two equal steps, the later one."""
    found: Dict[str, Dict[str, Dict[int, float]]] = {}
    for top, _, names in os.walk(folder):
        for name in sorted(filter(_EVENTS.search, names)):
            tags = found.setdefault(os.path.relpath(top, folder), {})
            for event in _read_events(os.path.join(top, name)):
                for value in event.summary.value:
                    if not _TIMES.search(value.tag):
                        tags.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def _read_events(path: str) -> Iterable[Any]:
    try:
        yield from tf.train.summary_iterator(path)
    except tf.errors.DataLossError:
        return  # the last record is incomplete


def unreadable(folder: str) -> List[str]:
    """Return the JSON files, packs and checkpoints of runs that exist below a folder but cannot be read."""
    found = []
    for path in visible(read(folder)):
        full = os.path.join(folder, path)
        try:
            if path.endswith(".json"):
                with open(full, encoding="utf-8") as file:
                    json.load(file)
            elif path.endswith(packs.ENDING) and not path.endswith("model.safetensors"):
                packs.read(full)
            elif os.path.basename(path) == "checkpoint":
                checkpoints.read_shapes(checkpoints.find_latest(os.path.dirname(full)))
        except (ValueError, errors.UserError) as error:
            found.append(f"unreadable {path}: {error}")
    return found


def copy(source: str, target: str) -> None:
    """Copy a folder with its links, times and permissions; the target must not exist."""
    subprocess.run(["cp", "-a", source, target], check=True)


def replace_in_json(folder: str, old: str, new: str) -> None:
    """Replace a text, e.g. an absolute path that a run has recorded, in all JSON files below a folder."""
    for path in read(folder):
        full = os.path.join(folder, path)
        if path.endswith(".json") and not os.path.islink(full):
            with open(full, "rb") as file:
                data = file.read()
            with open(full, "wb") as file:
                file.write(data.replace(old.encode(), new.encode()))
