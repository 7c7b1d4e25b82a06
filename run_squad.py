r"""Train, evaluate and apply BERT with adapters to SQuAD v1.1 and 2.0, with the flags of the original.

    python run_squad.py --do_train=true --train_file=train-v1.1.json --do_predict=true --predict_file=dev-v1.1.json \
      --bert_dir=uncased_L-12_H-768_A-12 \
      --learning_rate=3e-4 --num_train_epochs=3 --output_dir=runs/squad

SQuAD 2.0: --version_2_with_negative=true. Your own questions: any file in SQuAD's format; see docs/squad.md.
"""

from __future__ import annotations

import functools
from typing import Iterable, List, Optional, Sequence, Tuple

from absl import app, flags

from adapter_bert.common import errors
from adapter_bert.devices import launcher
from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.squad import SquadSettings

FLAGS = flags.FLAGS
REQUIRED = ("output_dir",)

settings_lib.define_flags(SquadSettings)
if __name__ == "__main__":
    # Check the flags before importing TensorFlow, which takes seconds.
    settings_lib.check_command_line(SquadSettings, FLAGS, REQUIRED)
    launcher.start_if_requested(settings_lib.from_flags(SquadSettings, FLAGS))

import numpy as np
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import tokenization
from adapter_bert.common import logs
from adapter_bert.evaluation import answers, squad_predictions
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.squad_predictions import RawResult, get_final_text  # noqa: F401  (imported from here)
from adapter_bert.model.heads import SpanHead
from adapter_bert.pipeline import squad_features
from adapter_bert.pipeline.squad_features import (  # noqa: F401
    FeatureWriter,
    SquadExample,
    convert_examples_to_features,
    input_fn_builder,
)
from adapter_bert.pipeline.squad_features import SquadFeatures as InputFeatures
from adapter_bert.pipeline.squad_features import check_is_max_context as _check_is_max_context  # noqa: F401
from adapter_bert.pipeline.squad_features import improve_answer_span as _improve_answer_span  # noqa: F401
from adapter_bert.training import span_extraction
from adapter_bert.training.model_fn import notebook_model_fn


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


def read_squad_examples(input_file: str, is_training: bool) -> List[SquadExample]:
    """Read a SQuAD file; to train with unanswerable questions, set `FLAGS.version_2_with_negative`."""
    settings = settings_lib.from_flags(SquadSettings, FLAGS)
    return squad_features.read_squad_examples(input_file, is_training, settings.version_2_with_negative)


def write_predictions(
    all_examples: Sequence[SquadExample],
    all_features: Iterable[InputFeatures],
    all_results: Iterable[RawResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    output_prediction_file: str,
    output_nbest_file: str,
    output_null_log_odds_file: str,
) -> None:
    """Write predictions, n-best lists and, with `FLAGS.version_2_with_negative`, null odds."""
    settings = settings_lib.from_flags(SquadSettings, FLAGS)
    version_2, threshold = settings.version_2_with_negative, settings.null_score_diff_threshold
    rules = answers.AnswerRules(n_best_size, max_answer_length, version_2, threshold)
    outputs = (output_prediction_file, output_nbest_file, output_null_log_odds_file)
    squad_predictions.write_predictions(all_examples, all_features, all_results, rules, do_lower_case, *outputs)


def validate_flags_or_throw(bert_config: modeling.BertConfig) -> None:
    """Raise a `ValueError` if the flags contradict each other or the model."""
    settings = settings_lib.from_flags(SquadSettings, FLAGS)
    tokenization.validate_case_matches_checkpoint(settings.do_lower_case, settings.init_checkpoint)
    settings.validate()
    modeling.check_sequence_length(settings.max_seq_length, bert_config.max_position_embeddings)


def _get_best_indexes(logits: Sequence[float], n_best_size: int) -> List[int]:
    return answers.best_indices(np.asarray(logits), n_best_size).tolist()


def _compute_softmax(scores: Sequence[float]) -> List[float]:
    return answers.softmax(scores)


def run_task(settings: SquadSettings) -> Optional[EvalResults]:
    """Validate settings and run the requested train, eval and predict phases; return the results of the dev file."""
    settings.validate()
    logs.show_progress(all_lines=not settings.device.supports_hooks)
    return span_extraction.run(settings)


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Create settings from the flags and run the task. Scripts that set the flags may call this."""
    settings = settings_lib.checked_settings(SquadSettings, FLAGS, REQUIRED)
    logs.show_progress(settings_lib.verbosity(FLAGS), all_lines=not settings.device.supports_hooks)
    span_extraction.run(settings)


if __name__ == "__main__":
    app.run(main)
