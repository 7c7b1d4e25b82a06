"""Reports of searches: history, importance of the rows of the space, expected performance, and Table 2."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from matplotlib.figure import Figure

from adapter_bert.baselines import space
from adapter_bert.baselines.search import METHOD, write_results
from adapter_bert.baselines.search_folder import SearchFolder
from adapter_bert.baselines.study import Study, import_optuna
from adapter_bert.common import errors, files
from adapter_bert.experiments import cells, figures, tables
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.summaries import compare, expected_maximum, summarize

REPORT_FILE = "searches.md"
# Rows of the space that are listed, and numbers of trials of which the expected score is.
_LISTED, _TRIALS = 8, (1, 5, 10, 20, 30, 60, 100, 300, 1000)
_IMPORTANCE_SEED = 1


class SearchRecord(NamedTuple):
    """What the trials of a search have found, in percent."""

    task: str
    scores: List[float]  # the best on dev of each trial that was evaluated
    best: List[float]  # of the first 1, 2, … of them
    counts: Dict[str, int]  # trials of each state
    seconds: float  # of all trials
    importance: Dict[str, float]  # row of the space -> share of the variance
    settings: Dict[str, Any]  # of the best trial
    results: List[CellResult]  # of the best setting, one for each seed


def read(folder: SearchFolder, storage: str = "") -> SearchRecord:
    """Read a search, finished or not."""
    search = folder.search()
    study = Study(folder, search, storage)
    scores = [100 * _score(trial) for trial in study.trials() if _score(trial) is not None]
    best = study.best()
    if best is None or not scores:
        raise errors.UserError(f"{folder.path}: no trial has finished with a score yet.")
    seconds = sum(trial.user_attrs.get("seconds", 0.0) for trial in study.trials())
    highest = [max(scores[: index + 1]) for index in range(len(scores))]
    return SearchRecord(
        search.settings["task_name"],
        scores,
        highest,
        study.counts(),
        seconds,
        _importance(study),
        {name: best.params[name] for name in space.names(search.space)},
        write_results(study),
    )


def _score(trial: Any) -> Any:
    """Return the best score of a trial; that of a pruned one is the best one before it was stopped."""
    if trial.state.name == "COMPLETE":
        return trial.value
    return max(trial.intermediate_values.values(), default=None) if trial.state.name == "PRUNED" else None


def _importance(study: Study) -> Dict[str, float]:
    """Return the share of each row in the variance of the scores (fANOVA), the largest first."""
    optuna = import_optuna()
    varied = space.names(study.search.space)
    if study.counts()["COMPLETE"] < 3:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=_IMPORTANCE_SEED)
    try:
        return dict(optuna.importance.get_param_importances(study.optuna_study, evaluator=evaluator, params=varied))
    except (ValueError, RuntimeError):  # e.g. all scores are equal
        return {}


def write(folders: Sequence[str], others: Sequence[str], output: str) -> str:
    """Write tables and figures of several searches; return the path of the Markdown page.

    Args:
      folders: output folders of the searches.
      others: `results.csv` files of sweeps with the other systems of Table 2.
      output: folder for the report.
    """
    records = [read(SearchFolder(folder)) for folder in folders]
    files.make_folder(output)
    found = [cell for record in records for cell in record.results]
    known = [cell for path in others for cell in cells.read(path)]
    tasks = {cell.task for cell in found}
    both = [*found, *(cell for cell in known if cell.task in tasks)]
    split = "test" if any(cell.percent("test") is not None for cell in found) else "dev"
    figures.save(history_figure(records), os.path.join(output, "history"))
    figures.save(expected_figure(records), os.path.join(output, "expected"))
    cells.write(os.path.join(output, "results.csv"), found)
    tables.additional_table(both, split).save(os.path.join(output, "additional"))
    page = [_overview(records), "", _importances(records)]
    for each in ("dev", split) if split != "dev" else ("dev",):
        summaries = [one for one in summarize(both, each) if one.n]
        page += ["", f"Scores, {each} split:", "", tables.summary_table(summaries).markdown()]
        methods = dict.fromkeys(cell.method for cell in both if cell.method != METHOD)
        pairs = [one for method in methods for one in compare(both, method, METHOD, each)]
        if pairs:
            page += ["", f"Differences, {each} split:", "", tables.comparison_table(pairs).markdown()]
    path = os.path.join(output, REPORT_FILE)
    files.write_text(path, "\n".join(page) + "\n")
    return path


def _overview(records: Sequence[SearchRecord]) -> str:
    headers = [
        "task",
        "trials",
        "pruned",
        "failed",
        "minutes",
        "trials/h",
        "best on dev",
        *(f"of {n}" for n in _counts(records)),
    ]
    rows = []
    for record in records:
        expected = expected_maximum(record.scores)
        shown = [f"{expected[n - 1]:.1f}" if n <= len(expected) else "" for n in _counts(records)]
        trials = sum(record.counts[name] for name in ("COMPLETE", "PRUNED", "FAIL"))
        counts = [str(trials), str(record.counts["PRUNED"]), str(record.counts["FAIL"])]
        speed = [f"{record.seconds / 60:.0f}", f"{3600 * trials / record.seconds:.0f}" if record.seconds else ""]
        rows.append([record.task, *counts, *speed, f"{record.best[-1]:.1f}", *shown])
    note = "of n: expected best score on dev of n trials (Dodge et al., 2019)."
    return tables.ResultTable(headers, rows, [note]).markdown()


def _counts(records: Sequence[SearchRecord]) -> List[int]:
    longest = max(len(record.scores) for record in records)
    return [count for count in _TRIALS if count <= longest]


def _importances(records: Sequence[SearchRecord]) -> str:
    rows = []
    for record in records:
        first = list(record.importance.items())[:_LISTED]
        names = ", ".join(f"{name} {100 * share:.0f}" for name, share in first)
        chosen = ", ".join(f"{name}={_shown(value)}" for name, value in record.settings.items())
        rows.append([record.task, names or "-", chosen])
    note = "Importance: share of the variance of the dev scores in percent (fANOVA)."
    return tables.ResultTable(["task", "importance", "best setting"], rows, [note]).markdown()


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def history_figure(records: Sequence[SearchRecord]) -> Figure:
    """Return the score of each trial, and the best one so far."""
    return _panels(records, "trial", lambda record: (record.scores, record.best))


def expected_figure(records: Sequence[SearchRecord]) -> Figure:
    """Return the expected best score against the number of trials."""
    return _panels(records, "number of trials", lambda record: ([], expected_maximum(record.scores)))


def _panels(records: Sequence[SearchRecord], label: str, values: Any) -> Figure:
    figure = Figure(figsize=(3.2 * len(records), 2.8), layout="constrained")
    for axes, record in zip(figure.subplots(1, len(records), squeeze=False)[0], records):
        points, line = values(record)
        drawn: List[Tuple[Any, ...]] = [(range(1, len(points) + 1), points, ".")] if points else []
        drawn.append((range(1, len(line) + 1), line, "-"))
        for place, heights, style in drawn:
            axes.plot(place, heights, style)
        axes.set_title(record.task.replace("crowdflower_", "").replace("_", " "), fontsize=9)
        axes.set_xlabel(label)
    figure.axes[0].set_ylabel("score on dev, percent")
    return figure
