"""Readers of data sets, predictions, vocabularies and texts."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import pathlib
import tarfile
from typing import List, Sequence

import tokenization
from adapter_bert import tasks
from adapter_bert.common import errors
from adapter_bert.evaluation import glue_submission, squad_metrics
from adapter_bert.pipeline import features, spans
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.tasks import custom, glue, squad
from adapter_bert.tasks.task import InputExample, Task, read_examples
from adapter_bert.weights import bases
from tests.fuzz.readers import Reader, Workshop, call_all, content, file_reader, reader, write
from tests.helpers import squad_paragraphs
from tests.test_tokenization import train_sentencepiece

# ----------------------------------------------------------------------------------------------- custom data

TEXTS = [("the cat is big", "good"), ('she said "no", twice', "bad"), ("naïve\ncafé", "good"), ("x", "bad")] * 3
OBJECTS = [{"text": text, "label": label, "id": number} for number, (text, label) in enumerate(TEXTS)]


def _custom_reader(workshop: Workshop, name: str, seeds: Sequence[bytes], is_json: bool = False) -> Reader:
    """Return a reader of custom data that is used as training file, and as test file."""
    path = workshop.path(f"custom-{len(os.listdir(workshop.folder))}", name)
    training, test = custom.CustomData(train_file=path), custom.CustomData(test_file=path)

    def read(path: str) -> None:
        call_all(
            lambda: custom.read("Reviews", training, ["train", "dev"]),
            lambda: custom.read("Reviews", test, ["test"], stored_labels=["bad", "good"]),
        )

    return file_reader(path, read, seeds, is_json)


def _csv_text(delimiter: str) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerow(["id", "text", "label"])
    writer.writerows([number, text, label] for number, (text, label) in enumerate(TEXTS))
    return buffer.getvalue()


@reader("CSV")
def _csv(workshop: Workshop) -> Reader:
    seeds = [_csv_text(",").encode(encoding) for encoding in ("utf-8", "utf-16", "cp1252")]
    return _custom_reader(workshop, "train.csv", [*seeds, _csv_text(";").encode()])


@reader("TSV")
def _tsv(workshop: Workshop) -> Reader:
    rows = [f"{number}\t{' '.join(text.split())}\t{label}\n" for number, (text, label) in enumerate(TEXTS)]
    return _custom_reader(workshop, "train.tsv", ["".join(["id\ttext\tlabel\n", *rows]).encode()])


@reader("numbers in CSV without a header")
def _numbers(workshop: Workshop) -> Reader:
    path = workshop.path("numbers")
    data = custom.CustomData(train_file=path, text_column="2", label_column="1", task_type="regression")
    seed = "".join(f'{number}.5,"some, text {number}"\n' for number in range(12))
    return file_reader(path, lambda path: custom.read("Scores", data, ["train", "dev"]), [seed.encode()])


@reader("JSON lines")
def _json_lines(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.jsonl", ["\n".join(map(json.dumps, OBJECTS)).encode()])


@reader("JSON array")
def _json_array(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.json", [json.dumps(OBJECTS).encode()], is_json=True)


def _tar_bytes(format: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for number, (text, label) in enumerate(TEXTS):
            # A long name needs an extended header.
            info = tarfile.TarInfo(f"data/{label}/{number}{'é' * 60 if number == 3 else ''}.txt")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("data/good/link.txt")
        link.type, link.linkname = tarfile.LNKTYPE, "data/good/0.txt"
        archive.addfile(link)
    return buffer.getvalue()


TARS = [_tar_bytes(format) for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)]


def repair_tar(data: bytes) -> bytes:
    """Correct the checksums of all blocks that look like headers."""
    repaired = bytearray(data)
    for start in range(0, len(data) - 511, 512):
        if data[start + 257 : start + 262] == b"ustar":
            block = data[start : start + 148] + b" " * 8 + data[start + 156 : start + 512]
            repaired[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(repaired)


@reader("tar")
def _tar(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.tar", TARS)


@reader("tar, valid checksums")
def _repaired_tar(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.tar", TARS).after(repair_tar)


@reader("tar.gz, valid checksums")
def _repacked_tar(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.tgz", TARS).after(lambda data: gzip.compress(repair_tar(data), 1))


@reader("tar.gz")
def _tar_gz(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.tar.gz", list(map(gzip.compress, TARS)))


@reader("tar.bz2")
def _tar_bz2(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.tar.bz2", list(map(bz2.compress, TARS)))


@reader("tar.xz")
def _tar_xz(workshop: Workshop) -> Reader:
    return _custom_reader(workshop, "train.tar.xz", list(map(lzma.compress, TARS)))


# ----------------------------------------------------------------------------------------- published data sets


@reader("GLUE and XNLI")
def _glue(workshop: Workshop) -> Reader:
    """All tasks read all inputs. XNLI's two splits have different layouts."""
    xnli = tasks.get("XNLI")
    splits = [*((task, "dev") for task in glue.TASKS), (xnli, "train"), (xnli, "dev")]
    folders = [workshop.path(f"glue-{number}") for number in range(len(splits))]
    paths = [workshop.path(folder, task.split(name).file) for folder, (task, name) in zip(folders, splits)]

    def read(data: bytes) -> None:
        rejected: List[errors.UserError] = []
        for (task, name), folder, path in zip(splits, folders, paths):
            write(path, data)
            try:
                list(read_examples(task, folder, name))
            except errors.UserError as error:
                rejected.append(error)
        if len(rejected) == len(splits):
            raise rejected[0]

    return Reader(read, [_rows(*each) for each in splits])


def _rows(task: Task, split_name: str) -> bytes:
    """Return a few valid rows of a task."""
    split = task.split(split_name)
    rows = [["column"] * split.columns_needed()] if split.header else []
    for number in range(4):
        row = ["some text"] * split.columns_needed()
        if split.label is not None:
            row[split.label] = task.labels[number % len(task.labels)] if task.labels else "2.5"
        if split.only:
            row[split.only[0]] = split.only[1]
        rows.append(row)
    return "".join("\t".join(row) + "\n" for row in rows).encode()


@reader("GLUE submission")
def _submission(workshop: Workshop) -> Reader:
    seed = "index\tprediction\n" + "".join(f"{number}\t{number % 2}\n" for number in range(glue.WNLI.test_rows or 0))
    path = workshop.path("submission", "WNLI.tsv")
    folders = [os.path.dirname(path)]
    return file_reader(path, lambda path: glue_submission.collect(folders, True), [seed.encode()])


SQUAD = json.dumps({"version": "v2.0", "data": [{"paragraphs": squad_paragraphs(6, version_2=True)}]}).encode()
PREDICTIONS = b'{"q0": "", "q1": "Big", "q2": "small cat"}'


@reader("SQuAD")
def _squad(workshop: Workshop) -> Reader:
    tokenizer, config = workshop.base.tokenizer, WindowConfig(32, 8, 12)

    def read(path: str) -> None:
        dataset = squad.read(path)
        list(spans.iterate_records(dataset.paragraphs, tokenizer, config))
        dataset.golds()

    return file_reader(workshop.path("squad.json"), read, [SQUAD], is_json=True)


@reader("SQuAD predictions")
def _predictions(workshop: Workshop) -> Reader:
    dataset = write(workshop.path("dataset.json"), SQUAD)
    path = workshop.path("predictions.json")
    return file_reader(path, lambda path: squad_metrics.score_files(dataset, path), [PREDICTIONS], is_json=True)


@reader("SQuAD null odds")
def _null_odds(workshop: Workshop) -> Reader:
    paths = [write(workshop.path("gold.json"), SQUAD), write(workshop.path("predicted.json"), PREDICTIONS)]
    path, seed = workshop.path("null_odds.json"), b'{"q0": 0.5, "q1": -3, "q2": 2e3}'
    return file_reader(path, lambda path: squad_metrics.score_files(*paths, path, 0.5), [seed], is_json=True)


# ------------------------------------------------------------------------------------------------ tokenizers

SAMPLE = "The cats, naïve 9,9 unaffable\u2028日本 \ud800 fi"


def _use(tokenizer: bases.Tokenizer, text: str = SAMPLE) -> None:
    tokenizer.tokenize(text)
    tokenizer.token_ids(text)
    tokenizer.tokenize_with_offsets(text)
    bases.describe_tokenizer(tokenizer)


@reader("vocab.txt")
def _vocabulary(workshop: Workshop) -> Reader:
    def read(path: str) -> None:
        tokenizer = tokenization.create_tokenizer(path, None, True)
        tokenization.check_case_matches_vocabulary(True, tokenizer.vocab)
        _use(tokenizer)

    return file_reader(workshop.path("vocab.txt"), read, [content(workshop.base.tokenizer_file)])


@reader("SentencePiece model")
def _sentencepiece(workshop: Workshop) -> Reader:
    folder = pathlib.Path(os.path.dirname(workshop.path("spm", "x")))
    seed = content(train_sentencepiece(folder, ["[CLS]", "[SEP]", "9,"]))
    path = workshop.path("fuzzed.model")
    return file_reader(path, lambda path: _use(tokenization.create_tokenizer(None, path, True)), [seed])


@reader("text")
def _text(workshop: Workshop) -> Reader:
    tokenizer = workshop.base.tokenizer
    encoder = features.Encoder(["0", "1"], 16, tokenizer)

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        _use(tokenizer, text)
        encoder.encode(InputExample("train-0", text, text, "1"))

    return Reader(read, [SAMPLE.encode("utf-8", "replace"), "Ünï\u00adcôde ﬁ \u0301a\u200b ßẞ İ 한국어".encode()])
