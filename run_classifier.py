r"""Train, evaluate and apply BERT with adapters to classification and regression, with the flags of the original.

    python run_classifier.py --task_name=CoLA --do_train=true --do_eval=true --data_dir=glue_data/CoLA \
      --bert_dir=uncased_L-12_H-768_A-12 \
      --learning_rate=3e-4 --num_train_epochs=5 --output_dir=runs/cola

Custom data: --train_file=reviews.csv --text_column=review --label_column=stars (docs/custom_data.md).
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from absl import app, flags

from adapter_bert.common import errors
from adapter_bert.devices import launcher
from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.classifier import ClassifierSettings

FLAGS = flags.FLAGS
REQUIRED = ("task_name", "output_dir")

settings_lib.define_flags(ClassifierSettings)
if __name__ == "__main__":
    # Check the flags before importing TensorFlow, which takes seconds.
    settings_lib.check_command_line(ClassifierSettings, FLAGS, REQUIRED)
    launcher.start_if_requested(settings_lib.from_flags(ClassifierSettings, FLAGS))

import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_bert.common import logs
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.pipeline.features import (  # noqa: F401  (notebooks import these names from here)
    InputFeatures,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
)
from adapter_bert.pipeline.features import truncate_seq_pair as _truncate_seq_pair  # noqa: F401
from adapter_bert.pipeline.records import (  # noqa: F401
    file_based_convert_examples_to_features,
    file_based_input_fn_builder,
    input_fn_builder,
)
from adapter_bert.tasks import InputExample  # noqa: F401
from adapter_bert.tasks.processors import (  # noqa: F401
    ColaProcessor,
    DataProcessor,
    MnliProcessor,
    MrpcProcessor,
    XnliProcessor,
    register_processor,
)
from adapter_bert.training import classification
from adapter_bert.training.model_fn import ModelFn, notebook_model_fn


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
    """Build the graph of a classifier, for notebooks; return mean loss, loss per example, logits, probabilities."""
    model = modeling.BertModel(
        bert_config, is_training, input_ids, input_mask, segment_ids, use_one_hot_embeddings, "bert", adapter_fn
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
) -> ModelFn:
    """Create the `model_fn` of a TPUEstimator, for notebooks; `adapter_pack` is loaded on top of `init_checkpoint`."""
    schedule = (learning_rate, num_train_steps, num_warmup_steps)
    ours: Tuple[Any, ...] = (adapter_fn, tuning_mode, top_layers, adapter_pack)
    head = ClassificationHead(num_labels)
    return notebook_model_fn(head, bert_config, init_checkpoint, *schedule, use_tpu, use_one_hot_embeddings, *ours)


def run_task(settings: ClassifierSettings) -> Optional[EvalResults]:
    """Validate settings and run the requested train, eval and predict phases; return the results of the dev split."""
    settings.validate()
    logs.show_progress(all_lines=not settings.device.supports_hooks)
    return classification.run(settings)


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Create settings from the flags and run the task. Scripts that set the flags may call this."""
    settings = settings_lib.checked_settings(ClassifierSettings, FLAGS, REQUIRED)
    logs.show_progress(settings_lib.verbosity(FLAGS), all_lines=not settings.device.supports_hooks)
    classification.run(settings)


if __name__ == "__main__":
    app.run(main)
