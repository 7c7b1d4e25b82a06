"""How fast texts become TFRecord files, against Hugging Face's fast tokenizer; how much memory much data takes.

    python benchmarks/features.py --data_dir=glue_data --vocab_file=vocab.txt --rounds=5 --json=features.json
    python benchmarks/features.py --data_dir=glue_data --vocab_file=vocab.txt --rounds=0 --memory_rows=393000,786000

1. Rates: texts in memory -> ids, records, files on disk that are checked, by this project; the same texts -> ids in
   memory by `BertTokenizerFast`, called on the whole list, where transformers is installed. In turn, on all cores that
   this process may use. Each round has a new tokenizer, so that none profits from words of an earlier one; reading the
   texts and the vocabulary is not counted. The ids of both are compared; those that differ are counted.
2. Memory: files in MNLI's layout with so many rows, pairs of MRPC's sentences, go the way of a run's training split in
   a process of their own. Resident memory above that of the same process with its modules and vocabulary loaded; of
   the processes that it forks (if only while modules were loaded), the largest, with what it shares. Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert import tasks
from adapter_bert.common import parallel
from adapter_bert.pipeline import feature_store

OURS, THEIRS = "ours", "transformers"
Examples = Sequence[tasks.InputExample]


# ------------------------------------------------------------------------------------------------------- rates


def make_ours(task: tasks.Task, examples: Examples, args: argparse.Namespace, folder: str) -> Callable[[], List[str]]:
    """What is to be timed: features of examples, written to a folder."""
    tokenizer = tokenization.FullTokenizer(args.vocab_file, args.do_lower_case)
    return lambda: feature_store.feature_files(
        folder, "train", examples, task.labels, args.max_seq_length, tokenizer, ""
    )


def make_theirs(examples: Examples, args: argparse.Namespace) -> Callable[[], List[List[int]]]:
    """The same on the other side; ids alone."""
    import transformers

    tokenizer = transformers.BertTokenizerFast(args.vocab_file, do_lower_case=args.do_lower_case)
    first = [example.text_a for example in examples]
    second = [example.text_b for example in examples] if examples[0].text_b else None
    return lambda: tokenizer(
        first,
        second,
        truncation=True,
        max_length=args.max_seq_length,
        return_attention_mask=False,
        return_token_type_ids=False,
    )["input_ids"]


def timed(action: Callable[[], Any]) -> Tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def ids_in(paths: Sequence[str]) -> Iterator[List[int]]:
    """The ids of sequences in files."""
    for record in itertools.chain.from_iterable(map(tf.python_io.tf_record_iterator, paths)):
        yield list(tf.train.Example.FromString(record).features.feature["input_ids"].int64_list.value)


def measure_rates(args: argparse.Namespace) -> List[Dict[str, Any]]:
    """Both sides in turn; a row of figures for each task, round and side."""
    rows = []
    for name in args.tasks.split(","):
        task = tasks.get(name)
        examples = list(tasks.read_examples(task, os.path.join(args.data_dir, task.name), "train"))
        for number in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                seconds, paths = timed(make_ours(task, examples, args, folder))
                common = {"task": task.name, "round": number, "examples": len(examples)}
                rows.append({**common, "side": OURS, "seconds": seconds})
                if not args.theirs:
                    continue
                seconds, ids = timed(make_theirs(examples, args))
                rows.append({**common, "side": THEIRS, "seconds": seconds})
                if number == 0:
                    differing = sum(ours != theirs for ours, theirs in zip(ids_in(paths), ids))
                    print(f"{task.name}: {differing} of {len(examples)} sequences have other ids on the other side.")
    return rows


def print_rates(rows: Sequence[Dict[str, Any]]) -> None:
    """A table with the median and the range of each task and side."""
    print("\n| task | side | examples | examples/s, median | least | most |\n|---|---|--:|--:|--:|--:|")
    groups = sorted({(row["task"], row["side"]) for row in rows})
    for task, side in groups:
        found = [row for row in rows if (row["task"], row["side"]) == (task, side)]
        rates = [row["examples"] / row["seconds"] for row in found]
        figures = " | ".join(f"{rate:,.0f}" for rate in (statistics.median(rates), min(rates), max(rates)))
        print(f"| {task} | {side} | {found[0]['examples']:,} | {figures} |")
    for task in sorted({task for task, _ in groups}):
        sides = {side: [row["seconds"] for row in rows if (row["task"], row["side"]) == (task, side)] for side in
                 (OURS, THEIRS)}  # fmt: skip
        if sides[THEIRS]:
            ratios = [theirs / ours for ours, theirs in zip(sides[OURS], sides[THEIRS])]
            print(f"{task}: {statistics.median(ratios):.2f} times the other side's rate "
                  f"({min(ratios):.2f} to {max(ratios):.2f}).")  # fmt: skip


# ------------------------------------------------------------------------------------------------------ memory


def write_pairs(path: str, rows: int, data_dir: str) -> None:
    """Writes a training split in MNLI's layout: every sentence of MRPC beside others than its own."""
    mrpc = tasks.get("MRPC")
    examples = list(tasks.read_examples(mrpc, os.path.join(data_dir, mrpc.name), "train"))
    labels = tasks.get("MNLI").labels
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("\t".join(f"column{index}" for index in range(12)) + "\n")
        for row in range(rows):
            distance, index = divmod(row, len(examples))
            first = examples[index].text_a
            second = examples[(index + distance) % len(examples)].text_b
            cells = [str(row)] * 8 + [first, second, labels[row % 3], labels[row % 3]]
            file.write("\t".join(cells) + "\n")


def resident(name: str) -> float:
    """Memory of this process in MB: `VmRSS` is what it has now, `VmHWM` the most that it had."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024


def measure_memory(args: argparse.Namespace, data_dir: str) -> Dict[str, float]:
    """Makes features of a folder's training split, here."""
    tokenizer = tokenization.FullTokenizer(args.vocab_file, args.do_lower_case)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the most so far is forgotten
    base = resident("VmRSS")
    started = time.perf_counter()
    task = tasks.get("MNLI")
    split = tasks.StreamedSplit(task, data_dir, "train")
    read = time.perf_counter()
    folder = os.path.join(data_dir, "features")
    paths = feature_store.feature_files(folder, "train", split, task.labels, args.max_seq_length, tokenizer, "")
    made = time.perf_counter()
    found = feature_store.feature_files(folder, "train", split, task.labels, args.max_seq_length, tokenizer, "")
    assert found == paths
    return {
        "rows": len(split),
        "files": len(paths),
        "base_mb": base,
        "peak_mb": resident("VmHWM"),
        "forked_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "read_seconds": read - started,
        "made_seconds": made - read,
        "found_seconds": time.perf_counter() - made,
    }


def measure_memory_afresh(args: argparse.Namespace, rows: int) -> Dict[str, float]:
    """The same with so many rows, in a process that has done nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        write_pairs(os.path.join(folder, "train.tsv"), rows, args.data_dir)
        os.mkdir(os.path.join(folder, "features"))
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], f"--measured_folder={folder}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.decode().strip().split("\n")[-1])


def print_memory(figures: Sequence[Dict[str, float]]) -> None:
    """A table of measurements."""
    print("\n| rows | base, MB | peak above it, MB | largest forked process, MB | first pass, s | features, s "
          "| found again, s | files |\n|--:|--:|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    for row in figures:
        cells = [f"{row['rows']:,}"]
        cells += [f"{value:.0f}" for value in (row["base_mb"], row["peak_mb"] - row["base_mb"], row["forked_mb"])]
        cells += [f"{row[name]:.1f}" for name in ("read_seconds", "made_seconds", "found_seconds")]
        print(f"| {' | '.join(cells)} | {row['files']} |")


# --------------------------------------------------------------------------------------------------------- all


def read_flags(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="folder with a folder for each GLUE task")
    parser.add_argument("--vocab_file", required=True, help="WordPiece vocabulary")
    parser.add_argument("--do_lower_case", default=1, type=int, help="1 (default) or 0")
    parser.add_argument("--max_seq_length", default=128, type=int)
    parser.add_argument("--tasks", default="SST-2,MRPC", help="comma-separated")
    parser.add_argument("--rounds", default=3, type=int, help="of both sides; default: 3")
    parser.add_argument("--processes", default=None, type=int, help="of ours; default: the cores that it may use")
    parser.add_argument(
        "--theirs", default=None, type=int, help="0: this project alone; default: if there is the other"
    )
    parser.add_argument(
        "--json", default="", help="file for the figures, a list: of each round, then of each number of rows"
    )
    parser.add_argument("--memory_rows", default="", help="comma-separated numbers of rows, e.g. 393000,786000")
    parser.add_argument("--measured_folder", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.do_lower_case = bool(args.do_lower_case)
    if args.theirs is None:
        try:
            import transformers  # noqa: F401

            args.theirs = 1
        except ImportError:
            args.theirs = 0
            print("transformers is not installed: one side alone.")
    return args


def main() -> None:
    """Reads the flags, measures, prints."""
    args = read_flags()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if args.processes:
        parallel.num_processes = lambda: args.processes
    if args.measured_folder:
        print(json.dumps(measure_memory(args, args.measured_folder)))
        return
    print(f"Processes: {parallel.num_processes()}; load of the machine: {os.getloadavg()[0]:.1f}.")
    rows = measure_rates(args)
    if rows:
        print_rates(rows)
    if args.memory_rows:
        figures = [measure_memory_afresh(args, int(rows)) for rows in args.memory_rows.split(",")]
        print_memory(figures)
        rows += figures
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
