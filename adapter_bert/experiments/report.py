"""The report of sweeps: one HTML page with tables, figures, settings, and the curves and log of each cell.

The page is self-contained: it needs no other files, scripts or network access. The same folder gives the same page.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from matplotlib.figure import Figure

from adapter_bert.common import files
from adapter_bert.common.progress import format_seconds
from adapter_bert.evaluation.glue_submission import safe_name
from adapter_bert.experiments import cells as cell_files
from adapter_bert.experiments import figures, published, report_data, tables, web_page
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.report_data import DONE, FAILED, UNFINISHED, CellRecord, SweepRecord
from adapter_bert.experiments.selection import group, with_common_metrics
from adapter_bert.experiments.summaries import Comparison, compare, compare_over_tasks, summarize
from adapter_bert.experiments.tables import ResultTable

OUTPUT_FILE = "report.html"
_WIDE = 8.0  # inches; wider figures have several panels, and take a whole row of the page
_GLUE = [task for task, _ in published.GLUE_TASKS.values()]


class TableOfReport(NamedTuple):
    """A table; `stem` is the name of its files."""

    stem: str
    caption: str
    table: ResultTable


class FigureOfReport(NamedTuple):
    """A figure; `stem` is the name of its files."""

    stem: str
    caption: str
    figure: Figure


def write(folders: Sequence[str], output: str = "") -> str:
    """Write the report of one or several sweeps, and its tables and figures as files; return the path of the report.

    Args:
      folders: output folders of the sweeps. The folders `tables` and `figures` are created in the first. The tables
        take a cell that several sweeps have from the first of them.
      output: the HTML file; `report.html` in the first folder by default.
    """
    records = [report_data.read(folder) for folder in folders]
    recorded = {cell.name: cell for record in reversed(records) for cell in record.results}
    results = with_common_metrics(recorded[name] for name in sorted(recorded))
    folder = folders[0]
    output = output or os.path.join(folder, OUTPUT_FILE)
    for path in (os.path.join(folder, "tables"), os.path.join(folder, "figures"), os.path.dirname(output) or "."):
        files.make_folder(path)
    shown = tables_of(results, records[0].sweep.methods[0].name)
    for each in shown:
        each.table.save(os.path.join(folder, "tables", each.stem))
    if len(records) > 1:
        cell_files.write(os.path.join(folder, "tables", "all_cells.csv"), results)
    pictures = []
    for stem, caption, figure in figures_of(results):
        _, svg = figures.save(figure, os.path.join(folder, "figures", stem))
        content = files.read_bytes(svg, f"Cannot read {svg}")
        pictures.append(web_page.image(content, caption, figure.get_figwidth() > _WIDE))
    files.write_text(output, render(records, shown, pictures))
    return output


def tables_of(cells: Sequence[CellResult], baseline: str = "") -> List[TableOfReport]:
    """Return the tables that apply to these cells.

    Methods are compared with full fine-tuning or, on a task without it, with the method `baseline`.
    """
    if not cells:
        return []
    found = []
    for split in _splits(cells):
        comparisons = _comparisons(cells, baseline, split)
        if comparisons:
            caption = f"Differences between methods, {split} split, paired by seed"
            found.append(TableOfReport(f"comparison_{split}", caption, tables.comparison_table(comparisons)))
    for split in _splits(cells):
        summaries = [each for each in summarize(cells, split) if each.n or split == "dev"]
        caption = f"Each task and method with its best setting, {split} split"
        found.append(TableOfReport(f"summary_{split}", caption, tables.summary_table(summaries)))
    if tables.of_tasks(cells, _GLUE):
        found.append(TableOfReport("glue", "Table 1 of the paper: GLUE", tables.glue_table(cells)))
        sizes = {cell.settings.get("adapter_size") for cell in cells if cell.kind == "adapter"}
        if len(sizes & set(published.SIZES)) > 1:
            found.append(TableOfReport("sizes", "Adapter sizes, Section 3.6 of the paper", tables.size_table(cells)))
    additional = tables.of_tasks(cells, published.ADDITIONAL_TASKS)
    if additional:
        table = tables.additional_table(cells, _splits(additional)[-1])
        found.append(TableOfReport("additional", "Table 2 of the paper: additional tasks", table))
    return found


def _comparisons(cells: Sequence[CellResult], baseline: str, split: str) -> List[Comparison]:
    """Compare all methods with their baselines, on each task and over all tasks."""

    def pairs(runs: Sequence[CellResult]) -> Iterator[Tuple[str, str]]:
        baselines = _methods(runs, "full") or [baseline]
        others = [method for method in _methods(runs) if method not in baselines]
        return ((method, each) for each in baselines for method in others)

    by_task = group(cells, lambda cell: cell.task).values()
    found = [each for runs in by_task for pair in pairs(runs) for each in compare(runs, *pair, split)]
    over_tasks = (compare_over_tasks(cells, *pair, split) for pair in pairs(cells))
    return found + [each for each in over_tasks if each]


def _splits(cells: Iterable[CellResult]) -> List[str]:
    return ["dev", "test"] if any(cell.percent("test") is not None for cell in cells) else ["dev"]


def _methods(cells: Iterable[CellResult], *kinds: str) -> List[str]:
    """Return the methods of these kinds, by default of all."""
    return list(dict.fromkeys(cell.method for cell in cells if not kinds or cell.kind in kinds))


def _values(cells: Iterable[CellResult], flag: str, *kinds: str) -> int:
    """Return the number of distinct values of a setting."""
    found = {cell.settings.get(flag) for cell in cells if cell.kind in kinds}
    return len(found - {None})


def figures_of(cells: Sequence[CellResult]) -> List[FigureOfReport]:
    """Return the figures that apply to these cells."""
    return [*_figures_of_suites(cells), *_figures_of_tasks(cells)]


def _figures_of_suites(cells: Sequence[CellResult]) -> List[FigureOfReport]:
    found = []
    glue, additional = tables.of_tasks(cells, _GLUE), tables.of_tasks(cells, published.ADDITIONAL_TASKS)
    known = {cell.task for cell in (*glue, *additional)}
    others = [cell for cell in cells if cell.task not in known]
    suites = {"GLUE": glue, "Additional tasks": additional, "Other tasks": others}
    suites = {
        title: runs
        for title, runs in suites.items()
        if _methods(runs, "full") and _methods(runs, "adapter", "top_layers")
    }
    if suites:
        figure = figures.trade_off_figure(suites, {title: _splits(runs)[-1] for title, runs in suites.items()})
        caption = "Score minus full fine-tuning against trained parameters"
        found.append(FigureOfReport("trade_off", caption, figure))
    scaled = [
        cell
        for runs in group(cells, lambda cell: cell.task).values()
        if _values(runs, "adapter_init_scale", "adapter") > 1
        for cell in runs
    ]
    if scaled:
        caption = "Dev score against the initial scale of the adapters; bands span the lowest to the highest seed"
        found.append(FigureOfReport("init_scale", caption, figures.init_scale_figure(scaled)))
    course = [cell for cell in cells if cell.task in ("CoLA", "MRPC") and "accuracy" in cell.metrics]
    if any(cell.kind == "full" or cell.settings.get("adapter_size") == 64 for cell in course):
        caption = "Dev accuracy with and without adapters, next to a course's reproduction of the paper"
        found.append(FigureOfReport("reproduction", caption, figures.reproduction_figure(course)))
    return found


def _figures_of_tasks(cells: Sequence[CellResult]) -> List[FigureOfReport]:
    found = []
    for task, runs in group(cells, lambda cell: cell.task).items():
        name = safe_name(task)
        if len({cell.trained_params for cell in runs}) > 1:
            caption = f"{task}: dev score against trained parameters, mean ± s.e.m. over seeds"
            found.append(FigureOfReport(f"params_{name}", caption, figures.params_figure(runs, [task])))
        if _values(runs, "learning_rate", "adapter", "full") > 1:
            caption = f"{task}: dev score at each learning rate, with the best values of other settings"
            found.append(FigureOfReport(f"learning_rate_{name}", caption, figures.learning_rate_figure(runs, [task])))
        if any(len({_as_json(cell.settings) for cell in each}) > 1 for each in group(runs, _method_of).values()):
            caption = f"{task}: expected best dev score of each method against the number of settings tried"
            figure = figures.expected_performance_figure(runs)
            found.append(FigureOfReport(f"expected_performance_{name}", caption, figure))
    return found


def _method_of(cell: CellResult) -> str:
    return cell.method


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def render(records: Sequence[SweepRecord], shown: Sequence[TableOfReport], pictures: Sequence[str]) -> str:
    """Return the page; `pictures` are HTML."""
    blocks: Dict[str, List[str]] = {"comparison": [], "summary": [], "paper": []}
    for stem, caption, table in shown:
        block = blocks.get(stem.split("_")[0], blocks["paper"])
        block.append(f"<h3>{web_page.escape(caption)}</h3>{web_page.table(caption, table)}")
    sections = {
        "Summary": _of_each(records, _summary),
        "Comparison of methods": "\n".join(blocks["comparison"]),
        "Results": "\n".join(blocks["summary"]),
        "Next to the paper": "\n".join(blocks["paper"]),
        "Figures": '<div class="figures">{}</div>'.format("\n".join(pictures)) if pictures else "",
        "Settings": _of_each(records, _settings),
        "Cells": _of_each(records, _cells),
    }
    names = ", ".join(record.name for record in records)
    return web_page.page(f"Sweep {names}" if len(records) == 1 else f"Sweeps {names}", sections)


def _of_each(records: Sequence[SweepRecord], render_one: Callable[[SweepRecord], str]) -> str:
    """Return a section, with a heading for each sweep if there are several."""
    if len(records) == 1:
        return render_one(records[0])
    return "\n".join(f"<h3>{web_page.escape(record.name)}</h3>{render_one(record)}" for record in records)


def _summary(record: SweepRecord) -> str:
    sweep = record.sweep
    states = [(record.count(state), state) for state in (DONE, FAILED, UNFINISHED)] + [(record.not_started, "to start")]
    values = {
        "Cells": ", ".join(f"{number} {state}" for number, state in states if number or state == DONE),
        "Collapsed": f"{sum(cell.collapsed for cell in record.results)} (all predictions are the same)",
        "Time of all training steps": format_seconds(record.training_seconds) if record.training_seconds else "unknown",
        "Program": sweep.program,
        "Tasks": ", ".join(sweep.tasks),
        "Methods": ", ".join(method.name for method in sweep.methods),
        "Seeds": ", ".join(map(str, sweep.seeds)),
    }
    missing = sum(cell.state == DONE and cell.result is None for cell in record.cells)
    if missing:
        values["Not in results.csv"] = f"{missing} finished cells; run the sweep's command again to add them"
    failed = [(cell.name, cell.error) for cell in record.cells if cell.state == FAILED]
    table = ResultTable(["Failed cell", "Error"], failed)
    return web_page.facts(values.items()) + (web_page.table("Failed cells", table, is_text=True) if failed else "")


def _settings(record: SweepRecord) -> str:
    sweep = record.sweep
    rows = [("all cells", _flags(sweep.flags), "", "")]
    rows += [(f"task {task}", _flags(flags), "", "") for task, flags in sweep.task_flags.items()]
    rows += [
        (f"method {method.name}", _flags(method.flags), _flags(method.swept), _flags(method.grid))
        for method in sweep.methods
    ]
    note = f"Seeds of the whole grid: {', '.join(map(str, sweep.grid_seeds))}."
    headers = ["Applies to", "Flags", "Value of each", "Grid, best on dev"]
    return web_page.table("Settings", ResultTable(headers, rows, [note]), is_text=True)


def _flags(values: Mapping[str, Any]) -> str:
    texts = (f"{name}={value if isinstance(value, str) else _as_json(value)}" for name, value in values.items())
    return ", ".join(texts)


def _cells(record: SweepRecord) -> str:
    cells = record.cells
    blocks = [f'<p class="note">Scores and losses as in results.json. {len(cells)} cells have started.</p>']
    for task, records in _by_task(cells).items():
        blocks.append(f"<h3>{web_page.escape(task)}</h3>")
        blocks += map(_cell, records)
    return "\n".join(blocks) if cells else ""


def _by_task(cells: Sequence[CellRecord]) -> Dict[str, List[CellRecord]]:
    groups: Dict[str, List[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(cell.name.split("/")[0], []).append(cell)
    return groups


def _cell(cell: CellRecord) -> str:
    label = web_page.escape(cell.name.partition("/")[2] or cell.name)
    summary = f'<span class="state {cell.state}">{cell.state}</span> {label}'
    result = cell.result
    if result:
        score = "no finite score" if result.dev is None else f"{result.dev:.4g}"
        summary += f' <span class="value">{web_page.escape(result.metric)} {score}</span>'
        summary += ' <span class="state collapsed">collapsed</span>' if result.collapsed else ""
    parts = [f"<summary>{summary}</summary>"]
    if cell.error:
        parts.append(f'<p class="error">{web_page.escape(cell.error)}</p>')
    if result:
        parts.append(_result(result))
    curves = _curves(cell)
    if curves:
        parts.append(f'<div class="curves">{curves}</div>')
    if cell.settings:
        text = "\n".join(f"{name} = {_as_json(value)}" for name, value in cell.settings.items() if name != "facts")
        parts.append(f"<h4>Settings of the run</h4>{web_page.text_block('Settings of ' + cell.name, text)}")
    if cell.log:
        parts.append(f"<h4>Log</h4>{web_page.text_block('Log of ' + cell.name, cell.log)}")
    return f"<details>{''.join(parts)}</details>"


def _result(result: CellResult) -> str:
    metrics = ", ".join(f"{name} {score:.4g}" for name, score in result.metrics.items())
    numbers = {"Test": result.test, "Majority class": result.majority, "Dev loss": result.loss}
    values = {"Method": result.method, **result.settings, "seed": result.seed, "Dev": metrics or "no finite score"}
    values.update({name: f"{value:.4g}" for name, value in numbers.items() if value is not None})
    values["Trained parameters"] = f"{result.trained_params:,} ({100 * result.trained_share:.3g} % of the base)"
    values.update({"Step of the weights": f"{result.steps:,}", "Predictions": result.fingerprint})
    return web_page.facts(values.items())


def _curves(cell: CellRecord) -> str:
    if cell.history is None:
        return ""
    evaluations = cell.history.evaluations
    names = [cell.result.metric] if cell.result else list(evaluations[0]["metrics"])[:1] if evaluations else []
    curves = [
        web_page.curve(f"{name} on dev", "step", [(each["step"], each["metrics"].get(name)) for each in evaluations])
        for name in names
    ]
    losses = cell.history.losses
    percents = [(100 * (index + 0.5) / len(losses), loss) for index, loss in enumerate(losses)]
    return "".join([*curves, web_page.curve("Training loss", "% of the steps", percents)])
