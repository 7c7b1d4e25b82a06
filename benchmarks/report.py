"""From results to one table: medians and ranges of each side, and ratios of measurements of the same round."""

from __future__ import annotations

import os
import statistics
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import tabulate

from benchmarks.suites import SIDES

Results = Sequence[Mapping[str, Any]]
QUANTITIES = ("seconds", "examples", "peak_bytes", "bytes")
HEADERS = ["case", "side", "seconds", "examples/s", "peak GB", "MB on disk", "ours is faster by", "our memory over it"]


def by_round(results: Results, suite: str, case: str, side: str, quantity: str) -> Dict[int, float]:
    """Return round -> value of one side; of several timed steps, the median."""
    found = {}
    for row in results:
        if (row["suite"], row["case"], row["side"]) == (suite, case, side) and quantity in row["result"]:
            value = row["result"][quantity]
            found[row["round"]] = statistics.median(value) if isinstance(value, list) else float(value)
    return found


def ratios(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> List[float]:
    """Return the ratios of values of the same round."""
    return [numerator[turn] / denominator[turn] for turn in numerator if turn in denominator]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Format the median and, for several values, the range: `1.29 (1.21-1.38)`."""
    if not values:
        return ""
    text = f"{statistics.median(values):.{digits}g}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}g}-{max(values):.{digits}g})"


def table(results: Results) -> str:
    """Return one Markdown line for each case and side."""
    names: List[Tuple[str, str]] = list(dict.fromkeys((row["suite"], row["case"]) for row in results))
    lines = []
    for suite, case in names:
        for side in (name for name in SIDES if by_round(results, suite, case, name, "peak_bytes")):
            column = {q: by_round(results, suite, case, side, q) for q in QUANTITIES}
            ours = {q: by_round(results, suite, case, "ours", q) for q in column}
            rate = ratios(column["examples"], column["seconds"])
            speed = ratios(column["seconds"], ours["seconds"]) if side != "ours" else []
            memory = ratios(ours["peak_bytes"], column["peak_bytes"]) if side != "ours" and suite != "sizes" else []
            lines.append(
                [
                    f"{suite}: {case}",
                    SIDES[side].title,
                    spread(list(column["seconds"].values())),
                    spread(rate),
                    spread([value / 1e9 for value in column["peak_bytes"].values()]) if suite != "sizes" else "",
                    spread([value / 1e6 for value in column["bytes"].values()], 4),
                    spread(speed),
                    spread(memory),
                ]
            )
    return tabulate.tabulate(lines, HEADERS, tablefmt="pipe", disable_numparse=True)


def write(folder: str, command: str, environment: Mapping[str, Any], results: Results) -> str:
    """Write `table.md` and return its text."""
    facts = ", ".join(f"{name} {value}" for name, value in environment.items())
    text = f"`benchmarks/run.sh {command}`\n\n{facts}\n\n{table(results)}\n"
    with open(os.path.join(folder, "table.md"), "w", encoding="utf-8") as file:
        file.write(text)
    return text
