"""Measures how little fresh adapters change BERT's output, for several scales of their initial weights.

    python scripts/measure_near_identity.py --bert_dir=FOLDER
    python scripts/measure_near_identity.py --init_scales 1e-2 1e-3 1e-7 --adapter_size=64 --seeds=3

FOLDER holds `bert_config.json`, `vocab.txt` and `bert_model.ckpt.*`. Without it, BERT has base size and
random weights, and a word's id is a hash of it.

A dozen sentences go through BERT and through the same BERT with fresh adapters. Printed are, over all real
tokens (no padding) and the worst of the seeds, the largest absolute difference of a value, and the mean over
tokens of the difference's norm divided by the norm of BERT's own output. At scales of 1e-7 and below the two
networks must be equal within 1e-6, some units in the last place of a float32; if not, the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import zlib
from typing import List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import tokenization
from adapter_bert.common.errors import UserError, exits_on_user_error
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints

IDENTITY_SCALE, IDENTITY_LIMIT = 1e-7, 1e-6
BERT_BASE = modeling.BertConfig(vocab_size=30522, type_vocab_size=2)
SENTENCES = (
    "The harbour froze over for the first time in forty years.",
    "Nobody expected the smaller company to win the contract.",
    "Please send me the signed form by Friday.",
    "What did the teacher who the children liked give to them?",
    "It was, in short, a very long film about a very short war.",
    "Stocks rose on Monday, led by energy and shipping.",
    "He said that he would, but he never did.",
    "The soup needs salt.",
    "Although the instructions were clear, most of the participants skipped the second step.",
    "I can't recommend this place enough: friendly staff, fair prices and the best coffee in town!",
    "Water boils at a lower temperature in the mountains.",
    "No.",
)


class Base(NamedTuple):
    """The BERT to measure; without a checkpoint its weights are random."""

    config: modeling.BertConfig
    checkpoint: Optional[str]
    vocab_file: Optional[str]


class Difference(NamedTuple):
    """How far an output with adapters is from the one without."""

    largest: float
    relative: float


def load_base(bert_dir: Optional[str]) -> Base:
    """The BERT in a folder, checked, or a random one."""
    if bert_dir is None:
        return Base(BERT_BASE, None, None)
    config = modeling.BertConfig.from_json_file(os.path.join(bert_dir, bases.CONFIG_NAME))
    checkpoint = checkpoints.find_prefix(os.path.join(bert_dir, bases.CHECKPOINT_NAME))
    shapes = bases.bert_shapes(config)
    misfit = modeling.describe_mismatch(shapes, checkpoints.read_shapes(checkpoint))
    if misfit:
        raise UserError(f"The checkpoint {checkpoint} does not fit its {bases.CONFIG_NAME}: {misfit}")
    return Base(config, checkpoint, os.path.join(bert_dir, bases.VOCAB_NAME))


def make_batch(base: Base) -> Tuple[np.ndarray, np.ndarray]:
    """The sentences' ids and mask, int [B, S] each."""
    if base.vocab_file is None:
        words = tokenization.BasicTokenizer()
        rows = [
            [
                zlib.crc32(word.encode("utf-8")) % base.config.vocab_size
                for word in ["[CLS]", *words.tokenize(sentence), "[SEP]"]
            ]
            for sentence in SENTENCES
        ]
    else:
        tokenizer = tokenization.FullTokenizer(base.vocab_file)
        rows = [
            tokenizer.convert_tokens_to_ids(["[CLS]", *tokenizer.tokenize(sentence), "[SEP]"]) for sentence in SENTENCES
        ]
    longest = max(map(len, rows))
    ids = np.array([row + [0] * (longest - len(row)) for row in rows], np.int32)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int32)
    return ids, mask


def compare(with_adapters: np.ndarray, without: np.ndarray) -> Difference:
    """Compares outputs, float [vectors, D]."""
    apart = with_adapters.astype(np.float64) - without
    norms = np.linalg.norm(apart, axis=1) / np.linalg.norm(without, axis=1)
    return Difference(float(np.abs(apart).max()), float(norms.mean()))


def measure(base: Base, adapter: adapter_layers.AdapterConfig, seed: int) -> List[Difference]:
    """Draws fresh adapters and compares the sequence output and the pooled output with plain BERT's."""
    ids, mask = make_batch(base)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(seed)
        outputs = []
        # Both networks in one graph, on the same variables: only the adapters can make a difference.
        with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
            for adapter_fn in (adapter, None):
                inputs = (tf.constant(ids), tf.constant(mask))
                model = modeling.BertModel(base.config, False, *inputs, scope="bert", adapter_fn=adapter_fn)
                outputs.append((model.get_sequence_output(), model.get_pooled_output()))
        names = [variable.op.name for variable in tf.trainable_variables()]
        if base.checkpoint:
            in_checkpoint = [name for name in names if parameters.group_of(name) != "adapters"]
            tf.train.init_from_checkpoint(base.checkpoint, {name: name for name in in_checkpoint})
        session.run(tf.global_variables_initializer())
        adapted, plain = session.run(outputs)
    real = mask.astype(bool)
    return [compare(adapted[0][real], plain[0][real]), compare(adapted[1], plain[1])]


def worst(differences: List[Difference]) -> Difference:
    """The largest of each measure. NaN wins."""
    return Difference(*(float(np.max(values)) for values in zip(*differences)))


@exits_on_user_error
def main() -> None:
    """Reads the flags, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bert_dir", help="bert_config.json, vocab.txt, bert_model.ckpt; default: random")
    parser.add_argument("--init_scales", type=float, nargs="+", default=[1e-2, 1e-3, IDENTITY_SCALE])
    parser.add_argument("--adapter_size", type=int, default=adapter_layers.PAPER_SIZE, help="%(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="draws for each scale; %(default)s")
    args = parser.parse_args()
    if args.seeds < 1:
        raise UserError(f"--seeds must be 1 or more, found {args.seeds}.")
    tf.logging.set_verbosity(tf.logging.ERROR)
    base = load_base(args.bert_dir)
    adapters = [adapter_layers.AdapterConfig(args.adapter_size, init_scale=s) for s in args.init_scales]
    print("| scale | sequence, max abs | sequence, mean relative | pooled, max abs | pooled, mean relative |")
    print("|---|---|---|---|---|")
    holds = []
    for adapter in adapters:
        pairs = [measure(base, adapter, seed) for seed in range(args.seeds)]
        sequence, pooled = (worst(list(differences)) for differences in zip(*pairs))
        row = "| {:.0e} | {:.2e} | {:.2e} | {:.2e} | {:.2e} |".format(adapter.init_scale, *sequence, *pooled)
        print(row, flush=True)
        if adapter.init_scale <= IDENTITY_SCALE:
            holds.append(bool(np.max([sequence.largest, pooled.largest]) <= IDENTITY_LIMIT))
    if holds:
        verdict = "yes" if all(holds) else "NO"
        print(f"\nEqual within {IDENTITY_LIMIT:.0e} at {IDENTITY_SCALE:.0e}: {verdict}.")
    if not all(holds):
        sys.exit(1)


if __name__ == "__main__":
    main()
