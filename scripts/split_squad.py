"""Split a SQuAD file into a training and a dev file without common articles.

    python scripts/split_squad.py dev-v1.1.json --dev_fraction=0.2 --train_out=train.json --dev_out=dev.json
    python scripts/split_squad.py dev-v2.0.json --dev_articles=7 --seed=3 --train_out=train.json --dev_out=dev.json

Articles are shuffled with the seed, and the first ones become the dev file: with the same seed, a smaller dev file is
part of a larger one. Both files keep the order of the original, and everything else in it. Prints the titles.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from typing import Any, List, Mapping, Optional, Sequence, Set

from adapter_bert.common import system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.tasks import squad


def titles(content: Mapping[str, Any]) -> List[str]:
    """Return the title of each article; an article without a title is named by its place."""
    found = (article.get("title") for article in content["data"])
    return [
        title if isinstance(title, str) and title.strip() else f"data[{number}]" for number, title in enumerate(found)
    ]


def choose(names: Sequence[str], seed: int, count: Optional[int] = None, fraction: float = 0.2) -> Set[str]:
    """Return `count` or a fraction of the titles for the dev file; raise a `UserError` if a file would be empty."""
    if len(names) < 2:
        raise errors.UserError(
            f"The file has {len(names)} article, expected at least two. Articles are the entries of `data`: distribute "
            "the paragraphs over several."
        )
    if count is None:
        if not 0 < fraction < 1:
            raise errors.UserError(f"--dev_fraction={fraction:g}: expected a number between 0 and 1.")
        count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    if not 1 <= count < len(names):
        raise errors.UserError(
            f"--dev_articles={count}: expected 1 to {len(names) - 1}; there are {len(names)} articles."
        )
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    return set(shuffled[:count])


def check_outputs(source: str, outputs: Mapping[str, str], overwrite: bool) -> None:
    """Raise a `UserError` if an output (path by flag) is the source, another output, a folder, or an existing file."""
    paths = [path if "://" in path else os.path.realpath(path) for path in (source, *outputs.values())]
    if len(set(paths)) < len(paths):
        raise errors.UserError("The file to split, --train_out and --dev_out must be three different files.")
    for flag, path in outputs.items():
        if tf.gfile.IsDirectory(path):
            raise errors.UserError(f"{flag}={path} is a folder, expected the path of a file.")
        if not overwrite:
            files.check_absent(path, flag)


def split(args: argparse.Namespace) -> None:
    """Write both files, or none."""
    with files.user_errors():
        check_outputs(args.file, {"--train_out": args.train_out, "--dev_out": args.dev_out}, args.overwrite)
    content = squad.load(args.file)
    squad.parse(content, args.file)
    names = titles(content)
    unique = list(dict.fromkeys(names))
    dev = choose(unique, args.seed, args.dev_articles, args.dev_fraction)
    parts = []
    for path, chosen in ((args.train_out, set(unique) - dev), (args.dev_out, dev)):
        part = dict(content, data=[article for name, article in zip(names, content["data"]) if name in chosen])
        count = squad.parse(part, f"{args.file}, part for {path}").num_questions
        parts.append((path, part, f"{path}: {len(chosen)} articles, {count} questions"))
    for path, part, summary in parts:
        files.make_folder(os.path.dirname(path) or ".")
        # ASCII escapes also represent lone surrogates, which UTF-8 cannot.
        files.write_text(path, json.dumps(part) + "\n")
        print(f"{summary}\n  {', '.join(dict.fromkeys(titles(part)))}", file=sys.stderr)


@errors.exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Parse the command line and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="SQuAD file, version 1.1 or 2.0")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--dev_articles", type=int, help="number of articles in the dev file")
    size.add_argument("--dev_fraction", type=float, default=0.2, help="fraction of articles (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default %(default)s)")
    parser.add_argument("--train_out", required=True, help="training file to write")
    parser.add_argument("--dev_out", required=True, help="dev file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    split(parser.parse_args(argv))


if __name__ == "__main__":
    main()
