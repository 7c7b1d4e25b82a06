"""Predict a label or number for each line of text with a trained model.

    python scripts/predict.py --run=runs/sst2 < sentences.txt > predictions.tsv
    python scripts/predict.py --run=runs/mrpc --pairs --input=pairs.tsv

The output has a header and one line per input line: the label and the probability of each class, or the number,
separated by tabs. With `--line_by_line`, each line is answered before the next is read, e.g. for a pipe.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import IO, TYPE_CHECKING, Iterator, List, Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors, streams

if TYPE_CHECKING:
    from adapter_bert.serving.predictor import Predictor

# Number of lines that are sorted by length together.
CHUNK = 2048


def parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="output folder of a training run")
    parser.add_argument("--input", help="file with one text per line (default: standard input)")
    parser.add_argument("--pairs", action="store_true", help="each line is a pair of texts separated by a tab")
    parser.add_argument("--line_by_line", action="store_true", help="answer each line before reading the next")
    parser.add_argument("--batch_size", type=int, default=32, help="default: 32")
    parser.add_argument("--threads", type=int, default=0, help="default: one per core")
    parser.add_argument("--init_checkpoint", help="the base, if it was moved since training")
    parser.add_argument("--vocab_file", help="WordPiece vocabulary, if it is not beside the base")
    parser.add_argument("--spm_model_file", help="SentencePiece model, if it is not beside the base")
    return parser.parse_args(words)


def chunks(lines: IO[str], size: int) -> Iterator[List[str]]:
    """Yield lists of up to `size` lines, without reading ahead."""
    while True:
        try:
            chunk = [line.rstrip("\r\n") for line in itertools.islice(iter(lines.readline, ""), size)]
        except UnicodeDecodeError as error:
            raise errors.UserError(f"The input is not UTF-8 text: {errors.reason(error)}.") from None
        except OSError as error:
            raise errors.UserError(f"Cannot read the input: {errors.reason(error)}.") from None
        if not chunk:
            return
        yield chunk


def answer(predictor: Predictor, args: argparse.Namespace, lines: IO[str]) -> None:
    """Print the header and one prediction per line."""
    labels = [streams.printable(label) for label in predictor.config.labels]
    print("\t".join(["label", *labels] if labels else ["prediction"]))
    errors.check_output()
    for chunk in chunks(lines, 1 if args.line_by_line else CHUNK):
        texts = [line.partition("\t")[::2] for line in chunk] if args.pairs else chunk
        for label, probabilities, number in predictor.predict(texts, args.batch_size):
            values = [repr(number)] if label is None else [label, *(f"{p:.7g}" for p in probabilities.values())]
            print("\t".join(map(streams.printable, values)))
        errors.check_output()


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Load the predictor and answer all lines."""
    args = parse(words)
    if "://" not in args.run and not os.path.isdir(args.run):
        raise errors.UserError(f"--run={args.run}: no such folder; expected the output folder of a training run.")
    try:
        lines = open(args.input, encoding="utf-8") if args.input else sys.stdin  # noqa: SIM115  closed below
    except OSError as error:
        raise errors.UserError(f"Cannot read --input={args.input}: {errors.reason(error)}.") from None
    from adapter_bert.serving.predictor import Predictor  # imports TensorFlow, so only after the flags are checked

    names = ("init_checkpoint", "vocab_file", "spm_model_file")
    given = {name: getattr(args, name) for name in names if getattr(args, name)}
    with lines, Predictor.from_run(args.run, threads=args.threads, **given) as predictor:
        answer(predictor, args, lines)


if __name__ == "__main__":
    main()
