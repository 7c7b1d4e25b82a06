"""Which variables come from which checkpoint, decided and checked before anything is built or written."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import errors
import modeling
import optimization
from training import parameters

BEST_FOLDER = "best"
FILE_ENDING = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a model's initial values come from.

    Attributes:
      prefix: the checkpoint's path, without the endings of its files.
      names: the variables that it holds for the model.
      fresh: the variables that start at random.
      step: the training step it was written at; 0 where it holds none.
    """

    prefix: str
    names: Tuple[str, ...]
    fresh: Tuple[str, ...]
    step: int


def folder_of(prefix: str) -> str:
    """The folder that a checkpoint lies in."""
    return os.path.dirname(prefix) or "."


def best_prefix(output_dir: str) -> str:
    """Where a run keeps its best weights; the step is added to it."""
    return os.path.join(output_dir, BEST_FOLDER, "model.ckpt")


def find_best(output_dir: str) -> Optional[str]:
    """The checkpoint with a run's best weights; None where the run has none."""
    return find_latest(folder_of(best_prefix(output_dir)))


def keep_best_only(output_dir: str) -> Optional[str]:
    """Removes what a kill left beside a run's best weights; returns those, as `find_best`."""
    best = find_best(output_dir)
    folder = folder_of(best_prefix(output_dir))
    if tf.gfile.IsDirectory(folder):  # TensorFlow 1.15 cannot look for files in a folder that does not exist
        for path in tf.gfile.Glob(best_prefix(output_dir) + "-*"):
            if best is None or not path.startswith(best + "."):
                tf.gfile.Remove(path)
    return best


def run_folder(prefix: str) -> str:
    """The output folder of the run that a checkpoint belongs to."""
    folder = folder_of(prefix)
    return folder_of(folder) if os.path.basename(folder) == BEST_FOLDER else folder


def find_prefix(path: str) -> str:
    """The checkpoint that a user means: a prefix, one of its files, or a run's folder (its best, or else its newest).

    Raises:
      errors.UserError: there is none.
    """
    prefix = FILE_ENDING.sub("", path)
    # Not tf.train.checkpoint_exists: it takes any file or folder for a checkpoint of the format before 2016.
    if tf.gfile.Exists(prefix + ".index"):
        return prefix
    if tf.gfile.IsDirectory(path):
        found = find_best(path) or find_latest(path)
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


def check_readable(prefix: str, names: List[str]) -> None:
    """Reads tensors once, so that a damaged data file is found before the work starts and not in the middle."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in names:
            reader.get_tensor(name)
    except Exception as error:  # the reader turns what it finds into a dozen kinds, IndexError among them
        raise _damaged(prefix, error) from None


def _damaged(prefix: str, error: Exception) -> errors.UserError:
    return errors.UserError(f"The checkpoint {prefix} is damaged and cannot be read: {errors.reason(error)}.")


def read_tensors(prefix: str, names: Sequence[str]) -> Dict[str, np.ndarray]:
    """The values of these variables.

    Raises:
      errors.UserError: they cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
        return {name: reader.get_tensor(name) for name in names}
    except Exception as error:  # see read_shapes
        raise _damaged(prefix, error) from None


def read_step(prefix: str) -> int:
    """The training step that a checkpoint was written at; 0 if it does not say."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0
    except Exception as error:  # see read_shapes
        raise _damaged(prefix, error) from None


def copy(prefix: str, target: str) -> None:
    """Copies a checkpoint beside an older one of the target's folder, notes it as the newest, removes the older one.

    Args:
      prefix: the checkpoint, its name ending in `-<step>`.
      target: the prefix to copy to, without the step.
    """
    folder = folder_of(target)
    tf.gfile.MakeDirs(folder)
    older = find_latest(folder)
    copied = target + "-" + prefix.rpartition("-")[2]
    for path in tf.gfile.Glob(prefix + ".*"):
        if not path.endswith(".meta"):
            tf.gfile.Copy(path, copied + path[len(prefix) :], overwrite=True)
    tf.train.update_checkpoint_state(folder, os.path.basename(copied))
    if older and older != copied:
        for path in tf.gfile.Glob(older + ".*"):
            tf.gfile.Remove(path)


def fingerprint(prefix: str, names: Sequence[str]) -> str:
    """A hash of names, types, shapes and values of these tensors: equal for equal weights, wherever they lie."""
    digest = hashlib.sha256()
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in sorted(names):
            tensor = reader.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            digest.update(np.ascontiguousarray(tensor))
    except Exception as error:  # see read_shapes
        raise _damaged(prefix, error) from None
    return "sha256:" + digest.hexdigest()[:16]


def base_names(shapes: parameters.Shapes) -> List[str]:
    """The variables of BERT itself: neither adapters nor head."""
    return list(_by_part(shapes)[0])


def choose_source(shapes: parameters.Shapes, path: str, for_training: bool) -> Source:
    """Decides what a checkpoint gives to a model, and refuses one that does not fit.

    BERT itself must be there in full. Adapters and head may be absent (a plain BERT) and start fresh then; a head
    of another task gives way to a fresh one in training.

    Args:
      shapes: the model's variables.
      path: what the user named, see `find_prefix`.
      for_training: whether the model is trained next; otherwise it must be usable as it is.

    Raises:
      errors.UserError: missing, damaged, foreign, or made with other adapters.
    """
    prefix = find_prefix(path)
    found = read_shapes(prefix)
    base, adapters, head = _by_part(shapes)
    misfit = modeling.describe_misfit(base, found)
    if misfit:
        raise errors.UserError(f"The checkpoint {prefix} does not fit this model: {misfit}")
    _check_adapters(prefix, adapters, found)
    layers, layers_found = optimization.count_layers(list(shapes)), optimization.count_layers(list(found))
    if layers_found > layers:
        tf.logging.warning("%s has %d encoder layers; only the lowest %d are used.", prefix, layers_found, layers)

    head_misfit = modeling.describe_misfit(head, found)
    has_head = any(name in found for name in head)
    if head_misfit and has_head:
        if not for_training:
            raise errors.UserError(f"The checkpoint {prefix} has a head of another task: {head_misfit}")
        tf.logging.warning("The head in %s belongs to another task; a fresh one is trained (%s)", prefix, head_misfit)
    if not for_training and not has_head:
        tf.logging.warning("The checkpoint %s holds no head: what is evaluated is an untrained one.", prefix)
    has_adapters = all(name in found for name in adapters)
    if not for_training and has_head and not has_adapters:
        raise errors.UserError(
            f"The checkpoint {prefix} was trained without adapters, and the model has some: use the --tuning_mode that "
            "it was trained with (full, top_layers, layer_norm or head)."
        )
    names = list(base) + (list(adapters) if has_adapters else []) + ([] if head_misfit else list(head))
    check_readable(prefix, names)
    return Source(prefix, tuple(names), tuple(name for name in shapes if name not in set(names)), read_step(prefix))


def _by_part(shapes: parameters.Shapes) -> Tuple[dict, dict, dict]:
    parts = {"adapters": {}, "head": {}, "base": {}}
    for name, shape in shapes.items():
        group = parameters.group_of(name)
        parts[group if group in parts else "base"][name] = shape
    return parts["base"], parts["adapters"], parts["head"]


def _check_adapters(prefix: str, adapters: parameters.Shapes, found: parameters.Shapes) -> None:
    """A checkpoint holds all adapters of the model, with their sizes, or none; and none that the model lacks."""
    in_checkpoint = [name for name in found if parameters.group_of(name) == "adapters"]
    surplus = [name for name in in_checkpoint if name not in adapters]
    if surplus:
        raise errors.UserError(
            f"The checkpoint {prefix} holds adapters that this model does not have ({len(surplus)} variables, e.g. "
            f"{surplus[0]}): use the --tuning_mode, --adapter_layers and --adapter_placement that it was trained with."
        )
    misfit = modeling.describe_misfit(adapters, found)
    if misfit and in_checkpoint:
        raise errors.UserError(
            f"The checkpoint {prefix} holds other adapters than this model: {misfit} Use the --adapter_size, "
            "--adapter_layers and --adapter_placement that it was trained with."
        )


def find_own(shapes: parameters.Shapes, output_dir: str, trained: Sequence[str] = ()) -> Optional[Source]:
    """The checkpoint of a run in its output folder to go on with, or None where there is none yet.

    Args:
      shapes: the model's variables.
      output_dir: the folder.
      trained: where training is to continue, the variables that train: their optimizer slots must be there too, and
        the newest checkpoint counts; otherwise the best does, if the run kept one.

    Raises:
      errors.UserError: it is damaged or belongs to another model.
    """
    prefix = None if trained else find_best(output_dir)
    prefix = prefix or find_latest(output_dir)
    if prefix is None:
        return None
    found = read_shapes(prefix)
    expected = dict(shapes)
    if trained:
        expected.update({f"{name}/{slot}": shapes[name] for name in trained for slot in ("adam_m", "adam_v")})
        expected["global_step"] = ()
    misfit = modeling.describe_misfit(expected, found)
    if misfit:
        raise errors.UserError(
            f"The output folder {output_dir} holds a run of another model ({prefix}): {misfit} Use another "
            "--output_dir, or the settings of that run."
        )
    _check_adapters(prefix, _by_part(shapes)[1], found)
    check_readable(prefix, list(found))  # the optimizer's slots too: a run that continues takes them up
    return Source(prefix, tuple(shapes), (), read_step(prefix))
