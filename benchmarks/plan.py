"""What is measured: suites of jobs, in the order in which they run. Pure: nothing is run here.

A job is a dictionary that every side understands (`benchmarks.sides`):

    kind           step, epoch or sizes
    config         sizes of the network, as in `bert_config.json`      (step, sizes)
    batch, length  examples in a batch, tokens of each (epoch: at most)
    adapter_size   units of the bottleneck
    tuning         adapter or full                                     (our side)
    warmup, steps  steps before the clock, steps on it                 (step)
    seed           of weights, data order and dropout
    task, data_dir, base_dir, hf_dir, examples_file                    (epoch)
    model_fn       further arguments of `training.model_fn.build_model_fn`; flags: further flags (epoch)   (our side)
    library        torch or tensorflow                                 (matrix-product limit)
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

BERT_VOCABULARY = {"vocab_size": 30522, "type_vocab_size": 2}


def _shape(width: int, layers: int, heads: int) -> Dict[str, int]:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }
    return {**BERT_VOCABULARY, **sizes}


SHAPES = {
    "base": _shape(768, 12, 12),
    "large": _shape(1024, 24, 16),
    "minilm": _shape(384, 6, 12),
    "small": _shape(256, 4, 4),
    "tiny": _shape(128, 2, 2),
}
# Of the choice of examples, where a part of a split is taken.
DATA_SEED = 1
SUITES = ("step", "epoch", "features", "predict", "sizes", "growth")
# What grows, in the order of the plots: the value that is changed -> its values. The rest stays as in GROWTH_FIXED.
GROWTH = {"length": (32, 64, 128, 256, 512), "batch": (4, 8, 16, 32, 64), "layers": (2, 4, 8, 16)}
# Rows of a training split that become features, by `benchmarks/features.py`.
ROWS, GROWTH_ROWS = "rows", (50000, 100000, 200000, 400000)
GROWTH_SHAPE = "small"
GROWTH_FIXED = {"length": 128, "batch": 8, "layers": 4}


class Side(NamedTuple):
    """One side of a comparison: the program, how tables call it, and what its jobs have besides."""

    module: str
    title: str
    extra: Mapping[str, Any] = {}


SIDES = {
    "ours": Side("ours", "ours, adapters", {"tuning": "adapter"}),
    "ours_full": Side("ours", "ours, full fine-tuning", {"tuning": "full"}),
    "ours_padded": Side("ours", "ours, padded", {"tuning": "adapter", "flags": ["--pad_to_max_seq_length=true"]}),
    "ours_recompute": Side(
        "ours", "ours, --gradient_checkpointing", {"tuning": "adapter", "model_fn": {"gradient_checkpointing": True}}
    ),
    "ours_parts": Side(
        "ours", "ours, --gradient_accumulation_steps=4", {"tuning": "adapter", "model_fn": {"accumulation_steps": 4}}
    ),
    "adapterhub": Side("adapterhub", "AdapterHub"),
    "hf_full": Side("hf_full", "Hugging Face, full fine-tuning"),
    "peft_lora": Side("peft_lora", "PEFT, LoRA (another method)"),
    "limit_torch": Side("matmul_limit", "matrix products alone, PyTorch", {"library": "torch"}),
    "limit_tensorflow": Side("matmul_limit", "matrix products alone, TensorFlow", {"library": "tensorflow"}),
}
# Whichever library was quicker in a round; made from the two above.
LIMIT = "limit"
LIMITS = ("limit_torch", "limit_tensorflow")
TITLES = dict(
    {name: side.title for name, side in SIDES.items()},
    **{LIMIT: "matrix products alone", "transformers": "Hugging Face", "huggingface": "Hugging Face"},
)

STEP_SIDES = (
    "ours",
    "adapterhub",
    "limit_torch",
    "limit_tensorflow",
    "ours_full",
    "hf_full",
    "peft_lora",
    "ours_recompute",
    "ours_parts",
)
EPOCH_SIDES = ("ours", "adapterhub", "ours_padded")
SIZES_SIDES = ("ours", "adapterhub", "peft_lora", "hf_full", "ours_full")
GROWTH_SIDES = ("ours", "adapterhub")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One process to be measured.

    Attributes:
      suite, case, side, round: its name; rounds count from 0.
      job: what it is told.
    """

    suite: str
    case: str
    side: str
    round: int
    job: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What tells it from others of a run."""
        return f"{self.suite}/{self.case}/{self.side}/{self.round}"

    def command(self, python: str) -> List[str]:
        """The command line, to be run in the project's folder."""
        return [python, "-m", f"benchmarks.sides.{SIDES[self.side].module}", json.dumps(self.job, sort_keys=True)]


def rotated(sides: Sequence[str], turn: int) -> List[str]:
    """The sides in another order each round, so that none always runs behind the same one."""
    start = turn % len(sides)
    return list(sides[start:]) + list(sides[:start])


def _rounds(suite: str, case: str, sides: Sequence[str], rounds: int, job: Mapping[str, Any]) -> List[Entry]:
    return [
        Entry(suite, case, side, turn, {**job, **SIDES[side].extra, "seed": turn + 1})
        for turn in range(rounds)
        for side in rotated(sides, turn)
    ]


def step_case(shape: str, batch: int, length: int, adapter_size: int) -> str:
    """The name of a fixed shape."""
    return f"{shape} {batch}x{length} size {adapter_size}"


def step_entries(shape: str, batch: int, length: int, adapter_size: int, warmup: int, steps: int, rounds: int) -> list:
    """The training step on random weights and a full batch."""
    job = {
        "kind": "step",
        "config": SHAPES[shape],
        "batch": batch,
        "length": length,
        "adapter_size": adapter_size,
        "warmup": warmup,
        "steps": steps,
    }
    return _rounds("step", step_case(shape, batch, length, adapter_size), STEP_SIDES, rounds, job)


def epoch_case(task: str, job: Mapping[str, Any]) -> str:
    """The name of an epoch, or of a part of one."""
    part = "" if job["fraction"] >= 1 else f", {job['fraction']:g} of it"
    return f"{task} {job['length']} tokens{part}"


def epoch_entries(tasks: Mapping[str, Mapping[str, Any]], rounds: int) -> List[Entry]:
    """One epoch of real data.

    Args:
      tasks: name -> what its jobs hold: data, base, batch, length, fraction.
      rounds: how many.
    """
    by_task = [
        _rounds("epoch", epoch_case(name, job), EPOCH_SIDES, rounds, {"kind": "epoch", "task": name, **job})
        for name, job in tasks.items()
    ]
    return sorted((entry for entries in by_task for entry in entries), key=lambda entry: entry.round)


def sizes_entries(shape: str, adapter_size: int) -> List[Entry]:
    """What a task takes on disk; it does not change from round to round."""
    job = {"kind": "sizes", "config": SHAPES[shape], "adapter_size": adapter_size}
    return _rounds("sizes", f"{shape} size {adapter_size}", SIZES_SIDES, 1, job)


def growth_entries(adapter_size: int, warmup: int, steps: int, rounds: int) -> List[Entry]:
    """The training step of a small network as one of its sizes grows."""
    entries = []
    for axis, values in GROWTH.items():
        for value in values:
            at = dict(GROWTH_FIXED, **{axis: value})
            job = {
                "kind": "step",
                "config": dict(SHAPES[GROWTH_SHAPE], num_hidden_layers=at["layers"]),
                "batch": at["batch"],
                "length": at["length"],
                "adapter_size": adapter_size,
                "warmup": warmup,
                "steps": steps,
            }
            entries += _rounds("growth", f"{axis}={value}", GROWTH_SIDES, rounds, job)
    return sorted(entries, key=lambda entry: entry.round)


def external_entry(suite: str, program: str, arguments: Mapping[str, Any], case: str = "all") -> Entry:
    """A program that measures all its sides and rounds itself, see `measure.external_command`.

    Args:
      suite: what its numbers belong to.
      program: its name in `benchmarks/`, without `.py`.
      arguments: flag -> value.
      case: what is measured.
    """
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    return Entry(suite, case, "all", 0, {"program": f"benchmarks/{program}.py", "arguments": flags})
