"""The figures show what the statistics say, and are written with the same bytes every time."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from adapter_bert.experiments import figures
from adapter_bert.experiments.selection import select_best
from adapter_bert.experiments.summaries import summarize, trade_off
from tests.experiments.sweeps import make_cell, sweep
from tests.helpers import assert_mentions, message_of

RATES = (2e-5, 1e-4, 1e-3)


def means_of(axes, label):
    """The points of the series with this label."""
    (container,) = [each for each in axes.containers if each.get_label() == label]
    return [list(values) for values in container.lines[0].get_data()]


def rate_cells(flag="learning_rate"):
    """Two seeds of adapters and full fine-tuning at each rate, and a worse setting."""
    return [
        make_cell(0.8 - (0.3 if kind == "full" and rate > 5e-4 else 0) + 0.01 * seed - 0.002 * epochs, seed, **{
            "kind": kind,
            "method": kind,
            "collapsed": kind == "full" and rate > 5e-4,
            "settings": {flag: rate, "num_train_epochs": epochs},
        })
        for kind in ("adapter", "full") for rate in RATES for epochs in (3, 20) for seed in (1, 2)
    ]  # fmt: skip


def test_the_trade_off_shows_the_percentiles():
    glue = [cell for cell in sweep() if cell.task not in ("SQuAD", "sms_spam_collection")]
    spam = [cell for cell in sweep() if cell.task == "sms_spam_collection"]
    figure = figures.trade_off_figure({"GLUE": glue, "Additional": spam}, {"Additional": "test"})
    for axes, points in zip(figure.axes, (trade_off(glue), trade_off(spam, "test"))):
        for label, kinds in (("Adapters", ("adapter",)), ("Fine-tune top or all layers", ("top_layers", "full"))):
            (line,) = [line for line in axes.lines if line.get_label() == label]
            curve = [point for point in points if point.kind in kinds]
            assert curve
            assert list(line.get_xdata()) == [point.trained_params for point in curve]
            assert list(line.get_ydata()) == [point.percentiles[1] for point in curve]
        assert axes.get_xscale() == "log"
    edges = [list(line.get_ydata()) for line in figure.axes[0].lines]
    adapters = [point for point in trade_off(glue) if point.kind == "adapter"]
    assert [point.percentiles[0] for point in adapters] in edges
    assert [point.percentiles[2] for point in adapters] in edges
    assert "test" in figure.axes[1].get_title()


@pytest.mark.parametrize("task, metric", [("CoLA", "Matthews"), ("SQuAD", "F1")])
def test_scores_are_shown_against_trained_parameters_with_error_bars(task, metric):
    axes = figures.params_figure(sweep(), [task]).axes[0]
    summaries = [each for each in summarize(sweep()) if each.task == task]
    curve = sorted((each for each in summaries if each.kind == "adapter"), key=lambda each: each.trained_params)
    assert len(curve) >= 2
    assert means_of(axes, "Adapters") == [[each.trained_params for each in curve], [each.mean for each in curve]]
    (container,) = [each for each in axes.containers if each.get_label() == "Adapters"]
    lengths = [np.ptp(segment[:, 1]) / 2 for segment in container.lines[2][0].get_segments()]
    assert lengths == pytest.approx([each.sem for each in curve])
    assert metric in axes.get_ylabel() and "dev" in axes.get_ylabel() and "%" in axes.get_ylabel()
    assert "3 seeds" in axes.get_title()


def test_collapsed_runs_are_marked():
    axes = figures.params_figure(sweep(), ["RTE"]).axes[0]
    (marks,) = [line for line in axes.lines if line.get_label() == "Has collapsed runs"]
    assert list(marks.get_xdata()) == [109_483_778]
    assert "Has collapsed runs" in [text.get_text() for text in axes.get_legend().get_texts()]
    axes = figures.params_figure(sweep(), ["CoLA"]).axes[0]
    assert "Has collapsed runs" not in [line.get_label() for line in axes.lines]


@pytest.mark.parametrize("draw", [figures.params_figure, figures.learning_rate_figure])
def test_long_names_fit_and_the_legend_covers_no_label(draw):
    task = "crowdflower_us_economic_performance"
    figure = draw([dataclasses.replace(cell, task=task) for cell in rate_cells()], [task])
    (axes,) = figure.axes
    figure.canvas.draw()
    title, label, legend = (each.get_window_extent() for each in (axes.title, axes.xaxis.label, axes.get_legend()))
    assert 0 <= title.x0 < title.x1 <= figure.bbox.width
    assert not legend.overlaps(label)


def test_series_differ_without_color():
    axes = figures.params_figure(sweep(), ["CoLA"]).axes[0]
    lines = [container.lines[0] for container in axes.containers]
    assert (
        len({line.get_marker() for line in lines}) == len({line.get_linestyle() for line in lines}) == len(lines) == 3
    )


def test_the_initial_scale_has_a_line_per_task_and_a_band():
    cells = [cell for cell in rate_cells("adapter_init_scale") if cell.kind == "adapter"]
    axes = figures.init_scale_figure(cells).axes[0]
    best = [cell for cell in cells if cell.settings["num_train_epochs"] == 3]
    scores = {rate: [100 * cell.dev for cell in best if cell.settings["adapter_init_scale"] == rate] for rate in RATES}
    x, y = means_of(axes, "CoLA")
    assert (x, y) == (list(RATES), pytest.approx([np.mean(each) for each in scores.values()]))
    corners = axes.collections[-1].get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(min(map(min, scores.values())))
    assert corners[:, 1].max() == pytest.approx(max(map(max, scores.values())))


def test_learning_rates_have_the_best_setting_of_each_method_and_all_seeds():
    axes = figures.learning_rate_figure(rate_cells(), ["CoLA"]).axes[0]
    for label, kind in (("Adapters", "adapter"), ("Full fine-tuning", "full")):
        x, y = means_of(axes, label)
        assert x == pytest.approx(RATES, rel=0.05)
        for rate, mean in zip(RATES, y):
            cells = [cell for cell in rate_cells() if cell.kind == kind and cell.settings["learning_rate"] == rate]
            scores = [100 * cell.dev for cell in select_best(cells)]
            assert mean == pytest.approx(np.mean(scores))
            assert any(list(line.get_ydata()) == pytest.approx(scores) for line in axes.lines)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2e-5", "1e-4", "1e-3"]


def test_the_ablation_shows_the_upper_triangle_and_marks_the_diagonal():
    changes = -np.arange(9.0).reshape(3, 3)
    axes, other = figures.ablation_figure({"MNLI": changes, "CoLA": changes.tolist()}).axes[:2]
    shown = axes.images[0].get_array()
    for first in range(3):
        for last in range(3):
            assert shown[first, last] is np.ma.masked if last < first else shown[first, last] == changes[first, last]
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[(2, 0)] == "-2.0"
    assert texts[(0, 0)] == "0.0"
    assert sorted(patch.get_xy() for patch in axes.patches) == [(-0.5, -0.5), (0.5, 0.5), (1.5, 1.5)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Last ablated layer", "First ablated layer")
    assert other.get_title() == "CoLA"


def test_an_ablation_that_is_no_square_is_reported():
    assert_mentions(message_of(figures.ablation_figure, {"MNLI": np.zeros((2, 3))}), "MNLI", "(2, 3)")


def test_the_reproduction_has_the_courses_and_own_accuracies():
    axes = figures.reproduction_figure(sweep()).axes[0]
    heights = {
        bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers if hasattr(bars, "patches")
    }
    assert heights["Full fine-tuning, course"] == [82.74209, 85.04902]
    assert heights["Adapters (64), course"] == [81.78332, 85.784316]
    for name, method in (("Full fine-tuning, own", "full"), ("Adapters (64), own", "adapters 64")):
        for height, task in zip(heights[name], ("CoLA", "MRPC")):
            cells = [cell for cell in sweep() if (cell.task, cell.method) == (task, method)]
            rates = {cell.settings["learning_rate"] for cell in cells}
            scores = [[c.metrics.get("accuracy") for c in cells if c.settings["learning_rate"] == r] for r in rates]
            assert height == pytest.approx(100 * max(np.mean(each) for each in scores if None not in each))


@pytest.mark.parametrize("function, arguments", [
    (figures.trade_off_figure, ({},)),
    (figures.params_figure, ([], [])),
    (figures.ablation_figure, ({},)),
])  # fmt: skip
def test_figures_without_panels_are_reported(function, arguments):
    assert "results" in message_of(function, *arguments)


def test_figures_without_results_are_empty():
    assert figures.params_figure([], ["CoLA"]).axes[0].lines[:] == []
    assert figures.trade_off_figure({"GLUE": []}).axes[0].get_title().endswith("0 tasks")
    assert figures.learning_rate_figure([], ["CoLA"]).axes[0].lines[:] == []
    assert figures.init_scale_figure([]).axes[0].lines[:] == []
    assert len(figures.reproduction_figure([]).axes[0].patches) == 8


MAKERS = {
    "trade_off": lambda: figures.trade_off_figure({"GLUE": sweep()}),
    "params": lambda: figures.params_figure(sweep(), ["CoLA", "MRPC"]),
    "ablation": lambda: figures.ablation_figure({"MNLI": -np.ones((12, 12))}),
    "reproduction": lambda: figures.reproduction_figure(sweep()),
}


@pytest.mark.parametrize("name", list(MAKERS))
def test_png_and_svg_are_the_same_every_time(tmp_path, name):
    paths = figures.save(MAKERS[name](), str(tmp_path / "first"))
    again = figures.save(MAKERS[name](), str(tmp_path / "second"))
    assert [os.path.basename(path) for path in paths] == ["first.png", "first.svg"]
    for path, other in zip(paths, again):
        with open(path, "rb") as one, open(other, "rb") as two:
            content = one.read()
            assert content == two.read()
        assert len(content) > 5000
        assert content.startswith(b"\x89PNG" if path.endswith("png") else b"<?xml")
        assert b"dc:date" not in content and b"Matplotlib v" not in content
