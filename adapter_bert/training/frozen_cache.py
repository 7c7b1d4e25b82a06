"""`--cache_frozen_layers`: compute the output of the layers below the first trained one once per text.

Without room for the cache, these layers are computed in every step. Either way they run without dropout, so a run has
the same result, except for the rounding of sums.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import shutil
import uuid
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors, files, locks
from adapter_bert.common.paths import is_remote
from adapter_bert.common.progress import with_progress
from adapter_bert.devices import estimators
from adapter_bert.model import parameters, tuning_modes
from adapter_bert.model.heads import ROW, Features, Head, HeadOutput
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline import batches, feature_store, frozen_states, records
from adapter_bert.pipeline.frozen_states import FrozenStates
from adapter_bert.settings.groups import Settings
from adapter_bert.training.model_fn import ModelFn
from adapter_bert.training.trainer import SplitFeatures, Trainer
from adapter_bert.weights import bases

# Part of the name of a cache. Change it whenever the same name would stand for other values.
_VERSION = 1
_BATCH_SIZE, _RECORDS_PER_READ = 32, 1000


def with_cached_layers(spec: ModelSpec, settings: Settings) -> ModelSpec:
    """Return the model in which the layers below the first trained one run without dropout, if this is requested."""
    if not (settings.do_train and settings.cache_frozen_layers):
        return spec
    depth = spec.config.num_hidden_layers
    if not spec.frozen_layers:
        raise errors.UserError(
            f"--cache_frozen_layers=true: --tuning_mode={spec.tuning_mode} trains the embeddings or the lowest layer, "
            "so there is nothing to cache. Use --tuning_mode=head or top_layers, or adapters on upper layers, e.g. "
            f"--adapter_layers={depth // 2}-{depth - 1} --adapter_freeze_below=true."
        )
    return dataclasses.replace(spec, cached_layers=spec.frozen_layers)


def provide(trainer: Trainer, features: Mapping[str, SplitFeatures]) -> Dict[str, SplitFeatures]:
    """Return the splits with the output of the frozen layers, computing it unless an earlier run has.

    If nothing is to be cached, or if there is no room for it, return the splits unchanged.
    """
    if not trainer.spec.cached_layers:
        return dict(features)
    stems = {name: _stem(trainer, split) for name, split in features.items()}
    splits = {stems[name]: split for name, split in features.items()}  # several may have the same files
    try:
        found = {stem: frozen_states.find(stem) for stem in splits}
        missing = {stem: split for stem, split in splits.items() if not found[stem]}
        problem = _lack_of_room(trainer, missing)
        if not problem:
            found.update({stem: _build(trainer, split, stem) for stem, split in missing.items()})
            return {name: _read_back(trainer.spec, split, found[stems[name]]) for name, split in features.items()}
    except OSError as error:
        problem = f"it cannot be written: {errors.reason(error)}"
    tf.logging.warning(
        "***** No cache for --cache_frozen_layers: %s. The frozen layers are computed in every step; the result is the "
        "same. *****",
        problem,
    )
    return dict(features)


def first_only(spec: ModelSpec) -> bool:
    """Return whether the rest of the network reads only the state of the first token."""
    return spec.cached_layers == spec.config.num_hidden_layers and not spec.head.reads_all_tokens


def _lower_config(spec: ModelSpec) -> modeling.BertConfig:
    config = copy.copy(spec.config)
    config.num_hidden_layers = spec.cached_layers
    return config


def _stem(trainer: Trainer, split: SplitFeatures) -> str:
    """Return the beginning of the paths of a cache, which contains a hash of everything that determines its values."""
    spec, config = trainer.spec, _lower_config(trainer.spec)
    assert trainer.initial_weights, "frozen layers have weights"
    names = [name for name in parameters.bert_shapes(config) if not tuning_modes.POOLER.search(name)]
    parts = (
        _VERSION,
        [getattr(config, name) for name in bases.ARCHITECTURE],
        trainer.initial_weights.fingerprint(names),
        first_only(spec),
        spec.precision,
        [os.path.basename(path) for path in split.record_files],  # with a hash of texts, tokenizer and max_seq_length
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
    return os.path.join(os.path.dirname(split.record_files[0]), f"{split.name}-frozen-{key}")


def _lack_of_room(trainer: Trainer, missing: Mapping[str, SplitFeatures]) -> Optional[str]:
    """Report the size of the caches to write; return why there is no room for them, or None if there is."""
    if not missing:
        return None
    spec, limit = trainer.spec, trainer.settings.frozen_cache_limit_mb
    folder = os.path.dirname(next(iter(missing)))
    if is_remote(folder):
        return f"the features are in {folder}, and only local files can be read at random"
    paths = [path for split in missing.values() for path in split.record_files]
    sequences = tokens = 0
    for _, lengths in _read(paths):
        sequences, tokens = sequences + len(lengths), tokens + int(lengths.sum())
    rows = sequences if first_only(spec) else tokens
    # The records are copied, with one number more.
    size = rows * spec.config.hidden_size * tf.as_dtype(spec.precision).size + 2 * sum(map(files.size, paths))
    free = shutil.disk_usage(folder).free
    found = f"{_megabytes(size)} for the output of the lowest {spec.cached_layers} layers, {sequences:,} sequences"
    tf.logging.info("Cache in %s: %s (free: %s, limit: %s)", folder, found, _megabytes(free), _megabytes(limit * 1e6))
    if size > limit * 1e6:
        return f"it needs {found}, more than --frozen_cache_limit_mb={limit}"
    return f"it needs {found}; {_megabytes(free)} are free in {folder}" if size > free else None


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _build(trainer: Trainer, split: SplitFeatures, stem: str) -> Optional[frozen_states.Paths]:
    """Write a cache, unless another process has written it meanwhile, and return its files."""
    with locks.held(stem + ".lock"):
        if not frozen_states.find(stem):
            states = with_progress(_compute(trainer, split), split.num_examples, "frozen layers", "sequences")
            serialized = (record for chunk, _ in _read(split.record_files) for record in chunk)
            frozen_states.write(stem, serialized, split.num_examples, states)
        return frozen_states.find(stem)


def _read_back(spec: ModelSpec, split: SplitFeatures, found: Optional[frozen_states.Paths]) -> SplitFeatures:
    assert found, "the cache was just written"
    states = FrozenStates(found.states, spec.config.hidden_size, first_only(spec), tf.as_dtype(spec.precision))
    return split._replace(record_files=tuple(found.records), states=states)


def _read(paths: Sequence[str]) -> Iterator[Tuple[List[bytes], np.ndarray]]:
    """Yield records and their numbers of tokens, in chunks."""
    with tf.Graph().as_default(), tf.Session(config=estimators.session_config()) as session:
        batch = tf.data.make_one_shot_iterator(tf.data.TFRecordDataset(paths).batch(_RECORDS_PER_READ)).get_next()
        chunk = batch, records.read_lengths(batch)
        with feature_store.damage_errors(paths):
            while True:
                try:
                    yield session.run(chunk)
                except tf.errors.OutOfRangeError:
                    return


def _compute(trainer: Trainer, split: SplitFeatures) -> Iterator[Tuple[int, np.ndarray]]:
    """Yield the position of each sequence and the output of the frozen layers for it, [tokens, D]."""
    spec, settings = trainer.spec, trainer.settings
    lower = dataclasses.replace(
        spec,
        config=_lower_config(spec),
        head=_StatesHead(first_only(spec), spec.precision),
        adapter=None,
        tuning_mode="head",
        top_layers=None,
        cached_layers=0,
    )
    # As in `Trainer.predict`: the estimator must not find a checkpoint.
    config = estimators.run_config(settings.device, trainer.folder.file(uuid.uuid4().hex), trainer.record.seed)
    model_fn = ModelFn(lower, trainer.initial_weights, device=settings.device)
    estimator = estimators.make_estimator(model_fn, settings.device, config, _BATCH_SIZE)
    input_fn = batches.scoring_input_fn(split.record_files, settings.max_seq_length, {})
    with feature_store.damage_errors(split.record_files):
        for batch in estimator.predict(input_fn=input_fn, yield_single_examples=False):
            for position, length, states in zip(batch[ROW], batch["lengths"], batch["states"]):
                yield int(position), states[:length]


@dataclasses.dataclass(frozen=True)
class _StatesHead(Head):
    """Returns the states of the last layer as its predictions."""

    kind = "states"
    label_types = {}

    first_only: bool
    precision: str  # of the states

    def shapes(self, hidden: int) -> Dict[str, Tuple[int, ...]]:
        """Return nothing: it has no variables."""
        return {}

    def build(self, model: modeling.BertModel, features: Features, is_training: bool) -> HeadOutput:
        """Return float [B, S, D] or, of first tokens only, [B, 1, D] instead of logits."""
        states = model.first_token[:, tf.newaxis] if self.first_only else model.get_sequence_output()
        return HeadOutput(None, None, tf.cast(states, self.precision))

    def predictions(self, output: HeadOutput, features: Features) -> Dict[str, tf.Tensor]:
        """Return the states, the number of tokens of each sequence, and its position."""
        lengths = tf.reduce_sum(features["input_mask"], axis=1)
        return {"states": output.logits, "lengths": lengths, ROW: features[ROW]}
