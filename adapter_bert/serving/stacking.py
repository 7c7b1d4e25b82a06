"""Which packs can share a graph with others, and how they are stored in it."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.common import errors
from adapter_bert.model.adapter_config import PAPER_INIT_SCALE, PAPER_SIZE
from adapter_bert.serving.task_graph import LABEL, SPAN, Family, TaskGraph, head_names, table_names, table_size
from adapter_bert.weights import checkpoints, packs
from adapter_bert.weights.loading import Assignment

# Tuning modes whose variables a table holds.
MODES = ("adapter", "layer_norm", "head")
# Variant fields of an adapter that change its graph beyond what a table holds.
_VARIANTS = ("norm", "depth", "connection")


def obstacle(config: packs.PackConfig) -> Optional[str]:
    """Return why a pack cannot share a graph with others; None if it can."""
    if config.tuning_mode not in MODES:
        return f"its tuning mode is {config.tuning_mode}; expected one of {', '.join(MODES)}"
    variant = config.adapter_config.variant if config.adapter_config else {}
    found = [f"{name}={variant[name]}" for name in _VARIANTS if name in variant]
    return f"its adapters have {', '.join(found)}; expected those of the paper" if found else None


def check(config: packs.PackConfig, where: str) -> None:
    """Raise a `UserError`, which starts with `where`, if a pack cannot share a graph with others."""
    problem = obstacle(config)
    if problem:
        raise errors.UserError(
            f"{where} (task {config.task}) cannot share a base with other tasks: {problem}. Load it on its own, with "
            "Predictor or --adapter_pack."
        )


def family_of(config: packs.PackConfig) -> Family:
    """Return the family of a pack. A pack that cannot share a graph has the adapters of its own graph."""
    kind = SPAN if config.head == "span" else LABEL
    units = 2 if kind == SPAN else table_size(max(len(config.labels), 1))
    adapter = config.adapter_config
    if adapter is None or obstacle(config):
        return Family(kind, adapter, 0, units)
    size = table_size(adapter.size)
    adapter = dataclasses.replace(adapter, size=PAPER_SIZE, init_scale=PAPER_INIT_SCALE, freeze_below=False)
    return Family(kind, adapter, size, units)


def build_alone(
    config: packs.PackConfig, assignments: Sequence[Assignment], precision: str
) -> Tuple[TaskGraph, Dict[str, np.ndarray]]:
    """Return a graph for one pack, which it may not be able to share, and the variables of the pack in its table."""
    spec = dataclasses.replace(config.spec, precision=precision)
    family = family_of(config)
    names = head_names(family.kind) if obstacle(config) else table_names(config.bert_config)
    kept, tensors = _divide(assignments, [name for name in spec.shapes if name in set(names)])
    reduced = spec.reduced_names(trains=False)
    return TaskGraph(config.bert_config, kept, names, reduced, precision, family.adapter), tensors


def _divide(assignments: Sequence[Assignment], names: Sequence[str]) -> Tuple[List[Assignment], Dict[str, np.ndarray]]:
    """Return the assignments without these variables, and the values of these."""
    kept, tensors = [], {}
    for each in assignments:
        taken = [name for name in names if name in each.names]
        others = tuple(name for name in each.names if name not in taken)
        values = checkpoints.read_tensors(each.path, taken) if each.values is None else each.values
        tensors.update({name: values[name] for name in taken})
        rest = None if each.values is None else {name: each.values[name] for name in others}
        kept.append(Assignment(each.path, others, rest))
    return kept, tensors
