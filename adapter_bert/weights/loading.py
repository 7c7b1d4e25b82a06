"""Decide which file provides which variable, and check all files, before anything is built or written.

Weights come in layers: a checkpoint of BERT at the bottom, and above it a pack or the small checkpoint of a run, which
contain the variables that a task trained. A variable comes from the highest file that contains it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import errors
from adapter_bert.model import loss_scale, parameters
from adapter_bert.model.spec import ModelSpec
from adapter_bert.weights import checkpoints, fingerprints, packs
from adapter_bert.weights.run_folder import SETTINGS_FILE, RunFolder

EMBEDDINGS = "bert/embeddings/word_embeddings"

# Purposes for which weights are resolved.
TRAIN = "train"  # to start training, or to continue the run in the output folder
EVALUATE = "evaluate"  # to use the weights that the user requests, or those in the output folder
USE_TRAINED = "use trained"  # to use the weights after training has finished in the output folder


@dataclasses.dataclass(frozen=True)
class WeightFile:
    """A file with weights."""

    path: str  # prefix of a checkpoint, or path of a pack
    shapes: parameters.Shapes
    pack: Optional[packs.Pack] = None  # its content, if it is a pack
    _digests: Dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def open_pack(cls, path: str) -> WeightFile:
        """Open a pack."""
        pack = packs.read(path)
        return cls(path, pack.shapes(), pack)

    def __str__(self) -> str:
        return f"{'pack' if self.pack else 'checkpoint'} {self.path}"

    @property
    def is_whole(self) -> bool:
        """Whether it contains a whole BERT."""
        return EMBEDDINGS in self.shapes

    def digests(self, names: Sequence[str]) -> Dict[str, str]:
        """Return hashes of these variables; each is read and hashed once."""
        unread = [name for name in names if name not in self._digests]
        tensors = checkpoints.each_tensor(self.path, unread)
        if self.pack:
            tensors = ((name, self.pack.tensors[name]) for name in unread)
        self._digests.update((name, fingerprints.of_tensor(tensor)) for name, tensor in tensors)
        return {name: self._digests[name] for name in names}

    def step(self) -> int:
        """Return the training step it was written at; 0 if unknown."""
        return self.pack.config.step if self.pack else checkpoints.read_step(self.path)

    def run_settings(self) -> Dict[str, Any]:
        """Return the settings recorded by the run that wrote the file; empty if there are none."""
        return RunFolder(checkpoints.folder_of(self.path)).read_settings()

    def check_base(self, digests: fingerprints.Digests, base: str) -> None:
        """Check that it was trained on the weights with these hashes, which are named `base` in the error message."""
        if self.pack:
            packs.check_base(self.pack, self.path, digests, base)
        elif not self.is_whole:
            expected = self.run_settings().get("facts", {}).get("frozen")
            found = fingerprints.combine(digests, [name for name in digests if name not in self.shapes])
            if expected and found != expected:
                raise errors.UserError(
                    f"The checkpoint {self.path} belongs to another base: the frozen weights of its run had the "
                    f"fingerprint {expected}, those of {base} have {found}. Pass the run's own base as "
                    "--init_checkpoint."
                )


class Assignment(NamedTuple):
    """The variables that a model takes from one file."""

    path: str
    names: Tuple[str, ...]
    values: Optional[Mapping[str, np.ndarray]] = None  # of a pack; the graph reads those of a checkpoint


@dataclasses.dataclass(frozen=True)
class Weights:
    """Which file provides each variable of a model."""

    files: Tuple[WeightFile, ...]  # the lowest first
    assignments: Tuple[Assignment, ...]  # what is taken from each file
    fresh: Tuple[str, ...]  # variables that are initialized at random
    step: int  # training step of the highest file; 0 if unknown
    digests: Mapping[str, str]  # hashes of all variables that are not fresh

    @property
    def path(self) -> str:
        """Path of the highest file."""
        return self.files[-1].path

    @property
    def pack(self) -> Optional[packs.Pack]:
        """The highest file, if it is a pack."""
        return self.files[-1].pack

    @property
    def names(self) -> Tuple[str, ...]:
        """Names of the variables that are not fresh."""
        return tuple(name for assignment in self.assignments for name in assignment.names)

    def fingerprint(self, names: Sequence[str]) -> Optional[str]:
        """Return one hash of these variables; None if there are none, or some are fresh."""
        is_known = bool(names) and all(name in self.digests for name in names)
        return fingerprints.combine(self.digests, names) if is_known else None

    def __str__(self) -> str:
        return " + ".join(file.path for file in self.files)


@dataclasses.dataclass(frozen=True)
class WeightRequest:
    """The weights that the user requests."""

    # A whole checkpoint; or a checkpoint of a run, loaded on top of the base that the run recorded; or the folder of a
    # run: its pack, or else its newest checkpoint, on top of that base.
    init_checkpoint: Optional[str] = None
    adapter_pack: Optional[str] = None  # a pack or the folder of a run, loaded on top of `init_checkpoint`
    whole_checkpoints: bool = False  # whether the run in the output folder saves all variables in its checkpoints


def resolve(
    spec: ModelSpec,
    request: WeightRequest,
    purpose: str,
    folder: Optional[RunFolder] = None,
    base: Optional[WeightFile] = None,
) -> Optional[Weights]:
    """Decide which file provides which variable of a model.

    The run in the output folder takes precedence, unless one of its checkpoints is requested for evaluation. Errors
    say which file is missing, damaged, or belongs to another model.

    Args:
      spec: the model.
      request: the weights that the user requests.
      purpose: `TRAIN`, `EVALUATE` or `USE_TRAINED`.
      folder: the output folder; None to use the requested files alone.
      base: the lowest file of an earlier result, to avoid reading it again.

    Returns:
      The weights; None if all variables start at random.
    """
    resolver = _Resolver(spec, request, base)
    if folder is None:
        return resolver.from_request(purpose == TRAIN)
    named = request.adapter_pack or request.init_checkpoint
    names_own = named is not None and folder.contains(named)
    if purpose == EVALUATE and names_own:
        return resolver.from_request(for_training=False)
    if purpose == EVALUATE and request.adapter_pack and folder.holds_run():
        raise errors.UserError(
            f"The folder {folder.path} already contains a run: to evaluate --adapter_pack={request.adapter_pack}, use "
            "another --output_dir."
        )
    weights = resolver.from_run(folder, purpose == TRAIN, names_own)
    if weights is None and not request.init_checkpoint:
        _check_random_start(spec, purpose, folder)
        return None
    weights = weights or resolver.from_request(purpose == TRAIN)
    tf.logging.info(
        "Using %s (step %d): %d variables, and %d random", weights, weights.step, len(weights.names), len(weights.fresh)
    )
    return weights


def _check_random_start(spec: ModelSpec, purpose: str, folder: RunFolder) -> None:
    if purpose != TRAIN:
        raise errors.UserError(
            f"There is nothing to evaluate: {folder.path} contains no checkpoint, and --init_checkpoint is not set."
        )
    if spec.tuning_mode != "full":
        raise errors.UserError(
            f"--tuning_mode={spec.tuning_mode} keeps BERT frozen, and without --init_checkpoint it would be random: "
            "pass the checkpoint of a pre-trained BERT."
        )
    tf.logging.warning("No --init_checkpoint: BERT itself starts from random weights.")


class _Resolver:
    """The state of one call of `resolve`."""

    def __init__(self, spec: ModelSpec, request: WeightRequest, base: Optional[WeightFile]) -> None:
        self._spec = spec
        self._request = request
        self._base = base
        self._chain: List[str] = []  # files whose bases are being opened
        groups = {name: parameters.group_of(name) for name in spec.shapes}
        self._adapters = {name: spec.shapes[name] for name, group in groups.items() if group == "adapters"}
        self._head = {name: spec.shapes[name] for name, group in groups.items() if group == "head"}

    # ---------------------------------------------------------------------------------------- finding files

    def _open_checkpoint(self, path: str) -> WeightFile:
        """Open the checkpoint at a path, see `checkpoints.find_prefix`."""
        prefix = checkpoints.find_prefix(path)
        if self._base and self._base.path == prefix:
            return self._base
        return WeightFile(prefix, checkpoints.read_shapes(prefix))

    def _find_files(self, init_checkpoint: str, adapter_pack: Optional[str]) -> List[WeightFile]:
        """Open the files of a request, lowest first."""
        if packs.is_pack(init_checkpoint):
            raise errors.UserError(
                f"--init_checkpoint={init_checkpoint} is a safetensors file. A pack needs its base: pass the base as "
                "--init_checkpoint and the pack as --adapter_pack. Convert a Hugging Face model with "
                "scripts/convert_hf_checkpoint.py."
            )
        run = RunFolder(init_checkpoint)
        if tf.gfile.IsDirectory(init_checkpoint) and run.has_pack():
            found = self._with_base(WeightFile.open_pack(run.pack_path))
        else:
            found = self._with_base(self._open_checkpoint(init_checkpoint))
        return found + ([WeightFile.open_pack(packs.find(adapter_pack))] if adapter_pack else [])

    def _with_base(self, file: WeightFile) -> List[WeightFile]:
        """Return a file, and below it the base that its run recorded, unless it contains a whole BERT."""
        if file.is_whole:
            return [file]
        recorded = file.run_settings()
        if not recorded.get("init_checkpoint"):
            if not file.pack:
                return [file]  # not from a run; a later error lists the missing variables
            raise errors.UserError(
                f"The pack {file.path} needs its base, and no {SETTINGS_FILE} next to it names one: pass the base as "
                "--init_checkpoint and the pack as --adapter_pack."
            )
        if file.path in self._chain:
            raise errors.UserError(f"The {file} is its own base, according to the {SETTINGS_FILE} next to it.")
        self._chain.append(file.path)
        try:
            below = self._find_files(recorded["init_checkpoint"], _if_exists(recorded.get("adapter_pack")))
        except errors.UserError as error:
            raise errors.UserError(
                f"The {file} needs the base that its run started from, which its {SETTINGS_FILE} names. {error} If the "
                "base was moved, pass it as --init_checkpoint, and the run as --adapter_pack or --output_dir."
            ) from None
        return below + [file]

    # --------------------------------------------------------------------------- requested weights

    def from_request(self, for_training: bool) -> Weights:
        """Use the requested files. BERT must be complete; a plain BERT gets randomly initialized adapters and head."""
        files = self._find_files(self._request.init_checkpoint or "", self._request.adapter_pack)
        top, found = files[-1], _merged_shapes(files)
        if top.pack:
            packs.check_architecture(top.pack, top.path, self._spec.config.to_dict(), "this model")
        base = {name: self._spec.shapes[name] for name in self._spec.base_names}
        mismatch = parameters.describe_mismatch(base, found)
        if mismatch:
            raise errors.UserError(f"The {top} does not fit this model: {mismatch}")
        self._check_adapters(top, found)
        depth, used = optimization.count_layers(list(found)), self._spec.config.num_hidden_layers
        if depth > used:
            tf.logging.warning("%s has %d encoder layers; only the lowest %d are used.", files[0].path, depth, used)
        names = list(base)
        if all(name in found for name in self._adapters):
            names += self._adapters
        if self._uses_head(top, found, for_training, len(names) > len(base) or not self._adapters):
            names += self._head
        return self._assign(files, names)

    def _uses_head(self, top: WeightFile, found: parameters.Shapes, for_training: bool, has_adapters: bool) -> bool:
        """Return whether the head in the files belongs to this task; raise an error if it must but does not."""
        mismatch = parameters.describe_mismatch(self._head, found)
        if top.pack and top.pack.config.head != self._spec.head.kind:
            mismatch = f"its type is {top.pack.config.head}, this task's is {self._spec.head.kind}."
        has_head = bool(top.pack) or any(name in found for name in self._head)
        if for_training and mismatch and has_head:
            tf.logging.warning("The head in %s belongs to another task; training a new one (%s)", top.path, mismatch)
        if for_training:
            return not mismatch
        if not has_head:
            tf.logging.warning("The %s contains no head: its weights are random.", top)
        elif mismatch:
            raise errors.UserError(f"The {top} has the head of another task: {mismatch}")
        elif not has_adapters:
            raise errors.UserError(
                f"The {top} was trained without adapters, but the model has adapters: use the --tuning_mode of its "
                "training (full, top_layers, layer_norm or head)."
            )
        return not mismatch

    def _check_adapters(self, file: WeightFile, found: parameters.Shapes) -> None:
        """Check that the files contain either exactly the adapters of the model, or no adapters."""
        in_files = [name for name in found if parameters.group_of(name) == "adapters"]
        unknown = [name for name in in_files if name not in self._adapters]
        if unknown:
            raise errors.UserError(
                f"The {file} contains adapters that this model does not have ({len(unknown)} variables, e.g. "
                f"{unknown[0]}): use --tuning_mode, --adapter_placement and other --adapter_… flags of its training."
            )
        mismatch = parameters.describe_mismatch(self._adapters, found)
        if mismatch and in_files:
            raise errors.UserError(
                f"The {file} contains different adapters from this model: {mismatch} Use the --adapter_size and the "
                "other --adapter_… flags of its training."
            )

    # --------------------------------------------------------------------------- weights in the output folder

    def from_run(self, folder: RunFolder, to_continue: bool, names_own: bool) -> Optional[Weights]:
        """Use the run in the folder: its newest checkpoint to continue training, otherwise its pack if there is one."""
        file = self._find_own_file(folder, to_continue)
        if file is None:
            return None
        self._check_own(folder, file, file.shapes, self._spec.shapes if file.is_whole else self._spec.trained_shapes)
        if to_continue:
            self._check_slots(file)
        if self._request.init_checkpoint and not names_own and not file.is_whole:
            started_from = _if_exists(self._request.adapter_pack)
            files = self._find_files(self._request.init_checkpoint, started_from) + [file]
        else:
            files = self._with_base(file)
        self._check_own(folder, files[0], _merged_shapes(files), self._spec.shapes)
        return self._assign(files, list(self._spec.shapes))

    def _find_own_file(self, folder: RunFolder, to_continue: bool) -> Optional[WeightFile]:
        if not to_continue and folder.has_pack():
            return WeightFile.open_pack(folder.pack_path)
        latest = folder.latest_checkpoint()
        if latest is None and folder.has_pack():
            raise errors.UserError(
                f"The folder {folder.path} contains the pack of a run but no checkpoint, so its training cannot be "
                "continued: remove --do_train to use the pack, or use another --output_dir."
            )
        return self._open_checkpoint(latest) if latest else None

    def _check_own(
        self, folder: RunFolder, file: WeightFile, found: parameters.Shapes, expected: parameters.Shapes
    ) -> None:
        mismatch = parameters.describe_mismatch(expected, found)
        if mismatch:
            raise errors.UserError(
                f"The output folder {folder.path} contains a run of another model ({file.path}): {mismatch} Use "
                "another --output_dir, or the settings of that run."
            )
        self._check_adapters(file, found)

    def _check_slots(self, file: WeightFile) -> None:
        """Check that the state of the optimizer is complete and readable."""
        slots = checkpoints.slot_shapes(self._spec.trained_shapes)
        slots.update(loss_scale.state_shapes(self._spec.precision))
        holds_slots = all(name in file.shapes for name in slots)
        prefix = file.path if holds_slots else checkpoints.optimizer_prefix(file.path)
        if holds_slots != self._request.whole_checkpoints:
            written = "with" if holds_slots else "without"
            problem: Optional[str] = f"it was written {written} --save_full_checkpoint, or by an older version."
        elif not tf.gfile.Exists(prefix + ".index"):
            problem = f"{prefix}.*, the state of its optimizer, is missing."
        else:
            problem = parameters.describe_mismatch(slots, checkpoints.read_shapes(prefix))
            problem = problem or parameters.describe_mismatch({"global_step": ()}, file.shapes)
        if problem:
            raise errors.UserError(
                f"The training cannot continue from {file.path}: {problem} Use another --output_dir."
            )
        for _ in checkpoints.each_tensor(prefix, list(slots)):
            pass

    def _assign(self, files: Sequence[WeightFile], names: Sequence[str]) -> Weights:
        """Take each variable from the highest file that contains it.

        Reads every variable, so that damaged files and a wrong base are detected before work starts.
        """
        digests: Dict[str, str] = {}
        assignments = []
        for index, file in enumerate(files):
            higher = set().union(*(above.shapes for above in files[index + 1 :]))
            own = file.digests([name for name in names if name in file.shapes])
            file.check_base(digests, files[0].path)
            digests.update(own)
            taken = tuple(name for name in own if name not in higher)
            values = {name: file.pack.tensors[name] for name in taken} if file.pack else None
            assignments.append(Assignment(file.path, taken, values))
        fresh = tuple(name for name in self._spec.shapes if name not in digests)
        return Weights(tuple(files), tuple(assignments), fresh, files[-1].step(), digests)


def _if_exists(adapter_pack: Optional[str]) -> Optional[str]:
    """Return the pack that a run started from, unless it no longer exists.

    A run that has trained all its variables does not need it; otherwise a fingerprint check fails later.
    """
    return adapter_pack if adapter_pack and tf.gfile.Exists(adapter_pack) else None


def _merged_shapes(files: Sequence[WeightFile]) -> Dict[str, Tuple[int, ...]]:
    return {name: shape for file in files for name, shape in file.shapes.items()}
