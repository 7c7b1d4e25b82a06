"""What a task takes on disk, and how long a switch between two tasks takes: Markdown tables.

    python benchmarks/packs.py                  # BERT-base and BERT-large shapes, some minutes, 8 GB of memory
    python benchmarks/packs.py --shapes=base --rounds=3

Weights are random, shapes are real: neither size nor time depends on the values. Three tables:

1. Sizes: parameters and bytes of packs, against a checkpoint of the whole network with Adam's slots, which is what
   Google's adapter-bert writes.
2. Switching: into one session with a loaded base, two packs are put in turn, with a prediction behind each, alternating
   with a load of the whole base in the same run. Files are in the system's cache. Median and range of the rounds.
3. Folder: the output folder of a training with five checkpoints, at its end and at its largest, watched while it grows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from typing import Any, Dict, List, Sequence, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import run_classifier
from adapter_bert.model import parameters
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.training.model_fn import WeightAssigner
from adapter_bert.weights import bases, checkpoints, fingerprints, packs
from adapter_bert.weights.loading import Part
from adapter_layers import AdapterConfig

SHAPES = {
    "base": {},
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
VOCABULARY = 30522
LOAD, SWITCH, PREDICT = "load the base", "switch to a pack: read, check, assign", "predict one sentence of 16 tokens"


def bert_config(shape: str) -> modeling.BertConfig:
    """The published sizes, uncased."""
    return modeling.BertConfig(VOCABULARY, type_vocab_size=2, **SHAPES[shape])


def describe_pack(config: modeling.BertConfig, mode: str, size: int, base: str = None) -> packs.PackConfig:
    """The configuration of a pack with two classes."""
    adapter = {"size": size, "activation": "gelu", "init_scale": 1e-2, "layers": None, "placement": "both"}
    return packs.PackConfig(
        task="CoLA",
        architecture=config.to_dict(),
        tuning_mode=mode,
        head="classification",
        labels=["0", "1"],
        tokenizer={
            "type": "wordpiece",
            "do_lower_case": True,
            "entries": VOCABULARY,
            "vocabulary": fingerprints.of_text("\n".join(vocabulary())),
        },
        max_seq_length=128,
        base=base,
        created=packs.now(),
        adapter=adapter if mode == "adapter" else None,
    )


def vocabulary() -> List[str]:
    """As many pieces as BERT's, none of them a word."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return special + [f"##{index}" for index in range(VOCABULARY - len(special))]


def random_tensors(shapes: parameters.Shapes, seed: int) -> Dict[str, np.ndarray]:
    """Values for variables."""
    generator = np.random.RandomState(seed)
    return {name: (0.02 * generator.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def megabytes(size: float) -> str:
    """Millions of bytes."""
    return f"{size / 1e6:,.2f}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of Markdown."""
    lines = [titles, ["---"] + ["--:"] * (len(titles) - 1)] + list(rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def sizes(shape: str, folder: str) -> str:
    """The first table."""
    config, rows = bert_config(shape), []
    variants = [("adapter", size) for size in (2, 8, 64, 256)] + [("layer_norm", 0), ("head", 0)]
    for mode, size in variants:
        described = describe_pack(config, mode, size)
        shapes = packs.expected_shapes(described)
        pack = packs.Pack(described, random_tensors(shapes, 1))
        path = os.path.join(folder, "pack.safetensors")
        packs.write(path, pack)
        whole = parameters.model_shapes(config, ClassificationHead(2), described.adapter_config)
        # All variables, and two slots of each trained one.
        original = 4 * (parameters.count(whole) + 2 * pack.num_parameters)
        title = f"{mode} {size}" if size else mode
        count = f"{100 * pack.num_parameters / parameters.count(whole):.2f}"
        written = os.path.getsize(path)
        rows.append(
            [title, f"{pack.num_parameters:,}", count, megabytes(written), megabytes(original),
             f"{original / written:.0f}"]
        )  # fmt: skip
    titles = ["BERT-" + shape, "parameters", "% of the model", "pack MB", "whole checkpoint MB", "ratio"]
    return table(titles, rows)


def write_base(config: modeling.BertConfig, folder: str) -> bases.Base:
    """A base with random weights."""
    os.makedirs(folder)
    shapes = bases.bert_shapes(config)
    checkpoints.write(random_tensors(shapes, 0), os.path.join(folder, bases.CHECKPOINT_NAME))
    for name, text in ((bases.CONFIG_NAME, config.to_json_string()), ("vocab.txt", "\n".join(vocabulary()))):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text + "\n")
    return bases.Base.find(folder)


def write_packs(base: bases.Base, folder: str) -> List[str]:
    """Two packs of size 64 on a base."""
    config = base.config()
    frozen = packs.frozen_names(describe_pack(config, "adapter", 64))
    described = describe_pack(config, "adapter", 64, fingerprints.combine(base.digests(), frozen))
    paths = [os.path.join(folder, name + packs.ENDING) for name in "ab"]
    for seed, path in enumerate(paths, 1):
        packs.write(path, packs.Pack(described, random_tensors(packs.expected_shapes(described), seed)))
    return paths


def timed(function, *args) -> Tuple[float, Any]:
    """Seconds, and what came out."""
    started = time.perf_counter()
    result = function(*args)
    return time.perf_counter() - started, result


def switching(shape: str, base: bases.Base, folder: str, rounds: int) -> str:
    """The second table."""
    config, paths, digests = base.config(), write_packs(base, folder), base.digests()
    seconds: Dict[str, List[float]] = {}
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.constant(np.arange(16).reshape([1, 16]), tf.int32)
        model = modeling.BertModel(config, False, ids, scope="bert", adapter_fn=AdapterConfig(size=64))
        logits = ClassificationHead(2).build(model, {"label_ids": tf.zeros([1], tf.int32)}, False).logits
        base_values = WeightAssigner([Part(base.checkpoint, tuple(base.shapes()))])
        base_values.scaffold()

        def switch(path: str) -> None:
            pack = packs.read(path)
            packs.check_base(pack, path, digests, base.folder)
            WeightAssigner([Part(path, tuple(pack.tensors), pack.tensors)]).load(session, ())

        def note(what: str, function, *args) -> Any:
            took, result = timed(function, *args)
            seconds.setdefault(what, []).append(took)
            return result

        for turn in range(rounds + 1):  # the first round, which builds and warms, does not count
            if turn == 1:
                seconds.clear()
            note(LOAD, base_values.load, session, ())
            found = []
            for path in paths + paths:
                note(SWITCH, switch, path)
                found.append(note(PREDICT, session.run, logits))
            assert np.array_equal(found[0], found[2]) and not np.array_equal(found[0], found[1])
    rows = [
        [what, f"{statistics.median(times):.3f}", f"{min(times):.3f}-{max(times):.3f}"]
        for what, times in seconds.items()
    ]
    ratio = statistics.median(seconds[LOAD]) / statistics.median(seconds[SWITCH])
    rows.append(["base / switch", f"{ratio:.1f}", ""])
    return table(["BERT-" + shape + ", seconds", f"median of {rounds} rounds", "range"], rows)


def folder_size(folder: str) -> int:
    """Bytes of all files; those that vanish meanwhile do not count."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.path.getsize(os.path.join(top, name))
    return total


def training_folder(shape: str, base: bases.Base, folder: str) -> str:
    """The third table: seven checkpoints are written, five are kept, and every one is scored."""
    texts = "".join(f"{index % 2}\t##{index}\n" for index in range(40))
    data = os.path.join(folder, "data.tsv")
    with open(data, "w") as file:
        file.write("label\ttext\n" + texts)
    output = os.path.join(folder, "run")
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            largest[0] = max(largest[0], folder_size(output))

    watcher = threading.Thread(target=watch)
    watcher.start()
    settings = run_classifier.ClassifierSettings(
        task_name="size", train_file=data, dev_file=data, output_dir=output, do_train=True, do_eval=True,
        eval_every_steps=1, max_seq_length=8, train_batch_size=2, num_train_epochs=7 / 20, seed=1,
        feature_cache_dir=os.path.join(folder, "features"), **base.flags(),
    )  # fmt: skip
    try:
        run_classifier.run_task(settings)
    finally:
        done.set()
        watcher.join()
    kept = len([name for name in os.listdir(output) if name.startswith("model.ckpt-") and name.endswith(".index")])
    rows = [[f"adapter 64, {kept} checkpoints and the pack", megabytes(folder_size(output)), megabytes(largest[0])]]
    with open(os.path.join(output, "results.json")) as file:
        trained = json.load(file)["parameters"]["trained"]
    rows.append([f"trained parameters x 4 bytes ({trained:,})", megabytes(4 * trained), ""])
    return table(["BERT-" + shape + ", output folder", "MB at the end", "MB at most"], rows)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="base,large", help="comma-separated: base, large; default: both")
    parser.add_argument("--rounds", type=int, default=5, help="of the second table; default: 5")
    args = parser.parse_args()
    for shape in args.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            print(sizes(shape, folder), flush=True)
            base = write_base(bert_config(shape), os.path.join(folder, "base"))
            print(switching(shape, base, folder, args.rounds), flush=True)
            print(training_folder(shape, base, folder), flush=True)


if __name__ == "__main__":
    main()
