r"""Trains, evaluates and applies BERT with adapters to SQuAD v1.1 and 2.0, by the flags of the original.

    python run_squad.py --do_train=true --train_file=train-v1.1.json --do_predict=true --predict_file=dev-v1.1.json \
      --vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json --init_checkpoint=$BERT/bert_model.ckpt \
      --learning_rate=3e-4 --num_train_epochs=3 --output_dir=runs/squad

SQuAD 2.0: --version_2_with_negative=true. Own questions: any file in SQuAD's form; docs/squad.md.
"""

from __future__ import annotations

import dataclasses
import functools
import os

from adapter_bert.common import system

system.configure_tensorflow()

from typing import Any, Dict, List, Optional, Sequence, Tuple

from absl import app, flags

from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.squad import SquadSettings

if __name__ == "__main__":
    # Here, and not at the end: a mistake in a flag is told before TensorFlow is imported, which takes seconds.
    settings_lib.define_flags(SquadSettings)
    settings_lib.check_command_line(SquadSettings, flags.FLAGS, required=["bert_config_file", "output_dir"])

import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_bert.common import errors, files, logs
from adapter_bert.evaluation import answer_decoding, results
from adapter_bert.evaluation.answer_decoding import AnswerDecoder
from adapter_bert.evaluation.scores import Row, Scores
from adapter_bert.model.heads import SpanHead
from adapter_bert.pipeline import feature_store
from adapter_bert.tasks import squad
from adapter_bert.training.model_fn import notebook_model_fn
from adapter_bert.training.run import DevSet, Run
from adapter_bert.weights.record import recorded_settings

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
    """Builds the graph of a span model for notebooks.

    Returns:
      The logits of the first and of the last token of the answer, float [B, S] each.
    """
    model = modeling.BertModel(
        bert_config, is_training, input_ids, input_mask, segment_ids, use_one_hot_embeddings, "bert", adapter_fn
    )
    start, end = tf.unstack(SpanHead().logits(model), axis=1)
    return start, end


# Makes the `model_fn` of a TPUEstimator for notebooks, by the arguments of the original.
model_fn_builder = functools.partial(notebook_model_fn, SpanHead())


@dataclasses.dataclass(frozen=True)
class Data:
    """The questions that are asked for.

    Attributes:
      train: those to train on.
      dev: those to answer.
    """

    train: Optional[squad.Dataset] = None
    dev: Optional[squad.Dataset] = None

    def facts(self, is_scored: bool) -> Dict[str, str]:
        """What makes a run of this data another one than of other data.

        Args:
          is_scored: whether dev decides on the best weights.
        """
        deciding = {"train_data": self.train, "dev_data": self.dev if is_scored else None}
        return {name: squad.fingerprint(dataset) for name, dataset in deciding.items() if dataset}

    def sizes(self) -> Dict[str, Any]:
        """Fingerprints and sizes for results."""
        return {
            name: dict(squad.describe(dataset), fingerprint=squad.fingerprint(dataset))
            for name, dataset in (("train", self.train), ("dev", self.dev))
            if dataset
        }


def read_data(settings: SquadSettings) -> Data:
    """Reads the files that are asked for."""
    train = dev = None
    if settings.do_train:
        whole = squad.read(settings.train_file)
        squad.check_version(whole, settings.version_2_with_negative)
        train = squad.for_training(whole)
        if settings.verbose_logging:
            kept = {question.id for question in train.questions()}
            for question in whole.questions():
                if question.id not in kept:
                    tf.logging.info("Left out of training: %s", question.id)
    if settings.answers:
        dev = squad.read(settings.predict_file)
        squad.check_version(dev, settings.version_2_with_negative)
        if settings.do_eval and not dev.has_answers:
            raise errors.UserError(
                f"--do_eval=true: {settings.predict_file} has no answers to compare with; use --do_predict=true alone."
            )
    tell(train, dev)
    return Data(train, dev)


def tell(train: Optional[squad.Dataset], dev: Optional[squad.Dataset]) -> None:
    """Says what was found, and where what is scored is trained on too."""
    for dataset in filter(None, (train, dev)):
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in squad.describe(dataset).items() if count]
        tf.logging.info("%s: %s", dataset.path, ", ".join(counts))
    if train and dev and dev.has_answers:
        trained = {paragraph.context for paragraph in train.paragraphs}
        both = sum(paragraph.context in trained for paragraph in dev.paragraphs)
        if both:
            tf.logging.warning(
                "%d of %d dev paragraphs are trained on too: the scores flatter.", both, len(dev.paragraphs)
            )


def features_of(run: Run, dataset: squad.Dataset, split: str, batch_size: int = 1) -> List[str]:
    """The TFRecord files with the features of a file's windows, from the cache of features if they are in it.

    Args:
      run: the run.
      dataset: the questions.
      split: what to call it.
      batch_size: that a TPU needs to be full to the last batch.
    """
    settings = run.settings
    with files.user_errors():
        return feature_store.span_files(
            files.writable_folder(*settings.feature_folders),
            split,
            dataset,
            settings.lengths,
            run.tokenizer,
            settings.tokenizer_key,
            pad_to=settings.device.padded_batch_size(batch_size),
        )


def train(run: Run, data: Data, answerer: Optional[AnswerDecoder]) -> None:
    """Trains; scores the dev file along the way where that is asked for."""
    dev = None
    if data.dev:
        # Now, while there is no session: features are made in forked processes. (The same twice, but on a TPU.)
        features_of(run, data.dev, "dev", run.settings.predict_batch_size)
        dev_files = features_of(run, data.dev, "dev", run.settings.eval_batch_size)
        if run.settings.evaluates_in_training:
            dev = DevSet(dev_files, answerer.score)
    train_files = features_of(run, data.train, "train")
    if not feature_store.num_records(train_files):
        raise errors.UserError(f"{run.settings.train_file}: no paragraph has a token that could be trained on.")
    run.train(train_files, dev)


def answer(run: Run, data: Data, answerer: AnswerDecoder) -> Optional[Scores]:
    """Answers the dev file; scores the answers where the right ones are known.

    Writes `predictions.json`, `nbest_predictions.json`, for SQuAD 2.0 `null_odds.json`; with scores `eval_results.txt`
    and `results.json`.
    """
    settings, batch_size = run.settings, run.settings.predict_batch_size
    rows = list(run.predict(features_of(run, data.dev, "dev", batch_size), batch_size))
    answers = answerer.answer(rows)
    paths = answer_decoding.write(settings.output_dir, answers, settings.version_2_with_negative)
    tf.logging.info("***** Answers to %d questions: %s *****", len(answers), ", ".join(paths))
    if not any(answer.text for answer in answers.values()):
        tf.logging.warning("Every question is left without an answer.")
    if not data.dev.has_answers:
        left = [name for name in results.FILES if tf.gfile.Exists(os.path.join(settings.output_dir, name))]
        if left:
            tf.logging.warning("%s there belong to answers of before, not to these.", " and ".join(left))
        tell_fitted_threshold(run)
        return None
    scores = answerer.score_answers(answers, rows)
    report(run, data, answerer, scores, rows)
    return scores


def tell_fitted_threshold(run: Run) -> None:
    """Says which threshold a pack was found to want, where no other can be fitted."""
    settings, pack = run.settings, run.source().pack
    fitted = pack.config.metrics.get("best_f1_thresh") if pack else None
    if settings.version_2_with_negative and fitted is not None:
        tf.logging.info(
            "--null_score_diff_threshold=%s was used; fitted on the dev file of the training: %s.",
            settings.null_score_diff_threshold,
            fitted,
        )


def report(run: Run, data: Data, answerer: AnswerDecoder, scores: Scores, rows: Sequence[Row]) -> None:
    """Writes scores, and says what another threshold would give."""
    silence = answerer.no_answer_score()
    results.report(run, run.settings.task_name, scores, silence, data.sizes(), rows)
    if scores.metrics.get("best_f1", 0.0) > scores.metrics["f1"]:
        tf.logging.info(
            "With --null_score_diff_threshold=%s, F1 would be %.2f instead of %.2f%s.",
            scores.metrics["best_f1_thresh"],
            scores.metrics["best_f1"],
            scores.metrics["f1"],
            "" if scores.metrics["best_f1"] > silence["best_f1"] else ", as of no answer to any question",
        )


def task_name(settings: SquadSettings) -> str:
    """The name that is given, or that the training had, or that of the benchmark."""
    version = "v2.0" if settings.version_2_with_negative else "v1.1"
    return settings.task_name or recorded_settings(settings).get("task_name") or f"SQuAD-{version}"


def warn_of_version(settings: SquadSettings) -> None:
    """Says where weights of the other version are used; a file without answers does not tell."""
    now = settings.version_2_with_negative
    trained = recorded_settings(settings).get("version_2_with_negative", now)
    if not settings.do_train and trained != now:
        tf.logging.warning("The weights were trained with --version_2_with_negative=%s; it is %s now.", trained, now)


def run_task(settings: SquadSettings) -> None:
    """Does everything that is asked for; nothing is written before all of it is checked."""
    settings.validate()
    with files.user_errors():
        settings = dataclasses.replace(settings, task_name=task_name(settings))
        warn_of_version(settings)
        data = read_data(settings)
        num_questions = data.train.num_questions if data.train else 0
        run = Run(settings, SpanHead(), num_questions, data.facts(settings.evaluates_in_training))
        run.claim_output_dir()
    answerer = AnswerDecoder(data.dev, run.tokenizer, settings.lengths, settings.rules) if data.dev else None
    if settings.do_train:
        train(run, data, answerer)
    if settings.answers:
        answer(run, data, answerer)
    tf.logging.info("***** Done: weights %s, results in %s *****", run.source().path, settings.output_dir)


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Flags -> settings -> run."""
    settings_lib.reject_positional_args(argv)
    settings = settings_lib.from_flags(SquadSettings, FLAGS)
    logs.show_progress(all_lines=not settings.device.supports_hooks)
    run_task(settings)


if __name__ == "__main__":
    app.run(main)
