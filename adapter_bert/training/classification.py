"""The workflow of `run_classifier.py`: classification and regression."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Dict, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert import tasks
from adapter_bert.common import errors, files
from adapter_bert.evaluation import glue_submission, metrics
from adapter_bert.evaluation.class_report import class_report, worst_mistakes
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import Row, Scorer, Scores, score_rows
from adapter_bert.model.heads import ClassificationHead, LabelHead, RegressionHead
from adapter_bert.pipeline.feature_store import FeatureStore
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.tasks import custom
from adapter_bert.tasks.task_data import TaskData
from adapter_bert.training import distributed, frozen_cache, prediction_files, workflow
from adapter_bert.training.engine import Engine
from adapter_bert.training.evaluator import DevSet
from adapter_bert.training.loop import TrainingLoop
from adapter_bert.training.trainer import SplitFeatures, Trainer
from adapter_bert.weights.bases import Base
from adapter_bert.weights.exchange import hub
from adapter_bert.weights.run_folder import TEST_RESULTS_FILE, RunFolder


def run(settings: ClassifierSettings, engine: Optional[Engine] = None) -> Optional[EvalResults]:
    """Run the requested train, eval and predict phases; return the results of the dev split if it was evaluated.

    The settings must be validated. Nothing is written before everything is checked. An `engine` can be shared by runs.
    """
    engine = engine or Engine()
    with RunFolder(settings.output_dir or "") as folder, distributed.joined(settings) as workers:
        if not (settings.do_train or workers.is_first):
            return None
        with files.user_errors():
            data = load_data(settings)
            settings = dataclasses.replace(settings, task_name=data.task.name)
            folder.check_outputs(settings, glue_submission.file_name(data.task))
            settings = hub.use_module(settings)
            base = workflow.load_base(settings, engine)
            head = make_head(settings, data)
            schedule = workflow.make_schedule(settings, len(data.splits.get("train", ())))
            # The first write:
            trainer = workflow.prepare(settings, folder, base, head, data.fingerprints(), engine, workers)
            # Create features before any session exists, because this forks processes.
            with workers.first_alone():
                features = frozen_cache.provide(trainer, make_features(settings, base, data))
        score, results = make_scorer(head, data.task), None
        if settings.do_train:
            dev = DevSet(features["dev"], score) if settings.evaluates_in_training else None
            TrainingLoop(trainer, schedule, features["train"], dev).run()
        if not workers.is_first:
            return None
        for split, rows in trainer.predict([features[name] for name in ("dev", "test") if name in features]):
            if split == "dev":
                results = evaluate(settings, trainer, data, head, rows)
            else:
                write_predictions(settings, folder, data, head, rows)
                if data.task.scores_test:
                    results = evaluate_test(trainer, data, score(rows), rows, results)
    if settings.do_train or settings.do_eval:
        tf.logging.info("***** Done: weights %s, results in %s *****", trainer.weights.path, folder.path)
    return results


def load_data(settings: ClassifierSettings) -> TaskData:
    """Read the task and the requested splits."""
    requested = {"train": settings.do_train, "dev": settings.do_eval, "test": settings.do_predict}
    if settings.has_custom_data:
        data = _load_custom_data(settings, requested)
    else:
        task = settings.known_task().with_labels(settings.data_dir or "")
        names = [name for name, is_requested in requested.items() if is_requested]
        # The code that creates the examples of a task with a reader is called only once.
        sources = {name: (task, settings.data_dir or "", name) for name in names}
        splits: Dict[str, Any] = {
            name: list(tasks.read_examples(*source)) if task.reader else tasks.StreamedSplit(*source)
            for name, source in sources.items()
        }
        data = TaskData(task, splits)
    if glue_submission.file_name(data.task) == TEST_RESULTS_FILE:
        path = os.path.join(settings.output_dir or "", TEST_RESULTS_FILE)
        raise errors.UserError(
            f"The predictions of --task_name={data.task.name} would overwrite {path}; choose another name."
        )
    if settings.primary_metric:
        task = dataclasses.replace(data.task, metrics=metrics.with_primary(settings.primary_metric, data.task))
        data = dataclasses.replace(data, task=task)
    return data


def _load_custom_data(settings: ClassifierSettings, requested: Dict[str, bool]) -> TaskData:
    if settings.data_dir:
        raise errors.UserError(
            f"--data_dir={settings.data_dir} is the folder of a known task and cannot be combined with --train_file, "
            "--dev_file and --test_file, which are complete paths."
        )
    custom_data = settings.custom_data
    # Needed even without training: the same rows must be held out, or training rows would be evaluated.
    requested["train"] |= bool(settings.do_eval and settings.train_file and custom_data.splits_off_dev)
    splits = [name for name, is_requested in requested.items() if is_requested]
    labels = RunFolder(settings.output_dir or "").labels(settings)
    data = TaskData(*custom.read(settings.task_name or "", custom_data, splits, labels))
    data.warn_of_overlap()
    return data


def make_head(settings: ClassifierSettings, data: TaskData) -> LabelHead:
    """Return the head of the task."""
    labels = data.task.labels
    weights = None
    if settings.do_train:
        weights = custom.class_weights(settings.class_weights, data.splits["train"], labels)
    return RegressionHead() if data.task.is_regression else ClassificationHead(len(labels), weights)


def make_features(settings: ClassifierSettings, base: Base, data: TaskData) -> Dict[str, SplitFeatures]:
    """Return the features of each split, from the feature cache if possible."""
    store = FeatureStore(settings.feature_folders, base.tokenizer, settings.tokenizer_key)
    sizes = {"train": settings.train_batch_size, "dev": settings.eval_batch_size, "test": settings.predict_batch_size}
    features = {}
    for split, examples in data.splits.items():
        if split != "train" or settings.do_train:
            pad_to = 1 if split == "train" else settings.device.padded_batch_size(sizes[split])
            paths = store.example_files(split, examples, data.task.labels, settings.max_seq_length, pad_to)
            features[split] = SplitFeatures(split, tuple(paths), sizes[split])
    return features


def make_scorer(head: LabelHead, task: tasks.Task) -> Scorer:
    """Return the function that scores predictions for the dev split."""
    names = task.metrics
    if not task.is_regression:
        # The original reports accuracy for every task.
        names = tuple(dict.fromkeys(names + ("accuracy",)))
    return functools.partial(score_rows, names, head)


def evaluate(
    settings: ClassifierSettings, trainer: Trainer, data: TaskData, head: LabelHead, rows: Sequence[Row]
) -> EvalResults:
    """Score the predictions for the dev split, and write the results and the worst mistakes."""
    scores, labels = make_scorer(head, data.task)(rows), np.array([row["label_ids"] for row in rows])
    majority = metrics.majority_class_score(list(scores.metrics), labels)
    predictions = [head.decode(row) for row in rows]
    classes = None if data.task.is_regression else class_report(data.task.labels, labels, np.array(predictions))
    results = workflow.report(trainer, scores, majority, data.sizes(), rows, classes)
    if settings.worst_mistakes:
        is_wrong = labels != np.array(predictions)
        worst = worst_mistakes(np.array([row["loss"] for row in rows]), is_wrong, settings.worst_mistakes)
        prediction_files.write_mistakes(trainer.folder, data.task, data.splits["dev"], rows, predictions, worst)
    return results


def evaluate_test(
    trainer: Trainer, data: TaskData, scores: Scores, rows: Sequence[Row], results: Optional[EvalResults]
) -> Optional[EvalResults]:
    """Report the scores of a test split that has labels; return the dev results with these scores added."""
    labels = np.array([row["label_ids"] for row in rows])
    majority = metrics.majority_class_score(list(scores.metrics), labels)
    return workflow.report_test(trainer, scores, majority, data.sizes()["test"], results)


def write_predictions(
    settings: ClassifierSettings, folder: RunFolder, data: TaskData, head: LabelHead, rows: Sequence[Row]
) -> None:
    """Write the predictions for the test split.

    `test_results.tsv` has one line of class probabilities (or the predicted number) for each example. The predicted
    labels are written in the format of GLUE's server, e.g. `CoLA.tsv`. For custom data, `test_predictions.csv` has both
    next to the texts.
    """
    task = data.task
    lines = ["\t".join(map(str, row["logits" if task.is_regression else "probabilities"])) for row in rows]
    if settings.predict_header or settings.has_custom_data:
        lines.insert(0, "\t".join(task.labels or ["prediction"]))
    path = folder.result_file(TEST_RESULTS_FILE, task.name)
    files.write_text(path, "\n".join(lines) + "\n")
    predictions = [head.decode(row) for row in rows]
    written = [path, glue_submission.write(task, predictions, folder.path)]
    if settings.has_custom_data:
        written.append(prediction_files.write_predictions(folder, task, data.splits["test"], rows, predictions))
    tf.logging.info("***** Predictions for %d examples: %s *****", len(rows), ", ".join(written))
