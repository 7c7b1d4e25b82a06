"""Splits a SQuAD file into a training and a development file, such that no article is in both.

    python scripts/split_squad.py dev-v1.1.json --dev_fraction=0.2 --train_out=train.json --dev_out=dev.json
    python scripts/split_squad.py dev-v2.0.json --dev_articles=7 --seed=3 --train_out=train.json --dev_out=dev.json

The articles are shuffled with the seed and the first ones become the development file; in both files they stand in
the order of the given one. So with one seed, a smaller development file is part of a larger one. All else is kept as
it is, the version too. What went where is told on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from adapter_bert.common import system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.tasks import squad

Content = Mapping[str, Any]


def titles(content: Content) -> List[str]:
    """The articles' titles, each once, in the file's order; an article without one is named by its place."""
    return list(dict.fromkeys(_title(article, number) for number, article in enumerate(content["data"])))


def _title(article: Mapping[str, Any], number: int) -> str:
    title = article.get("title")
    return title if isinstance(title, str) and title.strip() else f"data[{number}]"


def choose(names: Sequence[str], seed: int, count: Optional[int] = None, fraction: float = 0.2) -> Set[str]:
    """The articles of the development file.

    Args:
      names: all titles.
      seed: of the shuffling.
      count: how many to take; None: by the fraction.
      fraction: share of the articles; at least one is taken, and one is left.

    Raises:
      errors.UserError: one of the two files would have no article.
    """
    if len(names) < 2:
        raise errors.UserError(
            f"The file has {len(names)} article; to be split it needs two at least. "
            "What belongs together is an entry of `data`: put paragraphs into several."
        )
    if count is None:
        if not 0 < fraction < 1:
            raise errors.UserError(f"--dev_fraction={fraction:g}: expected a number between 0 and 1.")
        count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    if not 1 <= count < len(names):
        raise errors.UserError(
            f"--dev_articles={count}: the file has {len(names)} articles, so 1 to {len(names) - 1} are possible."
        )
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    return set(shuffled[:count])


def part(content: Content, chosen: Set[str]) -> Dict[str, Any]:
    """The file with the chosen articles only."""
    articles = [article for number, article in enumerate(content["data"]) if _title(article, number) in chosen]
    return dict(content, data=articles)


def check_outputs(source: str, outputs: Sequence[str], overwrite: bool) -> None:
    """Refuses outputs that would destroy the source, each other, or (if so wanted) anything.

    Raises:
      errors.UserError: says which.
    """
    paths = [path if "://" in path else os.path.realpath(path) for path in (source, *outputs)]
    if len(set(paths)) < len(paths):
        raise errors.UserError("The file to split, --train_out and --dev_out have to be three different files.")
    for path in outputs:
        if tf.gfile.IsDirectory(path):
            raise errors.UserError(f"{path} is a folder; give the path of a file.")
        if not overwrite:
            files.check_absent(path, "path")


def split(args: argparse.Namespace) -> None:
    """Writes the two files, or none."""
    outputs = (args.train_out, args.dev_out)
    with files.user_errors():
        check_outputs(args.file, outputs, args.overwrite)
    content = squad.load(args.file)
    squad.parse(content, args.file)
    names = titles(content)
    dev = choose(names, args.seed, args.dev_articles, args.dev_fraction)
    parts = (part(content, set(names) - dev), part(content, dev))
    counts = [squad.parse(half, f"{args.file}, part for {path}").num_questions for path, half in zip(outputs, parts)]
    for path, half, count in zip(outputs, parts, counts):
        files.make_folder(os.path.dirname(path) or ".")
        # Escapes keep what UTF-8 cannot, lone surrogates.
        files.write_text(path, json.dumps(half) + "\n")
        there = titles(half)
        print(f"{path}: {len(there)} articles, {count} questions", file=sys.stderr)
        print("  " + ", ".join(there), file=sys.stderr)


@errors.exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Arguments -> two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a SQuAD file, version 1.1 or 2.0")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--dev_articles", type=int, help="articles of the development file")
    size.add_argument("--dev_fraction", type=float, default=0.2, help="or their share (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the shuffling (default %(default)s)")
    parser.add_argument("--train_out", required=True, help="file to write the other articles to")
    parser.add_argument("--dev_out", required=True, help="file to write the development articles to")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    split(parser.parse_args(argv))


if __name__ == "__main__":
    main()
