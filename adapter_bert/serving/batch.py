"""Predict many texts, from arguments, a stream of lines or a table, and write the predictions in the same order."""

from __future__ import annotations

import io
import itertools
import os
import re
import stat
import sys
from typing import IO, Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files, paths, streams
from adapter_bert.common.progress import with_bar
from adapter_bert.evaluation import prediction_table
from adapter_bert.serving.engine import Prediction, Text
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks import encodings
from adapter_bert.tasks.custom import formats, table_writer
from adapter_bert.tasks.custom.table import MISSING

# Texts that are sorted by length together.
CHUNK = 256
# The format of predictions without their texts.
PLAIN = "plain"

Cells = Sequence[object]


class Inputs(NamedTuple):
    """Texts to predict."""

    columns: Sequence[str]  # names of the cells
    rows: Iterator[Tuple[Cells, Text]]  # cells for the output, and the text that they contain
    total: Optional[int]  # number of rows; None if it is not known
    kind: str  # format of the output, unless its name says otherwise: csv, tsv, jsonl or PLAIN


class TableFormat(NamedTuple):
    """How to read a table: the flags of the same names for custom data."""

    text_column: str
    text_pair_column: Optional[str] = None
    encoding: Optional[str] = None
    header: Optional[bool] = None
    quoting: Optional[bool] = None


def read_table(path: str, layout: TableFormat) -> Inputs:
    """Read a table as training does; raise a `UserError` if it cannot be read or lacks a column."""
    columns = {"--text_column": layout.text_column, "--text_pair_column": layout.text_pair_column}
    needed = {flag: column for flag, column in columns.items() if column}
    table = formats.read_table(path, list(needed.values()), *layout[2:])
    tf.logging.info("%s: %d rows, %s", path, len(table.rows), table.layout)
    if table.num_dropped:
        tf.logging.warning("%s: %d keys after the first ones are not in the output.", path, table.num_dropped)
    width, missing = len(table.columns), MISSING if table.kind == "keys" else ""
    cells = ([*row.cells[:width], *[missing] * (width - len(row.cells))] for row in table.rows)
    texts = [row.text_a if row.text_b is None else (row.text_a, row.text_b) for row in table.labelled_rows(needed)]
    kind = "jsonl" if table.kind == "keys" else "tsv" if table.layout.startswith("tab") else "csv"
    return Inputs(table.columns, zip(cells, texts), len(texts), kind)


def split_lines(lines: Iterable[str], has_pairs: bool, total: Optional[int] = None) -> Inputs:
    """Return texts, one per line, or pairs of texts separated by a tab."""
    if has_pairs:
        pairs = (line.partition("\t")[::2] for line in lines)
        return Inputs(prediction_table.TEXT_COLUMNS, ((pair, pair) for pair in pairs), total, PLAIN)
    return Inputs(prediction_table.TEXT_COLUMNS[:1], (([line], line) for line in lines), total, PLAIN)


def open_lines(path: str) -> IO[str]:
    """Open a UTF-8 file; raise a `UserError` if it cannot be read or is not text."""
    try:
        raw: Any
        if paths.is_remote(path):
            raw = io.BufferedReader(io.BytesIO(encodings.read_bytes(path)))  # type: ignore[arg-type]
        else:
            raw = open(path, "rb")  # noqa: SIM115  open until its last line is read
        encodings.check_is_text(raw.peek(), path)
    except OSError as error:
        raise errors.UserError(f"Cannot read --input={path}: {errors.reason(error)}.") from None
    return io.TextIOWrapper(raw, "utf-8-sig")


def read_lines(stream: IO[str]) -> Iterator[str]:
    """Yield the lines of a stream without their ends, each as soon as it can be read."""
    try:
        for line in iter(stream.readline, ""):
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise errors.UserError(f"The input is not UTF-8 text: {errors.reason(error)}.") from None
    except OSError as error:
        raise errors.UserError(f"Cannot read the input: {errors.reason(error)}.") from None


def typed_lines(stream: IO[str]) -> Iterator[str]:
    """Yield lines from a terminal, with a prompt; empty ones are skipped."""
    print("Type a text and press Enter. Ctrl-D ends.", file=sys.stderr)
    lines = read_lines(stream)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            print(file=sys.stderr)
            return
        if line.strip():
            yield line


def count_lines(stream: IO[str]) -> Optional[int]:
    """Return the number of lines in a file without moving the position in it; None for a pipe or a terminal."""
    try:
        number = stream.fileno()
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return None
        starts = itertools.count(0, encodings.BLOCK_SIZE)
        total, last = 0, b"\n"
        for block in iter(lambda: os.pread(number, encodings.BLOCK_SIZE, next(starts)), b""):
            total, last = total + block.count(b"\n"), block
        return total + (not last.endswith(b"\n"))
    except OSError:
        return None


def warn_of_header(lines: Iterator[str], text_column: str) -> Iterator[str]:
    """Yield the lines; log a warning if the first one looks like the header of a table."""
    for number, line in enumerate(lines):
        cells = [cell.strip(' "') for cell in re.split("[,;\t]", line)] if number == 0 else []
        if len(cells) > 1 and text_column in cells:
            message = "The first line looks like the header of a table: %s. Each line is predicted as a text. %s"
            tf.logging.warning(message, line, "For a table, use --input=FILE with the ending .csv, .tsv or .jsonl.")
        yield line


def predict(
    predictor: Predictor, rows: Iterator[Tuple[Cells, Text]], batch_size: int, chunk: int = CHUNK
) -> Iterator[List[Tuple[Cells, Prediction]]]:
    """Yield cells and predictions in order, `chunk` rows at a time."""
    while True:
        some = list(itertools.islice(rows, chunk))
        if not some:
            return
        found = predictor.predict([text for _, text in some], batch_size)
        yield list(zip((cells for cells, _ in some), found))


def table_lines(
    kind: str, columns: Sequence[str], labels: Sequence[str], predicted: Iterable[Tuple[Cells, Prediction]]
) -> Iterator[str]:
    """Yield the lines of a table: the given columns, then those of the predictions."""
    names = table_writer.unique_names([*columns, *prediction_table.columns(labels)])
    rows = ([*cells, *_prediction_cells(labels, prediction)] for cells, prediction in predicted)
    return table_writer.format_lines(kind, names, rows)


def _prediction_cells(labels: Sequence[str], prediction: Prediction) -> List[object]:
    if prediction.label is None:
        return prediction_table.cells((), [prediction.number or 0.0])
    values = list(prediction.probabilities.values())
    return prediction_table.cells(labels, values, labels.index(prediction.label))


def plain_lines(
    labels: Sequence[str], predicted: Iterable[Tuple[Cells, Prediction]], digits: str = ".7g"
) -> Iterator[str]:
    """Yield a header, then the label and the probability of each class (or the number), separated by tabs."""
    yield "\t".join(["label", *map(streams.printable, labels)] if labels else ["prediction"]) + "\n"
    for _, (label, probabilities, number) in predicted:
        values = [repr(number)] if label is None else [label, *(format(p, digits) for p in probabilities.values())]
        yield "\t".join(map(streams.printable, values)) + "\n"


def run(
    predictor: Predictor,
    inputs: Inputs,
    batch_size: int,
    chunk: int = CHUNK,
    output: Optional[str] = None,
    overwrite: bool = False,
) -> None:
    """Predict all texts and write them with their predictions to `output`, or to stdout in the format of the input.

    Plain lines are written to stdout without the texts. Progress is shown unless the predictions are on the screen.
    """
    predictor.predict([])  # raises an error, before anything is written, if the task answers questions
    labels = predictor.config.labels
    chunks = predict(predictor, inputs.rows, batch_size, chunk)
    on_screen = not output and sys.stdout.isatty()
    predicted: Iterator[Tuple[Cells, Prediction]] = itertools.chain.from_iterable(chunks)
    if not on_screen:
        predicted = with_bar(chunks, inputs.total, "predictions", "texts")
    if output:
        # Plain lines become a table with a column of texts.
        files.make_folder(os.path.dirname(output) or ".")
        lines = table_lines(table_writer.format_of(output), inputs.columns, labels, predicted)
        table_writer.write(output, lines, overwrite)
        return
    if inputs.kind == PLAIN:
        lines = plain_lines(labels, predicted, ".4f" if on_screen else ".7g")
    else:
        lines = table_lines(inputs.kind, inputs.columns, labels, predicted)
    for line in lines:
        print(line, end="")
        errors.check_output()
