"""The workflow of `run_baseline.py`: train, evaluate and apply a network without BERT, in the shared training loop."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.baselines import registry_packages, weights
from adapter_bert.baselines.features import (
    Memory,
    Reading,
    TaskWords,
    TextFeatures,
    VectorCache,
    find_words,
    label_array,
    texts_of,
)
from adapter_bert.baselines.hub_modules import TextModule
from adapter_bert.baselines.network import OTHER_WORDS, TRAINED_WORDS, WORDS, NetworkSpec, Sizes, train_op
from adapter_bert.baselines.settings import BaselineSettings
from adapter_bert.baselines.trained_module import TrainedModule
from adapter_bert.baselines.weights import BaselineFolder, BestNetwork, ModuleWeights, NetworkConfig
from adapter_bert.common import errors, files
from adapter_bert.evaluation import glue_submission
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import Scores
from adapter_bert.model.heads import HeadOutput, LabelHead
from adapter_bert.tasks.task_data import TaskData
from adapter_bert.training import classification, run_values
from adapter_bert.training.evaluator import DevSet
from adapter_bert.training.loop import TrainingLoop
from adapter_bert.training.model_fn import NO_TRAINING, ModelFn, TrainingPlan
from adapter_bert.training.run_values import Schedule
from adapter_bert.training.trainer import Trainer
from adapter_bert.weights import checkpoints, loading
from adapter_bert.weights.assigner import WeightAssigner
from adapter_bert.weights.loading import WeightRequest, Weights
from adapter_bert.weights.run_folder import RunFolder

Features = Mapping[str, tf.Tensor]
# Called with the step and the scores of each evaluation; may raise an exception to stop training.
Observer = Callable[[int, Scores], None]


@dataclasses.dataclass(frozen=True, repr=False)
class BaselineModelFn(ModelFn):
    """The `model_fn` of networks without BERT."""

    spec: Any  # a NetworkSpec

    def forward(self, features: Features, is_training: bool) -> HeadOutput:
        """Build the network for a batch."""
        return self.spec.forward(features, is_training)

    def train_step(self, features: Features) -> Tuple[tf.Tensor, tf.Operation]:
        """Build the loss and the operation that updates the weights."""
        run_values.placeholders(self.plan.schedule)  # so that the seed of the run determines dropout
        loss = self.forward(features, is_training=True).loss
        return loss, train_op(self.spec.network, loss)

    def width(self, features: Features) -> tf.Tensor:
        """Return the number of words per text in a batch, including padding."""
        return tf.shape(features[WORDS])[1]

    def make_saver(self, assigner: WeightAssigner) -> tf.train.Saver:
        """Create the saver of the trained variables and the state of both optimizers."""
        names = set(self.spec.trained_names)
        trained = [each for each in tf.global_variables() if each.op.name in names]
        return checkpoints.TrainedSaver(
            trained, lambda session: assigner.load(session, skip=names), self.spec.slot_shapes
        )


@dataclasses.dataclass
class BaselineTrainer(Trainer):
    """A network with its weights, in the output folder of a run."""

    module: Optional[ModuleWeights] = None

    def find_weights(self, purpose: str) -> Weights:
        """Return weights that this run has written."""
        assert self.module is not None
        spec: Any = self.spec
        return weights.resolve(spec, self.module, self.folder, purpose, has_random_start=False)

    def make_model_fn(self, weights: Optional[Weights], plan: TrainingPlan = NO_TRAINING) -> ModelFn:
        """Return the `model_fn` with these initial weights."""
        return BaselineModelFn(self.spec, weights, plan, self.settings.device)


@dataclasses.dataclass(frozen=True, eq=False)
class _Inputs:
    """The data of a run, and what a network reads of them."""

    data: TaskData
    module: TextModule
    words: TaskWords
    trained_module: Optional[TrainedModule]


def run(
    settings: BaselineSettings, memory: Optional[Memory] = None, observer: Observer = lambda step, scores: None
) -> Optional[EvalResults]:
    """Run the requested train, eval and predict phases; return the results of the dev split if it was evaluated.

    The settings must be validated. Runs that share a `memory` read data, module and words once.
    """
    memory = memory or Memory()
    with BaselineFolder(settings.output_dir or "") as folder:
        with files.user_errors():
            inputs = _read_inputs(settings, folder, memory)
            data = inputs.data
            settings = dataclasses.replace(settings, task_name=data.task.name)
            checked: Any = settings
            folder.check_outputs(checked, glue_submission.file_name(data.task))
            head = classification.make_head(checked, data)
            trainer = _prepare(settings, folder, inputs, head)  # the first write
            features = _make_features(settings, inputs, memory)
        score, results = classification.make_scorer(head, data.task), None
        if settings.do_train:
            dev = None
            if settings.evaluates_in_training:
                dev = DevSet(features["dev"], score, observer)
            schedule = make_schedule(settings, len(data.splits["train"]))
            TrainingLoop(trainer, schedule, features["train"], dev).run()
        for split, rows in trainer.predict([features[name] for name in ("dev", "test") if name in features]):
            if split == "dev":
                results = classification.evaluate(checked, trainer, data, head, rows)
            else:
                classification.write_predictions(checked, folder, data, head, rows)
                if data.task.scores_test:
                    results = classification.evaluate_test(trainer, data, score(rows), rows, results)
    return results


def make_schedule(settings: BaselineSettings, num_examples: int) -> Schedule:
    """Return the number of steps; both towers have constant learning rates."""
    samples = settings.num_train_samples or num_examples * settings.num_train_epochs
    steps = int(samples / settings.train_batch_size)
    if steps < 1:
        raise errors.UserError(
            f"{samples:g} training samples in batches of {settings.train_batch_size} give less than one step: lower "
            "--train_batch_size, or raise --num_train_samples or --num_train_epochs."
        )
    return Schedule(settings.deep_learning_rate, steps, 0, num_examples)


def _read_inputs(settings: BaselineSettings, folder: RunFolder, memory: Memory) -> _Inputs:
    checked: Any = settings
    requested = (settings.do_train, settings.do_eval, settings.do_predict)
    sources = (settings.task_name, settings.data_dir, settings.custom_data, requested, settings.primary_metric)
    # Custom data may be changed by the labels of the run in the output folder.
    key = None if settings.has_custom_data else ("data", repr(sources))
    data = memory.get(key, lambda: classification.load_data(checked)) if key else classification.load_data(checked)
    handle = settings.hub_module or ""
    module = memory.get(("module", handle), lambda: registry_packages.open_module(handle))
    reading = Reading(settings.lowercase_text, settings.remove_non_alphanumeric, settings.max_seq_length)
    known = None
    if not settings.do_train and folder.has_pack():
        known = weights.read_config(folder.pack_path).train_words
    elif not settings.do_train:
        raise errors.UserError(f"There is nothing to evaluate: {folder.path} contains no trained network.")
    name = ("words", repr(sorted(data.split_fingerprints.items())), reading, known and tuple(known))
    words = memory.get(name, lambda: find_words(data, reading, known))
    trained = None
    if settings.fine_tune_module and not settings.use_convolution and not module.is_word_module:
        trained = memory.get(("trained", module.fingerprint), lambda: TrainedModule(module))
    return _Inputs(data, module, words, trained)


def _vector_cache(settings: BaselineSettings, module: TextModule) -> VectorCache:
    return VectorCache(files.writable_folder(*settings.feature_folders), module)


def _prepare(settings: BaselineSettings, folder: RunFolder, inputs: _Inputs, head: LabelHead) -> BaselineTrainer:
    """Check the run, and claim its folder, which is the first write."""
    words, module = inputs.words, inputs.module
    untyped: Any = settings
    sizes = Sizes(len(words.train_words), len(words.other_words), module.width)
    spec = NetworkSpec(settings.network, head, sizes, inputs.trained_module)
    record = folder.check_same_run(untyped, inputs.data.fingerprints())
    purpose = loading.TRAIN if settings.do_train else loading.EVALUATE
    values: Dict[str, Any] = dict(inputs.trained_module.values) if inputs.trained_module else {}
    if TRAINED_WORDS in spec.shapes:
        vectors = _vector_cache(settings, module)
        for name, known in ((TRAINED_WORDS, words.train_words), (OTHER_WORDS, words.other_words)):
            values[name] = vectors.of_words(known) if known else np.zeros(spec.shapes[name], np.float32)
    own = ModuleWeights(module.name, module.fingerprint, values)
    initial = weights.resolve(spec, own, folder, purpose, settings.allow_untrained_head)
    record = folder.claim(record, {"module": module.fingerprint, "base": module.fingerprint})
    config = NetworkConfig(
        settings.task_name or "",
        list(record.fingerprints.get("labels", ())),
        words.train_words,
        module.fingerprint,
        seed=record.seed,
        settings=dataclasses.asdict(settings.network),
    )
    network: Any = spec
    best = BestNetwork(folder, config, spec.trained_names)
    return BaselineTrainer(network, folder, record, WeightRequest(), initial, best, module=own)


def _make_features(settings: BaselineSettings, inputs: _Inputs, memory: Memory) -> Dict[str, Any]:
    """Return the features of each split."""
    data, words = inputs.data, inputs.words
    sizes = {"train": settings.train_batch_size, "dev": settings.eval_batch_size, "test": settings.predict_batch_size}
    reading = Reading(settings.lowercase_text, settings.remove_non_alphanumeric, settings.max_seq_length)
    uses_vectors = not (settings.use_convolution or settings.fine_tune_module)
    found = {}
    for split, examples in data.splits.items():
        if split == "train" and not settings.do_train:
            continue
        texts: Optional[List[str]] = None
        vectors = None
        if uses_vectors or inputs.trained_module:
            texts = texts_of(examples, reading)
        if uses_vectors:
            vectors = _text_vectors(settings, inputs, split, texts or [])
        encode = inputs.trained_module.encode if inputs.trained_module else None
        labels = label_array(examples, data.task.labels)
        found[split] = TextFeatures(split, sizes[split], words.splits[split], labels, vectors, texts, encode)
    return found


def _text_vectors(settings: BaselineSettings, inputs: _Inputs, split: str, texts: Sequence[str]) -> Any:
    """Return the vectors of the texts of a split. A word module reads words that are separated by spaces."""
    cache, words = _vector_cache(settings, inputs.module), inputs.words
    if not inputs.module.is_word_module:
        return cache.of_texts(texts)
    names = [*words.train_words, *words.other_words]
    ids, starts = words.splits[split]
    spaced = [" ".join(names[number - 1] for number in ids[start:end]) for start, end in zip(starts, starts[1:])]
    return cache.of_texts(spaced)
