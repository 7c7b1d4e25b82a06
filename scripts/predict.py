"""Predict labels or numbers for texts with a trained model.

    python scripts/predict.py --run=runs/sst2 "a fine film" "dull and long"
    python scripts/predict.py --run=runs/reviews --input=new.csv --text_column=review --output=predicted.csv
    python scripts/predict.py --adapter_pack=sst2.safetensors --bert_dir=bert < sentences.txt > predictions.tsv
    python scripts/predict.py --bank=bank --task=mrpc --pairs --input=pairs.txt

The model is a run, a pack with its base, or a task of a bank. The texts are arguments, a file with one text per line, a
table (CSV, TSV or JSON lines), or standard input; on a terminal, each line is answered at once. The output of a table
has its columns and those of the predictions. Other output has a header and one line per text: the label and the
probability of each class, or the number, separated by tabs.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors, files, paths
from adapter_bert.tasks.custom import formats, table_writer
from adapter_bert.tasks.custom.table import TEXT_COLUMN

if TYPE_CHECKING:
    from adapter_bert.serving.batch import Inputs, TableFormat

MODEL = ("run", "adapter_pack", "bank", "task", "bert_dir", "init_checkpoint", "vocab_file", "spm_model_file")
TABLE = ("text_column", "text_pair_column", "encoding", "header", "quoting")


def _true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected true or false, found {text!r}")
    return text.lower() == "true"


def parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--run", metavar="FOLDER", help="output folder of a training run")
    model.add_argument("--adapter_pack", metavar="PACK", help="a pack; needs --bert_dir or --init_checkpoint")
    model.add_argument("--bank", metavar="FOLDER", help="a bank; needs --task")
    option("--task", metavar="NAME", help="name of a pack in the bank")
    option("--bert_dir", metavar="FOLDER", help="folder of the base; needed with --run only if it was moved")
    option("--init_checkpoint", metavar="PATH", help="checkpoint of the base, instead of --bert_dir")
    option("--vocab_file", metavar="FILE", help="WordPiece vocabulary, if it is not beside the base")
    option("--spm_model_file", metavar="FILE", help="SentencePiece model, if it is not beside the base")
    option("texts", metavar="TEXT", nargs="*", help="texts to predict")
    option(
        "--input", metavar="FILE", help="one text per line, or a table (.csv, .tsv, .jsonl); default: standard input"
    )
    option("--pairs", action="store_true", help="each line or argument is a pair of texts separated by a tab")
    option("--text_column", metavar="NAME", help="table: text column; default: as in training, else 'text'")
    option("--text_pair_column", metavar="NAME", help="table: column of the second text; default: as in training")
    option("--encoding", help="table: e.g. utf-8 or cp1252; default: detected")
    option("--header", type=_true_or_false, help="table: whether the first line has column names")
    option("--quoting", type=_true_or_false, help="table: whether double quotes enclose cells; default: not in TSV")
    option("--output", metavar="FILE", help="table to write (.csv, .tsv, .jsonl); default: standard output")
    option("--overwrite", action="store_true", help="replace an existing --output")
    option("--line_by_line", action="store_true", help="answer each line before reading the next")
    option("--batch_size", type=int, default=32, help="default: 32")
    option("--threads", type=int, default=0, help="default: one per core")
    option("--precision", default="float32", help="float32 (default) or bfloat16")
    return parser.parse_args(words)


def check(args: argparse.Namespace) -> None:
    """Raise a `UserError` for flags that do not belong together, and for files that are missing or in the way."""
    if args.run and not paths.is_remote(args.run) and not os.path.isdir(args.run):
        raise errors.UserError(f"--run={args.run}: no such folder; expected the output folder of a training run.")
    if args.texts and args.input:
        raise errors.UserError(f"Give texts as arguments or as --input={args.input}, not both.")
    if args.input and not paths.is_remote(args.input) and not os.path.exists(args.input):
        raise errors.UserError(f"--input={args.input}: no such file. Paths are relative to {os.getcwd()}.")
    for name in TABLE:
        if getattr(args, name) is not None and not is_table(args):
            raise errors.UserError(
                f"--{name} is for tables: add --input=FILE, a .csv, .tsv or .jsonl file, without --pairs."
            )
    if args.output:
        table_writer.format_of(args.output)
        if args.input and paths.real(args.input) == paths.real(args.output):
            raise errors.UserError(f"--output={args.output} is the input: choose another file.")
        if not args.overwrite:
            files.check_absent(args.output)


def is_table(args: argparse.Namespace) -> bool:
    """Return whether the input is a table. Pairs are lines, whatever the file is called."""
    return bool(args.input) and not args.pairs and formats.has_table_name(args.input)


def table_format(args: argparse.Namespace, training: Dict[str, Any]) -> TableFormat:
    """Return how to read a table; the columns are those of the training unless they are given."""
    from adapter_bert.serving.batch import TableFormat

    given = {name: getattr(args, name) for name in TABLE if getattr(args, name) is not None}
    if "text_column" not in given:
        names = ("text_column", "text_pair_column")
        given = {"text_column": TEXT_COLUMN, **{name: training[name] for name in names if training.get(name)}, **given}
    return TableFormat(**given)


def read_inputs(args: argparse.Namespace, layout: TableFormat) -> Inputs:
    """Return the texts that the command line names."""
    from adapter_bert.serving import batch

    if is_table(args):
        return batch.read_table(args.input, layout)
    if args.texts:
        return batch.split_lines(args.texts, args.pairs, len(args.texts))
    stream = batch.open_lines(args.input) if args.input else sys.stdin
    if stream.isatty():
        args.line_by_line = True
        return batch.split_lines(batch.typed_lines(stream), args.pairs)
    lines = batch.warn_of_header(batch.read_lines(stream), layout.text_column)
    return batch.split_lines(lines, args.pairs, batch.count_lines(stream))


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Load the predictor and answer all texts."""
    args = parse(words)
    check(args)
    # These import TensorFlow, so only after the flags are checked.
    from adapter_bert.common import logs
    from adapter_bert.serving import batch, predictor

    logs.show_progress()
    given = {name: getattr(args, name) for name in MODEL if getattr(args, name)}
    with predictor.load(**given, threads=args.threads, precision=args.precision) as loaded:
        inputs = read_inputs(args, table_format(args, dict(loaded.config.training)))
        chunk = 1 if args.line_by_line else batch.CHUNK
        batch.run(loaded, inputs, args.batch_size, chunk, args.output, args.overwrite)


if __name__ == "__main__":
    main()
