r"""Packs the test predictions of finished runs into the zip file that GLUE's server takes.

    python scripts/make_submission.py --runs=runs/cola,runs/sst2 --output=submission.zip
    python scripts/make_submission.py runs

A run's folder holds `<TASK>.tsv` (`CoLA.tsv`, `MNLI-m.tsv`, …) as `--do_predict` writes it. Each folder that is given
is searched, and so are the folders in it, two levels deep. Where several runs have predicted a task, the one with the
best primary metric in its `results.json` is taken: give the runs of all seeds, the best one is sent.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import zipfile
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf
from absl import app, flags

from adapter_bert.common import errors, files
from adapter_bert.evaluation import glue_submission
from adapter_bert.tasks import glue
from adapter_bert.tasks.task import Task

DEPTH = 2
RESULTS = "results.json"
# One model answers all three, so the results beside the predictions may be those of any of them.
SAME_MODEL = {task.name for task in (glue.MNLI, glue.MNLI_MISMATCHED, glue.AX)}


@dataclasses.dataclass(frozen=True)
class DevScore:
    """What a run's `results.json` says: the task it was evaluated on, and its primary metric there."""

    task: str
    metric: str
    value: float
    collapsed: bool


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of the zip: the task, the run it comes from, the run's score if known, and what the file holds."""

    task: Task
    run: str
    score: Optional[DevScore]
    text: str

    def cells(self) -> Tuple[str, str, str, str]:
        """This file's row of the printed table."""
        score = "unknown"
        if self.score:
            score = f"{self.score.metric} {self.score.value:.4f}" + (" (collapsed)" if self.score.collapsed else "")
            # E.g. the diagnostics of a run that was evaluated on MNLI.
            score += "" if self.score.task == self.task.name else f" on {self.score.task}"
        return self.task.submission, self.run, score, str(len(self.text.rstrip("\n").split("\n")) - 1)


def find_runs(folders: Iterable[str]) -> Dict[str, List[str]]:
    """Searches folders for predictions.

    Args:
      folders: folders of runs, or of folders of runs.

    Returns:
      For each file name of a submission that was found, the folders that hold it; in the order of their names, each
      once.

    Raises:
      errors.UserError: there is no such folder.
    """
    wanted = [glue_submission.file_name(task) for task in glue.TASKS]
    found: Dict[str, Dict[str, str]] = {}
    for top in folders:
        if not tf.gfile.IsDirectory(top):
            raise errors.UserError(f"There is no folder {top}; give the folders of the runs.")
        for folder in _folders_in(top, DEPTH):
            # The same run may be given twice, e.g. as runs and as runs/cola.
            identity = folder if "://" in folder else os.path.realpath(folder)
            for name in wanted:
                if tf.gfile.Exists(os.path.join(folder, name)):
                    found.setdefault(name, {}).setdefault(identity, folder)
    return {name: sorted(by_identity.values()) for name, by_identity in found.items()}


def _folders_in(top: str, depth: int) -> List[str]:
    """A folder and those below it, down to a depth."""
    if depth == 0:
        return [top]
    paths = (os.path.join(top, name.rstrip("/")) for name in sorted(tf.gfile.ListDirectory(top)))
    return [top] + [below for path in paths if tf.gfile.IsDirectory(path) for below in _folders_in(path, depth - 1)]


def read_text(path: str) -> str:
    """The text of a file; raises a `UserError` if it is not UTF-8."""
    with tf.gfile.GFile(path, "rb") as reader:
        data = reader.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise errors.UserError(f"{path} is not a text file in UTF-8; predict again.") from None


def read_score(run: str) -> Optional[DevScore]:
    """What a run scored on the development split; None if it was not evaluated.

    Raises:
      errors.UserError: its `results.json` is damaged.
    """
    path = os.path.join(run, RESULTS)
    if not tf.gfile.Exists(path):
        return None
    try:
        results = json.loads(read_text(path))
        metric = results["primary_metric"]
        score = DevScore(results["task"], metric, float(results["metrics"][metric]), bool(results.get("collapsed")))
    except (ValueError, KeyError, TypeError) as error:
        raise errors.UserError(
            f"{path} does not tell what the run scored ({type(error).__name__}: {errors.reason(error)}); "
            "evaluate the run again with --do_eval=true."
        ) from None
    if not math.isfinite(score.value):
        raise errors.UserError(f"{path}: the score {metric} is {score.value}, not a number; leave this run out.")
    return score


def is_of(score: Optional[DevScore], task: Task) -> bool:
    """Whether a score is one of the model that predicted a task."""
    return score is not None and (score.task == task.name or {score.task, task.name} <= SAME_MODEL)


def best_run(task: Task, runs: Sequence[str]) -> Tuple[str, Optional[DevScore]]:
    """Chooses the run with the best score; the first one of equals.

    Raises:
      errors.UserError: there are several, and not all of them can be compared.
    """
    scores = [read_score(run) for run in runs]
    if len(runs) == 1:
        return runs[0], scores[0] if is_of(scores[0], task) else None
    several = f"{task.name} is predicted by {len(runs)} runs, the best one is to be chosen,"
    for run, score in zip(runs, scores):
        if score is None:
            raise errors.UserError(
                f"{several} but {run} has no {RESULTS}: evaluate it with --do_eval=true, or give only one of "
                "{}.".format(", ".join(runs))
            )
        if not is_of(score, task):
            raise errors.UserError(f"{several} but {run}/{RESULTS} is of {score.task}; leave this run out.")
    kinds = sorted({f"{score.metric} on {score.task}" for score in scores})
    if len(kinds) > 1:
        raise errors.UserError(
            "{} but their scores are of different kinds: {}; evaluate all of {} alike.".format(
                several, ", ".join(kinds), ", ".join(runs)
            )
        )
    return max(zip(runs, scores), key=lambda pair: pair[1].value)


def collect(folders: Iterable[str], allow_missing: bool = False) -> List[Entry]:
    """Finds, chooses and checks the files of a submission.

    Args:
      folders: where to search.
      allow_missing: whether tasks may be without predictions.

    Returns:
      The files, in the order of GLUE's tasks.

    Raises:
      errors.UserError: tasks are missing, runs cannot be compared, or a file is not what the server takes.
    """
    found = find_runs(folders)
    missing = [glue_submission.file_name(task) for task in glue.TASKS if glue_submission.file_name(task) not in found]
    if not found or (missing and not allow_missing):
        raise errors.UserError(
            "Found no {}; predict these tasks with --do_predict=true{}.".format(
                ", ".join(missing), ", or go without them with --allow_missing" if found else ""
            )
        )
    entries = []
    for task in glue.TASKS:
        name = glue_submission.file_name(task)
        if name in found:
            run, score = best_run(task, found[name])
            text = read_text(os.path.join(run, name))
            glue_submission.check(task, text, os.path.join(run, name))
            entries.append(Entry(task, run, score, text))
    return entries


def as_zip(entries: Iterable[Entry]) -> bytes:
    """The bytes of the zip file: the same for the same predictions, whenever it is made."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in sorted(entries, key=lambda entry: glue_submission.file_name(entry.task)):
            info = zipfile.ZipInfo(glue_submission.file_name(entry.task), date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, wherever this runs: the rights below are Unix's
            info.external_attr = 0o644 << 16
            archive.writestr(info, entry.text.encode("utf-8"))
    return buffer.getvalue()


def as_table(entries: Iterable[Entry]) -> str:
    """Which run each task's predictions come from."""
    rows = [("task", "run", "dev score", "rows")] + [entry.cells() for entry in entries]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[3]]) for row in rows)


def make_submission(folders: Sequence[str], output: str, allow_missing: bool = False, overwrite: bool = False) -> str:
    """Writes the zip file.

    Args:
      folders: where to search for runs.
      output: the path of the zip file.
      allow_missing: whether tasks may be without predictions.
      overwrite: whether to replace an older zip file.

    Returns:
      What to tell the user.

    Raises:
      errors.UserError: see `collect`; or the zip file is there already. Nothing is written then.
    """
    if not folders:
        raise errors.UserError("No run is given; name the folders of the runs with --runs=FOLDER,FOLDER.")
    with files.user_errors():
        if not overwrite:
            files.check_absent(output)
        entries = collect(folders, allow_missing)
        files.make_folder(os.path.dirname(output) or ".")
        files.write_bytes(output, as_zip(entries))
    told = [as_table(entries), f"Wrote {output}: {len(entries)} of {len(glue.TASKS)} tasks."]
    missing = [task.submission for task in glue.TASKS if task not in [entry.task for entry in entries]]
    if missing:
        told.append("Warning: GLUE's server takes complete submissions; missing: {}.".format(", ".join(missing)))
    return "\n".join(told)


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Flags -> zip file."""
    values = flags.FLAGS
    print(make_submission(values.runs + list(argv[1:]), values.output, values.allow_missing, values.overwrite))


def define_flags() -> None:
    """Defines the flags of this script."""
    flags.DEFINE_list("runs", [], "Folders of runs, or of folders of runs; further ones may follow the flags.")
    flags.DEFINE_string("output", "submission.zip", "The zip file to write.")
    flags.DEFINE_bool("allow_missing", False, "Write the zip file even if there are tasks without predictions.")
    flags.DEFINE_bool("overwrite", False, "Replace the zip file if it is there already.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
