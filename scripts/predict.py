"""Predict lines of text with a trained model that is loaded once.

    python scripts/predict.py --run=runs/sst2 < sentences.txt > predictions.tsv
    python scripts/predict.py --run=runs/mrpc --pairs --input=pairs.tsv

Writes a header, then one line per input line: the label and the probability of each class, separated by tabs, or the
predicted number. With `--line_by_line`, each prediction is written before the next line is read, so that another
program can interact with this one through a pipe.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import IO, TYPE_CHECKING, Any, Iterator, List, Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors

if TYPE_CHECKING:
    from adapter_bert.serving.predictor import Prediction, Predictor

# Number of lines that are sorted by length and predicted together.
CHUNK = 2048


def parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="output folder of a training run")
    parser.add_argument("--input", help="file with one text per line; default: standard input")
    parser.add_argument("--pairs", action="store_true", help="each line is a pair of texts separated by a tab")
    parser.add_argument("--line_by_line", action="store_true", help="predict each line before reading the next")
    parser.add_argument("--batch_size", type=int, default=32, help="default: 32")
    parser.add_argument("--threads", type=int, default=0, help="default: one per core")
    parser.add_argument("--init_checkpoint", help="the base, if it was moved after training")
    parser.add_argument("--vocab_file", help="vocabulary, if it is not next to the base")
    parser.add_argument("--spm_model_file", help="SentencePiece model, instead of --vocab_file")
    return parser.parse_args(words)


def chunks(lines: IO[str], size: int) -> Iterator[List[str]]:
    """Yield lists of `size` lines; the last may be shorter."""
    held: List[str] = []
    for line in iter(lines.readline, ""):
        held.append(line.rstrip("\r\n"))
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def as_text(line: str, pairs: bool) -> Any:
    """Return a line in the form that `Predictor.predict` takes."""
    first, _, second = line.partition("\t")
    return (first, second) if pairs else line


def as_line(prediction: Prediction) -> str:
    """Format a prediction as a line of the output."""
    if prediction.label is None:
        return repr(prediction.number)
    return "\t".join([prediction.label] + [f"{value:.7g}" for value in prediction.probabilities.values()])


def answer(predictor: Predictor, args: argparse.Namespace, lines: IO[str]) -> None:
    """Write the header, and a prediction for each line."""
    print("\t".join(["label", *predictor.config.labels] if predictor.config.labels else ["prediction"]), flush=True)
    for chunk in chunks(lines, 1 if args.line_by_line else CHUNK):
        for prediction in predictor.predict([as_text(line, args.pairs) for line in chunk], args.batch_size):
            print(as_line(prediction))
        sys.stdout.flush()


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Load the model and predict the input."""
    args = parse(words)
    if "://" not in args.run and not os.path.isdir(args.run):
        raise errors.UserError(f"--run={args.run}: no such folder; expected the output folder of a training run.")
    try:
        lines = open(args.input, encoding="utf-8") if args.input else sys.stdin  # noqa: SIM115  closed below
    except OSError as error:
        raise errors.UserError(f"--input={args.input} cannot be read: {errors.reason(error)}.") from None
    from adapter_bert.serving.predictor import Predictor  # imports TensorFlow: check the command first

    given = {name: getattr(args, name) for name in ("init_checkpoint", "vocab_file", "spm_model_file")}
    with lines, Predictor.from_run(
        args.run, threads=args.threads, **{name: value for name, value in given.items() if value}
    ) as predictor:
        try:
            answer(predictor, args, lines)
        except UnicodeDecodeError as error:
            raise errors.UserError(f"The texts must be UTF-8: {errors.reason(error)}.") from None


if __name__ == "__main__":
    main()
