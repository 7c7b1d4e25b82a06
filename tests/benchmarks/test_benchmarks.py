"""The arithmetic behind the benchmarks' tables, what is measured in which order, and what a killed run keeps."""

from __future__ import annotations

import json
import sys

import pytest

from adapter_bert import tasks
from adapter_bert.common import errors
from benchmarks import comparisons, measure, plan, predict, prepare, products, report, tables
from benchmarks import run as benchmark
from benchmarks.plan import Entry
from benchmarks.sides import ours, peft_lora
from benchmarks.tables import Record, Spread

BASE = plan.SHAPES["base"]
FACTS = {"processor": "abacus", "cores": 2, "memory GB": 1.0, "system": "wood", "python": "3", "commit": "abc"}
CASE = comparisons.TARGET_CASE


def step_record(side: str, turn: int, seconds: float, peak: float = 1e9, case: str = CASE) -> Record:
    values = {"seconds": seconds, "examples_per_second": 32 / seconds, "peak_bytes": peak}
    return Record("step", case, side, turn, values)


def message_of(function, *args) -> str:
    with pytest.raises(errors.UserError) as caught:
        function(*args)
    return str(caught.value)


# ------------------------------------------------------------------------------------------ the limit


def test_the_products_of_a_step_have_the_flops_of_the_formula():
    batch, length, size = 32, 128, 64
    width, wide, layers = 768, 3072, 12

    def layer(outputs):  # of an example, in one layer
        frozen = 2 * length * width * width + outputs * (2 * width * width + 2 * width * wide)
        adapters = outputs * 2 * (2 * width * size)
        attention = 2 * outputs * length * width
        # Forward and inputs' gradients; the weights' gradients of adapters; both gradients in the attention.
        return 2 * (2 * frozen + 3 * adapters + 3 * attention)

    head = 2 * (2 * width * width + 3 * width * 2)
    # The last layer's output is wanted for the first token alone.
    expected = batch * ((layers - 1) * layer(length) + layer(1) + head)
    assert products.step_flops({"config": BASE, "batch": batch, "length": length, "adapter_size": size}) == expected
    assert expected / (batch * (layers * layer(length) + head)) == pytest.approx(0.930, abs=0.001)


def test_frozen_projections_have_no_weight_gradient_and_adapters_have_one():
    names = [product.what for product in products.layer_products(BASE, 2, 16, 64)]
    assert [name for name in names if "weight gradient" in name] == [
        "adapter, down, weight gradient",
        "adapter, up, weight gradient",
    ] * 2


def test_a_weight_gradient_has_the_shape_of_its_weights():
    [gradient] = [product for product in products.trained("down", 100, 768, 64) if "weight" in product.what]
    assert (gradient.rows, gradient.inner, gradient.columns) == (768, 100, 64)


def test_lora_gets_about_as_many_parameters_as_the_adapters():
    rank = peft_lora.lora_rank(BASE, 64)
    assert 12 * 2 * 2 * 768 * rank == pytest.approx(2_379_264 + 38_400, rel=0.02)


# ------------------------------------------------------------------------------------------ what runs


def test_sides_take_turns_and_each_round_begins_with_another():
    entries = plan.step_entries("tiny", 2, 8, 4, 1, 1, rounds=3)
    sides = [[entry.side for entry in entries if entry.round == turn] for turn in range(3)]
    assert sides[0] == list(plan.STEP_SIDES)
    assert [order[0] for order in sides] == list(plan.STEP_SIDES[:3])
    assert all(sorted(order) == sorted(plan.STEP_SIDES) for order in sides)
    assert [entry.round for entry in entries] == sorted(entry.round for entry in entries)


def test_all_sides_of_a_case_get_the_same_work():
    entries = plan.step_entries("base", 32, 128, 64, 1, 2, rounds=1)
    shared = ("kind", "config", "batch", "length", "adapter_size", "warmup", "steps", "seed")
    jobs = [{name: entry.job[name] for name in shared} for entry in entries]
    assert all(job == jobs[0] for job in jobs)
    assert {entry.side: entry.job.get("tuning") for entry in entries if entry.side.startswith("ours")} == {
        "ours": "adapter",
        "ours_full": "full",
        "ours_recompute": "adapter",
        "ours_parts": "adapter",
    }


def test_a_command_names_the_sides_program_and_holds_its_job():
    [entry] = [entry for entry in plan.step_entries("tiny", 2, 8, 4, 1, 1, 1) if entry.side == "limit_torch"]
    command = entry.command("python3")
    assert command[:3] == ["python3", "-m", "benchmarks.sides.matmul_limit"]
    assert json.loads(command[3])["library"] == "torch"


def test_an_epoch_is_our_command_line_and_the_padded_one_differs_by_a_flag():
    job = {"data_dir": "d", "base_dir": "b", "batch": 32, "length": 128, "adapter_size": 64, "fraction": 1}
    entries = plan.epoch_entries({"CoLA": job}, rounds=1)
    commands = {entry.side: ours.epoch_command(entry.job, "f") for entry in entries if entry.side.startswith("ours")}
    assert commands["ours"][1].endswith("run_classifier.py")
    assert {"--task_name=CoLA", "--max_seq_length=128", "--train_batch_size=32", "--num_train_epochs=1"} < set(
        commands["ours"]
    )
    assert set(commands["ours_padded"]) - set(commands["ours"]) == {"--pad_to_max_seq_length=true"}


def test_growth_changes_one_size_at_a_time():
    for entry in plan.growth_entries(64, 1, 1, 1):
        axis, value = entry.case.split("=")
        found = dict(entry.job, layers=entry.job["config"]["num_hidden_layers"])
        assert {name: found[name] for name in plan.GROWTH_FIXED} == dict(plan.GROWTH_FIXED, **{axis: int(value)})


def test_a_part_of_an_epoch_is_whole_batches_and_always_the_same():
    chosen = prepare.chosen_indices(1000, 32, 0.1)
    assert len(chosen) == 96 == len(set(chosen)) and chosen == prepare.chosen_indices(1000, 32, 0.1)
    assert prepare.chosen_indices(70, 32, 1.0) == list(range(70))


def test_the_examples_for_the_others_are_the_rows_for_our_command_line(tmp_path):
    source, part = tmp_path / "MRPC", tmp_path / "part"
    source.mkdir()
    rows = [f"{index % 2}\t{index}\t0\tfirst {index}\tsecond {index}" for index in range(20)]
    (source / "train.tsv").write_text("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "\n".join(rows) + "\n")
    task = tasks.get("MRPC")
    assert prepare.write_part(task, str(source), 4, 0.5, str(part)) == 8
    read = [(row.text_a, row.text_b, int(row.label)) for row in tasks.read_examples(task, str(part), "train")]
    content = json.loads((part / "examples.json").read_text())
    assert [(row["text_a"], row["text_b"], row["label"]) for row in content] == read
    assert len(read) == 8


def test_a_suite_that_does_not_exist_is_refused_with_those_that_do():
    assert "Unknown side 'our'" in message_of(benchmark.parse_arguments, ["--sides=our,adapterhub"])
    message = message_of(benchmark.parse_arguments, ["--suites=step,epochs"])
    assert "Did you mean 'epoch'?" in message and "growth" in message


def test_without_data_real_suites_are_skipped_and_said_to_be(tmp_path, capsys):
    arguments = benchmark.parse_arguments(["--suites=epoch", f"--output_dir={tmp_path}", f"--hf_dir={tmp_path}"])
    assert benchmark.make_entries(arguments) == []
    assert "SKIPPED epoch: no data: give --data_dir" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------ arithmetic


def test_ratios_are_of_the_same_round_and_only_where_both_were_measured():
    assert tables.ratios({0: 1.0, 1: 2.0, 2: 3.0}, {1: 4.0, 2: 3.0, 5: 1.0}) == [0.5, 1.0]
    assert tables.ratios({0: 2.0}, {0: 3.0}, inverted=True) == [1.5]


def test_a_spread_is_median_least_and_most():
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == (2.5, 1.0, 10.0)


def test_the_limit_of_a_round_is_the_quicker_librarys():
    records = [
        step_record("limit_torch", 0, 8.0),
        step_record("limit_tensorflow", 0, 9.0),
        step_record("limit_torch", 1, 10.0),
        step_record("limit_tensorflow", 1, 9.5),
    ]
    assert {record.round: record.values["seconds"] for record in tables.best_limits(records)} == {0: 8.0, 1: 9.5}


def test_the_table_says_what_is_reached():
    records = []
    for turn in range(3):
        records += [
            step_record("ours", turn, 10.0 + turn, peak=2e9),
            step_record("adapterhub", turn, 12.0 + turn, peak=1.9e9),
            step_record("limit_torch", turn, 8.5),
        ]
    lines = tables.comparison_table(records + tables.best_limits(records)).splitlines()
    found = {
        line.split("|")[1].split(": ")[-1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in lines[2:]
    }
    assert found["speed over AdapterHub's"][2:] == ["**1.18** (1.17–1.20)", "3", "≥ 1.10", "reached"]
    assert found["speed over that of its matrix products alone"][2:] == [
        "**0.77** (0.71–0.85)",
        "3",
        "≥ 0.80",
        "**not reached**",
    ]
    assert found["peak of memory over AdapterHub's"] == [
        "2,000.0 MB",
        "1,900.0 MB",
        "**1.05** (1.05–1.05)",
        "3",
        "≤ 1.00",
        "**not reached**",
    ]
    assert "speed over our own full fine-tuning's" not in found  # one side was not measured


def test_targets_are_for_the_published_shape_alone():
    assert {row.target for row in comparisons.of_step("tiny 2x8 size 4")} == {None}
    assert {1.10, 0.80, 1.35, 1.0} <= {row.target for row in comparisons.of_step(CASE)}
    assert plan.step_case("base", 32, 128, 64) == CASE
    at = {length: plan.epoch_case("CoLA", {"length": length, "fraction": 0.1}) for length in (64, 128)}
    assert at[128] == "CoLA 128 tokens, 0.1 of it"
    assert {row.target for row in comparisons.of_epoch(at[128])} == {6.0, 1.1, None}
    assert {row.target for row in comparisons.of_epoch(at[64])} == {None}
    assert [row.target for case in ("CoLA", "SST-2") for row in comparisons.of_features(case, ["other"])] == [None, 0.8]
    assert set(comparisons.PREDICT_TARGETS) == {predict.ONE, predict.MANY}


def test_some_sides_may_be_measured_alone():
    arguments = benchmark.parse_arguments(["--suites=step,sizes", "--sides=ours,adapterhub", "--rounds=2"])
    found = {(entry.suite, entry.side, entry.round) for entry in benchmark.make_entries(arguments)}
    sides = ("ours", "adapterhub")
    assert found == {("step", side, turn) for side in sides for turn in (0, 1)} | {("sizes", side, 0) for side in sides}


def test_features_and_predictions_of_other_programs_are_compared_by_their_units():
    entries = [
        {
            "suite": "features",
            "result": {
                "records": [
                    {"task": "MRPC", "side": "ours", "round": 0, "examples": 900, "seconds": 1.0},
                    {"task": "MRPC", "side": "transformers", "round": 0, "examples": 900, "seconds": 0.9},
                ]
            },
        },
        {
            "suite": "predict",
            "result": {
                "records": [
                    {"what": "one sentence, median", "side": "ours", "round": 0, "value": 5.0, "unit": "ms"},
                    {"what": "one sentence, median", "side": "transformers", "round": 0, "value": 10.0, "unit": "ms"},
                    {"what": "batch", "side": "ours", "round": 0, "value": 300.0, "unit": "examples/s"},
                    {"what": "batch", "side": "transformers", "round": 0, "value": 200.0, "unit": "examples/s"},
                ]
            },
        },
    ]
    text = tables.comparison_table(tables.records_of(entries))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines()[2:]}
    features = rows["features, MRPC: examples/s over Hugging Face's"]
    assert "**0.90**" in features and "≥ 0.80 | reached" in features
    one = rows["predict, one sentence, median: speed over Hugging Face's"]
    assert "**2.00**" in one and "≥ 1.00 | reached" in one
    assert "**1.50**" in rows["predict, batch: speed over Hugging Face's"]


def test_the_growth_of_rows_is_read_from_what_the_features_program_prints():
    printed = (
        "Cores: 2\n\n| rows | base, MB | peak above it, MB | features, s |\n|--:|--:|--:|--:|\n"
        "| 50,000 | 400 | 100 | 5.0 |\n| 100,000 | 400 | 150 | 10.0 |\nbye\n"
    )
    found = tables.row_records(printed)
    assert [(row.case, row.values["seconds"], row.values["peak_bytes"]) for row in found] == [
        ("rows=50000", 5.0, 500 * 2**20),
        ("rows=100000", 10.0, 550 * 2**20),
    ]


def test_an_epochs_speed_counts_all_its_steps():
    entry = {"suite": "epoch", "case": "CoLA", "side": "ours", "round": 0}
    job, result = {"kind": "epoch", "batch": 32}, {"seconds": [64.0], "steps": 10, "wall_seconds": 70.0}
    values = tables.record_of(dict(entry, job=job, result=result)).values
    assert values["examples_per_second"] == 5.0 and values["wall_seconds"] == 70.0


def test_the_text_names_machine_command_numbers_and_failures():
    records = [step_record("ours", 0, 10.0), step_record("ours", 1, 12.0)]
    text = report.compose(FACTS, "benchmarks/run.sh --suites=step", records, {"step/x": "broken"}, ["step.png"])
    assert "2 cores of abacus" in text and "benchmarks/run.sh --suites=step" in text
    assert "| base 32x128 size 64 | ours, adapters | 11 s (10–12) | 2.93 examples/s (2.67–3.20) | 1,000.0 MB |" in text
    assert "![step.png](step.png)" in text and "* `step/x`: broken" in text


# ------------------------------------------------------------------------------------------ results are kept


def an_entry(**changes) -> Entry:
    return Entry("step", "tiny", "ours", 0, dict({"kind": "step", "batch": 2}, **changes))


def test_what_was_measured_is_not_measured_again(tmp_path):
    measure.Store(str(tmp_path), FACTS).add(an_entry(), {"seconds": [1.0]})
    again = measure.Store(str(tmp_path), FACTS)
    assert again.has(an_entry())
    assert not again.has(an_entry(batch=4))
    assert list(again.entries.values())[0]["result"] == {"seconds": [1.0]}


def test_measurements_of_other_code_are_not_mixed_in(tmp_path):
    measure.Store(str(tmp_path), FACTS).add(an_entry(), {"seconds": [1.0]})
    message = message_of(measure.Store, str(tmp_path), dict(FACTS, commit="def"))
    assert "commit: abc, now def" in message and "--output_dir" in message


def test_a_side_that_fails_is_told_and_the_next_one_runs(tmp_path, capsys, monkeypatch):
    broken, fine = an_entry(), Entry("step", "tiny", "adapterhub", 0, {"kind": "step"})
    programs = {
        "ours": "raise SystemExit('no such wheel')",
        "adapterhub": "print('hello'); print('{\"seconds\": [2]}')",
    }
    monkeypatch.setattr(Entry, "command", lambda self, python: [sys.executable, "-c", programs[self.side]])
    store = measure.Store(str(tmp_path), FACTS)
    measure.run_all([broken, fine], store, str(tmp_path / "logs"))
    assert not store.has(broken) and "no such wheel" in store.failures[broken.key]
    assert store.entries[fine.key]["result"]["seconds"] == [2]
    told = capsys.readouterr().out
    assert "FAILED  step/tiny/ours/0: no such wheel" in told and "2/2  step/tiny/adapterhub/0: 2.000" in told


def test_the_result_is_the_last_line_that_is_json():
    assert measure.last_json_line('{"seconds": [1]}\n{"seconds": [2]}\nbye\n') == {"seconds": [2]}
    with pytest.raises(measure.FailedError):
        measure.last_json_line("only words\n")


def test_the_time_left_goes_by_what_the_same_side_took():
    waiting = [Entry("step", "a", side, 1, {}) for side in ("ours", "hf_full")]
    assert measure.time_left({("step", "a", "ours"): 10.0, ("step", "a", "limit_torch"): 2.0}, waiting) == 16.0
