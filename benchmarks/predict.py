"""Measures warm prediction against Hugging Face: one sentence at a time, and a file of sentences in batches.

    python benchmarks/predict.py --base_dir=minilm --texts=glue_data/SST-2/dev.tsv --rounds=5 --json=out.json

Ours: `serving.Predictor` with adapters of 64 on the base. Theirs: `BertForSequenceClassification` (no adapters) of the
same sizes in PyTorch, eval mode, inference_mode, fast tokenizer, batches of texts of like length, as ours has them,
padded to the longest of each. Tokenisation counts on both sides. Weights of adapters and heads are random: they do not
change the time.

Each side is a process of its own, started once and asked in turns, so that their thread pools do not meet and what the
machine does meanwhile disturbs both alike. `--json` writes a list of {"what", "side", "round", "value", "unit"}.
Needs torch and transformers (scripts/requirements-parity.txt).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List

from adapter_bert.common import system

system.configure_tensorflow()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

SIDES = ("ours", "huggingface")
BATCH_SIZE = 32
MAX_SEQ_LENGTH = 128
ONE, MANY = "one sentence, median", "sentences in batches of 32"


def read_texts(path: str, count: int) -> List[str]:
    """The first column of a TSV file with a header, or the lines of another file."""
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    if path.endswith(".tsv"):
        lines = [line.split("\t")[0] for line in lines[1:]]
    return lines[:count]


def load_ours(base_dir: str, threads: int) -> Callable[[List[str]], Any]:
    """The function of texts -> predictions of this project."""
    import numpy as np

    from adapter_bert.serving.predictor import Predictor
    from adapter_bert.weights import bases, fingerprints, packs

    base = bases.Base.find(base_dir)
    config = packs.PackConfig(
        task="speed", architecture=base.config().to_dict(), tuning_mode="adapter", head="classification",
        labels=["0", "1"], tokenizer=base.describe_tokenizer(), max_seq_length=MAX_SEQ_LENGTH, base=None,
        created=packs.now(),
        adapter={"size": 64, "activation": "gelu", "init_scale": 0.01, "layers": None, "placement": "both"},
    )  # fmt: skip
    frozen = fingerprints.combine(base.digests(), packs.frozen_names(config))
    config = dataclasses.replace(config, base=frozen)
    random = np.random.RandomState(1)
    tensors = {
        name: random.normal(1.0 if name.endswith("gamma") else 0.0, 0.01, shape).astype(np.float32)
        for name, shape in packs.expected_shapes(config).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, packs.FILE_NAME)
        packs.write(path, packs.Pack(config, tensors))
        predictor = Predictor(base.checkpoint, path, threads=threads)
    return lambda texts: predictor.predict(texts, BATCH_SIZE)


def load_huggingface(base_dir: str, threads: int) -> Callable[[List[str]], Any]:
    """The same of transformers and torch."""
    import torch
    import transformers

    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    with open(os.path.join(base_dir, "bert_config.json")) as file:
        values = json.load(file)
    # What Google's files call gelu is its tanh approximation; Hugging Face's gelu is the exact one.
    values["hidden_act"] = {"gelu_erf": "gelu", "gelu": "gelu_new"}.get(values["hidden_act"], values["hidden_act"])
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**values)).eval()
    tokenizer = transformers.BertTokenizerFast(vocab_file=os.path.join(base_dir, "vocab.txt"), do_lower_case=True)

    def predict(texts: List[str]) -> List[List[float]]:
        found: List[List[float]] = []
        # As ours does it, so that both compute about as much padding. (To put the results back in order is left out.)
        texts = sorted(texts, key=len)
        with torch.inference_mode():
            for start in range(0, len(texts), BATCH_SIZE):
                batch = texts[start : start + BATCH_SIZE]
                inputs = tokenizer(
                    batch, truncation=True, max_length=MAX_SEQ_LENGTH, padding="longest", return_tensors="pt"
                )
                found.extend(model(**inputs).logits.softmax(-1).tolist())
        return found

    return predict


def work(side: str, base_dir: str, texts: List[str], threads: int) -> None:
    """A side's process: measures what standard input asks for, and answers with seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    started = time.perf_counter()
    predict = (load_ours if side == "ours" else load_huggingface)(base_dir, threads)
    predict(texts[:BATCH_SIZE])
    print(json.dumps(time.perf_counter() - started), file=answers, flush=True)
    for line in iter(sys.stdin.readline, ""):
        what, count = json.loads(line)
        if what == ONE:
            times = []
            for text in texts[:count]:
                started = time.perf_counter()
                predict([text])
                times.append(time.perf_counter() - started)
            value = statistics.median(times)
        else:
            started = time.perf_counter()
            assert len(predict(texts[:count])) == count
            value = time.perf_counter() - started
        print(json.dumps(value), file=answers, flush=True)


def measure(args: argparse.Namespace) -> List[Dict[str, Any]]:
    """Asks both sides in turns."""
    count = len(read_texts(args.texts, args.sentences))
    command = [sys.executable, os.path.abspath(__file__)] + [
        f"--{name}={getattr(args, name)}" for name in ("base_dir", "texts", "sentences", "threads")
    ]
    rows: List[Dict[str, Any]] = []
    processes = {
        side: subprocess.Popen(
            command + [f"--worker={side}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True
        )
        for side in SIDES
    }

    def note(what: str, side: str, turn: int, value: float, unit: str) -> None:
        rows.append({"what": what, "side": side, "round": turn, "value": value, "unit": unit})

    def ask(side: str, what: str, number: int) -> float:
        print(json.dumps([what, number]), file=processes[side].stdin, flush=True)
        return json.loads(processes[side].stdout.readline())

    try:
        for process in processes.values():
            json.loads(process.stdout.readline())
        for turn in range(1, args.rounds + 1):
            for side in SIDES if turn % 2 else SIDES[::-1]:
                note(ONE, side, turn, 1000 * ask(side, ONE, min(args.single, count)), "ms")
                note(MANY, side, turn, count / ask(side, MANY, count), "sentences/s")
    finally:
        for process in processes.values():
            process.stdin.close()
            process.wait()
    return rows


def show(rows: List[Dict[str, Any]]) -> None:
    """Prints medians and ranges, and how many times as fast ours is: median of the rounds' ratios, and their range."""
    for what in (ONE, MANY):
        by_side = {side: [row["value"] for row in rows if (row["what"], row["side"]) == (what, side)] for side in SIDES}
        unit = next(row["unit"] for row in rows if row["what"] == what)
        for side, values in by_side.items():
            middle = statistics.median(values)
            print(f"{what:<28}{side:<14}{middle:10.2f}  {min(values):.2f}-{max(values):.2f} {unit}")
        ratios = [theirs / ours if unit == "ms" else ours / theirs for ours, theirs in zip(*by_side.values())]
        print(f"{what:<28}{'times as fast':<14}{statistics.median(ratios):10.2f}  {min(ratios):.2f}-{max(ratios):.2f}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base_dir", required=True, help="bert_config.json, vocab.txt, bert_model.ckpt")
    parser.add_argument("--texts", required=True, help="a .tsv file (first column, header left out) or lines of text")
    parser.add_argument("--sentences", type=int, default=512, help="in batches; default: 512")
    parser.add_argument("--single", type=int, default=64, help="of these, one at a time; default: 64")
    parser.add_argument("--threads", type=int, default=1, help="of each side; 0: one a core; default: 1")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.base_dir, read_texts(args.texts, args.sentences), args.threads)
        return
    rows = measure(args)
    show(rows)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
