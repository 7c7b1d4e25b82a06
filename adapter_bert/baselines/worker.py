"""A worker of a search. It runs trials one after another in one process, with shared modules, data and vectors.

    python -m adapter_bert.baselines.worker SEARCH_FOLDER [cores]

Any number of workers may run at the same time. When all trials have finished, they train the best setting again with
each of the final seeds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any, Dict, List, Optional

from adapter_bert.common import system

if __name__ == "__main__":
    if len(sys.argv) > 2:
        system.use_cores([int(core) for core in sys.argv[2].split(",")])
    system.configure_tensorflow()

import tensorflow.compat.v1 as tf

from adapter_bert.baselines import space, training
from adapter_bert.baselines.features import Memory
from adapter_bert.baselines.search_folder import SearchFolder
from adapter_bert.baselines.study import OwnTrial, Study
from adapter_bert.baselines.weights import BaselineFolder
from adapter_bert.common import errors, logs
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.evaluation.scores import Scores
from adapter_bert.experiments.work_folder import MAX_CRASHES
from adapter_bert.experiments.worker import DISK_FULL, is_disk_full

_POLL_SECONDS = 1.0


def work(folder: SearchFolder, memory: Memory) -> None:
    """Run trials until all have finished, then the final runs."""
    study = Study(folder, folder.search())
    while not study.is_done():
        trial = study.next_trial()
        if trial is None:
            time.sleep(_POLL_SECONDS)  # other workers run the last ones
            continue
        try:
            _announce(str(trial.number))
            _run_trial(study, trial, memory)
        finally:
            trial.release()
            _announce(None)
    _run_best(study, memory)


def _announce(trial: Optional[str]) -> None:
    """Tell the launcher what runs, in case it kills this process."""
    print(json.dumps({"cell": trial}), flush=True)


def _run_trial(study: Study, trial: OwnTrial, memory: Memory) -> None:
    """Run a trial and record its result; a failure does not stop the search."""
    started, folder = time.monotonic(), study.folder
    reported: Dict[str, Any] = {}

    def observe(step: int, scores: Scores) -> None:
        reported.update(step=step, loss=scores.loss)
        trial.report(step, scores.primary)

    state, value = "FAIL", None
    try:
        if folder.crashes(folder.file("trials", str(trial.number))) >= MAX_CRASHES:
            raise errors.UserError(f"its worker died {MAX_CRASHES} times, perhaps for lack of memory")
        results = training.run(trial_settings(study, trial), memory, observe)
        assert results is not None, "a trial evaluates the dev split"
        state, value = "COMPLETE", results.primary
        reported.update(loss=results.loss, step=results.step, **_described(results))
    except trial.pruned_error:
        state = "PRUNED"
    except errors.StoppedError:
        raise
    except Exception as error:  # must not stop the other trials
        if is_disk_full(error):
            raise
        reported["error"] = str(error) if isinstance(error, errors.UserError) else errors.reason(error)
        if not isinstance(error, (errors.UserError, OSError)):
            traceback.print_exc()
    if state == "COMPLETE" and (value is None or value != value):
        state, reported["error"] = "FAIL", "its score is not finite"
    run_folder = BaselineFolder(folder.trial_run(trial.number))
    reported["seconds"] = round(time.monotonic() - started, 2)
    trial.finish(state, value, reported)
    if os.path.isdir(run_folder.path):  # a trial with wrong settings has none
        run_folder.remove_weights(keep_pack=False)
    tf.summary.FileWriterCache.clear()
    shown = reported.get("error") or (f"{value:.4f}" if value is not None else "")
    tf.logging.info("Trial %d: %s %s (%.1f s)", trial.number, state.lower(), shown, reported["seconds"])


def trial_settings(study: Study, trial: OwnTrial) -> Any:
    """Let a trial choose its network; return the settings of its run."""
    search, number = study.search, trial.number
    run = {"output_dir": study.folder.trial_run(number), "seed": search.trial_seed(number), "do_predict": False}
    settings = search.run_settings({**space.sample(trial.trial, search.space), **run})
    settings.validate()
    return settings


def _described(results: EvalResults) -> Dict[str, Any]:
    return {
        "trained_params": results.parameters["trained"],
        "total_params": results.parameters["total"],
        "training_seconds": results.training.get("seconds"),
    }


def final_settings(study: Study, seed: int) -> Any:
    """Return the settings of the run that trains the best setting with a seed."""
    best = study.best()
    if best is None:
        raise errors.UserError(
            f"All {len(study.trials())} trials have failed, the last one because: "
            f"{study.trials()[-1].user_attrs.get('error', 'it was pruned')}"
        )
    search = study.search
    test = {"do_train": True, "do_eval": True, "do_predict": scores_test(search.settings)}
    chosen = {name: best.params[name] for name in search.space}
    return search.run_settings(
        {**chosen, **test, "output_dir": study.folder.final_run(best.number, seed), "seed": seed}
    )


def scores_test(settings: Any) -> bool:
    """Return whether the task has a test split with labels."""
    from adapter_bert import tasks

    if settings.get("data_dir"):
        return tasks.get(settings["task_name"]).scores_test
    return bool(settings.get("test_file"))


def _run_best(study: Study, memory: Memory) -> None:
    """Train the best setting with each seed, unless other workers do or did."""
    left: List[int] = list(study.search.final_seeds)
    while left:
        for seed in list(left):
            settings = final_settings(study, seed)
            lock = study.folder.claim_folder(os.path.dirname(settings.output_dir))
            if lock is None:
                continue
            try:
                run = BaselineFolder(settings.output_dir)
                if not run.result_files():
                    _announce(f"best, seed {seed}")
                    training.run(settings, memory)
                    run.remove_weights(keep_pack=True)
                    tf.summary.FileWriterCache.clear()
                left.remove(seed)
            finally:
                lock.release()
                _announce(None)
        if left:
            time.sleep(_POLL_SECONDS)


@errors.exits_on_user_error
def main() -> None:
    """Work on the search in the folder given on the command line."""
    system.end_with_parent()
    logs.show_progress()
    tf.logging.info("Worker of the search %s", sys.argv[1])
    try:
        work(SearchFolder(sys.argv[1]), Memory())
    except Exception as error:
        if not is_disk_full(error):
            raise
        tf.logging.error("%s", error)
        sys.exit(DISK_FULL)


if __name__ == "__main__":
    main()
