"""Pictures of the measurements, as PNG files."""

from __future__ import annotations

import os
from typing import Any, List, Optional, Sequence, Tuple

from benchmarks import plan
from benchmarks.tables import Record, Spread, by_round

OURS, OTHERS = "#1f5fa8", "#b9bfc7"
# Quantity, label, what one unit of the axis is.
Panel = Tuple[str, str, float]


def _title(side: str) -> str:
    return plan.TITLES.get(side, side).replace(", ", ",\n").replace(" (", "\n(")


def _bars(axes: Any, records: Sequence[Record], suite: str, case: str, panel: Panel) -> None:
    """Median of each side, with its range."""
    quantity, label, unit = panel
    order = [side for side in dict.fromkeys(record.side for record in records) if side not in plan.LIMITS]
    found = [(side, by_round(records, suite, case, side, quantity)) for side in order]
    found = [(side, Spread.of(list(values.values()))) for side, values in found if values]
    found = [(side, spread) for side, spread in found if not (side == plan.LIMIT and quantity == "peak_bytes")]
    for place, (side, spread) in enumerate(found):
        below, above = spread.median - spread.least, spread.most - spread.median
        axes.barh(
            place,
            spread.median / unit,
            xerr=[[below / unit], [above / unit]],
            color=OURS if side.startswith("ours") else OTHERS,
            capsize=3,
        )
    axes.set_yticks(range(len(found)))
    axes.set_yticklabels([_title(side) for side, _ in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(case, fontsize=10)


def _suite_bars(records: Sequence[Record], suite: str, panels: Sequence[Panel], path: str) -> Optional[str]:
    """A line of bar charts for each case."""
    of_suite = [record for record in records if record.suite == suite]
    cases = list(dict.fromkeys(record.case for record in of_suite))
    shown = [panel for panel in panels if any(panel[0] in record.values for record in of_suite)]
    if not shown:
        return None
    pyplot = _pyplot()
    figure, grid = pyplot.subplots(
        len(cases), len(shown), figsize=(5.5 * len(shown), 0.9 + 2.6 * len(cases)), squeeze=False
    )
    for line, case in zip(grid, cases):
        for axes, panel in zip(line, shown):
            _bars(axes, of_suite, suite, case, panel)
    return _save(pyplot, figure, path)


def _growth(records: Sequence[Record], path: str) -> Optional[str]:
    """Time and memory against each of the sizes."""
    of_suite = [record for record in records if record.suite == "growth"]
    if not of_suite:
        return None
    pyplot = _pyplot()
    axes_names = list(dict.fromkeys(record.case.split("=")[0] for record in of_suite))
    figure, grid = pyplot.subplots(2, len(axes_names), figsize=(4.2 * len(axes_names), 6.4), squeeze=False)
    for column, axis in enumerate(axes_names):
        for line, (quantity, label, unit) in enumerate(
            [("seconds", "seconds", 1.0), ("peak_bytes", "peak of memory, MB", 1e6)]
        ):
            axes = grid[line][column]
            for side in dict.fromkeys(record.side for record in of_suite):
                points = sorted(growth_points(of_suite, axis, side, quantity))
                if not points:
                    continue
                style = {"color": OURS if side == "ours" else "#6b7480", "marker": "o", "label": plan.TITLES[side]}
                axes.plot([x for x, _ in points], [y / unit for _, y in points], **style)
            axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
            axes.set_xlabel(axis)
            axes.set_ylabel(label)
            axes.legend(fontsize=8)
    return _save(pyplot, figure, path)


def growth_points(records: Sequence[Record], axis: str, side: str, quantity: str) -> List[Tuple[int, float]]:
    """(size, median) of one curve."""
    cases = [case for case in dict.fromkeys(record.case for record in records) if case.split("=")[0] == axis]
    found = [(int(case.split("=")[1]), by_round(records, "growth", case, side, quantity)) for case in cases]
    return [(size, Spread.of(list(values.values())).median) for size, values in found if values]


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, path: str) -> str:
    figure.tight_layout()
    partial = path + ".partial"
    figure.savefig(partial, dpi=110, format="png")
    pyplot.close(figure)
    os.replace(partial, path)
    return path


def write_all(records: Sequence[Record], folder: str) -> List[str]:
    """Writes a picture for each suite that was measured; returns their names."""
    speed = ("examples_per_second", "examples a second", 1.0)
    memory = ("peak_bytes", "peak of memory, MB", 1e6)
    wall = ("wall_seconds", "whole process, s", 1.0)
    disk = ("bytes", "MB on disk", 1e6)
    suites = {"step": [speed, memory], "epoch": [speed, wall, memory], "features": [speed], "sizes": [disk]}
    written = []
    for suite, panels in suites.items():
        written.append(_suite_bars(records, suite, panels, os.path.join(folder, suite + ".png")))
    written.append(_growth(records, os.path.join(folder, "growth.png")))
    return [os.path.basename(path) for path in written if path]
