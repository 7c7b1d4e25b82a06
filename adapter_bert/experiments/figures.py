"""The figures of the paper, and others, from the results of a sweep. All scores are in percent.

Each function returns a Matplotlib figure; `save` writes it. Series differ in marker and line style as well as in color
(the palette of Okabe and Ito), so that figures can be read in black and white.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import itertools
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from adapter_bert.common import errors, files
from adapter_bert.experiments import published
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.selection import best_of, group, with_metric
from adapter_bert.experiments.summaries import Summary, expected_maximum, summarize, trade_off

_WIDTH, _HEIGHT = 5.0, 3.8  # of a panel, in inches


class Style(NamedTuple):
    """Look of a series, and the kinds of cells in it."""

    label: str
    color: str
    marker: str
    line: str
    kinds: Tuple[str, ...]


ADAPTERS = Style("Adapters", "#D55E00", "o", "-", ("adapter",))
# Full fine-tuning is the end of the curve.
TOP_LAYERS = Style("Fine-tune top or all layers", "#0072B2", "s", "--", ("top_layers", "full"))
LAYER_NORM = Style("LayerNorm only", "#009E73", "^", ":", ("layer_norm",))
HEAD = Style("Head only", "#CC79A7", "v", ":", ("head",))
FULL = Style("Full fine-tuning", "#0072B2", "s", "--", ("full",))
_STYLES = (ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD)
# For series without a fixed meaning, e.g. tasks.
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#000000", "#56B4E9")
_CYCLE = list(zip(_COLORS * 2, "os^vDPX*<>hp", ("-", "--", ":", "-.") * 3))


def save(figure: Figure, stem: str) -> List[str]:
    """Write `<stem>.png` and `<stem>.svg`; return their paths. The same figure gives the same bytes."""
    paths = [f"{stem}.png", f"{stem}.svg"]
    for path in paths:
        content = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "adapter-bert"}):
            # Leave out dates and versions.
            metadata = {"Software": None} if path.endswith(".png") else {"Date": None, "Creator": None}
            figure.savefig(content, format=path[-3:], dpi=150, metadata=metadata)
        files.write_bytes(path, content.getvalue())
    return paths


def _panels(titles: Sequence[str], kind: str) -> Tuple[Figure, List[Axes]]:
    if not titles:
        raise errors.UserError(f"There are no results for the figure '{kind}'.")
    figure = Figure(figsize=(_WIDTH * len(titles), _HEIGHT), constrained_layout=True)
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for axes, title in zip(panels, titles):
        axes.set_title(title)
        axes.grid(True, color="0.9")
        axes.set_axisbelow(True)
    return figure, panels


def trade_off_figure(suites: Mapping[str, Sequence[CellResult]], splits: Optional[Mapping[str, str]] = None) -> Figure:
    """Return figures 1 and 3: score minus full fine-tuning against trained parameters, a panel per suite of tasks.

    Args:
      suites: title, e.g. `GLUE` -> cells.
      splits: title -> split of the scores, if not dev; the paper uses test for its additional tasks.
    """
    figure, panels = _panels(list(suites), "trade-off")
    for axes, (title, cells) in zip(panels, suites.items()):
        split = (splits or {}).get(title, "dev")
        points = trade_off(cells, split)
        for style in (ADAPTERS, TOP_LAYERS):
            curve = [point for point in points if point.kind in style.kinds]
            params = [point.trained_params for point in curve]
            low, middle, high = zip(*(point.percentiles for point in curve)) if curve else ((), (), ())
            axes.plot(params, middle, style.line, color=style.color, marker=style.marker, label=style.label)
            axes.fill_between(params, low, high, color=style.color, alpha=0.2, linewidth=0)
            for edge in (low, high):
                axes.plot(params, edge, style.line, color=style.color, linewidth=0.6)
        tasks = _count([point.tasks for point in points], "task")
        axes.set_title(f"{title} ({split}): median, 20th and 80th percentile\nof {tasks}", fontsize="medium")
        axes.set_xscale("log")
        axes.set_xlabel("Trained parameters per task")
        axes.set_ylabel("Score minus full fine-tuning (points)")
        axes.axhline(0, color="0.4", linewidth=0.8)
        _add_legend(axes)
    return figure


def params_figure(cells: Sequence[CellResult], tasks: Sequence[str], split: str = "dev") -> Figure:
    """Return figures 4 and 5: score against trained parameters, a panel per task, with error bars of ±1 s.e.m."""
    figure, panels = _panels(tasks, "parameters")
    for axes, task in zip(panels, tasks):
        summaries = summarize((cell for cell in cells if cell.task == task), split)
        for style in _STYLES:
            curve = [each for each in summaries if each.kind in style.kinds]
            curve.sort(key=lambda each: each.trained_params)
            _draw(axes, [each.trained_params for each in curve], curve, style)
        axes.set_xscale("log")
        axes.set_xlabel("Trained parameters")
        _finish(axes, summaries, split)
    return figure


def _draw(axes: Axes, positions: Sequence[float], summaries: Sequence[Summary], style: Style) -> None:
    """Draw means with error bars of ±1 s.e.m., and mark those with collapsed runs."""
    points = [(x, each) for x, each in zip(positions, summaries) if each.n]
    if not points:
        return
    means = [float(np.mean(each.scores)) for _, each in points]
    axes.errorbar(
        [x for x, _ in points],
        means,
        [each.sem or 0 for _, each in points],
        label=style.label,
        color=style.color,
        marker=style.marker,
        linestyle=style.line,
        capsize=3,
    )
    collapsed = [(x, mean) for (x, each), mean in zip(points, means) if each.collapsed]
    if collapsed:
        marks: Dict[str, Any] = {"marker": "x", "color": "black", "linestyle": "", "markersize": 9, "zorder": 5}
        known = axes.get_legend_handles_labels()[1]
        label = "Has collapsed runs"
        axes.plot(*zip(*collapsed), label="_" + label if label in known else label, **marks)


def _count(numbers: Sequence[int], noun: str) -> str:
    """Return e.g. `1 task` or `2–9 tasks`."""
    span = sorted({min(numbers), max(numbers)}) if numbers else [0]
    return "–".join(map(str, span)) + f" {noun}" + ("" if span == [1] else "s")


def _finish(axes: Axes, summaries: Sequence[Summary], split: str) -> None:
    """Label the axis of the scores, and add the number of seeds and a legend."""
    metric = "/".join(dict.fromkeys(each.metric for each in summaries)) or "Score"
    axes.set_ylabel(f"{metric.capitalize()} on {split} (%)")
    seeds = _count([each.n for each in summaries], "seed")
    axes.set_title(f"{axes.get_title()}\nmean ± s.e.m., {seeds}", fontsize="medium")
    if summaries:
        _add_legend(axes)


def _add_legend(axes: Axes) -> None:
    """Add a legend below the axes, where it covers no data."""
    axes.legend(fontsize="small", ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def _by_value(cells: Sequence[CellResult], flag: str, split: str) -> Dict[Any, Summary]:
    """Return value of the flag -> summary of the method and other settings that are best with this value."""
    values = group((cell for cell in cells if cell.settings.get(flag) is not None), lambda cell: cell.settings[flag])
    return {value: summarize(best_of(values[value], ""), split)[0] for value in sorted(values)}


def init_scale_figure(cells: Sequence[CellResult], split: str = "dev", flag: str = "adapter_init_scale") -> Figure:
    """Return figure 6, right: score against the initial scale of the adapters, a line per task.

    The band spans the lowest to the highest score over the seeds.
    """
    figure, (axes,) = _panels(["Initial scale of adapters"], "initial scale")
    all_summaries: List[Summary] = []
    tasks = group(cells, lambda cell: cell.task)
    for (color, marker, line), (task, runs) in zip(itertools.cycle(_CYCLE), tasks.items()):
        points = _by_value(runs, flag, split)
        style = Style(task, color, marker, line, ())
        _draw(axes, list(points), list(points.values()), style)
        band = {scale: each for scale, each in points.items() if each.n}
        low, high = ([getattr(each, name) for each in band.values()] for name in ("minimum", "maximum"))
        axes.fill_between(list(band), low, high, color=color, alpha=0.15, linewidth=0)
        all_summaries += points.values()
    axes.set_xscale("log")
    axes.set_xlabel("Standard deviation of the initial weights")
    _finish(axes, all_summaries, split)
    return figure


def learning_rate_figure(cells: Sequence[CellResult], tasks: Sequence[str], split: str = "dev") -> Figure:
    """Return figure 7: adapters and full fine-tuning at each learning rate, with the best values of other settings.

    Small markers are the scores of the seeds.
    """
    figure, panels = _panels(tasks, "learning rates")
    for axes, task in zip(panels, tasks):
        summaries: List[Summary] = []
        rates: Set[float] = set()
        for shift, style in ((0.96, ADAPTERS), (1.04, FULL)):  # side by side
            runs = [cell for cell in cells if cell.task == task and cell.kind in style.kinds]
            best = _by_value(runs, "learning_rate", split)
            _draw(axes, [rate * shift for rate in best], list(best.values()), style)
            for rate, each in best.items():
                axes.plot([rate * shift] * each.n, each.scores, style.marker, color=style.color, ms=3, alpha=0.5)
            summaries += best.values()
            rates.update(best)
        axes.set_xscale("log")
        axes.set_xticks(sorted(rates))
        labels = [np.format_float_scientific(rate, trim="-", exp_digits=1) for rate in sorted(rates)]
        axes.set_xticklabels(labels, fontsize="small")
        axes.minorticks_off()
        axes.set_xlabel("Learning rate")
        _finish(axes, summaries, split)
    return figure


def expected_performance_figure(cells: Sequence[CellResult]) -> Figure:
    """Return the expected best dev score against the number of settings that are tried, a panel per task.

    This is the expected validation performance of Dodge et al. (2019), "Show Your Work". Each seed that ran all
    settings of a method gives a curve; the line is their mean, and the band spans the lowest to the highest. A run
    without a finite score counts as a constant prediction.
    """
    tasks = group(cells, lambda cell: cell.task)
    figure, panels = _panels(list(tasks), "expected performance")
    for axes, (task, runs) in zip(panels, tasks.items()):
        methods = group(runs, lambda cell: cell.method)
        for (color, marker, line), (method, trials) in zip(itertools.cycle(_CYCLE), methods.items()):
            curves = [expected_maximum(scores) for scores in _scores_of_grid(trials)]
            numbers = range(1, len(curves[0]) + 1)
            axes.plot(numbers, np.mean(curves, axis=0), line, color=color, marker=marker, label=method)
            axes.fill_between(numbers, np.min(curves, axis=0), np.max(curves, axis=0), color=color, alpha=0.15, lw=0)
        axes.set_title(f"{task}\nexpected validation performance", fontsize="medium")
        axes.set_xlabel("Settings tried")
        axes.set_ylabel(f"{runs[0].metric.capitalize()} on dev, best so far (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _add_legend(axes)
    return figure


def _scores_of_grid(trials: Sequence[CellResult]) -> List[List[float]]:
    """Return the scores of all settings for each seed that ran the whole grid; others ran only the best setting."""
    scores: Dict[int, List[float]] = collections.defaultdict(list)
    for cell in trials:
        score = cell.percent()
        constant = dataclasses.replace(cell, dev=cell.majority)
        scores[cell.seed].append(score if score is not None else constant.percent() or 0.0)
    most = max(map(len, scores.values()))
    return [each for each in scores.values() if len(each) == most]


def ablation_figure(changes: Mapping[str, Any], metric: str = "accuracy") -> Figure:
    """Return figure 6, left and center: change of a metric without the adapters of a span of layers.

    Args:
      changes: title, e.g. `MNLI` -> matrix [L, L]; element [f, l] is the change, in points, without layers f to l, both
        inclusive. Elements below the main diagonal are not used.
      metric: name of the metric, for the legend.
    """
    figure, panels = _panels(list(changes), "ablation")
    figure.set_size_inches(6.4 * len(panels), 5.6)
    for axes, (title, values) in zip(panels, changes.items()):
        matrix = np.asarray(values, dtype=float)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise errors.UserError(f"The ablation of {title} has the shape {matrix.shape}, expected [layers, layers].")
        image = _draw_spans(axes, np.where(np.tri(len(matrix), k=-1, dtype=bool), np.nan, matrix))
        axes.legend([Patch(fill=False, edgecolor=ADAPTERS.color, linewidth=2)], ["single layer"], loc="lower left")
        figure.colorbar(image, ax=axes, shrink=0.85, label=f"Change of {metric} (points)")
    return figure


def _draw_spans(axes: Axes, matrix: np.ndarray) -> AxesImage:
    """Draw a heat map with its numbers, and mark the main diagonal. Elements that are NaN stay empty."""
    layers = len(matrix)
    shades = Normalize(min(-1e-9, float(np.nanmin(matrix))), max(0.0, float(np.nanmax(matrix))))
    image = axes.imshow(matrix, cmap="cividis", norm=shades)
    digits = 1 if layers <= 12 else 0
    for first, last in zip(*np.nonzero(~np.isnan(matrix))):
        text = f"{matrix[first, last]:.{digits}f}"
        text = text.lstrip("-") if float(text) == 0 else text
        color = "white" if float(shades(matrix[first, last])) < 0.6 else "black"
        axes.text(last, first, text, ha="center", va="center", size=min(7.5, 96 / layers), color=color)
    for layer in range(layers):
        corner = (layer - 0.5, layer - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=ADAPTERS.color, linewidth=2))
    axes.grid(False)
    axes.set_xticks(range(layers))
    axes.set_yticks(range(layers))
    axes.tick_params(labelsize=min(10.0, 170 / layers))
    axes.set_xlabel("Last ablated layer")
    axes.set_ylabel("First ablated layer")
    return image


def reproduction_figure(cells: Sequence[CellResult]) -> Figure:
    """Return the bar chart of the course's reproduction: dev accuracy of BERT with and without adapters.

    The course's numbers, which have no spread, are shown next to those of the sweep, with adapters of size 64.
    """
    tasks = ["CoLA", "MRPC"]
    accuracy = [cell for cell in with_metric(cells, "accuracy") if cell.task in tasks]
    own = {
        FULL: [cell for cell in accuracy if cell.kind == "full"],
        ADAPTERS: [cell for cell in accuracy if cell.kind == "adapter" and cell.settings.get("adapter_size") == 64],
    }
    figure, (axes,) = _panels(["Dev accuracy"], "reproduction")
    figure.set_figwidth(6.2)
    summaries: List[Summary] = []
    for index, (style, name, hatch) in enumerate(zip(own, published.REPRODUCTION, ("//", ".."))):
        course = [published.REPRODUCTION[name][task] for task in tasks]
        _draw_bars(axes, 2 * index, course, None, f"{name}, course", {"edgecolor": style.color, "hatch": hatch})
        bars = {each.task: each for each in summarize(best_of(own[style], name)) if each.mean is not None}
        means = [bars[task].mean if task in bars else float("nan") for task in tasks]
        sems = [(bars[task].sem or 0.0) if task in bars else 0.0 for task in tasks]
        look = {"facecolor": style.color, "edgecolor": "white", "hatch": hatch}
        _draw_bars(axes, 2 * index + 1, means, sems, f"{name}, own", look)
        summaries += bars.values()
    axes.grid(False, axis="x")
    axes.set_xticks(range(len(tasks)))
    collapsed = {task: sum(each.collapsed for each in summaries if each.task == task) for task in tasks}
    axes.set_xticklabels([f"{task}\n({runs} collapsed)" if runs else task for task, runs in collapsed.items()])
    axes.set_xlim(-0.55, len(tasks) - 0.45)
    axes.set_ylim(0, 119)  # leaves space for the legend
    _finish(axes, summaries, "dev")
    axes.legend(ncol=2, loc="upper center", fontsize="small")
    return figure


def _draw_bars(
    axes: Axes, index: int, heights: Sequence[Any], sems: Optional[Sequence[float]], label: str, look: Dict[str, Any]
) -> None:
    """Draw one of four bars of each group, with its height above it."""
    positions = np.arange(len(heights)) + 0.2 * (index - 1.5)
    axes.bar(positions, heights, 0.18, yerr=sems, label=label, capsize=3, **{"facecolor": "white", **look})
    for position, height, sem in zip(positions, heights, sems or [0.0] * len(heights)):
        if np.isfinite(height):
            axes.text(position, height + sem + 1, f"{height:.1f}", ha="center", va="bottom", size="small")
