"""What is measured: each suite is a list of cases, each case a job that several sides run.

A job is a dictionary that every side understands:

    kind           step, epoch, sweep, cache, fixed, features, predict, tasks, bank or sizes
    config         sizes of the network, as in bert_config.json          (step, sizes)
    batch, length  examples in a batch, tokens of each (epoch: at most)
    adapter_size   units of the bottleneck
    precision      float32 or bfloat16
    cpu_time       whether to measure CPU time on one core               (predict, tasks)
    warmup, steps  untimed and timed steps                               (step)
    seed           of weights, data order and dropout
    task, data_dir, base_dir, hf_dir, examples_file                      (epoch, sweep, cache, fixed, features, predict)
    epochs, seeds  of each run, and the seeds of the runs                (sweep)
    tuning, plan, flags                                                  (only for our side)
    mode, cached   flags of what to train; whether to use --cache_frozen_layers  (cache)
    tasks          number of tasks of the sentences                      (tasks, bank)
    library        torch or tensorflow                                   (only for the matrix-product limit)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

from adapter_bert import tasks
from adapter_bert.common import errors, files, json_files
from adapter_bert.tasks.task import read_lines


def _shape(width: int, layers: int, heads: int) -> Dict[str, int]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"vocab_size": 30522, "type_vocab_size": 2, "intermediate_size": 4 * width, **sizes}


SHAPES = {
    "base": _shape(768, 12, 12),
    "large": _shape(1024, 24, 16),
    "minilm": _shape(384, 6, 12),
    "tiny": _shape(128, 2, 2),
}


# Numbers of tasks whose sentences are predicted together, and numbers of tasks in memory.
TASKS = (1, 8, 50, 64)
BANKS = (1, 250, 500, 1000)

EXAMPLE_DATA = os.path.join("examples", "acceptability")


class Side(NamedTuple):
    """One side of a comparison."""

    module: str  # in `benchmarks.sides`
    title: str  # its name in the table
    suites: str  # names of those that it takes part in
    extra: Mapping[str, Any]  # its own part of a job


SUITES = ("step", "epoch", "sweep", "cache", "fixed", "features", "predict", "tasks", "bank", "sizes")

_OURS: Dict[str, Any] = {"tuning": "adapter"}
_PADDED = {**_OURS, "flags": ["--pad_to_max_seq_length=true"]}
_CHECKPOINTING = {**_OURS, "plan": {"gradient_checkpointing": True}}
_ACCUMULATION = {**_OURS, "plan": {"accumulation_steps": 4}}
SIDES = {
    "ours": Side("ours", "ours", " ".join(SUITES), {**_OURS, "cached": True}),
    "ours_uncached": Side("ours", "ours, without --cache_frozen_layers", "cache", {**_OURS, "cached": False}),
    "baseline": Side("ours", "ours, in --baseline_dir", "step epoch sweep fixed features predict", _OURS),
    "adapterhub": Side("torch_sides", "AdapterHub", "step epoch sweep tasks sizes", {"method": "adapterhub"}),
    "ours_float32": Side("ours", "ours, float32", "step epoch predict", {**_OURS, "precision": "float32"}),
    "limit_torch": Side("matmul_limit", "matrix products alone, PyTorch", "step", {"library": "torch"}),
    "limit_tensorflow": Side("matmul_limit", "matrix products alone, TensorFlow", "step", {"library": "tensorflow"}),
    "ours_full": Side("ours", "ours, full fine-tuning", "step sizes", {"tuning": "full"}),
    "hf_full": Side("torch_sides", "Hugging Face, full fine-tuning", "step features predict sizes", {"method": "full"}),
    "peft_lora": Side("torch_sides", "PEFT, LoRA (another method)", "step tasks sizes", {"method": "lora"}),
    "onnx": Side("onnx_side", "ONNX Runtime, float32, no adapters", "predict", {"quantized": False}),
    "onnx_int8": Side("onnx_side", "ONNX Runtime, int8, no adapters", "predict", {"quantized": True}),
    "ours_padded": Side("ours", "ours, padded", "epoch", _PADDED),
    "ours_checkpointing": Side("ours", "ours, --gradient_checkpointing", "step", _CHECKPOINTING),
    "ours_accumulation": Side("ours", "ours, --gradient_accumulation_steps=4", "step", _ACCUMULATION),
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One process to run."""

    suite: str
    case: str
    side: str
    round: int  # counts from 0
    job: Mapping[str, Any]  # including the side's own part

    @property
    def key(self) -> str:
        """Return the name under which the result is stored."""
        return f"{self.suite}/{self.case}/{self.side}/{self.round}"


def plan(args: argparse.Namespace, hf_dir: str, base_dir: str) -> List[Measurement]:
    """Return all measurements in the order in which they run.

    Each round starts with another side, so that a machine that slows down does not favour one of them.
    """
    measurements = []
    for suite in args.suites:
        sides = [name for name, side in SIDES.items() if suite in side.suites.split() and name in args.sides]
        for case, job in cases(suite, args, hf_dir, base_dir):
            for turn in range(1 if suite == "sizes" else args.rounds):
                start = turn % max(len(sides), 1)
                for side in sides[start:] + sides[:start]:
                    full_job = {**job, **SIDES[side].extra, "kind": suite, "seed": turn + 1}
                    measurements.append(Measurement(suite, case, side, turn, full_job))
    return measurements


def cases(suite: str, args: argparse.Namespace, hf_dir: str, base_dir: str) -> Iterator[tuple]:
    """Yield (name, job) of each case of a suite. Skip, with a message, what lacks data."""
    size = {name: getattr(args, name) for name in ("batch", "length", "adapter_size", "precision", "cpu_time")}
    if suite in ("step", "sizes"):
        name = f"{args.shape} {args.batch}x{args.length} size {args.adapter_size}"
        yield name, {**size, "config": SHAPES[args.shape], "warmup": args.warmup, "steps": args.steps}
        return
    if suite == "fixed":
        # Small data that every checkout has: the time of a run apart from its steps.
        if base_dir:
            yield "train and evaluate MiniLM", {**size, "task": "CoLA", "data_dir": EXAMPLE_DATA, "base_dir": base_dir}
        return
    sources = {"epoch": args.tasks, "sweep": args.tasks[:1], "cache": ["CoLA"], "features": args.feature_tasks}
    names = sources.get(suite, ["SST-2"])
    for task in names:
        source = os.path.join(os.path.abspath(args.data_dir or "."), task)
        if not args.data_dir or not hf_dir or not os.path.isdir(source):
            print(f"SKIPPED {suite} of {task}: it needs --data_dir with a folder {task}, and a base.", flush=True)
            continue
        job = {**size, "task": task, "data_dir": source, "hf_dir": hf_dir, "base_dir": base_dir}
        if suite == "predict":
            yield "one sentence", {**job, "sentences": 64, "predict_batch": 1}
            yield "512 sentences in batches of 32", {**job, "sentences": 512, "predict_batch": 32}
            continue
        if suite == "tasks":
            job.update(sentences=64, predict_batch=32)
            yield from ((f"64 sentences of {tasks} tasks", {**job, "tasks": tasks}) for tasks in TASKS)
            continue
        if suite == "bank":
            job.update(sentences=64, predict_batch=32)
            yield from ((f"add a pack beside {tasks} tasks", {**job, "tasks": tasks}) for tasks in BANKS)
            continue
        fraction = args.fraction if suite in ("epoch", "sweep", "cache") else 1.0
        folder = os.path.join(args.output_dir, "data", f"{task}-{fraction:g}-{args.batch}")
        if not os.path.exists(folder):
            write_part(tasks.get(task), source, args.batch, fraction, folder)
        part = "" if fraction >= 1 else f", {fraction:g} of it"
        job.update(data_dir=folder, examples_file=os.path.join(folder, "examples.json"))
        if suite == "cache":
            yield from ((f"{task}{part}, {name}", {**job, "mode": flags}) for name, flags in partly_trained(base_dir))
        elif suite == "sweep":
            job.update(epochs=args.epochs, seeds=list(range(1, 6)), dev_file=os.path.join(folder, "dev_examples.json"))
            yield f"{task}{part}, 5 seeds, {args.epochs:g} epochs", job
        else:
            yield f"{task}{part}", job


def partly_trained(base_dir: str) -> Iterator[Tuple[str, List[str]]]:
    """Yield name and flags of ways to train that leave the lower layers of a base frozen."""
    depth = json_files.read_object(os.path.join(base_dir, "bert_config.json"))["num_hidden_layers"]
    yield f"head on {depth} layers", ["--tuning_mode=head"]
    yield f"top layer of {depth}", ["--tuning_mode=top_layers", "--tune_top_layers=1"]
    upper = f"--adapter_layers={depth // 2}-{depth - 1}"
    yield f"adapters on the upper half of {depth} layers", [upper, "--adapter_freeze_below=true"]


def write_part(task: tasks.Task, data_dir: str, batch: int, fraction: float, folder: str) -> None:
    """Write a part of a training split for all sides: in the task's layout, and as `examples.json`; and the dev split.

    The part is a random sample of whole batches, the same for every side. (The first steps of an epoch would not do:
    sides that sort by length start with long texts.)
    """
    examples = list(tasks.read_examples(task, data_dir, "train"))
    if fraction < 1:
        count = max(1, int(len(examples) * fraction / batch)) * batch
        if count > len(examples):
            raise errors.UserError(f"{data_dir} has {len(examples)} examples, fewer than a batch of {batch}.")
        examples = [examples[index] for index in sorted(random.Random(1).sample(range(len(examples)), count))]
    lines = list(read_lines(os.path.join(data_dir, task.train.file)))
    rows = [lines[int(example.guid.rpartition("-")[2])] for example in examples]
    dev = tasks.read_examples(task, data_dir, "dev")
    with files.staging_folder(folder) as staging:
        with open(os.path.join(staging, task.train.file), "w", encoding="utf-8", newline="") as file:
            file.write("\n".join((lines[:1] if task.train.header else []) + rows) + "\n")
        shutil.copyfile(os.path.join(data_dir, task.split("dev").file), os.path.join(staging, task.split("dev").file))
        for name, split in (("examples.json", examples), ("dev_examples.json", dev)):
            content = [{"text_a": e.text_a, "text_b": e.text_b, "label": task.labels.index(e.label)} for e in split]
            with open(os.path.join(staging, name), "w", encoding="utf-8") as file:
                json.dump(content, file)
        files.rename_folder_noreplace(staging, folder)
