"""The benchmark program: plan, storage, table, and a real run of the sides that need no other library."""

from __future__ import annotations

import json

import pytest

from benchmarks import report, run, suites
from benchmarks.sides import common, matmul_limit
from benchmarks.suites import Measurement
from tests.helpers import TINY, assert_mentions, message_of, write_cola


def make_args(tmp_path, *more: str):
    return run.parse_arguments([f"--output_dir={tmp_path / 'out'}", "--shape=tiny", *more])


@pytest.mark.parametrize(
    "flag, facts",
    [
        ("--suites=speed", ["--suites", "speed", "step"]),
        ("--sides=keras", ["--sides", "keras", "adapterhub"]),
        ("--rounds=0", ["--rounds", "at least 1", "0"]),
        ("--fraction=1.5", ["--fraction", "at most 1", "1.5"]),
        ("--sides=baseline", ["--baseline_dir"]),
    ],
)
def test_a_wrong_flag_is_an_error(tmp_path, flag, facts):
    assert_mentions(message_of(make_args, tmp_path, flag), *facts)


def test_each_round_runs_every_side_and_starts_with_a_different_one(tmp_path):
    args = make_args(tmp_path, "--suites=step", "--sides=ours,adapterhub,limit_torch", "--rounds=3")
    sides = [measurement.side for measurement in suites.plan(args, "", "")]
    rounds = [sides[:3], sides[3:6], sides[6:]]
    assert [sorted(part) for part in rounds] == [sorted(rounds[0])] * 3
    assert len({part[0] for part in rounds}) == 3


def test_suites_without_data_are_skipped_with_a_message(tmp_path, capsys):
    assert suites.plan(make_args(tmp_path, "--suites=epoch,features,predict"), "", "") == []
    assert_mentions(capsys.readouterr().out, "SKIPPED", "epoch", "features", "predict", "--data_dir")


def test_the_cache_is_measured_for_each_way_to_train_the_top_of_a_network(tmp_path):
    write_cola(str(tmp_path / "glue" / "CoLA"))
    (tmp_path / "bert_config.json").write_text(json.dumps(dict(TINY, num_hidden_layers=12)))
    args = make_args(tmp_path, "--suites=cache", f"--data_dir={tmp_path / 'glue'}", "--rounds=1", "--batch=8")
    jobs = [measurement.job for measurement in suites.plan(args, "hf", str(tmp_path))]
    assert [job["cached"] for job in jobs] == [True, False] * 3
    assert [job["mode"][0] for job in jobs[::2]] == [
        "--tuning_mode=head",
        "--tuning_mode=top_layers",
        "--adapter_layers=6-11",
    ]


@pytest.mark.parametrize("fraction, count", [(1.0, 64), (0.5, 32), (0.1, 8)])
def test_a_part_of_an_epoch_is_whole_batches_of_the_same_examples(tmp_path, fraction, count):
    data = write_cola(str(tmp_path / "cola"))
    suites.write_part(suites.tasks.get("CoLA"), data, 8, fraction, str(tmp_path / "part"))
    examples = json.loads((tmp_path / "part" / "examples.json").read_text())
    lines = (tmp_path / "part" / "train.tsv").read_text().splitlines()
    assert len(lines) == len(examples) == count
    assert [line.split("\t")[3] for line in lines] == [example["text_a"] for example in examples]
    assert [int(line.split("\t")[1]) for line in lines] == [example["label"] for example in examples]
    dev = json.loads((tmp_path / "part" / "dev_examples.json").read_text())
    assert len(dev) == len((tmp_path / "part" / "dev.tsv").read_text().splitlines()) > 0


def test_results_are_stored_and_found_again_but_not_mixed_with_another_commit(tmp_path):
    measurement = Measurement("step", "case", "ours", 0, {"kind": "step", "batch": 8})
    store = run.Store(str(tmp_path), {"commit": "a"})
    assert not store.has(measurement)
    store.add(measurement, {"seconds": [1.0]})
    assert run.Store(str(tmp_path), {"commit": "a"}).has(measurement)
    other_job = Measurement("step", "case", "ours", 0, {"kind": "step", "batch": 16})
    assert not run.Store(str(tmp_path), {"commit": "a"}).has(other_job)
    assert_mentions(message_of(run.Store, str(tmp_path), {"commit": "b"}), tmp_path, "commit: a, now b", "--output_dir")


def test_ratios_compare_measurements_of_the_same_round():
    def row(side, turn, seconds, peak):
        result = {"seconds": [seconds], "peak_bytes": peak, "examples": 8}
        return {"suite": "step", "case": "tiny", "side": side, "round": turn, "result": result}

    rows = [row("ours", 0, 1.0, 1e9), row("ours", 1, 2.0, 1e9), row("adapterhub", 0, 2.0, 2e9)]
    rows += [row("adapterhub", 1, 6.0, 2e9)]
    lines = report.table(rows).splitlines()
    assert len(lines) == 4
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells[0:2] == ["step: tiny", "AdapterHub"]
    assert cells[6:8] == ["2.5 (2-3)", "0.5 (0.5-0.5)"]


def test_the_limit_counts_the_products_of_a_step():
    job = {"config": TINY, "batch": 3, "length": 5, "adapter_size": 4}
    width, wide, size, tokens, heads, length = 16, 32, 4, 15, 2, 5

    def layer(rows, outputs):
        projections = 2 * 2 * (rows * width * width * 2 + 2 * tokens * width * width + 2 * rows * width * wide)
        attention = 2 * 2 * 3 * outputs * length * (width // heads) * 3 * heads
        adapters = 2 * 2 * 3 * 2 * rows * width * size
        return projections + attention + adapters

    head = 2 * (2 * 3 * width * width + 3 * 3 * width * common.CLASSES)
    assert matmul_limit.step_flops(job) == layer(tokens, 5) + layer(3, 1) + head


@pytest.mark.long
def test_a_real_run_measures_steps_and_sizes_and_resumes(tmp_path, capsys):
    flags = [f"--output_dir={tmp_path}", "--suites=step,sizes", "--sides=ours,ours_full,limit_tensorflow"]
    flags += ["--shape=tiny", "--batch=2", "--length=8", "--rounds=1"]
    run.main(flags)
    table = (tmp_path / "table.md").read_text()
    assert_mentions(table, "ours, full fine-tuning", "matrix products alone, TensorFlow", "MB on disk")
    assert len([line for line in table.splitlines() if line.startswith("| s")]) == 5
    stored = (tmp_path / "results.json").read_text()
    capsys.readouterr()
    run.main(flags)
    assert (tmp_path / "results.json").read_text() == stored
