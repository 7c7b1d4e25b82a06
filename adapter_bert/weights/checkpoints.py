"""Reading and writing TensorFlow checkpoints: those of BERT, and those of a run."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import errors

# A run's checkpoints: what it trains, and Adam's slots, which only the newest one needs.
MODEL_NAME, OPTIMIZER_NAME = "model.ckpt", "optimizer.ckpt"
KEPT = 5
SLOTS = ("adam_m", "adam_v")
_OWN_FILE = re.compile(rf"^(?:{re.escape(MODEL_NAME)}|{re.escape(OPTIMIZER_NAME)})-(\d+)$")
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.partial$|\.tempstate\d*$|_temp_[0-9a-f]{32}$")
FILE_ENDING = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def folder_of(prefix: str) -> str:
    """The folder that a checkpoint lies in."""
    return os.path.dirname(prefix) or "."


def find_prefix(path: str) -> str:
    """The checkpoint that a user means: a prefix, one of its files, or a run's folder (its newest).

    Raises:
      errors.UserError: there is none.
    """
    prefix = FILE_ENDING.sub("", path)
    if os.path.basename(prefix).startswith(OPTIMIZER_NAME):
        raise errors.UserError(
            f"{path} holds the state of an optimizer, no weights: name the {MODEL_NAME}-… beside it, or its folder."
        )
    # Not tf.train.checkpoint_exists: it takes any file or folder for a checkpoint of the format before 2016.
    if tf.gfile.Exists(prefix + ".index"):
        return prefix
    if tf.gfile.IsDirectory(path):
        found = find_latest(path)
        if found:
            return found
        raise errors.UserError(
            "The folder {} holds no run's checkpoint: name the checkpoint itself, e.g. {}.".format(
                path, path.rstrip("/") + "/bert_model.ckpt"
            )
        )
    raise errors.UserError(f"There is no checkpoint {path}: expected {prefix}.index and its data files.")


def find_latest(folder: str) -> Optional[str]:
    """The checkpoint that a run noted as its newest; None where it noted none yet.

    Raises:
      errors.UserError: the note is damaged, or what it names is gone: the run would start again from step 0.
    """
    note = os.path.join(folder, "checkpoint")
    if not tf.gfile.Exists(note):
        return None
    try:
        state = tf.train.get_checkpoint_state(folder)
        latest = tf.train.latest_checkpoint(folder) if state else None
    except ValueError:
        state = None
    if state is None:
        raise errors.UserError(
            f"The file {note}, which names a run's newest checkpoint, is damaged: put it back, or use another folder."
        )
    if latest is None:
        raise errors.UserError(
            f"{note} names {state.model_checkpoint_path} as the run's newest checkpoint, but it cannot be found: put "
            "it back, or use another folder."
        )
    return latest


def read_shapes(prefix: str) -> Mapping[str, Tuple[int, ...]]:
    """Name -> shape of what a checkpoint holds.

    Raises:
      errors.UserError: its index cannot be read.
    """
    try:
        return {name: tuple(shape) for name, shape in tf.train.list_variables(prefix)}
    except Exception as error:  # the reader turns what it finds into a dozen kinds, IndexError among them
        raise _damaged(prefix, error) from None


def _damaged(prefix: str, error: Exception) -> errors.UserError:
    return errors.UserError(f"The checkpoint {prefix} is damaged and cannot be read: {errors.reason(error)}.")


def each_tensor(prefix: str, names: Sequence[str]) -> Iterator[Tuple[str, np.ndarray]]:
    """Yields these variables with their values, one at a time: all of a BERT need not fit into memory twice.

    Raises:
      errors.UserError: they cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in names:
            yield name, reader.get_tensor(name)
    except Exception as error:  # see read_shapes
        raise _damaged(prefix, error) from None


def read_tensors(prefix: str, names: Sequence[str]) -> Dict[str, np.ndarray]:
    """The values of these variables, see `each_tensor`."""
    return dict(each_tensor(prefix, names))


def read_step(prefix: str) -> int:
    """The training step that a checkpoint was written at; 0 if it does not say."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0
    except Exception as error:  # see read_shapes
        raise _damaged(prefix, error) from None


def write(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Write a checkpoint without a graph and without a `checkpoint` file.

    Args:
      tensors: the values by variable name; they are held in memory a second time.
      prefix: the path without the endings of the files; its folder exists.
    """
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        feeds = {name: tf.placeholder(value.dtype, value.shape) for name, value in tensors.items()}
        variables = {name: tf.get_variable(name, initializer=feed, use_resource=True) for name, feed in feeds.items()}
        saver = tf.train.Saver(variables)
        with tf.Session(graph=graph, config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            for name, value in tensors.items():
                session.run(variables[name].initializer, {feeds[name]: value})
            saver.save(session, prefix, write_meta_graph=False, write_state=False)


def optimizer_prefix(prefix: str) -> str:
    """Where the Adam slots of a run's checkpoint are, if they do not lie in it."""
    return os.path.join(folder_of(prefix), OPTIMIZER_NAME + "-" + prefix.rpartition("-")[2])


def slot_shapes(shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, Tuple[int, ...]]:
    """Name -> shape of the Adam slots of these variables."""
    return {f"{name}/{slot}": shape for name, shape in shapes.items() for slot in SLOTS}


class RunSaver(tf.train.Saver):
    """Saves what a run trains, never the frozen base.

    A checkpoint is `model.ckpt-<step>` with the trained variables and the step; the newest five are kept. Adam's
    slots, twice as large, lie in `optimizer.ckpt-<step>` beside it, for the newest only: a training goes on from there.
    The slots are written first and the note on the newest checkpoint after both, so that a kill at any point leaves a
    pair that belongs together.
    """

    def __init__(self, trained: Sequence[tf.Variable], load_frozen: Callable[[tf.Session], None]) -> None:
        """Takes the variables of the default graph, which holds the optimizer already.

        Args:
          trained: the variables that train.
          load_frozen: gives all others their values.
        """
        names = {optimization.variable_name(variable) for variable in trained}
        slots = [
            variable
            for variable in tf.global_variables()
            if optimization.variable_name(variable).rpartition("/")[0] in names
            and optimization.variable_name(variable).rpartition("/")[2] in SLOTS
        ]
        super().__init__(list(trained) + [tf.train.get_global_step()], max_to_keep=None)
        self._slot_saver = tf.train.Saver(slots, max_to_keep=None)
        self._load_frozen = load_frozen

    def save(self, sess: tf.Session, save_path: str, global_step: Any = None, **unused: Any) -> str:
        """Writes a checkpoint, notes it as the newest, and removes what is older than the newest five.

        The oldest goes first: at no time are there more than five.
        """
        folder = folder_of(save_path)
        kept = [prefix for prefix in _noted(folder) if not prefix.endswith(f"-{global_step}")]
        surplus, kept = kept[: 1 - KEPT], kept[1 - KEPT :]
        for prefix in surplus:
            remove(prefix)
        options = {"global_step": global_step, "write_meta_graph": False, "write_state": False}
        slots = self._slot_saver.save(sess, os.path.join(folder, OPTIMIZER_NAME), **options)
        saved = super().save(sess, save_path, **options)
        names = [os.path.basename(prefix) for prefix in kept + [saved]]
        if not os.path.isabs(folder):
            # TensorFlow takes names for relative to the folder only where that is absolute.
            names = [os.path.join(folder, name) for name in names]
        tf.train.update_checkpoint_state(folder, names[-1], names)
        for name in tf.gfile.ListDirectory(folder):
            if name.startswith(OPTIMIZER_NAME + "-") and FILE_ENDING.sub("", name) != os.path.basename(slots):
                tf.gfile.Remove(os.path.join(folder, name))
        return saved

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Takes up a checkpoint: its variables, its slots, and the frozen base."""
        self._load_frozen(sess)
        super().restore(sess, save_path)
        self._slot_saver.restore(sess, optimizer_prefix(save_path))


def _noted(folder: str) -> List[str]:
    """The checkpoints that a folder's note names, oldest first."""
    state = tf.train.get_checkpoint_state(folder)
    return list(state.all_model_checkpoint_paths) if state else []


def remove(prefix: str) -> None:
    """Removes a checkpoint's files, the index first: without it no file is taken for a checkpoint."""
    folder, name = folder_of(prefix), os.path.basename(prefix)
    found = [each for each in tf.gfile.ListDirectory(folder) if FILE_ENDING.sub("", each) == name != each]
    for each in sorted(found, key=lambda each: not each.endswith(".index")):
        tf.gfile.Remove(os.path.join(folder, each))


def remove_leftovers(folder: str) -> None:
    """Removes what a killed training left half-written in its folder.

    That is what has a temporary name, and checkpoints behind the one that is noted as the newest.
    """
    latest = find_latest(folder)
    newest = _step_in(os.path.basename(latest)) if latest else None
    for name in tf.gfile.ListDirectory(folder):
        step = _step_in(name)
        orphaned = newest is not None and step is not None and step > newest
        if _TEMPORARY.search(name) or orphaned:
            tf.logging.info("Removing %s, which a killed run has left.", os.path.join(folder, name))
            path = os.path.join(folder, name)
            tf.gfile.DeleteRecursively(path) if tf.gfile.IsDirectory(path) else tf.gfile.Remove(path)


def _step_in(name: str) -> Optional[int]:
    """The step in the name of a checkpoint's file; None where it is no such name."""
    match = _OWN_FILE.match(FILE_ENDING.sub("", name))
    return int(match.group(1)) if match else None
