"""Train with several workers: connect them, check that they agree, and keep them in step."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional

import numpy as np
import tensorflow.compat.v1 as tf

import optimization
from adapter_bert.common import errors, system
from adapter_bert.common.signals import StopRequest
from adapter_bert.devices import cluster
from adapter_bert.devices.cluster import MIRRORED, TF_CONFIG, Cluster
from adapter_bert.devices.launcher import LAUNCHED
from adapter_bert.devices.workers import GRACE_SECONDS, Workers
from adapter_bert.settings.flags import MODEL, TRAINING
from adapter_bert.settings.groups import RunSettings
from adapter_bert.training.evaluator import Evaluator
from adapter_bert.training.model_fn import StopTensors
from adapter_bert.weights import fingerprints

# Flags without a scope that all workers must share, because they decide what the workers do together.
_SHARED_FLAGS = ("do_train", "do_eval", "gradient_checkpointing", "frozen_cache_limit_mb")


@contextlib.contextmanager
def joined(settings: RunSettings) -> Iterator[Workers]:
    """Connect this process to the other workers of a training; on exit, tell them why it ends if it failed.

    Yields `Workers` of one process if `settings` request no others. Only training is shared: without it, nothing is
    left to do for any but the first worker.
    """
    if not settings.distribution_strategy:
        yield Workers()
        return
    workers = Workers(_find_cluster(settings))
    cluster.check_batch_size(settings.train_batch_size, settings.gradient_accumulation_steps, workers.count)
    # The estimator also reads this variable, and would connect the workers in its own way.
    description = os.environ.pop(TF_CONFIG, None)
    try:
        if settings.do_train:
            with workers:
                yield workers
        else:
            yield workers
    finally:
        if description is not None:
            os.environ[TF_CONFIG] = description


def _find_cluster(settings: RunSettings) -> Cluster:
    """Return the cluster of a command; one worker if there are no others, or nothing for the first to share."""
    if settings.distribution_strategy == MIRRORED and LAUNCHED not in os.environ:
        if settings.do_train and (settings.workers or len(system.gpus())) != 1:
            raise errors.UserError(
                f"--distribution_strategy={MIRRORED} starts processes, which only the command line can do: run "
                "run_classifier.py or run_squad.py."
            )
        return Cluster()
    found = cluster.from_environment(os.environ)
    return found if settings.do_train or found.rank else Cluster()


def agree(workers: Workers, settings: RunSettings, facts: Mapping[str, Any], seed: int) -> int:
    """Check that all workers have the same flags, data, weights and code; return the seed of the first worker.

    Raises:
      errors.UserError: on all workers, with the number of the first one that differs, and in what.
    """
    if workers.count == 1:
        return seed
    own = {**{f"--{name}": value for name, value in _shared_flags(settings).items()}, **facts}
    own.update({"TensorFlow": tf.version.VERSION, "code": _code_fingerprint(), "seed": seed})
    own["addresses"] = list(workers.cluster.addresses)
    found: List[Dict[str, Any]] = workers.exchange(own)
    first = found[0]
    for rank, other in enumerate(found):
        differences = [
            f"{name} is {other.get(name)!r:.200} there, and {first.get(name)!r:.200} on worker 0"
            for name in sorted({*first, *other} - {"seed"})
            if other.get(name) != first.get(name)
        ]
        if differences:
            raise errors.UserError(
                f"W{workers.cluster.name(rank)[1:]} differs from worker 0: {'; '.join(differences)}. Start all workers "
                "with the same flags, data, base and code, and an --output_dir that they share."
            )
    return first["seed"]


def _shared_flags(settings: RunSettings) -> Dict[str, Any]:
    """Return the flags that determine a training. Paths may differ; fingerprints compare what they contain."""
    values = settings.comparable_values((MODEL, TRAINING))
    paths = {field.name for field in dataclasses.fields(settings) if field.metadata["kind"] == "path"}
    values.update({name: getattr(settings, name) for name in _SHARED_FLAGS if hasattr(settings, name)})
    return {name: value for name, value in values.items() if name not in paths}


def _code_fingerprint() -> str:
    """Return a hash of the project's code."""
    root = pathlib.Path(optimization.__file__).resolve().parent
    paths = [*root.glob("*.py"), *(root / "adapter_bert").rglob("*.py")]
    named = sorted((path.relative_to(root).as_posix(), path.read_bytes()) for path in paths)
    return fingerprints.of_text("".join(f"{name} {hashlib.sha256(code).hexdigest()}\n" for name, code in named))


@contextlib.contextmanager
def translated_errors(workers: Workers, timeout: float) -> Iterator[None]:
    """Raise a `UserError` that names the worker that was lost instead of TensorFlow's error."""
    try:
        yield
    except tf.errors.OpError as error:
        lost = workers.error() if workers.count > 1 else None
        if lost:
            raise lost from None
        if workers.count > 1 and isinstance(error, tf.errors.DeadlineExceededError):
            raise errors.UserError(
                f"The workers did not finish a step within --worker_timeout={timeout} seconds, although none has "
                "ended: one hangs, or steps take longer. The same command continues from the last checkpoint."
            ) from None
        raise


class AgreedStopHook(tf.train.SessionRunHook):
    """Lets all workers stop after the same step if one of them is asked to; must be the first of the hooks.

    Checks that all start from the same weights, and fails when TensorFlow would start again after the loss of a worker.
    """

    def __init__(
        self, workers: Workers, tensors: StopTensors, own: StopRequest, agreed: StopRequest, timeout: float
    ) -> None:
        """Watch `own`, the request to this process, and set `agreed` if any worker has one."""
        self._workers, self._tensors, self._own, self._agreed = workers, tensors, own, agreed
        # TensorFlow, since version 2, fails first.
        self._seconds = timeout + GRACE_SECONDS
        self._has_started = False

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Compare the trained weights and the step of all workers."""
        if self._has_started:
            raise self._workers.error() or errors.UserError("The connection to the other workers has failed.")
        self._has_started = True
        check_same_weights(self._workers, session)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Pass on the request."""
        self._workers.expect_end(self._seconds)
        return tf.train.SessionRunArgs(self._tensors.count, {self._tensors.request: float(self._own.is_set)})

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Learn of the requests of all workers."""
        self._workers.expect_end(None)
        self._agreed.is_set = bool(run_values.results)

    def end(self, session: tf.Session) -> None:
        """Compare the weights again: the workers have made the same updates."""
        check_same_weights(self._workers, session)


def check_same_weights(workers: Workers, session: tf.Session) -> None:
    """Raise a `UserError` unless all workers have the same trained variables, optimizer state and step."""
    names = {variable.name for variable in tf.global_variables()}
    frozen = {v.name for v in tf.trainable_variables() if v.name.replace(":0", "/adam_m:0") not in names}
    variables = [variable for variable in tf.global_variables() if variable.name not in frozen]
    values = {variable.name: np.asarray(value) for variable, value in zip(variables, session.run(variables))}
    digests = workers.exchange(fingerprints.combine(fingerprints.of_tensors(values)))
    different = [workers.cluster.name(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise errors.UserError(
            f"The trained weights of {errors.first_names(different)} differ from those of worker 0. The workers must "
            "have the same hardware and the same folder --output_dir."
        )


class WaitHook(tf.train.SessionRunHook):
    """Lets the workers wait for the evaluations of the first one, and stop if it stops; must be the last hook."""

    def __init__(self, workers: Workers, due_steps: FrozenSet[int], evaluator: Optional[Evaluator]) -> None:
        self._workers, self._due_steps, self._evaluator = workers, due_steps, evaluator
        self._step = 0

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Read the step, which may come from a checkpoint."""
        self._step = int(session.run(tf.train.get_global_step(session.graph)))

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        """Wait if an evaluation is due."""
        self._step += 1
        if self._step in self._due_steps:
            stops = self._workers.exchange(bool(self._evaluator and self._evaluator.should_stop))
            if stops[0]:
                run_context.request_stop()
