"""Compile training, evaluation and prediction for Cloud TPUs without one, and print the device memory they need.

    scripts/setup_venv.sh                                                  # TensorFlow 2.15, on Python 3.9 to 3.11
    python3.11 -m venv .venv-tpu && .venv-tpu/bin/pip install -r requirements-tpu.txt
    .venv/bin/python scripts/check_tpu_compile.py --output=tpu_memory.json

TensorFlow writes the step of one core as HLO, XLA's language; Google's TPU compiler, libtpu, compiles it. A batch is
that of one core, because the sum of the gradients over cores cannot be written without a TPU. `--fit v2` searches the
largest training batch that fits in a core's memory, with a few more compilations for each row. Programs that `--output`
already contains are not compiled again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import tempfile
from concurrent import futures
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence
from unittest import mock

from adapter_bert.common import system

system.configure_tensorflow()

import tabulate
import tensorflow as tf2
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors, files
from adapter_bert.devices.device import Device
from adapter_bert.devices.estimators import ModeKeys
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.training.model_fn import ModelFn, Schedule, TrainingPlan
from adapter_layers import AdapterConfig

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {
    "tiny": modeling.BertConfig(30522, 128, 2, 2, 512, type_vocab_size=2),
    "base": modeling.BertConfig(30522, type_vocab_size=2),
    "large": modeling.BertConfig(30522, 1024, 24, 16, 4096, type_vocab_size=2),
}
MODES = {"train": ModeKeys.TRAIN, "eval": ModeKeys.EVAL, "predict": ModeKeys.PREDICT}
# Memory of a core, in GB (2**30 bytes).
CAPACITY = {"v2": 8, "v3": 16, "v4": 32, "v5e": 16}
GB = 2**30
PLAN = TrainingPlan(Schedule(1e-3, 100, 0))
PRECISIONS = ("float32", "bfloat16")
# What determines a program.
PROGRAM = ("model", "tuning", "precision", "mode", "length", "batch")
Row = Dict[str, Any]


def make_step(spec: ModelSpec, mode: str, batch: int, length: int, initializer: Any = None) -> Callable:
    """Return the function that a core of a TPU runs for a batch, with its own variables.

    It takes ids, mask, segments and labels. `initializer` replaces the initial values of all variables.
    """
    model_fn = ModelFn(spec, plan=PLAN, device=Device(use_tpu=True))

    def get_variable(getter: Callable, *args: Any, **options: Any) -> tf.Variable:
        return getter(*args, **dict(options, initializer=initializer or options["initializer"]))

    def step(*inputs: tf.Tensor) -> Any:
        tf.set_random_seed(1)
        tf.train.get_or_create_global_step()
        features = dict(zip(("input_ids", "input_mask", "segment_ids"), inputs))
        for name, kind in spec.head.label_types.items():
            features[name] = tf.cast(inputs[3], kind) if kind.is_floating else inputs[3]
        with tf.variable_scope("", custom_getter=get_variable):
            built = model_fn(features, None, mode, {})
        if mode == ModeKeys.PREDICT:
            return built.predictions
        if mode == ModeKeys.EVAL:
            return built.eval_metrics[1]  # the metrics are computed on the host
        with tf.control_dependencies([built.train_op]):
            return tf.identity(built.loss)

    # One core: there is nothing to sum, and no kernel that could.
    with mock.patch.object(tf.tpu, "CrossShardOptimizer", lambda optimizer: optimizer):
        return tf2.compat.v1.wrap_function(step, _signature(batch, length))


def _signature(batch: int, length: int) -> List[tf.TensorSpec]:
    return [tf.TensorSpec([batch, length], tf.int32)] * 3 + [tf.TensorSpec([batch], tf.int32)]


def to_hlo(step: Callable, batch: int, length: int) -> bytes:
    """Return the program of a step; raise an error if it contains an operation that XLA does not support."""
    compiled = tf2.function(lambda *inputs: step(*inputs), autograph=False, jit_compile=True)
    return compiled.experimental_get_compiler_ir(*_signature(batch, length))(stage="hlo_serialized")


def make_spec(model: str, tuning: str, precision: str) -> ModelSpec:
    """Return a classifier with two classes."""
    adapter = AdapterConfig() if tuning == "adapter" else None
    changes = {} if precision == "float32" else {"precision": precision}
    return ModelSpec(MODELS[model], ClassificationHead(2), adapter, tuning, use_one_hot_embeddings=True, **changes)


def write_hlo(path: str, model: str, tuning: str, precision: str, mode: str, length: int, batch: int) -> None:
    """Write the program of a step to a file. Variables are zero, which is fast; their values do not matter."""
    step = make_step(make_spec(model, tuning, precision), MODES[mode], batch, length, tf.zeros_initializer())
    files.write_bytes(path, to_hlo(step, batch, length))


class Compiler:
    """Compiles programs in the environment of libtpu, and keeps the results in a file."""

    def __init__(self, python: str, path: Optional[str] = None) -> None:
        if not os.path.exists(python):
            raise errors.UserError(
                f"There is no {python}. Install the TPU compiler: python3.11 -m venv .venv-tpu && .venv-tpu/bin/pip "
                "install -r requirements-tpu.txt; or pass the interpreter of its environment as --compiler."
            )
        self._python = python
        self._path = path
        self.rows: List[Row] = []
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.rows = json.load(file)

    def compile(self, tpus: Sequence[str], **program: Any) -> List[Row]:
        """Compile a program, see `write_hlo`, for these TPUs unless the file has the results; return a row for each."""
        found = {row["tpu"]: row for row in self.rows if program.items() <= row.items()}
        missing = [tpu for tpu in tpus if tpu not in found]
        for row in self._run(missing, program) if missing else ():
            print(row, flush=True)
            found[row["tpu"]] = row
            self.rows.append(row)
            if self._path:
                files.write_text(self._path, json.dumps(self.rows, indent=1) + "\n")
        return [found[tpu] for tpu in tpus]

    def _run(self, tpus: Sequence[str], program: Row) -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.hlo")
            # A process of its own, and one for each TPU: several GB that are returned at its end.
            with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(write_hlo, path, **program).result()
            for tpu in tpus:
                command = [self._python, os.path.join(HERE, "tpu_compiler.py"), path, tpu]
                # libtpu writes pages of warnings that there is no TPU.
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    raise errors.UserError(f"The TPU compiler {self._python} failed: {done.stderr.strip()[-1000:]}")
                yield {**program, "tpu": tpu, **json.loads(done.stdout)}


def largest_batch(compiler: Compiler, tpu: str, batches: Sequence[int], **program: Any) -> Optional[int]:
    """Return the largest multiple of the first batch size that fits; None if the first does not fit.

    Memory grows linearly with the batch. The estimate is lowered until it compiles within the memory.
    """
    capacity, unit = CAPACITY[tpu] * GB, batches[0]

    def memory(batch: int) -> float:
        (row,) = compiler.compile([tpu], batch=batch, **program)
        return row.get("bytes", float("inf"))

    first, second = map(memory, batches[:2])
    if max(first, second) > capacity:
        return unit if first <= capacity else None
    per_example = (second - first) / (batches[1] - unit)
    batch = int((unit + (capacity - first) / per_example) // unit * unit)
    while memory(batch) > capacity:
        batch -= unit
    return batch


def show(rows: Sequence[Row], tpus: Sequence[str]) -> str:
    """Return a table of the memory in GB, with a line for each program and a column for each TPU."""
    table: Dict[Sequence[Any], Row] = {}
    for row in rows:
        value = f"{row['bytes'] / GB:.2f}" if "bytes" in row else row["error"].split(":")[0]
        table.setdefault(tuple(row[key] for key in PROGRAM), {})[row["tpu"]] = value
    lines = [[*program, *(found.get(tpu, "") for tpu in tpus)] for program, found in sorted(table.items())]
    headers = [*PROGRAM, *(f"{tpu}, {CAPACITY[tpu]} GB" for tpu in tpus)]
    return tabulate.tabulate(lines, headers, "pipe", disable_numparse=True)


def parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--compiler", metavar="PYTHON", default=".venv-tpu/bin/python", help="interpreter of libtpu's environment")
    option("--tpus", nargs="+", choices=CAPACITY, default=list(CAPACITY), help="default: all")
    option("--models", nargs="+", choices=MODELS, default=["base", "large"], help="default: base large")
    option("--tunings", nargs="+", choices=("adapter", "full"), default=["adapter", "full"], help="default: both")
    option("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="default: all")
    option("--modes", nargs="+", choices=MODES, default=list(MODES), help="default: all")
    option("--lengths", nargs="+", type=int, default=[128], help="tokens per sequence; default: 128")
    option("--batches", nargs="+", type=int, default=[8, 16], help="examples of one core; default: 8 16")
    option("--fit", nargs="*", choices=CAPACITY, default=[], help="search the largest training batch for these TPUs")
    option("--output", metavar="FILE", help="JSON file of all results; extended if it exists")
    return parser.parse_args(words)


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Compile the programs and print the tables."""
    args = parse(words)
    if args.fit and len(args.batches) < 2:
        raise errors.UserError("--fit needs at least two --batches, to estimate the memory for each example.")
    compiler = Compiler(args.compiler, args.output)
    fits = []
    for values in itertools.product(args.models, args.tunings, args.precisions, args.lengths):
        shared = dict(zip(("model", "tuning", "precision", "length"), values))
        for mode, batch in itertools.product(args.modes, args.batches):
            compiler.compile(args.tpus, mode=mode, batch=batch, **shared)
        largest = [largest_batch(compiler, tpu, args.batches, mode="train", **shared) for tpu in args.fit]
        fits.append([*values, *largest])
    print("Device memory in GB:", show(compiler.rows, args.tpus), sep="\n\n")
    if args.fit:
        headers = ["model", "tuning", "precision", "length", *(f"{tpu}, {CAPACITY[tpu]} GB" for tpu in args.fit)]
        print("\nLargest training batch of a core:", tabulate.tabulate(fits, headers, "pipe"), sep="\n\n")


if __name__ == "__main__":
    main()
