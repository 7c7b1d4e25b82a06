"""Test predictions in the format of GLUE's server: a file for each task, and the zip file of a submission."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
import zipfile
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

import tabulate

from adapter_bert.common import errors, files, paths, streams
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.tasks import encodings, glue
from adapter_bert.tasks.task import Task

HEADER = "index\tprediction"
# Depth of the search for runs in folders.
SEARCH_DEPTH = 2
RESULTS = "results.json"
# One model predicts all three tasks, so the results next to the predictions may belong to any of them.
SAME_MODEL = {task.name for task in (glue.MNLI, glue.MNLI_MISMATCHED, glue.AX)}


def file_name(task: Task) -> str:
    """Return the name of a task's file, e.g. `CoLA.tsv`; custom task names are made safe for file systems."""
    return (safe_name(task.submission or task.name) or "predictions") + ".tsv"


def safe_name(name: str) -> str:
    """Return a task's name as part of a file name."""
    # Leading dots would hide the file or, as "..", name a folder.
    return re.sub(r"^\.+|[^\w.-]", "_", name)


def write(task: Task, predictions: Sequence[Union[int, float]], folder: str) -> str:
    """Write a task's file to an existing folder and return its path.

    Predictions are classes (indices of `task.labels`) or numbers, which are clipped to `task.label_range`.
    """
    path = os.path.join(folder, file_name(task))
    lines = [HEADER] + [f"{index}\t{_cell(task, index, value)}" for index, value in enumerate(predictions)]
    files.write_text(path, "\n".join(lines) + "\n")
    return path


def _cell(task: Task, index: int, value: Union[int, float]) -> str:
    """Return the text of a predicted class or number."""
    if not task.is_regression:
        if not 0 <= value < len(task.labels):
            raise ValueError(f"Prediction {index} is class {value}; {task.name} has the classes {task.labels}.")
        return task.labels[int(value)]
    value = float(value)
    if not math.isfinite(value):
        raise errors.UserError(
            f"The model predicts {value} for test example {index} of {task.name}: its training has diverged. "
            "Train it again with a smaller --learning_rate."
        )
    if task.label_range is None:
        return f"{value:.6g}"
    low, high = task.label_range
    # Adding 0.0 turns negative zero into zero.
    return f"{min(max(value, low), high) + 0.0:.3f}"


def mismatch(task: Task, num_predictions: int) -> Optional[str]:
    """Return why GLUE would reject this number of predictions, or None. Custom test files may have any number."""
    if task.test_rows in (None, num_predictions):
        return None
    return f"{task.name} has {task.test_rows} published test examples, found {num_predictions} predictions"


def check(task: Task, text: str, path: str) -> None:
    """Raise a `UserError` that names path and line if GLUE's server would reject a file with this text."""
    header, *lines = text.split("\n")
    if header != HEADER:
        raise errors.UserError(f"{path}, line 1: expected the header {HEADER!r}, found {header[:60]!r}.")
    if lines and lines[-1] == "":
        lines.pop()
    problem = mismatch(task, len(lines))
    if problem:
        raise errors.UserError(f"{path}: {problem}; predict the published test split.")
    for index, line in enumerate(lines):
        expected = _expected(task, index, line.split("\t"))
        if expected:
            raise errors.UserError(f"{path}, line {index + 2}: expected {expected}, found {line[:60]!r}.")


def _expected(task: Task, index: int, cells: Sequence[str]) -> Optional[str]:
    """Return what the cells of a line should be, or None if they are valid."""
    if len(cells) != 2:
        return "two tab-separated columns"
    if cells[0] != str(index):
        return f"the index {index}"
    if not task.is_regression:
        return None if cells[1] in task.labels else f"one of the labels {', '.join(task.labels)}"
    low, high = task.label_range or (-math.inf, math.inf)
    try:
        value = float(cells[1])
    except ValueError:
        value = math.nan
    if math.isfinite(value) and low <= value <= high:
        return None
    return f"a number from {low:g} to {high:g}" if task.label_range else "a finite number"


@dataclasses.dataclass(frozen=True)
class TaskFile:
    """A file of the zip: the task, the folder of the run, the run's results if known, and the content."""

    task: Task
    run: str
    results: Optional[EvalResults]
    text: str

    def table_row(self) -> Tuple[Optional[str], str, str, int]:
        """Return the row of the printed table: task, run, dev score, number of predictions."""
        score = "unknown"
        if self.results:
            score = f"{self.results.primary_metric} {self.results.primary:.4f}"
            score += " (collapsed)" if self.results.collapsed else ""
            # E.g. the diagnostics of a run that was evaluated on MNLI.
            score += "" if self.results.task == self.task.name else f" on {self.results.task}"
        names = streams.printable(self.run), streams.printable(score)
        return (self.task.submission, *names, len(self.text.rstrip("\n").split("\n")) - 1)


def find_runs(folders: Iterable[str]) -> Dict[str, List[str]]:
    """Search folders, and folders in them, for prediction files: name of the file -> sorted folders with that file."""
    found: Dict[str, Dict[str, str]] = {}
    for top in folders:
        if not tf.gfile.IsDirectory(top):
            raise errors.UserError(f"The folder {top} does not exist; pass the folders of the runs.")
        for folder in _subfolders(top, SEARCH_DEPTH):
            # A run may be found twice, e.g. through runs and runs/cola.
            identity = paths.real(folder)
            for name in map(file_name, glue.TASKS):
                if tf.gfile.Exists(os.path.join(folder, name)):
                    found.setdefault(name, {}).setdefault(identity, folder)
    return {name: sorted(by_identity.values()) for name, by_identity in found.items()}


def _subfolders(top: str, depth: int) -> List[str]:
    """Return a folder and those below it, down to a depth."""
    if depth == 0:
        return [top]
    paths = (os.path.join(top, name.rstrip("/")) for name in sorted(tf.gfile.ListDirectory(top)))
    return [top] + [below for path in paths if tf.gfile.IsDirectory(path) for below in _subfolders(path, depth - 1)]


def _read_results(run: str) -> Optional[EvalResults]:
    """Return the results of a run, None if it was not evaluated."""
    path = os.path.join(run, RESULTS)
    results = EvalResults.read(path) if tf.gfile.Exists(path) else None
    if results and not (isinstance(results.primary, (int, float)) and math.isfinite(results.primary)):
        raise errors.UserError(f"{path}: {results.primary_metric} is {results.primary}, not a number; omit this run.")
    return results


def choose_run(task: Task, runs: Sequence[str]) -> Tuple[str, Optional[EvalResults]]:
    """Return the run with the best score (the first, if several have it), and its results if known."""
    results = [_read_results(run) for run in runs]
    comparable = [each for each in results if each and (each.task == task.name or {each.task, task.name} <= SAME_MODEL)]
    if len(runs) == 1:
        return runs[0], comparable[0] if comparable else None
    kinds = [f"{each.primary_metric} on {each.task}" if each else f"no {RESULTS}" for each in results]
    if len(comparable) < len(runs) or len(set(kinds)) > 1:
        raise errors.UserError(
            f"Cannot choose the best of {len(runs)} runs that have predicted {task.name}: "
            + "; ".join(f"{run}: {kind}" for run, kind in zip(runs, kinds))
            + ". Evaluate all of them in the same way with --do_eval=true, or pass only one of them."
        )
    return max(zip(runs, comparable), key=lambda pair: pair[1].primary)


def collect(folders: Iterable[str], allow_missing: bool = False) -> List[TaskFile]:
    """Find, choose and check the files of a submission; return them in the order of GLUE's tasks."""
    runs = find_runs(folders)
    missing = [name for name in map(file_name, glue.TASKS) if name not in runs]
    if not runs or (missing and not allow_missing):
        alternative = ", or leave them out with --allow_missing" if runs else ""
        raise errors.UserError(
            f"Found no {', '.join(missing)}; predict these tasks with --do_predict=true{alternative}."
        )
    found = []
    for task in glue.TASKS:
        name = file_name(task)
        if name in runs:
            run, results = choose_run(task, runs[name])
            path = os.path.join(run, name)
            text = encodings.decode_utf8(encodings.read_bytes(path), path)
            check(task, text, path)
            found.append(TaskFile(task, run, results, text))
    return found


def _zip_bytes(task_files: Iterable[TaskFile]) -> bytes:
    """Return the zip file. The same predictions always give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in sorted((file_name(task_file.task), task_file.text) for task_file in task_files):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix on every platform, because these are Unix permissions
            info.external_attr = 0o644 << 16
            archive.writestr(info, text.encode("utf-8"), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _check_output(path: str, overwrite: bool) -> None:
    """Raise a `UserError` unless a zip file can be written. With `overwrite`, it may replace another submission."""
    if not path.endswith(".zip"):
        raise errors.UserError(f"--output={path}: expected the name of a zip file, e.g. submission.zip.")
    if not overwrite:
        files.check_absent(path)
    elif paths.is_taken(path):
        names = None
        content = io.BytesIO(files.read_bytes(path, f"Cannot read {path}") if paths.is_file(path) else b"")
        if zipfile.is_zipfile(content):
            with zipfile.ZipFile(content) as archive:
                names = archive.namelist()
        if names is None or not set(names) <= set(map(file_name, glue.TASKS)):
            raise errors.UserError(
                f"--overwrite replaces only submissions, which {path} is not; choose another --output."
            )


def make_submission(folders: Sequence[str], output: str, allow_missing: bool = False, overwrite: bool = False) -> str:
    """Search folders for runs, write the zip file and return a summary to print. On an error, nothing is written."""
    if not folders:
        raise errors.UserError("No runs given; name their folders with --runs=FOLDER,FOLDER.")
    with files.user_errors():
        _check_output(output, overwrite)
        found = collect(folders, allow_missing)
        files.make_folder(os.path.dirname(output) or ".")
        files.write_bytes(output, _zip_bytes(found))
    rows = [task_file.table_row() for task_file in found]
    table = tabulate.tabulate(rows, ["task", "run", "dev score", "rows"], tablefmt="plain", disable_numparse=True)
    summary = f"{table}\nWrote {output}: {len(found)} of {len(glue.TASKS)} tasks."
    present = [task_file.task for task_file in found]
    missing = [str(task.submission) for task in glue.TASKS if task not in present]
    if missing:
        summary += f"\nWarning: GLUE's server accepts only complete submissions; missing: {', '.join(missing)}."
    return summary
