"""Measure how many bytes of gradients the workers of a distributed run exchange per step, and how long that takes.

    python benchmarks/all_reduce.py --workers=2

The processes run on this machine. Each computes the mean of gradients of BERT-base's trained variables, once with
adapters and once for full fine-tuning, as in training (`devices.collective`), without the network itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import List

from adapter_bert.common import system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import errors
from adapter_bert.devices import cluster, collective, estimators, launcher
from adapter_bert.devices.cluster import Cluster
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_layers import AdapterConfig

MODES = ("adapter", "full")


def spec_of(mode: str, adapter_size: int) -> ModelSpec:
    """Return BERT-base with a head for two classes."""
    adapter = AdapterConfig(size=adapter_size) if mode == "adapter" else None
    return ModelSpec(modeling.BertConfig(30522, type_vocab_size=2), ClassificationHead(2), adapter, mode)


def measure(own: Cluster, target: str, config: tf.ConfigProto, spec: ModelSpec, steps: int) -> List[float]:
    """Return the seconds that each exchange takes, without the first one."""
    with tf.Graph().as_default():
        value = tf.placeholder(tf.float32, [])
        grads = [tf.fill(shape, value) for shape in spec.trained_shapes.values()]
        reduced = collective.mean_over_workers(own, value, grads, tf.zeros([]), timeout=600.0)
        done = tf.group(*(tf.identity(grad).op for grad in reduced.grads if grad is not None))
        with tf.Session(target, config=collective.session_config(config, own)) as session:
            seconds = []
            for step in range(steps + 1):
                started = time.perf_counter()
                session.run(done, {value: float(step)})
                seconds.append(time.perf_counter() - started)
            return seconds[1:]


def report(args: argparse.Namespace) -> None:
    """Measure, as one of the workers, and print a row of the table."""
    own, config = cluster.from_environment(os.environ), estimators.session_config()
    spec = spec_of(args.tuning_mode, args.adapter_size)
    seconds = measure(own, collective.start_server(own, config), config, spec, args.steps)
    count = spec.parameter_counts()["trained"]
    size, times = f"{count:,} | {4 * count / 1e6:.1f}", f"{min(seconds):.3f} | {statistics.median(seconds):.3f}"
    print(f"| {args.tuning_mode} | {len(spec.trained_names)} | {size} | {times} |")


@errors.exits_on_user_error
def main() -> None:
    """Start the workers for each mode or, in a worker, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--adapter_size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--tuning_mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=10, help="timed exchanges; default: %(default)s")
    args = parser.parse_args()
    errors.check_int("--workers", args.workers, minimum=2)
    if launcher.LAUNCHED in os.environ:
        report(args)
        return
    print("| trained | variables | parameters | MB per step | fastest exchange, s | median, s |")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    for mode in MODES:  # a process can exchange tensors of one size only
        code = launcher.run([sys.executable, *sys.argv, f"--tuning_mode={mode}"], args.workers, system.gpus())
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
