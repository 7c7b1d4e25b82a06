"""Sweeps: warm workers give the results of separate processes; kills, failures and restarts."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.experiments import cells, launchers, summaries, sweep_file, sweep_runner, worker
from adapter_bert.experiments.sweep_folder import MAX_CRASHES, SweepFolder, Times, read_times
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.training import classification
from adapter_bert.training.engine import Engine, WarmEngine
from tests.helpers import ROOT, assert_mentions, message_of, write_cola, write_file
from tests.kill import wait_until

TEXT = """
tasks = ["CoLA"]
seeds = [1, 2]
grid_seeds = [1]

[flags]
data_dir = "{data}"
bert_dir = "{bert}"
max_seq_length = 16
train_batch_size = 8
num_train_epochs = 2
adapter_size = 4

[method.adapters]
grid.learning_rate = [1e-2, 1e-4]

[method.layer_norm]
tuning_mode = "layer_norm"
learning_rate = 1e-2
"""


# Prints the GPU in the form in which a worker announces a cell.
SHOW_GPU = "import json, os; print(json.dumps({'cell': os.environ['CUDA_VISIBLE_DEVICES']}))"


@pytest.fixture(scope="module")
def sweep_path(tiny_bert, cola_dir, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("file") / "sweep.toml"
    path.write_text(TEXT.replace("{data}", cola_dir).replace("{bert}", tiny_bert))
    return str(path)


@pytest.fixture
def sweep(sweep_path) -> sweep_file.Sweep:
    return sweep_file.read(sweep_path, {})


@pytest.mark.smoke
def test_a_second_run_in_a_warm_process_equals_one_in_a_new_process(sweep, tmp_path):
    first, second = (cell for cell in sweep.grid_cells() if cell.method == "adapters")
    engine = WarmEngine()

    def summary(cell: sweep_file.Cell, name: str, engine: Engine) -> cells.CellResult:
        settings = sweep.settings(cell, str(tmp_path / name), str(tmp_path / "features"))
        return worker.summarize(cell, settings, classification.run(settings, engine))

    summary(first, "first", engine)
    assert summary(second, "warm", engine) == summary(second, "new", Engine())


def run_here(sweep: sweep_file.Sweep, path: str, engine: Engine) -> SweepFolder:
    """Run all cells in this process."""
    folder = SweepFolder(path)
    folder.start(sweep)
    tf.logging.set_verbosity(tf.logging.INFO)
    worker.work(folder, engine)
    return folder


@pytest.fixture(scope="module")
def finished(sweep_path, tmp_path_factory) -> SweepFolder:
    """A sweep that one warm worker has finished. Read only."""
    sweep = sweep_file.read(sweep_path, {})
    folder = run_here(sweep, str(tmp_path_factory.mktemp("sweep") / "out"), WarmEngine())
    folder.write_results(sweep)
    return folder


def results_of(folder: SweepFolder) -> str:
    with open(folder.file("results.csv")) as file:
        return file.read()


@pytest.mark.long
def test_runs_in_one_process_give_the_results_of_separate_ones(finished, sweep, tmp_path):
    status = finished.status(sweep)
    # Two rates with one seed, the better one with another; LayerNorms with two seeds.
    assert len(status.results) == 5 == status.total and not status.remaining and not status.failures
    for cell in sweep.grid_cells():
        settings = sweep.settings(cell, str(tmp_path / cell.name.replace("/", "-")), str(tmp_path / "features"))
        alone = worker.summarize(cell, settings, classification.run(settings, Engine()))
        assert alone == status.results[cell.name], cell.name


@pytest.mark.long
def test_weights_of_finished_runs_are_removed_except_packs(finished, sweep):
    for cell in sweep.grid_cells():
        names = os.listdir(finished.run_path(cell))
        assert "adapter_pack.safetensors" in names and "results.json" in names
        assert not any("ckpt" in name for name in names)
        with open(finished.cell_file(cell, "log.txt")) as file:
            assert "***** Done" in file.read()


@pytest.mark.long
def test_the_results_file_is_tidy_and_selection_ran_the_better_rate_with_all_seeds(finished, sweep):
    found = cells.read(finished.file("results.csv"))
    grid = {cell.settings["learning_rate"]: cell.dev for cell in found if cell.method == "adapters" and cell.seed == 1}
    (second,) = [cell for cell in found if cell.method == "adapters" and cell.seed == 2]
    assert grid[second.settings["learning_rate"]] == max(grid.values())
    assert {cell.settings.get("adapter_size") for cell in found} == {4, None}
    with open(finished.file("timings.csv")) as file:
        assert len(file.readlines()) == 1 + len(found)


@pytest.mark.long
def test_a_finished_sweep_runs_nothing_again(finished, sweep, capsys):
    before = {cell.name: os.stat(finished.cell_file(cell, "result.json")).st_mtime_ns for cell in sweep.grid_cells()}
    assert sweep_runner.run(sweep, finished, 1)
    assert "| CoLA" in capsys.readouterr().out
    after = {cell.name: os.stat(finished.cell_file(cell, "result.json")).st_mtime_ns for cell in sweep.grid_cells()}
    assert after == before


@pytest.mark.long
def test_another_sweep_in_the_folder_is_rejected_with_the_difference(finished, sweep_path):
    changed = sweep_file.read(sweep_path, {"num_train_epochs": 3})
    assert_mentions(message_of(finished.start, changed), finished.path, "num_train_epochs", "2", "3")


def test_a_folder_with_other_files_is_rejected(sweep, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert_mentions(message_of(SweepFolder(str(tmp_path)).start, sweep), str(tmp_path))


@pytest.mark.long
def test_results_of_another_version_are_rejected(finished, sweep, tmp_path):
    folder = SweepFolder(str(tmp_path / "copy"))
    folder.start(sweep)
    cell = sweep.grid_cells()[0]
    folder.write_result(cell, finished.result(cell), Times(1.0))
    path = folder.cell_file(cell, "result.json")
    with open(path) as file:
        content = json.load(file)
    with open(path, "w") as file:
        json.dump(dict(content, version=99), file)
    assert_mentions(message_of(folder.status, sweep), path, 99)


@pytest.mark.long
def test_known_results_are_not_computed_again_and_keep_their_times(finished, sweep, tmp_path):
    folder = SweepFolder(str(tmp_path / "copy"))
    folder.start(sweep)
    known = {result.name: result for result in cells.read(finished.file("results.csv"))}
    times = read_times(finished.file("timings.csv"))
    assert all(0 < each.seconds < each.wall_seconds for each in times.values()) and len(times) == 5
    without = sorted(times)[0]
    del times[without]
    assert folder.add_known(sweep, known, times) == 5
    assert not folder.status(sweep).remaining
    folder.write_results(sweep)
    assert results_of(folder) == results_of(finished)
    assert read_times(folder.file("timings.csv")) == {**times, without: Times(None, None)}


@pytest.mark.long
def test_a_failed_run_is_reported_with_its_log_and_does_not_stop_the_others(sweep_path, cola_dir, tmp_path, log):
    text = pathlib.Path(sweep_path).read_text().replace('["CoLA"]', '["CoLA", "SST-2"]')
    text = text.replace(cola_dir, str(tmp_path / "{task}")).replace("[1e-2, 1e-4]", "[1e-2]")
    (tmp_path / "sweep.toml").write_text(text)
    write_cola(str(tmp_path / "CoLA"))
    (tmp_path / "SST-2").mkdir()  # without files
    sweep = sweep_file.read(str(tmp_path / "sweep.toml"), {})
    folder = run_here(sweep, str(tmp_path / "out"), WarmEngine())
    status = folder.status(sweep)
    assert {name.split("/")[0] for name in status.results} == {"CoLA"} and len(status.results) == 4
    assert {name.split("/")[0] for name in status.failures} == {"SST-2"} and len(status.failures) == 4
    assert_mentions(next(iter(status.failures.values())), "train.tsv")
    assert not sweep_runner.run(sweep, folder, 1)
    assert any("SST-2/adapters" in line for line in log)
    write_cola(str(tmp_path / "SST-2"))
    folder.forget_failures(sweep)
    assert len(folder.status(sweep).remaining) == 4


def test_a_cell_that_ends_its_worker_repeatedly_counts_as_failed(sweep, tmp_path):
    folder = SweepFolder(str(tmp_path / "out"))
    folder.start(sweep)
    cell = sweep.grid_cells()[0]
    for _ in range(MAX_CRASHES):
        assert cell in folder.status(sweep).remaining
        folder.add_crash(cell)
    assert_mentions(folder.status(sweep).failures[cell.name], MAX_CRASHES)


def test_a_cell_has_one_worker_at_a_time(sweep, tmp_path):
    folder = SweepFolder(str(tmp_path / "out"))
    cell = sweep.grid_cells()[0]
    lock = folder.claim(cell)
    assert lock is not None and folder.claim(cell) is None
    lock.release()
    folder.claim(cell).release()


@pytest.mark.parametrize("workers, sizes", [(1, "all"), (2, "halves")])
def test_workers_divide_the_cores(workers, sizes, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    groups = launchers.core_groups(workers)
    assert groups == ([[0, 1, 2, 3]] if sizes == "all" else [[0, 1], [2, 3]])
    assert_mentions(message_of(launchers.core_groups, 5), "--workers=5", 4)


def test_gpus_are_used_by_one_worker_each(sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert launchers.default_workers() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(launchers, "worker_command", lambda *args: [sys.executable, "-c", SHOW_GPU])
    folder = SweepFolder(str(tmp_path))
    launchers.run_locally(folder, sweep, 2, lambda busy: None)
    shown = {(tmp_path / "workers" / f"worker-{index}.jsonl").read_text().strip() for index in (0, 1)}
    assert shown == {'{"cell": "3"}', '{"cell": "5"}'}


def test_a_worker_of_a_killed_launcher_does_not_disturb_the_next_one(sweep, tmp_path, monkeypatch):
    folder = SweepFolder(str(tmp_path))
    os.makedirs(folder.file("workers"))
    with open(folder.file("workers", "worker-0.jsonl"), "wb") as left:
        left.write(b'{"cell": "a"}\n')
        monkeypatch.setattr(
            launchers, "worker_command", lambda *args: [sys.executable, "-c", "import time; time.sleep(2)"]
        )
        reported = []
        launchers.run_locally(folder, sweep, 1, lambda busy: (left.write(b'{"cell": "b"}\n'), reported.append(busy)))
    assert reported and not any(reported)


@pytest.mark.long
def test_workers_end_when_their_launcher_is_killed(sweep_path, tmp_path):
    output = str(tmp_path / "out")
    process = subprocess.Popen(command(sweep_path, output), env=dict(os.environ, PYTHONPATH=ROOT))
    workers = ["pgrep", "-f", f"experiments.worker {output}"]
    wait_until(lambda: list(pathlib.Path(output).rglob("model.ckpt-*.index")) or process.poll() is not None)
    process.kill()
    process.wait()
    wait_until(lambda: subprocess.run(workers, stdout=subprocess.DEVNULL).returncode == 1)


def test_a_run_whose_loss_is_not_finite_has_no_score_and_is_not_selected(sweep_path, tmp_path):
    sweep = sweep_file.read(sweep_path, {"seeds": [1]})
    method = dataclasses.replace(sweep.methods[0], grid={"learning_rate": [1e30]})
    folder = run_here(dataclasses.replace(sweep, methods=(method,)), str(tmp_path / "out"), WarmEngine())
    (result,) = folder.write_results(dataclasses.replace(sweep, methods=(method,)))
    assert (result.dev, result.loss, result.metric, result.metrics) == (None, None, "matthews", {})
    assert (result.trained_params, result.total_params) == (786, 6450) and result.steps >= 1
    (read,) = cells.read(folder.file("results.csv"))
    assert read == result
    (summary,) = summaries.summarize([read])
    assert (summary.n, summary.diverged) == (0, 1)


@pytest.mark.long
def test_a_diverged_run_of_a_custom_regression_has_the_metric_of_the_others(tiny_bert, tmp_path):
    rows = [f"{'very ' * (number % 4)}good,{number % 4}" for number in range(32)]
    data = write_file(tmp_path, "scores.csv", "text,label\n" + "\n".join(rows))
    flags = {"bert_dir": tiny_bert, "train_file": data, "task_type": "regression", "max_seq_length": 8}
    path = write_file(
        tmp_path,
        "sweep.toml",
        'tasks = ["scores"]\nseeds = [1]\n[flags]\n'
        + "\n".join(f"{name} = {json.dumps(value)}" for name, value in flags.items())
        + "\n[method.adapters]\neach.learning_rate = [1e-3, 1e30]\n",
    )
    sweep = sweep_file.read(path, {})
    folder = run_here(sweep, str(tmp_path / "out"), WarmEngine())
    finite, diverged = folder.write_results(sweep)
    assert (finite.dev is None, diverged.dev) == (False, None)
    assert finite.metric == diverged.metric == "spearman"


def command(sweep_path: str, output_dir: str, *more: str) -> list:
    script = os.path.join(ROOT, "scripts", "run_sweep.py")
    return [sys.executable, script, f"--sweep={sweep_path}", f"--output_dir={output_dir}", "--workers=1", *more]


def kill_all(process: subprocess.Popen, folder: str) -> None:
    """Kill launcher and workers."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    listed = subprocess.run(["pgrep", "-f", f"experiments.worker {folder}"], stdout=subprocess.PIPE, text=True)
    for pid in listed.stdout.split():
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.long
def test_a_sweep_that_is_killed_three_times_ends_with_the_same_results(finished, sweep_path, tmp_path):
    output, environment = str(tmp_path / "out"), dict(os.environ, PYTHONPATH=ROOT)
    flags = ["--save_checkpoints_steps=2"]
    for count in range(1, 4):
        process = subprocess.Popen(
            command(sweep_path, output, *flags), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:  # until another cell is done
            done = sum("result.json" in names for _, _, names in os.walk(output))
            if done >= count:
                break
            assert process.poll() is None
            time.sleep(0.1)
        kill_all(process, output)
    done = subprocess.run(command(sweep_path, output, *flags), env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "| CoLA" in done.stdout
    assert results_of(SweepFolder(output)) == results_of(finished)


def test_a_warm_engine_keeps_few_graphs_and_notices_changed_bases(tiny_bert, cola_dir, tmp_path):
    engine = WarmEngine(capacity=1)
    values = {"task_name": "CoLA", "data_dir": cola_dir, "max_seq_length": 16, "train_batch_size": 8, "seed": 1}
    settings = ClassifierSettings(**values, bert_dir=tiny_bert, do_train=True, output_dir=str(tmp_path / "1"))
    first = engine.load_base(settings)
    assert engine.load_base(settings) is first
    vocabulary = os.path.join(tiny_bert, "vocab.txt")
    os.utime(vocabulary, ns=(1, 1))
    assert engine.load_base(settings) is not first


@pytest.mark.long
def test_the_shell_script_trains_five_seeds_and_prints_their_mean(tiny_bert, cola_dir, tmp_path):
    output = str(tmp_path / "seeds")
    script = [os.path.join(ROOT, "scripts", "sweep_glue.sh"), "CoLA", cola_dir, tiny_bert, output]
    flags = ["--max_seq_length=16", "--train_batch_size=8", "--num_train_epochs=1", "--adapter_size=4"]
    environment = dict(os.environ, PYTHON=sys.executable, PYTHONPATH=ROOT)
    done = subprocess.run([*script, *flags], env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    scores = []
    for seed in range(1, 6):
        with open(os.path.join(output, f"seed_{seed}", "results.json")) as file:
            scores.append(json.load(file)["metrics"]["accuracy"])
    assert f"mean    accuracy     {np.mean(scores):.4f}  (5 seeds)" in done.stdout
