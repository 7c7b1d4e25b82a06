"""What is compared with what, and what is to be reached. Pure."""

from __future__ import annotations

from typing import Any, Iterable, List, NamedTuple, Optional, Sequence

from benchmarks import plan


class Comparison(NamedTuple):
    """Two sides of a case.

    The ratio is left over right; `inverted` right over left, so that for times too more means faster.
    """

    what: str
    suite: str
    case: str
    left: str
    right: str
    quantity: str = "seconds"
    inverted: bool = True
    target: Optional[float] = None
    at_least: bool = True


# The published shape that the targets are for.
TARGET_CASE = "base 32x128 size 64"
TARGET_LENGTH = 128
TARGETS = {"CoLA": {"ours_padded": 6.0, "adapterhub": 1.1}, "MRPC": {"ours_padded": 2.0}}
FEATURES_TARGETS = {"MRPC": 0.8, "SST-2": 0.8}
PREDICT_TARGETS = {"one sentence, median": 1.0, "sentences in batches of 32": 1.1}


def memory(what: str, suite: str, case: str, left: str, right: str, target: Optional[float] = None) -> Comparison:
    """Of peaks of memory: less is better."""
    return Comparison(what, suite, case, left, right, "peak_bytes", inverted=False, target=target, at_least=False)


def of_step(case: str) -> List[Comparison]:
    """One fixed shape; the targets are for BERT-base."""
    goal = (lambda value: value) if case == TARGET_CASE else (lambda value: None)
    rows = [
        ("speed over AdapterHub's", "ours", "adapterhub", 1.10),
        ("speed over that of its matrix products alone", "ours", "limit", 0.80),
        ("speed over our own full fine-tuning's", "ours", "ours_full", 1.35),
        ("our full fine-tuning: speed over Hugging Face's", "ours_full", "hf_full", None),
        ("speed over PEFT's LoRA (another method)", "ours", "peft_lora", None),
    ]
    found = [
        Comparison(f"step, {case}: {what}", "step", case, left, right, target=goal(target))
        for what, left, right, target in rows
    ]
    for right, target in (("adapterhub", 1.0), ("ours_full", None)):
        name = {"adapterhub": "AdapterHub's", "ours_full": "that of our full fine-tuning"}[right]
        what = f"step, {case}: peak of memory over {name}"
        found.append(memory(what, "step", case, "ours", right, goal(target)))
    return found


def of_epoch(case: str) -> List[Comparison]:
    """One epoch of a task, or a part of one; the targets are for the published length."""
    targets = next((goals for task, goals in TARGETS.items() if case.startswith(f"{task} {TARGET_LENGTH} ")), {})
    names = {
        "ours_padded": "our padded run's",
        "adapterhub": "AdapterHub's (dynamic padding, grouped by length)",
    }
    found = [
        Comparison(f"epoch, {case}: speed over {name}", "epoch", case, "ours", side, target=targets.get(side))
        for side, name in names.items()
    ]
    for side, name in names.items():
        what = f"epoch, {case}: the whole process, speed over {name}"
        found.append(Comparison(what, "epoch", case, "ours", side, "wall_seconds"))
    what = f"epoch, {case}: peak of memory over {names['adapterhub']}"
    return found + [memory(what, "epoch", case, "ours", "adapterhub")]


def of_sizes(case: str) -> List[Comparison]:
    """What a task takes on disk."""
    names = {
        "adapterhub": "AdapterHub's folder",
        "peft_lora": "PEFT's folder",
        "hf_full": "Hugging Face's folder of a full fine-tuning",
        "ours_full": "a checkpoint of the original kind",
    }
    return [
        Comparison(f"disk, {case}: our pack over {name}", "sizes", case, "ours", side, "bytes", False)
        for side, name in names.items()
    ]


def of_features(case: str, others: Iterable[str]) -> List[Comparison]:
    """Text to features of a task, against every other side."""
    return [
        Comparison(
            f"features, {case}: examples/s over {plan.TITLES.get(side, side)}'s",
            "features",
            case,
            "ours",
            side,
            "examples_per_second",
            inverted=False,
            target=FEATURES_TARGETS.get(case),
        )
        for side in others
    ]


def of_predict(case: str, unit: str, others: Iterable[str]) -> List[Comparison]:
    """A prediction; a unit such as examples/s means that more is better, otherwise less is."""
    is_rate = unit.replace(" ", "").endswith(("/s", "persecond", "_per_second"))
    return [
        Comparison(
            f"predict, {case}: speed over {plan.TITLES.get(side, side)}'s",
            "predict",
            case,
            "ours",
            side,
            unit,
            inverted=not is_rate,
            target=PREDICT_TARGETS.get(case),
        )
        for side in others
    ]


def find(records: Sequence[Any]) -> List[Comparison]:
    """The comparisons for what was measured, in the order of the table.

    Args:
      records: `benchmarks.tables.Record`s.
    """
    found: List[Comparison] = []
    fixed = {"step": of_step, "epoch": of_epoch, "sizes": of_sizes}
    for suite in ("step", "epoch", "features", "predict", "sizes"):
        of_suite = [record for record in records if record.suite == suite]
        for case in dict.fromkeys(record.case for record in of_suite):
            rows = [record for record in of_suite if record.case == case]
            others = [side for side in dict.fromkeys(row.side for row in rows) if side != "ours"]
            if suite in fixed:
                found += fixed[suite](case)
            elif suite == "features":
                found += of_features(case, others)
            else:
                for unit in dict.fromkeys(name for row in rows for name in row.values):
                    found += of_predict(case, unit, others)
    return found
