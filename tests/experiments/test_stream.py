"""A stream of tasks: each is learnt, none is forgotten, and what that takes is counted."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest

from adapter_bert.experiments.stream import Arrival, Entry, Stream, compare, format_parameters, format_table, read_tasks
from adapter_bert.model import parameters
from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import Bank
from run_classifier import ClassifierSettings
from tests.helpers import cola_rows, message_of, run_command, tiny_config, write_bert, write_cola


def write_tasks(folder, *lines) -> str:
    path = os.path.join(str(folder), "tasks.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


COMMON = ClassifierSettings(do_train=True, learning_rate=1e-2, max_seq_length=16, adapter_size=4, seed=1)


class TestTheListOfTasks:
    def test_a_line_has_the_flags_of_a_task_and_the_command_those_of_all(self, tmp_path):
        path = write_tasks(
            tmp_path,
            "# in the order of arrival",
            "",
            "--task_name=CoLA --data_dir=glue/CoLA --max_seq_length=20  # short",
            "--task_name=spam --train_file='my texts.csv' --learning_rate 3e-4 --header",
        )
        first, second = read_tasks(path, COMMON)
        assert (first.name, first.settings.task_name, first.settings.data_dir) == ("cola", "CoLA", "glue/CoLA")
        assert (first.settings.max_seq_length, second.settings.max_seq_length) == (20, 16)
        assert (first.settings.learning_rate, second.settings.learning_rate) == (1e-2, 3e-4)
        assert second.settings.train_file == "my texts.csv" and second.settings.header is True

    @pytest.mark.parametrize(
        "line, expected",
        [
            ("--task_name=a --lerning_rate=1", "line 2: Unknown command line flag 'lerning_rate'"),
            ("--task_name=a --learning_rate=much", "line 2: flag --learning_rate=much"),
            ("--task_name=a --learning_rate=-1", "line 2: --learning_rate must be 0 or more"),
            ("--task_name=a extra", "line 2: 'extra' is no flag"),
            ("--task_name='a", "line 2: No closing quotation"),
            ("--data_dir=a", "line 2: --task_name is missing"),
            ("--task_name=a --output_dir=b", "line 2: --output_dir does not go with a task of a stream"),
            ("--task_name=Cola", "line 2: the task 'cola' has come before"),
            ("--task_name=../x", "line 2: A pack in a bank cannot be called '../x'"),
        ],
    )
    def test_a_wrong_line_is_told_with_its_number(self, tmp_path, line, expected):
        path = write_tasks(tmp_path, "--task_name=CoLA --data_dir=glue/CoLA", line)
        assert f"{path}, {expected}" in message_of(read_tasks, path, COMMON)

    def test_a_list_without_tasks_or_no_list_at_all(self, tmp_path):
        assert "lists no tasks" in message_of(read_tasks, write_tasks(tmp_path, "# nothing"), COMMON)
        assert "Cannot read the list of tasks" in message_of(read_tasks, str(tmp_path / "none"), COMMON)


class TestTheTable:
    A, B = Entry("matthews", {"matthews": 0.25}, 0.5, "p"), Entry("accuracy", {"accuracy": 0.875}, 0.4, "q")

    def test_shows_tasks_against_time(self):
        lines = format_table({"cola": {"cola": self.A}, "sst-2": {"cola": self.A, "sst-2": self.B}})
        assert [line.split() for line in lines[:3]] == [
            ["after", "cola", "after", "sst-2"],
            ["cola", "matthews", "0.2500", "0.2500"],
            ["sst-2", "accuracy", "0.8750"],
        ]
        assert len({len(line.rstrip()) for line in lines[1:3]}) == 1, "the columns are aligned"
        assert lines[3].startswith("Memory: 1 of 1")

    @pytest.mark.parametrize(
        "change", [{"metrics": {"matthews": 0.25000000000000006}}, {"loss": 0.5000001}, {"predictions": "other"}]
    )
    def test_a_look_back_that_differs_in_the_last_digit_or_one_prediction_counts(self, change):
        other = dataclasses.replace(self.A, **change)
        assert compare({"cola": {"cola": self.A}, "b": {"cola": other, "b": self.B}}) == (0, 1)
        assert compare({"cola": {"cola": self.A}, "b": {"cola": self.A, "b": self.B}}) == (1, 1)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A stream of two tasks by the command line; its folder, and what was printed."""
    folder = str(tmp_path_factory.mktemp("stream"))
    write_bert(os.path.join(folder, "base"), tiny_config())
    write_cola(os.path.join(folder, "cola"))
    with open(os.path.join(folder, "own.tsv"), "w") as file:
        cells = [row.split("\t") for row in cola_rows(60, 11)]
        file.write("label\ttext\n" + "".join(f"{'yes' if c[1] == '1' else 'no'}\t{c[3]}\n" for c in cells))
    write_tasks(
        folder,
        f"--task_name=CoLA --data_dir={folder}/cola",
        f"--task_name=own --train_file={folder}/own.tsv --max_seq_length=12 --adapter_size=6",
    )
    flags = {
        "bank": f"{folder}/bank",
        "base_dir": f"{folder}/base",
        "tasks": f"{folder}/tasks.txt",
        "output_dir": f"{folder}/out",
        "train_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_epochs": 2,
        "max_seq_length": 16,
        "adapter_size": 4,
        "seed": 1,
    }
    process = run_command(flags, os.path.join("scripts", "run_stream.py"))
    assert process.returncode == 0, process.stdout
    return folder, flags, process.stdout


def read_steps(folder: str, task: str) -> int:
    """The steps that were computed for a task, in all commands so far."""
    with open(os.path.join(folder, "out", "runs", task, "training.json"), encoding="utf-8") as file:
        return json.load(file)["steps"]


@pytest.mark.long
class TestLearning:
    def test_every_task_is_a_pack_in_the_bank(self, learnt):
        bank = Bank.open(os.path.join(learnt[0], "bank"))
        assert bank.names() == ["cola", "own"]
        assert [problem for _, problem in bank.verify()] == [None] * 3
        assert bank.read("own").config.labels == ["no", "yes"]

    def test_nothing_is_forgotten(self, learnt):
        folder, _, output = learnt
        with open(os.path.join(folder, "out", "stream.json"), encoding="utf-8") as file:
            report = json.load(file)
        assert report["tasks"] == ["cola", "own"] and (report["equal"], report["comparisons"]) == (1, 1)
        assert report["table"]["cola"]["cola"] == report["table"]["own"]["cola"]
        assert "Memory: 1 of 1 repeated evaluations equal the first one" in output

    def test_parameters_are_counted_against_full_fine_tuning(self, learnt):
        base = bases.Base.find(os.path.join(learnt[0], "base"))
        d, layers, norms, head = 16, 2, 2 * 16 * 5, 2 * 16 + 2
        trained = sum(2 * layers * (2 * m * d + d + m) + norms + head for m in (4, 6))
        total = parameters.count(base.shapes()) + trained
        times = total / parameters.count(base.shapes())
        assert f"= {total:,}, {times:.2f} times one base; full fine-tuning of each task takes 2 times" in learnt[2]

    @pytest.mark.long
    def test_the_same_command_goes_on_and_trains_nothing_twice(self, learnt):
        folder, flags, _ = learnt
        before = {task: read_steps(folder, task) for task in ("cola", "own")}
        process = run_command(flags, os.path.join("scripts", "run_stream.py"))
        assert process.returncode == 0, process.stdout
        assert {task: read_steps(folder, task) for task in ("cola", "own")} == before == {"cola": 16, "own": 13}

    def test_a_pack_that_was_changed_behind_its_back_is_found(self, learnt, tmp_path):
        """The stream looks at the packs in the bank, not at what it remembers of them."""
        folder, _, _ = learnt
        bank = Bank.open(shutil.copytree(os.path.join(folder, "bank"), str(tmp_path / "bank")))
        common = ClassifierSettings(task_name="CoLA", data_dir=f"{folder}/cola", max_seq_length=16, adapter_size=4)
        known = Stream(bank, [Arrival("cola", common)], str(tmp_path / "out"))
        first = known._evaluate(known.arrivals[0], "first")
        pack = bank.read("cola")
        moved = pack.tensors["output_bias"] + np.array([1e-3, 0], np.float32)
        tensors = dict(pack.tensors, output_bias=moved)
        bank.add(packs.Pack(pack.config, tensors), "cola", replace=True)
        second = known._evaluate(known.arrivals[0], "second")
        assert compare({"cola": {"cola": first}, "later": {"cola": second, "later": first}}) == (0, 1)

    def test_another_pack_of_that_name_is_not_taken_for_the_task(self, learnt, tmp_path):
        folder, flags, _ = learnt
        bank = Bank.open(shutil.copytree(os.path.join(folder, "bank"), str(tmp_path / "bank")))
        bank.add(bank.read("own"), "cola", replace=True)
        settings = ClassifierSettings(
            task_name="CoLA", data_dir=f"{folder}/cola", max_seq_length=16, adapter_size=4, train_batch_size=8,
            learning_rate=1e-2, num_train_epochs=2.0, seed=1,
        )  # fmt: skip

        arrivals = [Arrival("cola", settings)]
        assert "that is not of this stream" in message_of(Stream(bank, arrivals, str(tmp_path / "out")).learn)
        learning = Stream(bank, arrivals, os.path.join(folder, "out"))
        assert "holds another pack 'cola'" in message_of(learning.learn)

    def test_a_task_without_its_data_is_found_before_the_first_is_trained(self, learnt, tmp_path):
        folder, flags, _ = learnt
        tasks = write_tasks(
            tmp_path, f"--task_name=CoLA --data_dir={folder}/cola", "--task_name=x --train_file=/not/there.csv"
        )
        changed = dict(flags, tasks=tasks, bank=str(tmp_path / "bank"), output_dir=str(tmp_path / "out"))
        process = run_command(changed, os.path.join("scripts", "run_stream.py"))
        assert process.returncode == 1
        assert "error: The task 'x': " in process.stdout.strip().split("\n")[-1]
        assert not os.path.exists(str(tmp_path / "out" / "runs"))

    @pytest.mark.long
    def test_a_bank_needs_a_base_and_keeps_it(self, learnt, tmp_path):
        folder, flags, _ = learnt
        other = write_bert(str(tmp_path / "other"), tiny_config(), seed=3)
        for changes, expected in (
            ({"bank": str(tmp_path / "new"), "base_dir": ""}, "set --base_dir"),
            ({"base_dir": os.path.dirname(other)}, "has another base than"),
            ({"init_checkpoint": other}, "--init_checkpoint cannot be used in a stream"),
        ):
            process = run_command(dict(flags, **changes), os.path.join("scripts", "run_stream.py"))
            assert process.returncode == 1
            assert expected in process.stdout.strip().split("\n")[-1]


def test_the_line_on_parameters_reads_as_a_sentence():
    counts = {"base": 1000, "packs": 300, "total": 1300, "times_one_base": 1.3, "times_one_base_by_full_fine_tuning": 9}
    assert format_parameters(counts) == (
        "Parameters: 1,000 of the base + 300 of the packs = 1,300, 1.30 times one base; full fine-tuning of each task "
        "takes 9 times."
    )
