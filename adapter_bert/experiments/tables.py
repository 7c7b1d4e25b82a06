"""Tables of a sweep's results next to the paper's, as Markdown, CSV and LaTeX. All scores are in percent.

Every table shows the number of seeds and collapsed runs, and the metric and split of the sweep's own numbers.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import tabulate

from adapter_bert.common import files
from adapter_bert.experiments import published
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.selection import best_of, group, with_metric
from adapter_bert.experiments.summaries import Comparison, Interval, MacroAverage, Summary, macro_average, summarize

DASH = "–"
_MARKS = "†k: k collapsed runs (constant predictions), included in the mean. ‡k: k runs with no finite score, excluded."
_OWN = "own: mean ± s.e.m. over seeds with the setting that is best on dev; averages with a 95 % bootstrap interval."


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """A table of strings, with notes to print below it."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """Return a table for GitHub and the notes."""
        return self._format("github") + "".join(f"\n{note}\n" for note in self.notes)

    def latex(self) -> str:
        """Return a `tabular` for the package booktabs, and the notes as comments."""
        return self._format("latex_booktabs") + "".join(f"% {note}\n" for note in self.notes)

    def csv(self) -> str:
        """Return comma-separated values without the notes."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headers, *self.rows])
        return text.getvalue()

    def save(self, stem: str) -> List[str]:
        """Write `<stem>.md`, `<stem>.csv` and `<stem>.tex`; return their paths."""
        texts = {f"{stem}.md": self.markdown(), f"{stem}.csv": self.csv(), f"{stem}.tex": self.latex()}
        for path, text in texts.items():
            files.write_text(path, text)
        return list(texts)

    def _format(self, style: str) -> str:
        alignment = ["left"] + ["right"] * (len(self.headers) - 1) if self.rows else None
        return tabulate.tabulate(self.rows, self.headers, style, colalign=alignment, disable_numparse=True) + "\n"


class _OwnMethod:
    """A row or column of the sweep's own numbers: the best of these cells for each task, in the order of the tasks."""

    def __init__(self, name: str, cells: Iterable[CellResult], tasks: Sequence[str], split: str) -> None:
        best = best_of(cells, name)
        by_key = {_key(each.task): each for each in summarize(best, split)}
        self.summaries: List[Optional[Summary]] = [by_key.get(_key(task)) for task in tasks]
        self.present = [each for each in self.summaries if each and each.n]
        is_complete = len(self.present) == len(tasks)
        names = [each.task for each in self.present]
        self.average = macro_average(best, name, names, split) if is_complete else None

    def scores(self) -> List[str]:
        """Return a formatted score for each task."""
        return [format_score(each) for each in self.summaries]

    def seeds(self) -> str:
        """Return the number of scores per task, e.g. `3` or `3–5`."""
        numbers = sorted({each.n for each in self.present})
        return DASH.join(str(number) for number in sorted({numbers[0], numbers[-1]})) if numbers else DASH

    def collapsed(self) -> str:
        """Return the number of collapsed runs."""
        return str(sum(each.collapsed for each in self.present)) if self.present else DASH

    def total_params(self) -> str:
        """Return the size of all models as a multiple of one BERT. All but full fine-tuning share one frozen BERT."""
        if not self.present or any(each.kind == "baseline" for each in self.present):
            return DASH
        shared = 0 if all(each.kind == "full" for each in self.present) else 1
        total = shared + sum(each.trained_share for each in self.present)
        missing = len(self.summaries) - len(self.present)
        return f"{total:.2f}×" + (f" ({len(self.present)} of {len(self.summaries)} tasks)" if missing else "")

    def trained_params(self) -> str:
        """Return the mean number of trained parameters per task, in percent of one BERT."""
        shares = [each.trained_share for each in self.present if each.kind != "baseline"]
        return f"{100 * sum(shares) / len(shares):.3g}%" if shares else DASH


def _key(task: str) -> str:
    """Return a name without case, spaces and punctuation: `SMS spam collection` is `sms_spam_collection`."""
    return "".join(letter for letter in task.lower() if letter.isalnum())


def of_tasks(cells: Iterable[CellResult], tasks: Iterable[str]) -> List[CellResult]:
    """Return the cells of these tasks; case, spaces and punctuation of names do not matter."""
    keys = {_key(task) for task in tasks}
    return [cell for cell in cells if _key(cell.task) in keys]


def format_score(summary: Optional[Summary]) -> str:
    """Return e.g. `59.5 ± 0.4 †1`: the mean, its s.e.m. for at least two seeds, and one collapsed run."""
    if summary is None:
        return DASH
    mean = DASH if summary.mean is None else f"{summary.mean:.1f}"
    spread = "" if summary.sem is None else f" ± {summary.sem:.1f}"
    collapsed = f" †{summary.collapsed}" if summary.collapsed else ""
    return mean + spread + collapsed + (f" ‡{summary.diverged}" if summary.diverged else "")


def _format_interval(interval: Optional[Interval], digits: int = 1) -> str:
    return DASH if interval is None else f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def _format_average(average: Optional[MacroAverage]) -> str:
    if average is None:
        return DASH
    return f"{average.mean:.1f}" + (f" {_format_interval(average.interval)}" if average.interval else "")


def _optional(value: Optional[float], unit: str) -> str:
    return DASH if value is None else f"{value:g}{unit}"


def _of_size(cells: Iterable[CellResult], *sizes: int) -> List[CellResult]:
    """Return the cells with adapters of these sizes, according to the setting `adapter_size`."""
    return [cell for cell in cells if cell.kind == "adapter" and cell.settings.get("adapter_size") in sizes]


def _varied(cells: Iterable[CellResult]) -> List[CellResult]:
    """Return the cells of tasks with several methods: with one, there is nothing to choose from."""
    tasks = group(cells, lambda cell: cell.task).values()
    return [cell for runs in tasks if len({cell.method for cell in runs}) > 1 for cell in runs]


def _of_kinds(cells: Iterable[CellResult], *kinds: str) -> List[CellResult]:
    return [cell for cell in cells if cell.kind in kinds]


def glue_table(cells: Sequence[CellResult], split: str = "dev") -> ResultTable:
    """Return Table 1, GLUE: the paper's rows, each followed by that of the sweep."""
    chosen = {
        "Full fine-tuning": _of_kinds(cells, "full"),
        "Adapters (8-256)": _varied(_of_size(cells, *published.SIZES)),
        "Adapters (64)": _of_size(cells, 64),
    }
    tasks = [task for task, _ in published.GLUE_TASKS.values()]
    own = {name: _OwnMethod(name, some, tasks, split) for name, some in chosen.items()}
    rows: List[List[str]] = []
    for name, paper in published.GLUE.items():
        totals = [_optional(paper.total_params, "×"), _optional(paper.trained_percent, "%")]
        scores = [f"{score:.1f}" for score in (*paper.scores, np.mean(paper.scores), paper.average)]
        rows.append([name, "paper, test", "best of 5", DASH, *totals, *scores])
        row = own[name]
        counts = [row.seeds(), row.collapsed(), row.total_params(), row.trained_params()]
        rows.append([name, f"own, {split}", *counts, *row.scores(), _format_average(row.average), DASH])
    metrics = [metric for _, metric in published.GLUE_TASKS.values()]
    rows.append(["Metric", "paper, test", *[""] * 4, *metrics, "", ""])
    rows.append(["Metric", f"own, {split}", *[""] * 4, *_metrics(own.values()), "", ""])
    columns = (
        "Seeds",
        "Collapsed",
        "Total num params",
        "Trained params / task",
        *published.GLUE_TASKS,
        "Mean",
        "Total",
    )
    paper_note = "paper: Houlsby et al. (2019), Table 1, BERT-large, test sets scored by the GLUE server."
    total_note = "Total: score of the GLUE server, which has more tasks and metrics. Compare the column Mean instead."
    return ResultTable(["Method", "Source", *columns], rows, [paper_note, total_note, _OWN, _MARKS])


def _metrics(methods: Iterable[_OwnMethod]) -> List[str]:
    """Return the metrics of the sweep's own scores on each task."""
    columns = zip(*(method.summaries for method in methods))
    return ["/".join(dict.fromkeys(each.metric for each in column if each)) or DASH for column in columns]


def additional_table(cells: Sequence[CellResult], split: str = "test") -> ResultTable:
    """Return Table 2, additional tasks: for each method, the paper's column followed by that of the sweep.

    Variable fine-tuning chooses among all numbers of top layers, and all layers, where at least two were tried.
    """
    chosen: Dict[str, List[CellResult]] = {
        "No BERT baseline": _of_kinds(cells, "baseline"),
        "Full fine-tuning": _of_kinds(cells, "full"),
        "Variable fine-tuning": _varied(_of_kinds(cells, "full", "top_layers")),
        "Adapters": _of_kinds(cells, "adapter"),
    }
    own = {name: _OwnMethod(name, some, published.ADDITIONAL_TASKS, split) for name, some in chosen.items()}
    if not chosen["No BERT baseline"]:  # unlike the others, it is not a method of sweeps
        del own["No BERT baseline"]
    names = ["Average", "Total number of params", "Trained params/task", "Seeds", "Collapsed"]
    columns: List[Tuple[str, List[str]]] = [("Dataset", [*published.ADDITIONAL_TASKS, *names])]
    for name, paper in published.ADDITIONAL.items():
        sems = [f" ± {sem:.1f}" for sem in paper.sems] if paper.sems else [""] * len(paper.scores)
        scores = [f"{score:.1f}{sem}" for score, sem in zip(paper.scores, sems)]
        params = [_optional(paper.total_params, "×"), _optional(paper.trained_percent, "%")]
        columns.append((f"{name} (paper, test)", [*scores, f"{paper.average:.1f}", *params, DASH, DASH]))
        if name in own:
            column = own[name]
            texts = [*column.scores(), _format_average(column.average), column.total_params(), column.trained_params()]
            columns.append((f"{name} (own, {split})", [*texts, column.seeds(), column.collapsed()]))
    columns.append((f"Metric (own, {split})", [*_metrics(own.values()), *[""] * len(names)]))
    headers = [header for header, _ in columns]
    paper_note = "paper: Houlsby et al. (2019), Table 2, BERT-base, test accuracy, mean ± s.e.m. over seeds."
    return ResultTable(headers, list(zip(*(texts for _, texts in columns))), [paper_note, _OWN, _MARKS])


def size_table(cells: Sequence[CellResult]) -> ResultTable:
    """Return the mean dev accuracy over the GLUE tasks for each adapter size, as in Section 3.6 of the paper.

    The sweep's mean is over the tasks that all of its sizes have; STS-B has no accuracy.
    """
    accuracy = with_metric(cells, "accuracy")
    glue = [task for task, metric in published.GLUE_TASKS.values() if metric != "spearman"]
    sizes = {size: _of_size(accuracy, size) for size in published.SIZES}
    known = [{_key(cell.task) for cell in runs if cell.percent() is not None} for runs in sizes.values() if runs]
    common = [task for task in glue if known and all(_key(task) in tasks for tasks in known)]
    rows = []
    for size, paper in published.SIZES.items():
        own = _OwnMethod(f"Adapters ({size})", sizes[size], common, "dev")
        tasks = f"{len(own.present)} of {len(glue)}" if own.present else DASH
        rows.append([str(size), f"{paper:.1f}", _format_average(own.average), own.seeds(), own.collapsed(), tasks])
    headers = ["Adapter size", "paper, dev accuracy", "own, dev accuracy", "Seeds", "Collapsed", "Tasks"]
    paper_note = "paper: Houlsby et al. (2019), Section 3.6, BERT-large, best setting of each size on 8 tasks."
    return ResultTable(headers, rows, [paper_note, "own: " + "; ".join(common) + "." if common else "own: no runs."])


def summary_table(summaries: Sequence[Summary]) -> ResultTable:
    """Return all statistics of each task and method."""
    rows = []
    for each in summaries:
        numbers: List[Any] = [each.mean, each.sem, each.minimum, each.maximum]
        texts = [DASH if number is None else f"{number:.2f}" for number in numbers]
        counts = [str(each.collapsed), str(each.diverged), f"{each.trained_params:,}"]
        score = f"{each.metric}, {each.split}"
        rows.append([each.task, each.method, score, str(each.n), *texts, _format_interval(each.interval, 2), *counts])
    headers = ["Task", "Method", "Score", "Seeds", "Mean", "s.e.m.", "Min", "Max", "95 % BCa interval", "Collapsed"]
    notes = ["Statistics include collapsed runs and exclude diverged ones. With few seeds, intervals are too narrow."]
    return ResultTable([*headers, "Diverged", "Trained params"], rows, notes)


def comparison_table(comparisons: Sequence[Comparison]) -> ResultTable:
    """Return the paired differences between methods, and the smallest ones that could have been detected."""
    rows = []
    for each in comparisons:
        detectable = DASH if each.detectable is None else f"{each.detectable:.2f}"
        names = [each.task, f"{each.method} - {each.baseline}", f"{each.metric}, {each.split}"]
        interval = _format_interval(each.interval, 2)
        rows.append([*names, str(len(each.differences)), f"{each.mean:+.2f}", interval, detectable])
    headers = ["Task", "Difference", "Score", "Seeds", "Mean", "95 % interval", "Detectable"]
    note = "Detectable: smallest difference that a paired t-test of these seeds finds; level 5 %, power 80 %."
    return ResultTable(headers, rows, [note])
