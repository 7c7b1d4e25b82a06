"""The workflow of `run_squad.py`: extractive question answering."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.evaluation import answer_decoding
from adapter_bert.evaluation.answer_decoding import AnswerDecoder
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import Row
from adapter_bert.model.heads import SpanHead
from adapter_bert.pipeline.feature_store import FeatureStore, num_records
from adapter_bert.settings.squad import SquadSettings
from adapter_bert.tasks import squad
from adapter_bert.tasks.task_data import SquadData
from adapter_bert.training import distributed, frozen_cache, workflow
from adapter_bert.training.engine import Engine
from adapter_bert.training.evaluator import DevSet
from adapter_bert.training.loop import TrainingLoop
from adapter_bert.training.trainer import SplitFeatures, Trainer
from adapter_bert.weights.bases import Base
from adapter_bert.weights.exchange import hub
from adapter_bert.weights.run_folder import RunFolder


def run(settings: SquadSettings, engine: Optional[Engine] = None) -> Optional[EvalResults]:
    """Run the requested train, eval and predict phases; return the results of the dev file if it has answers.

    The settings must be validated. Nothing is written before everything is checked. An `engine` can be shared by runs.
    """
    engine = engine or Engine()
    with RunFolder(settings.output_dir or "") as folder, distributed.joined(settings) as workers:
        if not (settings.do_train or workers.is_first):
            return None
        with files.user_errors():
            folder.check_outputs(settings)
            settings = use_recorded_name(settings, folder)
            data = load_data(settings)
            settings = hub.use_module(settings)
            base = workflow.load_base(settings, engine)
            schedule = workflow.make_schedule(settings, data.train.num_questions if data.train else 0)
            # The first write:
            trainer = workflow.prepare(settings, folder, base, SpanHead(), data.fingerprints(), engine, workers)
            # Create features before any session exists, because this forks processes.
            with workers.first_alone():
                features = frozen_cache.provide(trainer, make_features(settings, base, data))
        decoder = AnswerDecoder(data.dev, base.tokenizer, settings.lengths, settings.rules) if data.dev else None
        results = None
        if settings.do_train:
            dev = DevSet(features["eval"], decoder.score) if decoder and settings.evaluates_in_training else None
            TrainingLoop(trainer, schedule, features["train"], dev).run()
        if not workers.is_first:
            return None
        if decoder:
            for _, rows in trainer.predict([features["predict"]]):
                results = answer(settings, trainer, data, decoder, rows)
    tf.logging.info("***** Done: weights %s, results in %s *****", trainer.weights.path, folder.path)
    return results


def use_recorded_name(settings: SquadSettings, folder: RunFolder) -> SquadSettings:
    """Fill in the task's name, and warn if the weights were trained on the other version of SQuAD."""
    recorded = folder.recorded_settings(settings)
    version_2 = settings.version_2_with_negative
    trained = recorded.get("version_2_with_negative", version_2)
    if not settings.do_train and trained != version_2:
        tf.logging.warning(
            "The weights were trained with --version_2_with_negative=%s; it is %s now.", trained, version_2
        )
    name = settings.task_name or recorded.get("task_name") or f"SQuAD-{'v2.0' if version_2 else 'v1.1'}"
    return dataclasses.replace(settings, task_name=name)


def load_data(settings: SquadSettings) -> SquadData:
    """Read the requested files."""
    train = dev = None
    if settings.do_train:
        whole = squad.read(settings.train_file or "")
        squad.check_version(whole, settings.version_2_with_negative)
        train = squad.for_training(whole)
        if settings.verbose_logging:
            kept = {question.id for question in train.questions()}
            for question in whole.questions():
                if question.id not in kept:
                    tf.logging.info("Not used for training: %s", question.id)
    if settings.answers:
        dev = squad.read(settings.predict_file or "")
        squad.check_version(dev, settings.version_2_with_negative)
        if settings.do_eval and not dev.has_answers:
            raise errors.UserError(
                f"--do_eval=true: {settings.predict_file} has no answers to compare with; use --do_predict=true alone."
            )
    data = SquadData(train, dev, settings.evaluates_in_training)
    data.log_summary()
    return data


def make_features(settings: SquadSettings, base: Base, data: SquadData) -> Dict[str, SplitFeatures]:
    """Return the features of `train`, and of the dev file for `eval` (during training) and `predict`."""
    store = FeatureStore(settings.feature_folders, base.tokenizer, settings.tokenizer_key)
    features = {}
    if data.dev:
        for name, batch_size in (("predict", settings.predict_batch_size), ("eval", settings.eval_batch_size)):
            pad_to = settings.device.padded_batch_size(batch_size)
            paths = store.span_files("dev", data.dev, settings.lengths, pad_to)
            features[name] = SplitFeatures("dev", tuple(paths), batch_size)
    if data.train:
        paths = store.span_files("train", data.train, settings.lengths)
        features["train"] = SplitFeatures("train", tuple(paths), settings.train_batch_size)
        if not num_records(paths):
            raise errors.UserError(f"{settings.train_file}: no paragraph has a token to train on.")
    return features


def answer(
    settings: SquadSettings, trainer: Trainer, data: SquadData, decoder: AnswerDecoder, rows: Sequence[Row]
) -> Optional[EvalResults]:
    """Answer the dev file, and score the answers if it has gold answers.

    Write `predictions.json`, `nbest_predictions.json` and, for SQuAD 2.0, `null_odds.json`; with scores also
    `eval_results.txt` and `results.json`.
    """
    folder = trainer.folder
    answers = decoder.answer(rows)
    paths = answer_decoding.write(folder.path, answers, settings.version_2_with_negative)
    tf.logging.info("***** Answers to %d questions: %s *****", len(answers), ", ".join(paths))
    if not any(answer.text for answer in answers.values()):
        tf.logging.warning("No question was answered.")
    if data.dev and not data.dev.has_answers:
        old = folder.result_files()
        if old:
            tf.logging.warning("%s in %s belong to earlier answers.", " and ".join(old), folder.path)
        _log_fitted_threshold(settings, trainer)
        return None
    scores, no_answer = decoder.score_answers(answers, rows), decoder.no_answer_score()
    results = workflow.report(trainer, scores, no_answer, data.sizes(), rows)
    _log_better_threshold(results)
    return results


def _log_fitted_threshold(settings: SquadSettings, trainer: Trainer) -> None:
    """Log the threshold fitted during training, because none can be fitted to a file without answers."""
    pack, threshold = trainer.weights.pack, settings.null_score_diff_threshold
    fitted = pack.config.metrics.get("best_f1_thresh") if pack else None
    if settings.version_2_with_negative and fitted is not None:
        fit = f"the value fitted on the dev file of the training is {fitted}"
        tf.logging.info("Used --null_score_diff_threshold=%s; %s.", threshold, fit)


def _log_better_threshold(results: EvalResults) -> None:
    scores = results.metrics
    if scores.get("best_f1", 0.0) <= scores["f1"]:
        return
    if scores["best_f1"] <= results.majority["best_f1"]:
        tf.logging.info("With no question answered, F1 would be %.2f instead of %.2f.", scores["best_f1"], scores["f1"])
        return
    threshold, f1s = scores["best_f1_thresh"], (scores["best_f1"], scores["f1"])
    tf.logging.info("With --null_score_diff_threshold=%s, F1 would be %.2f instead of %.2f.", threshold, *f1s)
