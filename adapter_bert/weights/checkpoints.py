"""Read and write TensorFlow checkpoints of BERT and of runs."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import errors

# Checkpoints of a run: the trained variables, and Adam's slots, which are kept only for the newest checkpoint.
MODEL_NAME, OPTIMIZER_NAME = "model.ckpt", "optimizer.ckpt"
KEPT = 5
SLOTS = ("adam_m", "adam_v")
_OWN_FILE = re.compile(rf"^(?:{re.escape(MODEL_NAME)}|{re.escape(OPTIMIZER_NAME)})-(\d+)$")
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.partial$|\.tempstate\d*$|_temp_[0-9a-f]{32}$")
FILE_ENDING = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def folder_of(prefix: str) -> str:
    """Return the folder of a checkpoint."""
    return os.path.dirname(prefix) or "."


def find_prefix(path: str) -> str:
    """Return the prefix of the checkpoint at a path: a prefix, one of its files, or the folder of a run."""
    prefix = FILE_ENDING.sub("", path)
    if os.path.basename(prefix).startswith(OPTIMIZER_NAME):
        raise errors.UserError(
            f"{path} contains the state of an optimizer, not weights: use {MODEL_NAME}-… next to it, or its folder."
        )
    # tf.train.checkpoint_exists would accept any file or folder as a checkpoint in the format used before 2016.
    if tf.gfile.Exists(prefix + ".index"):
        return prefix
    if tf.gfile.IsDirectory(path):
        found = find_latest(path)
        if found:
            return found
        example = os.path.join(path, "bert_model.ckpt")
        raise errors.UserError(
            f"The folder {path} contains no checkpoint of a run: pass the checkpoint itself, e.g. {example}."
        )
    raise errors.UserError(f"There is no checkpoint {path}: expected {prefix}.index and its data files.")


def find_latest(folder: str) -> Optional[str]:
    """Return the newest checkpoint of a run according to its file `checkpoint`; None if there is none yet.

    A damaged file and a missing checkpoint are errors: the run would restart from step 0.
    """
    state_file = os.path.join(folder, "checkpoint")
    if not tf.gfile.Exists(state_file):
        return None
    try:
        state = tf.train.get_checkpoint_state(folder)
        latest = tf.train.latest_checkpoint(folder) if state else None
    except ValueError:
        state = None
    if state is None:
        raise errors.UserError(
            f"The file {state_file}, which names the newest checkpoint, is damaged: restore it, or use another folder."
        )
    if latest is None:
        raise errors.UserError(
            f"{state_file} names {state.model_checkpoint_path} as the newest checkpoint, but it does not exist: "
            "restore it, or use another folder."
        )
    return latest


@contextlib.contextmanager
def _reader(prefix: str) -> Iterator[Any]:
    """Yield a reader of a checkpoint; a damaged one raises `errors.UserError`."""
    try:
        yield tf.train.load_checkpoint(prefix)
    except Exception as error:  # the reader raises many types, including IndexError
        message = f"The checkpoint {prefix} is damaged and cannot be read: {errors.reason(error)}."
        raise errors.UserError(message) from None


def read_shapes(prefix: str) -> Mapping[str, Tuple[int, ...]]:
    """Return name -> shape of all variables in a checkpoint, sorted by name."""
    with _reader(prefix) as reader:
        return {name: tuple(shape) for name, shape in sorted(reader.get_variable_to_shape_map().items())}


def each_tensor(prefix: str, names: Sequence[str]) -> Iterator[Tuple[str, np.ndarray]]:
    """Yield (name, value) of these variables one at a time, so that a BERT need not fit into memory twice."""
    with _reader(prefix) as reader:
        for name in names:
            yield name, reader.get_tensor(name)


def read_tensors(prefix: str, names: Sequence[str]) -> Dict[str, np.ndarray]:
    """Return the values of these variables."""
    return dict(each_tensor(prefix, names))


def read_step(prefix: str) -> int:
    """Return the training step of a checkpoint; 0 if it does not contain one."""
    with _reader(prefix) as reader:
        return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


def write(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Write a checkpoint without a graph and without a `checkpoint` file. Copies the tensors in memory."""
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        feeds = {name: tf.placeholder(value.dtype, value.shape) for name, value in tensors.items()}
        variables = {name: tf.get_variable(name, initializer=feed, use_resource=True) for name, feed in feeds.items()}
        saver = tf.train.Saver(variables)
        with tf.Session(graph=graph, config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            for name, value in tensors.items():
                session.run(variables[name].initializer, {feeds[name]: value})
            saver.save(session, prefix, write_meta_graph=False, write_state=False)


def optimizer_prefix(prefix: str) -> str:
    """Return the prefix of the separate file with the Adam slots of a run's checkpoint."""
    return os.path.join(folder_of(prefix), OPTIMIZER_NAME + "-" + prefix.rpartition("-")[2])


def slot_shapes(shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, Tuple[int, ...]]:
    """Return name -> shape of the Adam slots of these variables."""
    return {f"{name}/{slot}": shape for name, shape in shapes.items() for slot in SLOTS}


class RunSaver(tf.train.Saver):
    """Saves the trained variables of a run, never the frozen base.

    A checkpoint is `model.ckpt-<step>` with the trained variables and the step; the newest five are kept. Adam's
    slots, twice as large, are in `optimizer.ckpt-<step>`. They are kept only for the newest checkpoint, from which
    training resumes. The slots are written first and the state file last, so a kill at any time leaves a consistent
    pair.
    """

    def __init__(self, trained: Sequence[tf.Variable], load_frozen: Callable[[tf.Session], None]) -> None:
        """Create a saver for the default graph with its optimizer; `load_frozen` loads all other variables."""
        names = slot_shapes({optimization.variable_name(variable): () for variable in trained})
        slots = [variable for variable in tf.global_variables() if optimization.variable_name(variable) in names]
        super().__init__(list(trained) + [tf.train.get_global_step()], max_to_keep=None)
        self._slot_saver = tf.train.Saver(slots, max_to_keep=None)
        self._load_frozen = load_frozen

    def save(self, sess: tf.Session, save_path: str, global_step: Any = None, **unused: Any) -> str:
        """Write a checkpoint, record it as the newest, and keep the newest five.

        The oldest is removed first, so that there are never more than five.
        """
        folder = folder_of(save_path)
        state = tf.train.get_checkpoint_state(folder)
        recorded = state.all_model_checkpoint_paths if state else []  # the oldest first
        kept = [prefix for prefix in recorded if not prefix.endswith(f"-{global_step}")]
        surplus, kept = kept[: 1 - KEPT], kept[1 - KEPT :]
        for prefix in surplus:
            remove(prefix)
        options = {"global_step": global_step, "write_meta_graph": False, "write_state": False}
        slots = self._slot_saver.save(sess, os.path.join(folder, OPTIMIZER_NAME), **options)
        saved = super().save(sess, save_path, **options)
        names = [os.path.basename(prefix) for prefix in kept + [saved]]
        if not os.path.isabs(folder):
            # TensorFlow treats names as relative to the folder only if the folder is absolute.
            names = [os.path.join(folder, name) for name in names]
        tf.train.update_checkpoint_state(folder, names[-1], names)
        for name in tf.gfile.ListDirectory(folder):
            if name.startswith(OPTIMIZER_NAME + "-") and FILE_ENDING.sub("", name) != os.path.basename(slots):
                tf.gfile.Remove(os.path.join(folder, name))
        return saved

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restore a checkpoint: its variables, its slots, and the frozen base."""
        self._load_frozen(sess)
        super().restore(sess, save_path)
        self._slot_saver.restore(sess, optimizer_prefix(save_path))


def files_of(prefix: str) -> List[str]:
    """Return the files of a checkpoint, the index first: without it, the others are not a checkpoint."""
    folder, name = folder_of(prefix), os.path.basename(prefix)
    names = sorted(tf.gfile.ListDirectory(folder)) if tf.gfile.IsDirectory(folder) else []
    found = [each for each in names if each != name == FILE_ENDING.sub("", each)]
    return [os.path.join(folder, each) for each in sorted(found, key=lambda each: not each.endswith(".index"))]


def remove(prefix: str) -> None:
    """Remove a checkpoint, the index first."""
    for path in files_of(prefix):
        tf.gfile.Remove(path)


def remove_leftovers(folder: str) -> None:
    """Remove leftovers of a killed run: temporary files, and checkpoints newer than the newest recorded one."""
    latest = find_latest(folder)
    newest = _step_in(os.path.basename(latest)) if latest else None
    for name in tf.gfile.ListDirectory(folder):
        step, path = _step_in(name), os.path.join(folder, name)
        orphaned = newest is not None and step is not None and step > newest
        if _TEMPORARY.search(name) or orphaned:
            tf.logging.info("Removing %s, left behind by a killed run.", path)
            tf.gfile.DeleteRecursively(path) if tf.gfile.IsDirectory(path) else tf.gfile.Remove(path)


def _step_in(name: str) -> Optional[int]:
    """Return the step in the name of a checkpoint's file, or None."""
    match = _OWN_FILE.match(FILE_ENDING.sub("", name))
    return int(match.group(1)) if match else None
