"""Convert fine-tuned checkpoints of Google's adapter-bert and BERT (TensorFlow 1) to adapter packs, and back.

Such a checkpoint contains all of BERT, the head, the adapters if there are any, and the optimizer's slots. Names and
shapes show which adapters it has and whether its head is for SQuAD. The caller provides everything else.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from typing import List, Mapping, Optional, Sequence

import numpy as np

from adapter_bert import tasks
from adapter_bert.common import errors, files, paths
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.exchange import ImportedTask, outputs
from adapter_layers import AdapterConfig

# Standard deviation of initial weights in Google's released code; 1e-2 in the paper.
GOOGLE_INIT_SCALE = 1e-3

_ADAPTER = re.compile(r"^bert/encoder/layer_(?P<layer>\d{1,4})/(?P<attention>attention/)?output/adapters/weights1$")
_SLOT = re.compile(r"/adam_[mv]$")
# Heads of run_classifier.py and run_squad.py.
_HEAD, _SPAN_HEAD = "output_weights", "cls/squad/output_weights"


def read(prefix: str, base: bases.Base, task: ImportedTask, activation: str = "gelu") -> packs.Pack:
    """Extract a pack from a checkpoint.

    A checkpoint with adapters becomes a pack of the mode `adapter`, for the base that its frozen weights form. Without
    adapters it becomes a pack of the mode `full`, because it does not record which weights were trained.

    The base provides architecture and vocabulary. Its weights are not compared, see `packs.check_base`. Labels
    may be None only for SQuAD, as checkpoints do not contain them. Google's code has only the default activation.
    """
    prefix = checkpoints.find_prefix(prefix)
    shapes = checkpoints.read_shapes(prefix)
    head = _find_head(prefix, shapes)
    if task.labels is None and head == _HEAD:
        raise errors.UserError(
            f"The labels of '{task.name}' are not known (tasks: {', '.join(tasks.names())}), and a checkpoint does not "
            "contain them: give --labels=a,b in the order of the head's units, or --labels= for regression."
        )
    mismatch = parameters.describe_mismatch({head: [*shapes[head][:1], base.config.hidden_size]}, shapes)
    if mismatch:
        raise errors.UserError(f"The checkpoint {prefix} does not match the given architecture: {mismatch}")
    units = 0 if head == _SPAN_HEAD or (shapes[head][0] == 1 and not task.labels) else shapes[head][0]
    labels = task.choose_labels(f"head {head} in {prefix}", [f"LABEL_{number}" for number in range(units)])
    config = task.pack_config(
        base,
        _find_adapters(shapes, base.config.num_hidden_layers, activation),
        head="span" if head == _SPAN_HEAD else "classification" if labels else "regression",
        labels=labels,
        step=checkpoints.read_step(prefix),
        origin={"checkpoint": os.path.basename(prefix)},
    )
    frozen = config.frozen_names()
    _check_variables(prefix, shapes, config, frozen)
    if frozen:
        digests = fingerprints.of_tensors(checkpoints.read_tensors(prefix, frozen))
        config = dataclasses.replace(config, base=fingerprints.combine(digests))
    pack = packs.Pack(config, checkpoints.read_tensors(prefix, list(config.trained_shapes())))
    packs.check(pack, f"The checkpoint {prefix}")
    return pack


def _find_head(prefix: str, shapes: parameters.Shapes) -> str:
    """Return the name of the weights of the only head."""
    known = [name for name in (_HEAD, _SPAN_HEAD) if name in shapes]
    if len(known) == 1:
        return known[0]
    others = [name for name in shapes if name.endswith(_HEAD) or name.startswith("cls/")]
    hint = "is not fine-tuned" if not known else "does not say for which of them it was trained"
    raise errors.UserError(
        f"The checkpoint {prefix} must have one head: {_HEAD} (classification, regression) or {_SPAN_HEAD} (SQuAD); "
        f"found {errors.first_names(known or sorted(others))}. It {hint}."
    )


def _find_adapters(shapes: parameters.Shapes, num_layers: int, activation: str) -> Optional[AdapterConfig]:
    """Return the adapters in a checkpoint with these variables, or None if there are none."""
    found = [match for match in map(_ADAPTER.match, shapes) if match]
    if not found:
        return None
    layers = sorted({int(match.group("layer")) for match in found})
    places = {"attention" if match.group("attention") else "feedforward" for match in found}
    return AdapterConfig(
        size=shapes[found[0].string][-1] if shapes[found[0].string] else 0,
        activation=activation,
        init_scale=GOOGLE_INIT_SCALE,
        layers=None if layers == list(range(num_layers)) else tuple(layers),
        placement="both" if len(places) > 1 else places.pop(),
    )


def _check_variables(prefix: str, shapes: parameters.Shapes, config: packs.PackConfig, frozen: Sequence[str]) -> None:
    """Raise a `UserError` for another architecture, or if weights were trained that should be frozen."""
    model = config.spec.shapes
    mismatch = parameters.describe_mismatch(model, shapes)
    others = [name for name in shapes if name.startswith("bert/") and name not in model and not _SLOT.search(name)]
    if mismatch or others:
        raise errors.UserError(
            f"The checkpoint {prefix} does not match the given architecture: "
            + (mismatch or f"it also has the variables {errors.first_names(sorted(others))}.")
        )
    trained = [name for name in frozen if f"{name}/adam_m" in shapes]
    if trained:
        raise errors.UserError(
            f"The checkpoint {prefix} has adapters, but not only adapters, LayerNorms and head were trained. The "
            f"optimizer also has slots for {errors.first_names(trained)}, which a pack cannot contain."
        )


def export(pack: packs.Pack, base: Mapping[str, np.ndarray], prefix: str, overwrite: bool = False) -> int:
    """Write the weights of base and pack as one checkpoint, with `global_step`; return the number of variables."""
    adapter = pack.config.adapter_config
    if adapter and adapter.variant:
        raise errors.UserError(
            f"The pack of {pack.config.task} cannot be exported as a checkpoint: it has adapters with "
            f"{adapter.variant}, and Google's adapter-bert has only the default. Export it with --format=pack."
        )
    older = _check_output(prefix, overwrite)
    values = dict(base, **pack.tensors, global_step=np.array(pack.config.step, np.int64))
    folder, names = checkpoints.folder_of(prefix), [os.path.basename(path) for path in older]
    try:
        output = outputs.OutputFolder(folder, names, overwrite)
    except errors.UserError:  # there are other files, or it is the working directory
        _write_among_others(values, prefix, older)
    else:
        with output.replaced() as staging:
            checkpoints.write(values, os.path.join(staging, os.path.basename(prefix)))
    return len(values)


def _write_among_others(values: Mapping[str, np.ndarray], prefix: str, older: Sequence[str]) -> None:
    """Write a checkpoint to a folder with other files, instead of its `older` files.

    It has another number of data files than the older one, so that their names differ. Whenever the process is killed,
    the index, which is renamed in one step, belongs to complete data.
    """
    num_shards = next(n for n in itertools.count(1) if not any(path.endswith(f"-of-{n:05d}") for path in older))
    with files.user_errors(f"Cannot write {prefix}"), files.staging_folder(prefix) as staging:
        written = os.path.join(staging, os.path.basename(prefix))
        checkpoints.write(values, written, num_shards)
        _move(checkpoints.files_of(written), checkpoints.folder_of(prefix))
        for path in older:
            if not path.endswith(".index"):
                os.remove(path)


def _move(written: Sequence[str], folder: str) -> None:
    """Move the files of a checkpoint, its index first, to a folder. Only an older index may be there."""
    index, *data = [(path, os.path.join(folder, os.path.basename(path))) for path in written]
    moved = []
    try:
        for temporary, final in data:
            files.rename_noreplace(temporary, final)
            moved.append(final)
        files.rename(*index)
    except OSError as error:
        for path in moved:
            os.remove(path)
        if isinstance(error, FileExistsError):
            raise errors.UserError(f"Another process has just written {error.filename2 or error.filename}.") from None
        raise


def _check_output(prefix: str, overwrite: bool) -> List[str]:
    """Return the files of the checkpoint that an export replaces; raise a `UserError` if it may not be replaced."""
    if paths.is_remote(prefix):
        raise errors.UserError(f"--output={prefix} is not local: write to a local folder, then copy the files.")
    outputs.check_file(prefix)
    folder = os.path.realpath(checkpoints.folder_of(prefix))
    for place in (folder, os.path.dirname(folder)):
        files.remove_leftovers(place)  # of an export that was killed when the checkpoint was complete
    older = checkpoints.files_of(prefix)
    if older and not overwrite:
        raise errors.UserError(f"{older[0]} already exists; choose another --output, or add --overwrite.")
    with outputs.replaces_only("exported checkpoints"):
        for path in older:
            if path.endswith(".meta") or not os.path.isfile(path):
                raise errors.UserError(f"{path} was not exported.")
        if older and older[0].endswith(".index"):
            shapes = checkpoints.read_shapes(prefix)
            _find_head(prefix, shapes)
            if any(map(_SLOT.search, shapes)) or not {"bert/embeddings/word_embeddings", "global_step"} <= set(shapes):
                raise errors.UserError(f"The checkpoint {prefix} was written by a training.")
    return older
