"""Which variables come from which file, decided and checked before anything is built or written.

Weights come in layers: a checkpoint of BERT at the bottom, and on top of it a pack or the small checkpoint of a run,
which hold what a task has trained. What a higher layer holds counts.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.common import errors
from adapter_bert.model import parameters
from adapter_bert.weights import checkpoints, fingerprints, packs, record

EMBEDDINGS = "bert/embeddings/word_embeddings"


@dataclasses.dataclass(frozen=True)
class Layer:
    """One file with weights.

    Attributes:
      path: the prefix of a checkpoint, or a pack.
      shapes: what it holds.
      pack: its content, where it is a pack.
      frozen: the fingerprint of what it was trained on, where that is noted beside a checkpoint. A pack has its own.
    """

    path: str
    shapes: parameters.Shapes
    pack: Optional[packs.Pack] = None
    frozen: Optional[str] = None

    @property
    def kind(self) -> str:
        """What to call it."""
        return "pack" if self.pack else "checkpoint"

    def digests(self, names: Sequence[str]) -> Dict[str, str]:
        """Hashes of these variables, all of which are read for it."""
        each = checkpoints.each_tensor(self.path, names)
        if self.pack:
            each = ((name, self.pack.tensors[name]) for name in names)
        return {name: fingerprints.of_tensor(tensor) for name, tensor in each}

    def step(self) -> int:
        """The training step that it was written at; 0 where it does not say."""
        return self.pack.config.step if self.pack else checkpoints.read_step(self.path)

    def check_below(self, digests: fingerprints.Digests, base: str) -> None:
        """Refuses other weights below this layer than those that it was trained on.

        Args:
          digests: hashes of the variables of the layers below.
          base: what to call those.
        """
        if self.pack:
            packs.check_base(self.pack, self.path, digests, base)
        elif self.frozen:
            found = fingerprints.combine(digests, [name for name in digests if name not in self.shapes])
            if found != self.frozen:
                raise errors.UserError(
                    f"The checkpoint {self.path} belongs to another base: the frozen weights of its run had the "
                    f"fingerprint {self.frozen}, those of {base} have {found}. Give the run's own base by "
                    "--init_checkpoint."
                )


@dataclasses.dataclass(frozen=True)
class Part:
    """The variables that a model takes from one layer.

    Attributes:
      path: of the layer.
      names: the variables.
      values: theirs, where the layer is a pack; a checkpoint's are read by the graph.
    """

    path: str
    names: Tuple[str, ...]
    values: Optional[Mapping[str, np.ndarray]] = None


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a model's initial values come from.

    Attributes:
      parts: files and what is taken from them, the lowest layer first.
      fresh: the variables that start at random.
      step: the training step of the topmost layer; 0 where it holds none.
      digests: hashes of all variables that are not fresh.
      pack: the topmost layer, where it is a pack.
    """

    parts: Tuple[Part, ...]
    fresh: Tuple[str, ...]
    step: int
    digests: Mapping[str, str]
    pack: Optional[packs.Pack] = None

    @property
    def path(self) -> str:
        """The topmost file."""
        return self.parts[-1].path

    @property
    def names(self) -> Tuple[str, ...]:
        """The variables that are not fresh."""
        return tuple(name for part in self.parts for name in part.names)

    def __str__(self) -> str:
        return " + ".join(part.path for part in self.parts)


def checkpoint_layer(path: str) -> Layer:
    """A checkpoint as a layer; `path` is what a user calls it, see `checkpoints.find_prefix`."""
    prefix = checkpoints.find_prefix(path)
    shapes = checkpoints.read_shapes(prefix)
    frozen = None
    if EMBEDDINGS not in shapes:
        frozen = record.read(checkpoints.folder_of(prefix)).get("facts", {}).get("frozen")
    return Layer(prefix, shapes, frozen=frozen)


def pack_layer(path: str) -> Layer:
    """A pack as a layer; `path` is what a user calls it, see `packs.find`."""
    path = packs.find(path)
    pack = packs.read(path)
    return Layer(path, pack.shapes(), pack)


def find_layers(init_checkpoint: str, adapter_pack: Optional[str] = None) -> List[Layer]:
    """The layers that a user means.

    Args:
      init_checkpoint: a whole checkpoint; one of a run, which brings the base that the run noted; or a run's folder,
        which means its pack (or else its newest checkpoint) on that base.
      adapter_pack: a pack, or a run's folder, to be put on top.

    Raises:
      errors.UserError: something is missing or damaged.
    """
    if packs.is_pack(init_checkpoint):
        raise errors.UserError(
            f"--init_checkpoint={init_checkpoint} is a safetensors file. A pack needs its base: give that by "
            "--init_checkpoint, and the pack by --adapter_pack. A Hugging Face model is converted by "
            "scripts/convert_hf_checkpoint.py."
        )
    inside = os.path.join(init_checkpoint, packs.FILE_NAME)
    if tf.gfile.IsDirectory(init_checkpoint) and tf.gfile.Exists(inside):
        layers = _with_base(pack_layer(inside))
    else:
        layers = _with_base(checkpoint_layer(init_checkpoint))
    return layers + ([pack_layer(adapter_pack)] if adapter_pack else [])


def _with_base(layer: Layer) -> List[Layer]:
    """A layer, and below it what its run noted as its base, unless it holds a whole BERT itself."""
    if EMBEDDINGS in layer.shapes:
        return [layer]
    folder = checkpoints.folder_of(layer.path)
    noted = record.read(folder)
    if not noted.get("init_checkpoint") and not layer.pack:
        return [layer]  # a foreign one, to be told by what it lacks
    if not noted.get("init_checkpoint"):
        raise errors.UserError(
            f"The pack {layer.path} needs its base, and there is no {record.SETTINGS_FILE} beside it that would name "
            "it: give the base by --init_checkpoint, and the pack by --adapter_pack."
        )
    try:
        below = find_layers(noted["init_checkpoint"], _if_there(noted.get("adapter_pack")))
    except errors.UserError as error:
        raise errors.UserError(
            f"The {layer.kind} {layer.path} needs the base that its run began with, which its "
            f"{record.SETTINGS_FILE} names. {error} If it was moved, give the base by --init_checkpoint, and the run "
            "by --adapter_pack or --output_dir."
        ) from None
    return below + [layer]


def _if_there(adapter_pack: Optional[str]) -> Optional[str]:
    """A pack that a run began with, unless it is gone.

    Where all of it was trained on, the run does not need it; where not, fingerprints tell.
    """
    return adapter_pack if adapter_pack and tf.gfile.Exists(adapter_pack) else None


def choose_source(
    shapes: parameters.Shapes,
    init_checkpoint: str,
    for_training: bool,
    adapter_pack: Optional[str] = None,
    head_kind: str = "classification",
    config: Optional[modeling.BertConfig] = None,
) -> Source:
    """Decides what files give to a model, and refuses those that do not fit.

    BERT itself must be there in full. Adapters and head may be absent (a plain BERT) and start fresh then; a head
    of another task gives way to a fresh one in training.

    Args:
      shapes: the model's variables.
      init_checkpoint, adapter_pack: what the user named, see `find_layers`.
      for_training: whether the model is trained next; otherwise it must be usable as it is.
      head_kind: the model's head, see `heads.TYPES`.
      config: the model's architecture, which a pack must have been trained with.

    Raises:
      errors.UserError: missing, damaged, foreign, or made with other adapters.
    """
    layers = find_layers(init_checkpoint, adapter_pack)
    top, found = layers[-1], _merged(layers)
    base, adapters, head = _by_part(shapes)
    where = f"The {top.kind} {top.path}"
    if top.pack and config:
        packs.check_architecture(top.pack, top.path, config.to_dict(), "this model")
    misfit = modeling.describe_mismatch(base, found)
    if misfit:
        raise errors.UserError(f"{where} does not fit this model: {misfit}")
    _check_adapters(where, adapters, found)
    depth, depth_found = optimization.count_layers(list(shapes)), optimization.count_layers(list(found))
    if depth_found > depth:
        tf.logging.warning("%s has %d encoder layers; only the lowest %d are used.", layers[0].path, depth_found, depth)

    head_misfit = modeling.describe_mismatch(head, found)
    if top.pack and top.pack.config.head != head_kind:
        head_misfit = f"its type is {top.pack.config.head}, this task's is {head_kind}."
    has_head = any(name in found for name in head) or bool(top.pack)
    if head_misfit and has_head:
        if not for_training:
            raise errors.UserError(f"{where} has a head of another task: {head_misfit}")
        tf.logging.warning("The head in %s belongs to another task; a fresh one is trained (%s)", top.path, head_misfit)
    if not for_training and not has_head:
        tf.logging.warning("%s holds no head: what is evaluated is an untrained one.", where)
    has_adapters = all(name in found for name in adapters)
    if not for_training and has_head and not has_adapters:
        raise errors.UserError(
            f"{where} was trained without adapters, and the model has some: use the --tuning_mode that it was trained "
            "with (full, top_layers, layer_norm or head)."
        )
    names = list(base) + (list(adapters) if has_adapters else []) + ([] if head_misfit else list(head))
    return _assemble(layers, names, shapes)


def _merged(layers: Sequence[Layer]) -> Dict[str, Tuple[int, ...]]:
    found: Dict[str, Tuple[int, ...]] = {}
    for layer in layers:
        found.update(layer.shapes)
    return found


def _assemble(layers: Sequence[Layer], names: Sequence[str], shapes: parameters.Shapes) -> Source:
    """Takes each variable from the topmost layer that has it; reads all of them once.

    So a damaged data file is found before the work starts and not in the middle, and a pack on the wrong base too.
    """
    digests: Dict[str, str] = {}
    parts = []
    for index, layer in enumerate(layers):
        higher = set().union(*(above.shapes for above in layers[index + 1 :]))
        own = layer.digests([name for name in names if name in layer.shapes])
        layer.check_below(digests, layers[0].path)
        digests.update(own)
        taken = tuple(name for name in own if name not in higher)
        values = {name: layer.pack.tensors[name] for name in taken} if layer.pack else None
        parts.append(Part(layer.path, taken, values))
    fresh = tuple(name for name in shapes if name not in digests)
    return Source(tuple(parts), fresh, layers[-1].step(), digests, layers[-1].pack)


def _by_part(shapes: parameters.Shapes) -> Tuple[dict, dict, dict]:
    parts: Dict[str, Dict[str, Any]] = {"adapters": {}, "head": {}, "base": {}}
    for name, shape in shapes.items():
        group = parameters.group_of(name)
        parts[group if group in parts else "base"][name] = shape
    return parts["base"], parts["adapters"], parts["head"]


def base_names(shapes: parameters.Shapes) -> List[str]:
    """The variables of BERT itself: neither adapters nor head."""
    return list(_by_part(shapes)[0])


def _check_adapters(where: str, adapters: parameters.Shapes, found: parameters.Shapes) -> None:
    """Files hold all adapters of the model, with their sizes, or none; and none that the model lacks."""
    in_files = [name for name in found if parameters.group_of(name) == "adapters"]
    surplus = [name for name in in_files if name not in adapters]
    if surplus:
        raise errors.UserError(
            f"{where} holds adapters that this model does not have ({len(surplus)} variables, e.g. {surplus[0]}): use "
            "the --tuning_mode, --adapter_layers and --adapter_placement that it was trained with."
        )
    misfit = modeling.describe_mismatch(adapters, found)
    if misfit and in_files:
        raise errors.UserError(
            f"{where} holds other adapters than this model: {misfit} Use the --adapter_size, --adapter_layers and "
            "--adapter_placement that it was trained with."
        )


@dataclasses.dataclass(frozen=True)
class OwnRun:
    """The run of an output folder, as it is looked for there.

    Attributes:
      output_dir: the folder.
      shapes: the model's variables.
      trained: those that train.
      init_checkpoint, adapter_pack: what the run began with; by default what it noted.
      whole: whether its checkpoints are of the original kind.
    """

    output_dir: str
    shapes: parameters.Shapes
    trained: Sequence[str]
    init_checkpoint: Optional[str] = None
    adapter_pack: Optional[str] = None
    whole: bool = False

    def find(self, to_continue: bool) -> Optional[Source]:
        """The weights to go on with, or to evaluate; None where there are none yet.

        Args:
          to_continue: whether training goes on, from the newest checkpoint and its optimizer slots; otherwise the
            run's pack counts, if it has one.

        Raises:
          errors.UserError: they are damaged or belong to another model.
        """
        layer = self._find_layer(to_continue)
        if layer is None:
            return None
        self._check_fits(layer, self.shapes if EMBEDDINGS in layer.shapes else self._trained_shapes())
        if to_continue:
            self._check_slots(layer)
        if self.init_checkpoint and EMBEDDINGS not in layer.shapes:
            layers = find_layers(self.init_checkpoint, _if_there(self.adapter_pack)) + [layer]
        else:
            layers = _with_base(layer)
        self._check_fits(Layer(str(layers[0].path), _merged(layers)), self.shapes)
        return _assemble(layers, list(self.shapes), self.shapes)

    def _find_layer(self, to_continue: bool) -> Optional[Layer]:
        pack = os.path.join(self.output_dir, packs.FILE_NAME)
        if not to_continue and tf.gfile.Exists(pack):
            return pack_layer(pack)
        latest = checkpoints.find_latest(self.output_dir)
        if latest is None and tf.gfile.Exists(pack):
            raise errors.UserError(
                f"The folder {self.output_dir} holds the pack of a run and none of its checkpoints, so that its "
                "training cannot go on: leave --do_train away to use the pack, or use another --output_dir."
            )
        return checkpoint_layer(latest) if latest else None

    def _trained_shapes(self) -> Dict[str, Tuple[int, ...]]:
        return {name: self.shapes[name] for name in self.trained}

    def _check_fits(self, layer: Layer, expected: parameters.Shapes) -> None:
        misfit = modeling.describe_mismatch(expected, layer.shapes)
        if misfit:
            raise errors.UserError(
                f"The output folder {self.output_dir} holds a run of another model ({layer.path}): {misfit} Use "
                "another --output_dir, or the settings of that run."
            )
        _check_adapters(f"The {layer.kind} {layer.path}", _by_part(self.shapes)[1], layer.shapes)

    def _check_slots(self, layer: Layer) -> None:
        """What a training takes up must be there, and readable."""
        slots = checkpoints.slot_shapes(self._trained_shapes())
        prefix = layer.path
        holds_slots = all(name in layer.shapes for name in slots)
        if holds_slots != self.whole:
            raise errors.UserError(
                f"The training cannot go on from {layer.path}, which was written "
                f"{'with' if holds_slots else 'without'} --save_full_checkpoint, or by an older version: use another "
                "--output_dir."
            )
        if not holds_slots:
            prefix = checkpoints.optimizer_prefix(layer.path)
            if not tf.gfile.Exists(prefix + ".index"):
                raise errors.UserError(
                    f"The training cannot go on from {layer.path}: {prefix}.*, with the state of its optimizer, is "
                    "missing. Put it back, or use another --output_dir."
                )
        misfit = modeling.describe_mismatch(slots, checkpoints.read_shapes(prefix)) or (
            modeling.describe_mismatch({"global_step": ()}, layer.shapes)
        )
        if misfit:
            raise errors.UserError(f"The training cannot go on from {prefix}: {misfit} Use another --output_dir.")
        for _ in checkpoints.each_tensor(prefix, list(slots)):
            pass
