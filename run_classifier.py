r"""Trains, evaluates and applies BERT with adapters on classification tasks, by the flags of the original script.

    python run_classifier.py --task_name=CoLA --do_train=true --do_eval=true --data_dir=glue_data/CoLA \
      --vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json --init_checkpoint=$BERT/bert_model.ckpt \
      --learning_rate=3e-4 --num_train_epochs=5 --output_dir=runs/cola
"""

from __future__ import annotations

import dataclasses
import os

# TensorFlow's C++ side greets with pages of notes on missing GPU libraries. Must be set before the import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import adapter_layers
import errors
import modeling
import tasks
from pipeline.features import (  # noqa: F401  (names that notebooks import from here)
    InputFeatures,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
    pad_examples,
)
from pipeline.records import (  # noqa: F401
    file_based_convert_examples_to_features,
    file_based_input_fn_builder,
    input_fn_builder,
)
from tasks import InputExample
from tasks.processors import (  # noqa: F401
    ColaProcessor,
    DataProcessor,
    MnliProcessor,
    MrpcProcessor,
    XnliProcessor,
)
from training import files, logs, scoring
from training import settings as settings_lib
from training.heads import ClassificationHead
from training.model_fn import Schedule, build_model_fn
from training.run import Run
from training.settings import setting

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class ClassifierSettings(settings_lib.Settings):
    """The settings of this entry point."""

    predict_header: bool = setting(False, "Start test_results.tsv with a line of label names; old readers expect none.")


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
) -> Callable:
    """Makes the `model_fn` of a TPUEstimator for notebooks."""
    return build_model_fn(
        bert_config,
        ClassificationHead(num_labels),
        adapter_fn,
        init_checkpoint,
        Schedule(learning_rate, num_train_steps, num_warmup_steps),
        tuning_mode,
        top_layers,
        use_tpu,
        use_one_hot_embeddings,
    )


def write_features(run: Run, task: tasks.Task, examples: Sequence[InputExample], name: str, batch_size: int) -> str:
    """Tokenises a split into a TFRecord file of the output folder; returns its path."""
    path = os.path.join(run.settings.output_dir, name + ".tf_record")
    if run.settings.use_tpu and name != "train":
        examples = pad_examples(examples, batch_size)
    with files.reported():
        file_based_convert_examples_to_features(examples, task.labels, run.settings.max_seq_length, run.tokenizer, path)
    return path


def train(run: Run, task: tasks.Task, examples: Sequence[InputExample]) -> None:
    """Trains on the examples."""
    run.train(write_features(run, task, examples, "train", run.settings.train_batch_size))


def evaluate(run: Run, task: tasks.Task, examples: Sequence[InputExample]) -> Dict[str, float]:
    """Scores the examples; writes `eval_results.txt`."""
    batch_size = run.settings.eval_batch_size
    rows = list(run.predict(write_features(run, task, examples, "eval", batch_size), batch_size))
    labels = np.array([row["label_ids"] for row in rows])
    classes = np.array([row["logits"].argmax() for row in rows])
    loss = float(np.mean([row["loss"] for row in rows], dtype=np.float64))
    names = tuple(dict.fromkeys(task.metrics + ("accuracy",)))
    results = {"eval_" + name: value for name, value in scoring.score(names, labels, classes).items()}
    # `loss` stands beside `eval_loss` in the original's file.
    results.update(eval_loss=loss, loss=loss, global_step=run.step())
    results.update({f"majority_{name}": value for name, value in scoring.majority_class_score(names, labels).items()})
    tf.logging.info("***** Eval results *****")
    lines = [f"{key} = {results[key]}" for key in sorted(results)]
    for line in lines:
        tf.logging.info("  %s", line)
    files.write_text(os.path.join(run.settings.output_dir, "eval_results.txt"), "\n".join(lines) + "\n")
    return results


def predict(run: Run, task: tasks.Task, examples: Sequence[InputExample]) -> None:
    """Writes the examples' class probabilities to `test_results.tsv`, a line each, in the file's order."""
    batch_size = run.settings.predict_batch_size
    rows = run.predict(write_features(run, task, examples, "predict", batch_size), batch_size)
    lines = ["\t".join(str(probability) for probability in row["probabilities"]) for row in rows]
    if run.settings.predict_header:
        lines.insert(0, "\t".join(task.labels))
    path = os.path.join(run.settings.output_dir, "test_results.tsv")
    files.write_text(path, "\n".join(lines) + "\n")
    tf.logging.info("***** Predictions of %d examples: %s *****", len(examples), path)


def read_splits(settings: ClassifierSettings, task: tasks.Task) -> Dict[str, List[InputExample]]:
    """The examples of the splits that are asked for."""
    wanted = {"train": settings.do_train, "dev": settings.do_eval, "test": settings.do_predict}
    return {name: list(tasks.read_examples(task, settings.data_dir, name)) for name, asked in wanted.items() if asked}


def run_task(settings: ClassifierSettings) -> None:
    """Does everything that is asked for; nothing is written before all of it is checked."""
    settings.check()
    task = tasks.get(settings.task_name)
    settings = dataclasses.replace(settings, task_name=task.name)
    with files.reported():
        examples = read_splits(settings, task)
        run = Run(settings, ClassificationHead(len(task.labels)), len(examples.get("train", ())))
        run.claim_output_dir()
    if settings.do_train:
        train(run, task, examples["train"])
    if settings.do_eval:
        evaluate(run, task, examples["dev"])
    if settings.do_predict:
        predict(run, task, examples["test"])


@errors.exits_on_user_error
def main(_: Sequence[str]) -> None:
    """Flags -> settings -> run."""
    settings = settings_lib.from_flags(ClassifierSettings, FLAGS)
    logs.show_progress(all_lines=settings.use_tpu)
    run_task(settings)


if __name__ == "__main__":
    settings_lib.define_flags(ClassifierSettings)
    flags.adopt_module_key_flags(settings_lib)
    flags.mark_flags_as_required(["data_dir", "task_name", "bert_config_file", "output_dir"])
    app.run(main)
