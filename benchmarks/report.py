"""The text of `table.md`: on what, by which command, what is reached, all numbers."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Sequence

from benchmarks import measure, plan, tables
from benchmarks.tables import Record

TABLE_FILE = "table.md"
TITLES = {
    "step": "One training step: random weights, full batch, no padding",
    "epoch": "One epoch of real data",
    "features": "Text to features",
    "predict": "Predictions",
    "sizes": "On disk",
    "growth": "Growth: one training step of a small BERT ({hidden_size} wide, {num_attention_heads} heads)".format(
        **plan.SHAPES[plan.GROWTH_SHAPE]
    ),
}
QUANTITIES = {
    "seconds": "time",
    "examples_per_second": "speed",
    "gflops": "matrix products",
    "wall_seconds": "whole process",
    "peak_bytes": "peak of memory",
    "bytes": "on disk",
    "trained": "trained parameters",
    "steps": "steps",
}
# What says nothing about a suite.
LEFT_OUT = {
    "step": ("wall_seconds", "bytes"),
    "growth": ("wall_seconds", "bytes", "trained", "gflops"),
    "sizes": ("wall_seconds", "peak_bytes"),
}


def facts_text(facts: Mapping[str, Any], command: str) -> str:
    """The head: machine, libraries, command."""
    machine = f"{facts['cores']} cores of {facts['processor']}, {facts['memory GB']} GB, {facts['system']}"
    others = [f"{name} {facts[name]}" for name in facts if name not in ("cores", "processor", "memory GB", "system")]
    return f"{machine}; {', '.join(others)}.\n\n```bash\n{command}\n```\n"


def suite_quantities(suite: str, records: Sequence[Record]) -> Mapping[str, str]:
    """Quantity -> title of its column; those of predictions are their units."""
    if suite == "predict":
        return {name: name for record in records if record.suite == suite for name in record.values}
    return {name: title for name, title in QUANTITIES.items() if name not in LEFT_OUT.get(suite, ())}


def compose(
    facts: Mapping[str, Any],
    command: str,
    records: Sequence[Record],
    failures: Mapping[str, str],
    pictures: Sequence[str],
) -> str:
    """The whole text."""
    parts: List[str] = ["# Benchmarks\n", facts_text(facts, command)]
    parts.append(
        "Ratios are of two numbers of the same round; shown are their median and range. A target counts as reached by "
        "the median.\n"
    )
    parts.append(tables.comparison_table(records))
    for suite in plan.SUITES:
        if any(record.suite == suite for record in records):
            parts.append(f"## {TITLES[suite]}\n")
            parts.append(tables.side_table(records, suite, suite_quantities(suite, records)))
            parts += [f"![{name}]({name})\n" for name in pictures if name == suite + ".png"]
    if failures:
        lines = [f"* `{key}`: {text}" for key, text in failures.items()]
        parts.append("## Failed\n")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def write(folder: str, command: str, store: measure.Store, records: Sequence[Record], pictures: Sequence[str]) -> str:
    """Writes the file; returns its text."""
    text = compose(store.facts, command, records, store.failures, pictures)
    measure.write_file(os.path.join(folder, TABLE_FILE), text)
    return text
