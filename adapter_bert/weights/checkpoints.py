"""Read and write TensorFlow checkpoints of BERT and of runs."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import checkpoint_index, errors, files, paths
from adapter_bert.model import loss_scale, tuning_modes

# Checkpoints of a run: the trained variables, and Adam's slots, which are kept only for the newest checkpoint.
MODEL_NAME, OPTIMIZER_NAME = "model.ckpt", "optimizer.ckpt"
KEPT = 5
SLOTS = ("adam_m", "adam_v")
# The file that names the checkpoints of a folder. TensorFlow reads it too.
STATE_FILE = "checkpoint"
_OWN_NAME = re.compile(rf"(?P<kind>{re.escape(MODEL_NAME)}|{re.escape(OPTIMIZER_NAME)})-(?P<step>\d{{1,18}})")
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

    A damaged file and a missing checkpoint are errors: the run would restart from step 0. The file may contain complete
    paths. Only their base names count, so a folder can be moved, and nothing outside it is touched.
    """
    state_file = os.path.join(folder, STATE_FILE)
    if not tf.gfile.Exists(state_file):
        return None
    recorded = _recorded_names(folder)
    if not recorded:
        raise errors.UserError(
            f"The file {state_file}, which names the newest checkpoint, is damaged: restore it, or use another folder."
        )
    latest = os.path.join(folder, recorded[-1])
    if not tf.gfile.Exists(latest + ".index"):
        raise errors.UserError(
            f"{state_file} names {recorded[-1]} as the newest checkpoint, but {latest}.index does not exist: restore "
            "it, or use another folder."
        )
    return latest


def _recorded_names(folder: str) -> List[str]:
    """Return the base names of the recorded checkpoints, the newest last; nothing if there are none."""
    state_file = os.path.join(folder, STATE_FILE)
    if tf.gfile.Exists(state_file):
        files.check_regular_file(state_file)
    try:
        state = tf.train.get_checkpoint_state(folder)
    except (ValueError, tf.errors.OpError):
        state = None
    if state is None:
        return []
    names = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    newest = os.path.basename(state.model_checkpoint_path)
    return [name for name in names if name not in ("", newest)] + [newest] if newest else []


def _record(folder: str, names: Sequence[str]) -> None:
    """Write the file `checkpoint`, the newest name last."""
    # The root as folder keeps the names as they are.
    state = tf.train.generate_checkpoint_state_proto("/", names[-1], list(names))
    files.write_text(os.path.join(folder, STATE_FILE), str(state))


def read_shapes(prefix: str) -> Mapping[str, Tuple[int, ...]]:
    """Return name -> shape of all numeric variables in a checkpoint, sorted by name."""
    return checkpoint_index.read_shapes(prefix)


def each_tensor(prefix: str, names: Sequence[str]) -> Iterator[Tuple[str, np.ndarray]]:
    """Yield (name, value) of these variables one at a time, so that a BERT need not fit into memory twice."""
    missing = set(names) - set(read_shapes(prefix))
    if missing:
        raise errors.UserError(f"The checkpoint {prefix} lacks the variables {errors.first_names(sorted(missing))}.")
    try:
        reader = tf.train.NewCheckpointReader(prefix)
        for name in names:
            yield name, reader.get_tensor(name)
    except Exception as error:  # the reader raises many types, including IndexError
        message = f"The checkpoint {prefix} is damaged and cannot be read: {errors.reason(error)}."
        raise errors.UserError(message) from None


def read_tensors(prefix: str, names: Sequence[str]) -> Dict[str, np.ndarray]:
    """Return the values of these variables."""
    return dict(each_tensor(prefix, names))


def read_step(prefix: str) -> int:
    """Return the training step of a checkpoint; 0 if it does not contain one."""
    is_recorded = read_shapes(prefix).get("global_step") == ()
    return int(read_tensors(prefix, ["global_step"])["global_step"]) if is_recorded else 0


def write(tensors: Mapping[str, np.ndarray], prefix: str, num_shards: int = 1) -> None:
    """Write a checkpoint without a graph and without a `checkpoint` file. Copies the tensors in memory.

    `num_shards` is the number of data files, each with a part of the tensors.
    """
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        feeds = {name: tf.placeholder(value.dtype, value.shape) for name, value in tensors.items()}
        variables = {name: tf.get_variable(name, initializer=feed, use_resource=True) for name, feed in feeds.items()}
        parts = [f"{prefix}.{number}" for number in range(num_shards)]
        savers = [tf.train.Saver(dict(list(variables.items())[number::num_shards])) for number in range(num_shards)]
        with tf.Session(graph=graph, config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            for name, value in tensors.items():
                session.run(variables[name].initializer, {feeds[name]: value})
            for part, saver in zip(parts, savers):
                saver.save(session, part, write_meta_graph=False, write_state=False)
            options = {"destination_prefix": prefix, "delete_old_dirs": False}
            session.run(tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, **options))


def optimizer_prefix(prefix: str) -> str:
    """Return the prefix of the separate file with the Adam slots of a run's checkpoint."""
    return os.path.join(folder_of(prefix), OPTIMIZER_NAME + "-" + prefix.rpartition("-")[2])


def slot_shapes(shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, Tuple[int, ...]]:
    """Return name -> shape of the Adam slots of these variables; moving statistics have none."""
    optimized = {name: shape for name, shape in shapes.items() if not tuning_modes.STATISTICS.search(name)}
    return {f"{name}/{slot}": shape for name, shape in optimized.items() for slot in SLOTS}


class RunSaver(tf.train.Saver):
    """Saves the checkpoints of a run, `model.ckpt-<step>`, and keeps the newest five.

    A kill at any time leaves the old state or the new one. Only files with this name in the run's folder are removed.
    """

    writes_graph = True

    def __init__(self, variables: Optional[Sequence[tf.Variable]] = None) -> None:
        """Create a saver of these variables, or of all variables of the default graph."""
        super().__init__(variables, max_to_keep=None)

    def save(self, sess: tf.Session, save_path: str, global_step: Any = None, **unused: Any) -> str:
        """Write a checkpoint, record it as the newest, and keep the newest five.

        The oldest is removed first, so that there are never more than five.
        """
        folder, saved = folder_of(save_path), f"{save_path}-{global_step}"
        recorded = [name for name in _recorded_names(folder) if _step_in(name, MODEL_NAME) not in (None, global_step)]
        surplus, kept = recorded[: 1 - KEPT], recorded[1 - KEPT :]
        for name in surplus:
            remove(os.path.join(folder, name))
        self._write(sess, saved)
        _record(folder, [*kept, os.path.basename(saved)])
        return saved

    def _write(self, session: tf.Session, prefix: str) -> None:
        _write_atomically(super().save, session, prefix, self.writes_graph)


class TrainedSaver(RunSaver):
    """Saves the trained variables of a run and its step, never the frozen base.

    Adam's slots, twice as large, are in `optimizer.ckpt-<step>`. They are kept only for the newest checkpoint, from
    which training resumes. They are written first and the state file last.
    """

    writes_graph = False

    def __init__(
        self,
        trained: Sequence[tf.Variable],
        load_frozen: Callable[[tf.Session], None],
        slot_names: Optional[Collection[str]] = None,
    ) -> None:
        """Create a saver for the default graph with its optimizer; `load_frozen` loads all other variables.

        `slot_names` are the variables of the optimizer, by default Adam's.
        """
        names = set(slot_names or slot_shapes({optimization.variable_name(variable): () for variable in trained}))
        names.update(loss_scale.NAMES)
        slots = [variable for variable in tf.global_variables() if optimization.variable_name(variable) in names]
        super().__init__(list(trained) + [tf.train.get_global_step()])
        self._slot_saver = tf.train.Saver(slots, max_to_keep=None)
        self._load_frozen = load_frozen

    def save(self, sess: tf.Session, save_path: str, global_step: Any = None, **unused: Any) -> str:
        """As in the base class; remove the slots of older checkpoints."""
        saved = super().save(sess, save_path, global_step)
        for prefix in own_prefixes(folder_of(saved), OPTIMIZER_NAME):
            if prefix != optimizer_prefix(saved):
                remove(prefix)
        return saved

    def _write(self, session: tf.Session, prefix: str) -> None:
        _write_atomically(self._slot_saver.save, session, optimizer_prefix(prefix), self.writes_graph)
        super()._write(session, prefix)

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restore a checkpoint: its variables, its slots, and the frozen base."""
        self._load_frozen(sess)
        super().restore(sess, save_path)
        self._slot_saver.restore(sess, optimizer_prefix(save_path))


def _write_atomically(save: Callable[..., str], session: tf.Session, prefix: str, write_graph: bool) -> None:
    """Write a checkpoint with a saver's `save`: under a temporary name, then rename its files, the index last."""
    options = {"write_meta_graph": write_graph, "write_state": False}
    if paths.is_remote(prefix):
        save(session, prefix, **options)
        return
    with files.temporary_path(prefix) as temporary:
        save(session, temporary, **options)
        for path in reversed(files_of(temporary)):
            files.rename(path, os.path.join(folder_of(prefix), os.path.basename(path)))


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


def own_prefixes(folder: str, name: str) -> List[str]:
    """Return the prefixes `<name>-<step>` of which a folder contains a file."""
    found = {FILE_ENDING.sub("", each) for each in tf.gfile.ListDirectory(folder)}
    return [os.path.join(folder, each) for each in sorted(found) if _step_in(each, name) is not None]


def remove_all(folder: str) -> None:
    """Remove the checkpoints of a run, starting with the file that names the newest one."""
    if tf.gfile.Exists(os.path.join(folder, STATE_FILE)):
        tf.gfile.Remove(os.path.join(folder, STATE_FILE))
    for name in (OPTIMIZER_NAME, MODEL_NAME):
        for prefix in own_prefixes(folder, name):
            remove(prefix)


def remove_leftovers(folder: str) -> None:
    """Clean up after a killed run: temporary files, and checkpoints that were written but not recorded.

    Such a checkpoint comes with `optimizer.ckpt-<step>`, a name that only this project uses. Also remove paths outside
    the folder from the file `checkpoint`, so that TensorFlow does not follow them.
    """
    files.remove_leftovers(folder)
    latest = find_latest(folder)
    if latest is None:
        return
    recorded = _recorded_names(folder)
    for prefix in own_prefixes(folder, OPTIMIZER_NAME):
        model = os.path.join(folder, f"{MODEL_NAME}-{prefix.rpartition('-')[2]}")
        if prefix != optimizer_prefix(latest):
            tf.logging.info("Removing %s, left behind by a killed run.", prefix)
            if os.path.basename(model) not in recorded:
                remove(model)
            remove(prefix)
    _record(folder, recorded)


def _step_in(name: str, kind: str) -> Optional[int]:
    """Return the step in the name of a checkpoint of this kind, or None."""
    match = _OWN_NAME.fullmatch(name)
    return int(match["step"]) if match and match["kind"] == kind else None
