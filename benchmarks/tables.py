"""From measurements to Markdown: medians, ranges, ratios of what was measured in the same round. Pure."""

from __future__ import annotations

import statistics
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from benchmarks import comparisons, plan
from benchmarks.comparisons import Comparison


class Record(NamedTuple):
    """What one process measured: quantity -> number."""

    suite: str
    case: str
    side: str
    round: int
    values: Mapping[str, float]


class Spread(NamedTuple):
    """Median, least and most of several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one number."""
        return cls(statistics.median(values), min(values), max(values))


# ------------------------------------------------------------------------------------------ arithmetic


def record_of(entry: Mapping[str, Any]) -> Record:
    """A measurement as it is kept -> its numbers; of several steps the median."""
    result, job = entry["result"], entry["job"]
    plain = ("peak_bytes", "wall_seconds", "bytes", "trained", "steps")
    values = {name: float(result[name]) for name in plain if name in result}
    if "seconds" in result:
        values["seconds"] = statistics.median(result["seconds"])
        examples = job["batch"] * (result.get("steps", 1) if job["kind"] == "epoch" else 1)
        values["examples_per_second"] = examples / values["seconds"]
    if "flops" in result:
        values["gflops"] = result["flops"] / values["seconds"] / 1e9
    return Record(entry["suite"], entry["case"], entry["side"], entry["round"], values)


def records_of(entries: Iterable[Mapping[str, Any]]) -> List[Record]:
    """All measurements, those of the programs for features and predictions among them, and the quicker limit."""
    found: List[Record] = []
    for entry in entries:
        if entry["suite"] == "features":
            found += map(feature_record, entry["result"]["records"])
        elif entry["suite"] == "predict":
            found += map(predict_record, entry["result"]["records"])
        elif entry["case"] == plan.ROWS:
            found += row_records(entry["result"]["text"])
        else:
            found.append(record_of(entry))
    return found + best_limits(found)


def feature_record(row: Mapping[str, Any]) -> Record:
    """A line of `benchmarks/features.py`."""
    values = {"seconds": float(row["seconds"]), "examples_per_second": row["examples"] / row["seconds"]}
    if row.get("peak_bytes"):
        values["peak_bytes"] = float(row["peak_bytes"])
    return Record("features", row["task"], row["side"], row["round"], values)


def predict_record(row: Mapping[str, Any]) -> Record:
    """A line of `benchmarks/predict.py`; its unit tells whether more is better."""
    return Record("predict", row["what"], row["side"], row["round"], {row["unit"]: float(row["value"])})


def printed_table(text: str, first_title: str) -> List[Dict[str, str]]:
    """The lines of the Markdown table, in what a program has printed, whose first column has this title."""
    rows: List[Dict[str, str]] = []
    titles: Optional[List[str]] = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if titles is None:
            titles = cells if line.startswith("|") and cells[0] == first_title else None
        elif not line.startswith("|"):
            break
        elif cells[0].strip("-: "):
            rows.append(dict(zip(titles, cells)))
    return rows


def row_records(text: str) -> List[Record]:
    """What `benchmarks/features.py --memory_rows` prints: features of ever more rows, in a process of their own."""
    found = []
    for row in printed_table(text, "rows"):
        count, seconds = int(row["rows"].replace(",", "")), float(row["features, s"])
        megabytes = float(row["base, MB"]) + float(row["peak above it, MB"])
        values = {"seconds": seconds, "examples_per_second": count / seconds, "peak_bytes": megabytes * 2**20}
        found.append(Record("growth", f"{plan.ROWS}={count}", "ours", 0, values))
    return found


def best_limits(records: Sequence[Record]) -> List[Record]:
    """The limit of each round: that of the quicker library."""
    best: Dict[tuple, Record] = {}
    for record in records:
        if record.side in plan.LIMITS:
            key = (record.suite, record.case, record.round)
            if key not in best or record.values["seconds"] < best[key].values["seconds"]:
                best[key] = record
    return [record._replace(side=plan.LIMIT) for record in best.values()]


def by_round(records: Iterable[Record], suite: str, case: str, side: str, quantity: str) -> Dict[int, float]:
    """Round -> number."""
    return {
        record.round: record.values[quantity]
        for record in records
        if (record.suite, record.case, record.side) == (suite, case, side) and quantity in record.values
    }


def ratios(left: Mapping[int, float], right: Mapping[int, float], inverted: bool = False) -> List[float]:
    """Left over right, round by round, where both were measured; inverted: right over left."""
    common = [turn for turn in sorted(left) if turn in right]
    return [right[turn] / left[turn] if inverted else left[turn] / right[turn] for turn in common]


def reached(ratio: float, comparison: Comparison) -> Optional[bool]:
    """Whether a target is reached; None where there is none."""
    if comparison.target is None:
        return None
    return ratio >= comparison.target if comparison.at_least else ratio <= comparison.target


# ------------------------------------------------------------------------------------------ Markdown


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], left_columns: int = 1) -> str:
    """Lines of a table; columns of numbers are set to the right."""
    marks = ["---"] * left_columns + ["--:"] * (len(titles) - left_columns)
    return "\n".join("| " + " | ".join(line) + " |" for line in [list(titles), marks, *rows]) + "\n"


def number(value: float, quantity: str) -> str:
    """A number with its unit."""
    if quantity in ("peak_bytes", "bytes"):
        return f"{value / 1e6:,.1f} MB"
    if quantity in ("seconds", "wall_seconds"):
        return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"
    if quantity in ("trained", "steps"):
        return f"{value:,.0f}"
    unit = {"examples_per_second": "examples/s", "gflops": "GFLOP/s"}.get(quantity, quantity)
    return f"{value:,.2f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def spread_text(spread: Spread, quantity: Optional[str] = None) -> str:
    """Median and range."""
    if quantity is None:
        return f"**{spread.median:.2f}** ({spread.least:.2f}–{spread.most:.2f})"
    median = number(spread.median, quantity)
    if spread.least == spread.most:
        return median
    least, most = (number(value, quantity).split()[0] for value in spread[1:])
    return f"{median} ({least}–{most})"


def comparison_row(records: Sequence[Record], comparison: Comparison) -> Optional[List[str]]:
    """A line of the table of comparisons; None where one of the sides is missing."""
    left, right = (
        by_round(records, comparison.suite, comparison.case, side, comparison.quantity)
        for side in (comparison.left, comparison.right)
    )
    found = ratios(left, right, comparison.inverted)
    if not found:
        return None
    spread = Spread.of(found)
    target, verdict = "", ""
    if comparison.target is not None:
        target = "{} {:.2f}".format("≥" if comparison.at_least else "≤", comparison.target)
        verdict = "reached" if reached(spread.median, comparison) else "**not reached**"
    cells = [spread_text(Spread.of(list(side.values())), comparison.quantity) for side in (left, right)]
    return [comparison.what, *cells, spread_text(spread), str(len(found)), target, verdict]


def comparison_table(records: Sequence[Record]) -> str:
    """What is to be reached, and what has been."""
    titles = ["what", "ours", "other", "ratio: median (range)", "rounds", "target", ""]
    rows = [comparison_row(records, comparison) for comparison in comparisons.find(records)]
    return markdown(titles, [row for row in rows if row])


def side_table(records: Sequence[Record], suite: str, quantities: Mapping[str, str]) -> str:
    """All numbers of a suite, one line for each case and side.

    Args:
      records: measurements.
      suite: which.
      quantities: quantity -> title of its column; columns without a number are left out.
    """
    names = list(dict.fromkeys((record.case, record.side) for record in records if record.suite == suite))
    order = {side: place for place, side in enumerate(plan.TITLES)}
    cases = {case: place for place, case in enumerate(dict.fromkeys(case for case, _ in names))}
    names.sort(key=lambda name: (cases[name[0]], order.get(name[1], len(order))))
    columns = {name: [by_round(records, suite, *pair, name) for pair in names] for name in quantities}
    columns = {name: column for name, column in columns.items() if any(column)}
    rows = []
    for index, (case, side) in enumerate(names):
        cells = [
            spread_text(Spread.of(list(column[index].values())), name) if column[index] else ""
            for name, column in columns.items()
        ]
        rows.append([case, plan.TITLES.get(side, side), *cells])
    return markdown(["", "", *(quantities[name] for name in columns)], rows, left_columns=2)
