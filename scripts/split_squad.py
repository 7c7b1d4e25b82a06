"""Split a SQuAD file into a training and a dev file that share no articles.

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
from typing import Optional, Sequence, Set

from adapter_bert.common import system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files, paths, streams
from adapter_bert.tasks import squad


def choose(names: Sequence[str], seed: int, count: Optional[int], fraction: float) -> Set[str]:
    """Return `count` or a fraction of the titles for the dev file; raise a `UserError` if a file would be empty."""
    if len(names) < 2:
        raise errors.UserError("The file has 1 article, expected at least two: add entries to the list `data`.")
    most = len(names) - 1
    if count is None:
        if not 0 < fraction < 1:
            raise errors.UserError(f"--dev_fraction={fraction:g}: expected a number between 0 and 1.")
        count = min(max(round(fraction * len(names)), 1), most)
    if not 1 <= count <= most:
        raise errors.UserError(f"--dev_articles={count}: expected 1 to {most}; there are {len(names)} articles.")
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    return set(shuffled[:count])


def check_output(path: str, flag: str, overwrite: bool) -> None:
    """Raise a `UserError` if an output is a folder or an existing file. `overwrite` allows a SQuAD file."""
    if tf.gfile.IsDirectory(path):
        raise errors.UserError(f"{flag}={path} is a folder, expected the path of a file.")
    if not overwrite:
        files.check_absent(path, flag)
    elif paths.is_taken(path) and "data" not in squad.load(path):
        raise errors.UserError(f"--overwrite replaces only SQuAD files, which {flag}={path} is not.")


def split(args: argparse.Namespace) -> None:
    """Write both files, or none."""
    named = (args.file, args.train_out, args.dev_out)
    if len({paths.real(path) for path in named}) < len(named):
        raise errors.UserError("The file to split, --train_out and --dev_out must be three different files.")
    with files.user_errors():
        check_output(args.train_out, "--train_out", args.overwrite)
        check_output(args.dev_out, "--dev_out", args.overwrite)
    content = squad.load(args.file)
    squad.parse(content, args.file)
    titles = [article.get("title") for article in content["data"]]
    names = [t if isinstance(t, str) and t.strip() else f"data[{number}]" for number, t in enumerate(titles)]
    unique = list(dict.fromkeys(names))
    dev = choose(unique, args.seed, args.dev_articles, args.dev_fraction)
    parts = []
    for path, is_dev in ((args.train_out, False), (args.dev_out, True)):
        chosen = [name for name in unique if (name in dev) == is_dev]
        part = dict(content, data=[article for name, article in zip(names, content["data"]) if (name in dev) == is_dev])
        count = squad.parse(part, f"{args.file}, part for {path}").num_questions
        titles = streams.printable(", ".join(chosen))
        parts.append((path, part, f"{path}: {len(chosen)} articles, {count} questions\n  {titles}"))
    for path, part, summary in parts:
        files.make_folder(os.path.dirname(path) or ".")
        # ASCII escapes also represent lone surrogates, which UTF-8 cannot.
        files.write_text(path, json.dumps(part) + "\n")
        print(summary, file=sys.stderr)


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
