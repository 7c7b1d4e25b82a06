r"""Train, evaluate and apply BERT with adapters to SQuAD v1.1 and 2.0, with the flags of the original.

    python run_squad.py --do_train=true --train_file=train-v1.1.json --do_predict=true --predict_file=dev-v1.1.json \
      --bert_dir=uncased_L-12_H-768_A-12 \
      --learning_rate=3e-4 --num_train_epochs=3 --output_dir=runs/squad

SQuAD 2.0: --version_2_with_negative=true. Your own questions: any file in SQuAD's format; see docs/squad.md.
"""

from __future__ import annotations

import functools
from typing import Optional, Sequence, Tuple

from absl import app, flags

from adapter_bert.common import errors, system
from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.squad import SquadSettings

if __name__ == "__main__":
    # Check the flags before importing TensorFlow, which takes seconds.
    settings_lib.define_flags(SquadSettings)
    settings_lib.check_command_line(SquadSettings, flags.FLAGS, required=["output_dir"])
    system.configure_tensorflow(verbose=settings_lib.verbosity(flags.FLAGS) > 0)

import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_bert.common import logs
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.model.heads import SpanHead
from adapter_bert.training import span_extraction
from adapter_bert.training.model_fn import notebook_model_fn

FLAGS = flags.FLAGS


def create_model(
    bert_config: modeling.BertConfig,
    is_training: bool,
    input_ids: tf.Tensor,
    input_mask: tf.Tensor,
    segment_ids: tf.Tensor,
    use_one_hot_embeddings: bool,
    adapter_fn: adapter_layers.AdapterFn = "feedforward_adapter",
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Build the graph of a span model, for notebooks; return the logits of the first and last token, [B, S] each."""
    model = modeling.BertModel(
        bert_config, is_training, input_ids, input_mask, segment_ids, use_one_hot_embeddings, "bert", adapter_fn
    )
    start, end = tf.unstack(SpanHead().logits(model), axis=1)
    return start, end


# Creates the `model_fn` of a TPUEstimator, for notebooks; takes the arguments of the original.
model_fn_builder = functools.partial(notebook_model_fn, SpanHead())


def run_task(settings: SquadSettings) -> Optional[EvalResults]:
    """Validate settings and run the requested train, eval and predict phases; return the results of the dev file."""
    settings.validate()
    logs.show_progress(all_lines=not settings.device.supports_hooks)
    return span_extraction.run(settings)


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Create settings from the flags, which `check_command_line` has validated, and run the task."""
    settings = settings_lib.from_flags(SquadSettings, FLAGS)
    logs.show_progress(settings_lib.verbosity(FLAGS), all_lines=not settings.device.supports_hooks)
    span_extraction.run(settings)


if __name__ == "__main__":
    app.run(main)
