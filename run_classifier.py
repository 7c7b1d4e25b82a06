r"""Trains, evaluates and applies BERT with adapters: classification and regression, by the flags of the original.

    python run_classifier.py --task_name=CoLA --do_train=true --do_eval=true --data_dir=glue_data/CoLA \
      --vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json --init_checkpoint=$BERT/bert_model.ckpt \
      --learning_rate=3e-4 --num_train_epochs=5 --output_dir=runs/cola

Custom data: --train_file=reviews.csv --text_column=review --label_column=stars (docs/custom_data.md).
"""

from __future__ import annotations

import dataclasses
import functools
import os

from adapter_bert.common import system

system.configure_tensorflow()

from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from absl import app, flags

from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.classifier import ClassifierSettings

if __name__ == "__main__":
    # Here, and not at the end: a mistake in a flag is told before TensorFlow is imported, which takes seconds.
    settings_lib.define_flags(ClassifierSettings)
    settings_lib.check_command_line(
        ClassifierSettings, flags.FLAGS, required=["task_name", "bert_config_file", "output_dir"]
    )

import numpy as np
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_bert import tasks
from adapter_bert.common import errors, files, logs
from adapter_bert.evaluation import glue_submission, metrics, results
from adapter_bert.evaluation.scores import Scorer, Scores, score_rows
from adapter_bert.model.heads import ClassificationHead, Head, RegressionHead
from adapter_bert.pipeline import feature_store
from adapter_bert.pipeline.features import (  # noqa: F401  (names that notebooks import from here)
    InputFeatures,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
)
from adapter_bert.pipeline.records import (  # noqa: F401
    file_based_convert_examples_to_features,
    file_based_input_fn_builder,
    input_fn_builder,
)
from adapter_bert.tasks import InputExample, custom
from adapter_bert.tasks.processors import ColaProcessor, DataProcessor, MnliProcessor, MrpcProcessor, XnliProcessor  # noqa: F401
from adapter_bert.training.model_fn import notebook_model_fn
from adapter_bert.training.run import DevSet, Run
from adapter_bert.weights.record import recorded_settings

FLAGS = flags.FLAGS
TEST_RESULTS = "test_results.tsv"


def create_model(
    bert_config: modeling.BertConfig,
    is_training: bool,
    input_ids: tf.Tensor,
    input_mask: tf.Tensor,
    segment_ids: tf.Tensor,
    labels: tf.Tensor,
    num_labels: int,
    use_one_hot_embeddings: bool,
    adapter_fn: adapter_layers.AdapterFn = "feedforward_adapter",
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Builds a classifier's graph for notebooks.

    Returns:
      The mean loss, the loss of each example, the logits and the probabilities.
    """
    model = modeling.BertModel(
        bert_config,
        is_training,
        input_ids,
        input_mask,
        segment_ids,
        use_one_hot_embeddings,
        "bert",
        adapter_fn,
    )
    output = ClassificationHead(num_labels).build(model, {"label_ids": labels}, is_training)
    return output.loss, output.per_example_loss, output.logits, output.probabilities


def model_fn_builder(
    bert_config: modeling.BertConfig,
    num_labels: int,
    init_checkpoint: Optional[str],
    learning_rate: float,
    num_train_steps: Optional[int],
    num_warmup_steps: Optional[int],
    use_tpu: bool,
    use_one_hot_embeddings: bool,
    adapter_fn: adapter_layers.AdapterFn = "feedforward_adapter",
    tuning_mode: str = "adapter",
    top_layers: Optional[int] = None,
    adapter_pack: Optional[str] = None,
) -> Callable:
    """Makes the `model_fn` of a TPUEstimator for notebooks; `adapter_pack` goes on top of `init_checkpoint`."""
    return notebook_model_fn(
        ClassificationHead(num_labels),
        bert_config,
        init_checkpoint,
        learning_rate,
        num_train_steps,
        num_warmup_steps,
        use_tpu,
        use_one_hot_embeddings,
        adapter_fn,
        tuning_mode,
        top_layers,
        adapter_pack,
    )


@dataclasses.dataclass(frozen=True)
class Data:
    """A task with the examples that are asked for.

    Attributes:
      task: the task.
      splits: `train`, `dev`, `test` -> examples. Those of a known task are read from the file whenever they are gone
        through; own data is in memory, where labels are learnt from it and dev is split off.
    """

    task: tasks.Task
    splits: Mapping[str, Collection[InputExample]]

    def facts(self) -> Dict[str, Any]:
        """What makes a run of this data another one than of other data."""
        facts: Dict[str, Any] = {"labels": list(self.task.labels)}
        if "train" in self.splits:
            # Dev decides on the best weights: as long as a training goes on, it must be the same too.
            facts.update(
                {
                    f"{name}_data": tasks.fingerprint(self.splits[name])
                    for name in ("train", "dev")
                    if name in self.splits
                }
            )
        return facts


def read_data(settings: ClassifierSettings) -> Data:
    """Reads the task and the splits that are asked for."""
    asked = {"train": settings.do_train, "dev": settings.do_eval, "test": settings.do_predict}
    if settings.has_custom_data:
        custom_data = settings.custom_data
        # Also where nothing is trained: the rest must be what was trained on, or trained rows would be scored.
        asked["train"] |= bool(settings.do_eval and settings.train_file and custom_data.splits_off_dev)
    wanted = [name for name, is_asked in asked.items() if is_asked]
    if settings.has_custom_data:
        labels = recorded_settings(settings).get("facts", {}).get("labels")
        task, splits = custom.read(settings.task_name, custom_data, wanted, labels)
        check_names(settings, task)
        warn_of_overlap(splits)
    else:
        task = settings.known_task()
        splits = {name: tasks.StreamedSplit(task, settings.data_dir, name) for name in wanted}
    if settings.primary_metric:
        task = dataclasses.replace(task, metrics=metrics.with_primary(settings.primary_metric, task))
    return Data(task, splits)


def check_names(settings: ClassifierSettings, task: tasks.Task) -> None:
    """Refuses names by which a file would be written over another."""
    if settings.data_dir:
        raise errors.UserError(
            f"--data_dir={settings.data_dir} is the folder of a known task; it does not go with --train_file, "
            "--dev_file and --test_file, which are paths of their own."
        )
    words = os.path.join(settings.output_dir, glue_submission.file_name(task))
    given = [path for path in (settings.train_file, settings.dev_file, settings.test_file) if path]
    if glue_submission.file_name(task) == TEST_RESULTS or os.path.realpath(words) in map(os.path.realpath, given):
        raise errors.UserError(
            f"The predictions of --task_name={task.name} would overwrite {words}; choose another name."
        )


def warn_of_overlap(splits: Mapping[str, Sequence[InputExample]]) -> None:
    """Says where texts that are scored are trained on too."""
    trained = {(example.text_a, example.text_b) for example in splits.get("train", ())}
    both = sum((example.text_a, example.text_b) in trained for example in splits.get("dev", ()))
    if both:
        tf.logging.warning("%d of %d dev texts are trained on too: the scores flatter.", both, len(splits["dev"]))


def make_head(settings: ClassifierSettings, data: Data) -> Head:
    """The head of a task."""
    task = data.task
    weights = None
    if settings.do_train:
        weights = custom.class_weights(settings.class_weights, data.splits["train"], task.labels)
    return RegressionHead() if task.is_regression else ClassificationHead(len(task.labels), weights)


def features_of(run: Run, data: Data, split: str) -> List[str]:
    """The TFRecord files with a split's features, from the cache of features if they are in it."""
    settings = run.settings
    # What is scored must fill a TPU's batches to the last one.
    batch_sizes = {"dev": settings.eval_batch_size, "test": settings.predict_batch_size}
    with files.user_errors():
        return feature_store.feature_files(
            files.writable_folder(*settings.feature_folders),
            split,
            data.splits[split],
            data.task.labels,
            settings.max_seq_length,
            run.tokenizer,
            settings.tokenizer_key,
            settings.device.padded_batch_size(batch_sizes.get(split, 1)),
        )


def scorer(run: Run, data: Data) -> Scorer:
    """Predictions of the dev split -> scores."""
    names = data.task.metrics
    if not data.task.is_regression:
        # The original reports it for every task.
        names = tuple(dict.fromkeys(names + ("accuracy",)))
    return functools.partial(score_rows, names, run.head)


def train(run: Run, data: Data) -> None:
    """Trains; scores the dev split along the way where that is asked for."""
    dev = None
    if run.settings.evaluates_in_training:
        dev = DevSet(features_of(run, data, "dev"), scorer(run, data))
    run.train(features_of(run, data, "train"), dev)


def evaluate(run: Run, data: Data) -> Scores:
    """Scores the dev split; writes `eval_results.txt` and `results.json`."""
    batch_size = run.settings.eval_batch_size
    rows = list(run.predict(features_of(run, data, "dev"), batch_size))
    scores = scorer(run, data)(rows)
    majority = metrics.majority_class_score(list(scores.metrics), np.array([row["label_ids"] for row in rows]))
    sizes = {
        name: {"examples": len(split), "fingerprint": tasks.fingerprint(split)} for name, split in data.splits.items()
    }
    results.report(run, data.task.name, scores, majority, sizes, rows)
    return scores


def predict(run: Run, data: Data) -> None:
    """Predicts the test split.

    Writes `test_results.tsv`, a line of class probabilities (or the number) for each example in the file's order, and
    the label words in the form that GLUE's server takes, e.g. `CoLA.tsv`.
    """
    task, batch_size = data.task, run.settings.predict_batch_size
    rows = list(run.predict(features_of(run, data, "test"), batch_size))
    lines = ["\t".join(map(str, row["logits" if task.is_regression else "probabilities"])) for row in rows]
    if run.settings.predict_header or run.settings.has_custom_data:
        lines.insert(0, "\t".join(task.labels or ["prediction"]))
    path = os.path.join(run.settings.output_dir, TEST_RESULTS)
    files.write_text(path, "\n".join(lines) + "\n")
    problem = glue_submission.mismatch(task, len(rows))
    if problem:
        tf.logging.warning("%s.", problem)
    words = glue_submission.write(task, [run.head.decode(row) for row in rows], run.settings.output_dir)
    tf.logging.info("***** Predictions of %d examples: %s, %s *****", len(rows), path, words)


def run_task(settings: ClassifierSettings) -> None:
    """Does everything that is asked for; nothing is written before all of it is checked."""
    settings.validate()
    with files.user_errors():
        data = read_data(settings)
        settings = dataclasses.replace(settings, task_name=data.task.name)
        run = Run(settings, make_head(settings, data), len(data.splits.get("train", ())), data.facts())
        run.claim_output_dir()
    for split in data.splits:
        if split != "train" or settings.do_train:
            # Now, while there is no session: features of much data are made in forked processes.
            features_of(run, data, split)
    if settings.do_train:
        train(run, data)
    if settings.do_eval:
        evaluate(run, data)
    if settings.do_predict:
        predict(run, data)
    if settings.do_train or settings.do_eval:
        tf.logging.info("***** Done: weights %s, results in %s *****", run.source().path, settings.output_dir)


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Flags -> settings -> run."""
    settings_lib.reject_positional_args(argv)
    settings = settings_lib.from_flags(ClassifierSettings, FLAGS)
    logs.show_progress(all_lines=not settings.device.supports_hooks)
    run_task(settings)


if __name__ == "__main__":
    app.run(main)
