"""A stream trains tasks one after another, forgets none, and counts their parameters."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest

from adapter_bert.experiments.stream import (
    Evaluation,
    Stream,
    compare,
    format_table,
    read_tasks,
)
from adapter_bert.model import parameters
from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import Bank
from run_classifier import ClassifierSettings
from tests.helpers import assert_mentions, cola_rows, message_of, run_command, tiny_config, write_bert, write_cola


def write_tasks(folder, *lines) -> str:
    path = os.path.join(str(folder), "tasks.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


COMMON = ClassifierSettings(do_train=True, learning_rate=1e-2, max_seq_length=16, adapter_size=4, seed=1)


class TestReadTasks:
    def test_flags_of_a_line_override_the_common_ones(self, tmp_path):
        first = "--task_name=CoLA --data_dir=glue/CoLA --max_seq_length=20  # short"
        second = "--task_name=spam --train_file='my texts.csv' --learning_rate 3e-4 --header"
        tasks = read_tasks(write_tasks(tmp_path, "# a comment", "", first, second), COMMON)
        assert tasks == {
            "cola": dataclasses.replace(COMMON, task_name="CoLA", data_dir="glue/CoLA", max_seq_length=20),
            "spam": dataclasses.replace(
                COMMON, task_name="spam", train_file="my texts.csv", learning_rate=3e-4, header=True
            ),
        }
        assert list(tasks) == ["cola", "spam"]

    @pytest.mark.parametrize(
        "line, fact",
        [
            ("--task_name=a --lerning_rate=1", "'lerning_rate'"),
            ("--task_name=a --learning_rate=much", "--learning_rate=much"),
            ("--task_name=a --learning_rate=-1", "--learning_rate"),
            ("--task_name=a extra", "'extra'"),
            ("--task_name='a", "No closing quotation"),
            ("--data_dir=a", "--task_name is missing"),
            ("--task_name=a --output_dir=b", "--output_dir"),
            ("--task_name=Cola", "'cola' is listed twice"),
            ("--task_name=../x", "'../x'"),
        ],
    )
    def test_an_invalid_line_is_reported_with_its_number(self, tmp_path, line, fact):
        path = write_tasks(tmp_path, "--task_name=CoLA --data_dir=glue/CoLA", line)
        assert_mentions(message_of(read_tasks, path, COMMON), f"{path}, line 2: ", fact)

    def test_an_empty_or_missing_list_is_reported(self, tmp_path):
        path = write_tasks(tmp_path, "# nothing")
        assert_mentions(message_of(read_tasks, path, COMMON), path, "no tasks")
        missing = str(tmp_path / "none")
        assert_mentions(message_of(read_tasks, missing, COMMON), missing, "Cannot read")
        report = str(tmp_path / "stream.json")
        common = dataclasses.replace(COMMON, output_dir=str(tmp_path))
        assert_mentions(message_of(read_tasks, report, common), report, "overwrite", "--output_dir")


class TestTable:
    A = Evaluation("matthews", {"matthews": 0.25}, 0.5, "p")
    B = Evaluation("accuracy", {"accuracy": 0.875}, 0.4, "q", collapsed=True)

    def test_has_a_row_per_task_and_a_column_per_point_in_time(self):
        lines = format_table({"cola": {"cola": self.A}, "sst-2": {"cola": self.A, "sst-2": self.B}})
        assert [line.split() for line in lines[:3]] == [
            ["after", "cola", "after", "sst-2"],
            ["cola", "matthews", "0.2500", "0.2500"],
            ["sst-2", "accuracy", "0.8750*"],
        ]
        assert len({len(line.rstrip()) for line in lines[1:3]}) == 1, "the columns are aligned"
        assert_mentions(lines[3], "* collapsed")
        assert_mentions(lines[4], "Memory: 1 of 1")

    @pytest.mark.parametrize(
        "change", [{"metrics": {"matthews": 0.25000000000000006}}, {"loss": 0.5000001}, {"predictions": "other"}]
    )
    def test_a_repeated_evaluation_must_be_identical(self, change):
        other = dataclasses.replace(self.A, **change)
        assert compare({"cola": {"cola": self.A}, "b": {"cola": other, "b": self.B}}) == (0, 1)
        assert compare({"cola": {"cola": self.A}, "b": {"cola": self.A, "b": self.B}}) == (1, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a stream of two tasks on the command line; return its folder, flags and output."""
    folder = str(tmp_path_factory.mktemp("stream"))
    write_bert(os.path.join(folder, "base"), tiny_config())
    write_cola(os.path.join(folder, "cola"))
    with open(os.path.join(folder, "own.tsv"), "w") as file:
        cells = [row.split("\t") for row in cola_rows(60, 11)]
        file.write("label\ttext\n" + "".join(f"{'yes' if c[1] == '1' else 'no'}\t{c[3]}\n" for c in cells))
    tasks = write_tasks(
        folder,
        f"--task_name=CoLA --data_dir={folder}/cola",
        f"--task_name=own --train_file={folder}/own.tsv --max_seq_length=12 --adapter_size=6",
    )
    flags = {"bank": f"{folder}/bank", "base_dir": f"{folder}/base", "tasks": tasks, "output_dir": f"{folder}/out",
             "train_batch_size": 8, "learning_rate": 1e-2, "num_train_epochs": 2, "max_seq_length": 16,
             "adapter_size": 4, "seed": 1}  # fmt: skip
    return folder, flags, run_stream(flags, 0)


def run_stream(flags: dict, code: int) -> str:
    process = run_command(flags, os.path.join("scripts", "run_stream.py"))
    assert process.returncode == code, process.stdout
    return process.stdout


def read_json(*parts: str) -> dict:
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


@pytest.mark.long
class TestStream:
    def test_every_task_has_a_pack_in_the_bank(self, trained):
        bank = Bank.open(os.path.join(trained[0], "bank"))
        assert bank.names() == ["cola", "own"]
        assert [problem for _, problem in bank.verify()] == [None] * 3
        assert bank.read("own").config.labels == ["no", "yes"]

    def test_nothing_is_forgotten_and_parameters_are_compared_with_full_fine_tuning(self, trained):
        folder, _, output = trained
        report = read_json(folder, "out", "stream.json")
        assert report["tasks"] == ["cola", "own"] and (report["equal"], report["comparisons"]) == (1, 1)
        assert report["table"]["cola"]["cola"] == report["table"]["own"]["cola"]
        base = parameters.count(bases.Base.find(os.path.join(folder, "base")).shapes)
        d, layers, norms, head = 16, 2, 2 * 16 * 5, 2 * 16 + 2
        packed = sum(2 * layers * (2 * m * d + d + m) + norms + head for m in (4, 6))
        total = base + packed
        counts = [f"{base:,}", f"{packed:,}", f"= {total:,}", f"{total / base:.2f} times", "2 times"]
        assert_mentions(output, "Memory: 1 of 1", *counts)

    def test_the_same_command_continues_without_training_again(self, trained):
        folder, flags, _ = trained
        histories = [(folder, "out", "runs", task, "training.json") for task in ("cola", "own")]
        before = [read_json(*path) for path in histories]
        assert [history["steps"] for history in before] == [16, 13]
        run_stream(flags, 0)
        assert [read_json(*path) for path in histories] == before

    def test_a_changed_pack_in_the_bank_is_detected(self, trained, tmp_path):
        folder, flags, _ = trained
        bank = Bank.open(shutil.copytree(flags["bank"], str(tmp_path / "bank")))
        common = ClassifierSettings(task_name="CoLA", data_dir=f"{folder}/cola", max_seq_length=16, adapter_size=4)
        stream = Stream(bank, {"cola": common}, str(tmp_path / "out"))
        first = stream.evaluate("cola", "first")
        pack = bank.read("cola")
        changed = pack.tensors["output_bias"] + np.array([1e-3, 0], np.float32)
        bank.add(packs.Pack(pack.config, dict(pack.tensors, output_bias=changed)), "cola", replace=True)
        second = stream.evaluate("cola", "second")
        assert compare({"cola": {"cola": first}, "later": {"cola": second, "later": first}}) == (0, 1)

    def test_an_invalid_command_is_reported_before_anything_is_trained(self, trained, tmp_path):
        folder, flags, _ = trained
        other = write_bert(str(tmp_path / "other"), tiny_config(), seed=3)
        bank = Bank.open(shutil.copytree(flags["bank"], str(tmp_path / "bank")))
        bank.add(bank.read("own"), "cola", replace=True)
        tasks = write_tasks(
            tmp_path, f"--task_name=CoLA --data_dir={folder}/cola", "--task_name=x --train_file=/no.csv"
        )
        new = {"output_dir": str(tmp_path / "out")}
        for changes, facts in (
            ({"bank": str(tmp_path / "new"), "base_dir": ""}, [tmp_path / "new", "--base_dir"]),
            ({"base_dir": os.path.dirname(other)}, [flags["bank"], f"--base_dir={os.path.dirname(other)}"]),
            ({"init_checkpoint": other}, ["--init_checkpoint", "--base_dir"]),
            (dict(new, bank=str(tmp_path / "new"), tasks=tasks), ["error: Task 'x': ", "/no.csv"]),
            (dict(new, bank=bank.folder), [bank.folder, "already has a pack 'cola'", "--bank"]),
            ({"bank": bank.folder}, [bank.folder, "pack 'cola'", "differs", "--bank"]),
        ):
            last_line = run_stream(dict(flags, **changes), 1).strip().split("\n")[-1]
            assert_mentions(last_line, *facts)
            assert not os.path.exists(str(tmp_path / "out" / "runs"))
