"""Imports go in one direction, from `common` at the bottom to the entry points at the top."""

from __future__ import annotations

import ast
import os
from typing import Dict, Iterator, List, Tuple

from tests.helpers import ROOT

# From the bottom to the top; modules that share a line may import each other.
ORDER = [
    ["adapter_bert.common"],
    # Differences between TensorFlow versions concern the model too.
    ["adapter_bert.devices.compat"],
    [
        "tokenization",
        "adapter_bert.model.adapter_config",
        "adapter_bert.model.tuning_modes",
        "adapter_bert.model.fused_ops",
        "adapter_bert.model.dropout",
        "adapter_bert.model.batch_norm",
        "adapter_bert.model.shared_layers",
        "adapter_bert.model.precision",
        "adapter_bert.model.loss_scale",
    ],
    ["adapter_layers", "adapter_bert.model.layers", "modeling", "optimization"],
    ["adapter_bert.model"],
    ["adapter_bert.tasks"],
    ["adapter_bert.pipeline"],
    ["adapter_bert.devices"],
    ["adapter_bert.evaluation"],
    ["adapter_bert.settings"],
    ["adapter_bert.weights"],
    ["adapter_bert.weights.exchange"],
    ["adapter_bert.training"],
    ["adapter_bert.experiments", "adapter_bert.baselines", "adapter_bert.serving"],
    ["adapter_bert.api"],
    ["adapter_bert.notebook", "run_classifier", "run_squad", "scripts", "benchmarks"],
]
LEVEL: Dict[str, int] = {name: level for level, names in enumerate(ORDER) for name in names}
# Still to be removed; this list only shrinks.
KNOWN = {}
# No other module may import one of these.
ENTRY_POINTS = ("run_classifier", "run_squad", "scripts")


def level_of(module: str) -> int:
    """The level of the longest listed prefix of a dotted name; -1 for modules of other projects."""
    while module and module not in LEVEL:
        module = module.rpartition(".")[0]
    return LEVEL.get(module, -1)


def project_files() -> List[str]:
    found = [name for name in os.listdir(ROOT) if name.endswith(".py")]
    for top in ("adapter_bert", "scripts", "benchmarks"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names if name.endswith(".py")]
    return sorted(found)


def imports_of(path: str) -> Iterator[Tuple[int, str]]:
    """Line number and dotted name of everything that a file imports, inside functions too."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write absolute imports"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_no_module_imports_one_above_it():
    paths = project_files()
    assert len(paths) > 50
    wrong = []
    for path in paths:
        module = path[: -len(".py")].replace(os.sep, ".")
        if module.endswith("__init__"):
            continue
        for _, name in imports_of(path):
            is_entry_point = name.split(".")[0] in ENTRY_POINTS
            if level_of(name) > level_of(module) or (is_entry_point and module not in ENTRY_POINTS):
                wrong.append(f"{path} imports {name}")
    assert wrong == []
