"""An ablation scores a trained network without the adapters of each span of layers."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil

import numpy as np
import pytest

from adapter_bert.evaluation.scores import predicted_rows
from adapter_bert.experiments import ablation, ablation_network
from adapter_bert.experiments.ablation_network import spans
from adapter_bert.model.tuning_modes import layer_index
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.weights import packs
from scripts import ablate
from tests.helpers import assert_mentions, base_flags, make_pack, message_of, tiny_config, write_bert
from tests.runs.helpers import prepare, read_json, run

LAYERS = 3


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("bert"))
    write_bert(folder, tiny_config(num_hidden_layers=LAYERS))
    return folder


@pytest.fixture(scope="module")
def flags(bert, cola_dir, tmp_path_factory) -> dict:
    """The flags of a trained run whose adapters matter. Read only."""
    return trained_run(bert, cola_dir, tmp_path_factory)


@pytest.fixture(scope="module")
def result(flags) -> ablation.RunAblation:
    return ablation.ablate(ablation.find_settings(flags["output_dir"], {}))


def trained_run(bert: str, cola_dir: str, tmp_path_factory, **flags) -> dict:
    """Train a run with these flags, and return all of its flags."""
    values = base_flags(bert, cola_dir, str(tmp_path_factory.mktemp("runs") / "run"))
    values.update(num_train_epochs=3.0, learning_rate=1e-2, adapter_init_scale=0.3, eval_batch_size=5, **flags)
    run(values, do_train=True, do_eval=True)
    return values


def copy_of(flags: dict, folder) -> str:
    return shutil.copytree(flags["output_dir"], str(folder))


def change_results(path: str, key: str, **changes) -> None:
    """Change values in a run's results.json."""
    results = read_json(path, "results.json")
    results[key].update(changes)
    with open(os.path.join(path, "results.json"), "w") as file:
        json.dump(results, file)


def without_adapters(flags: dict, folder, span) -> str:
    """Return a copy of a run in which the last layers of the adapters in a span are zero."""
    path, last = copy_of(flags, folder), flags.get("adapter_depth", 1) + 1
    pack = packs.read(os.path.join(path, packs.FILE_NAME))
    removed = [name for name in pack.tensors if name.endswith((f"adapters/weights{last}", f"adapters/biases{last}"))]
    removed = [name for name in removed if span[0] <= layer_index(name) <= span[1]]
    assert len(removed) == 4 * (span[1] - span[0] + 1)
    tensors = {name: np.zeros_like(value) if name in removed else value for name, value in pack.tensors.items()}
    packs.write(os.path.join(path, packs.FILE_NAME), dataclasses.replace(pack, tensors=tensors))
    return path


def predictions_of(settings: ClassifierSettings) -> dict:
    """Return the logits of all examples with all adapters (None), and without each span."""
    trainer, _, features = prepare(settings)
    split = features["dev"]
    found = ablation_network.predict(trainer, split)
    return {span: logits(predicted_rows(rows, split.num_examples, "")) for span, rows in found.items()}


def own_predictions(settings: ClassifierSettings) -> np.ndarray:
    """Return the logits that the evaluation of a run computes."""
    trainer, _, features = prepare(settings)
    ((_, rows),) = trainer.predict([features["dev"]])
    return logits(rows)


def logits(rows) -> np.ndarray:
    return np.array([row["logits"] for row in rows])


VARIANTS = {"default": {}, "deep": {"adapter_depth": 2, "adapter_norm": "layer", "adapter_connection": "multiply"}}


@pytest.mark.long
class TestPredictions:
    @pytest.fixture(scope="class", params=VARIANTS)
    def flags(self, request, bert, cola_dir, tmp_path_factory) -> dict:
        return trained_run(bert, cola_dir, tmp_path_factory, **VARIANTS[request.param])

    @pytest.fixture(scope="class")
    def found(self, flags) -> dict:
        return predictions_of(ablation.find_settings(flags["output_dir"], {}))

    def test_there_is_one_of_each_span(self, found):
        assert list(found) == [None, (0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]

    def test_with_all_adapters_they_are_bit_identical_to_the_runs_own(self, flags, found):
        np.testing.assert_array_equal(found[None], own_predictions(ablation.find_settings(flags["output_dir"], {})))

    @pytest.mark.parametrize("span", spans(LAYERS))
    def test_without_a_span_they_are_those_of_a_network_whose_adapters_there_are_zero(
        self, flags, found, span, tmp_path
    ):
        zeroed = ablation.find_settings(without_adapters(flags, tmp_path / "zeroed", span), {})
        np.testing.assert_allclose(found[span], own_predictions(zeroed), atol=1e-6)
        others = [np.abs(found[span] - found[other]).max() for other in found if other != span]
        assert len(others) == len(spans(LAYERS)) and min(others) > 1e-4, "these adapters have no effect"

    def test_only_adapters_that_exist_are_removed(self, bert, cola_dir, tmp_path):
        values = dict(base_flags(bert, cola_dir, str(tmp_path / "run")), adapter_init_scale=0.3)
        values.update(adapter_layers="1", adapter_placement="attention")
        run(values, do_train=True, do_eval=True, num_train_epochs=1.0, eval_every_steps=0)
        settings = ablation.find_settings(values["output_dir"], {})
        found = predictions_of(settings)
        np.testing.assert_array_equal(found[None], own_predictions(settings))
        for first, last in spans(LAYERS):
            difference = np.abs(found[first, last] - found[None]).max()
            assert difference > 1e-4 if first <= 1 <= last else difference < 1e-6


@pytest.mark.long
class TestScores:
    def test_that_with_all_adapters_is_the_runs_own(self, flags, result, log):
        results = read_json(flags["output_dir"], "results.json")
        assert (result.metric, result.score) == ("matthews", results["metrics"]["matthews"])
        assert result.majority == results["majority"]["matthews"]
        assert (result.task, result.layers, result.examples) == ("CoLA", LAYERS, 24)

    def test_changes_are_in_points_and_above_the_diagonal(self, result):
        changes = result.changes()
        assert changes[0, 2] == pytest.approx(100 * (result.scores[0, 2] - result.score))
        assert np.isnan(changes[np.tril_indices(LAYERS, -1)]).all() and np.isnan(changes).sum() == 3

    def test_another_metric_can_be_chosen_and_a_score_that_differs_from_the_recorded_one_is_reported(
        self, flags, tmp_path, log
    ):
        path = copy_of(flags, tmp_path / "run")
        own = read_json(path, "results.json")["metrics"]["accuracy"]
        change_results(path, "metrics", accuracy=-0.5)
        found = ablation.ablate(ablation.find_settings(path, {"primary_metric": "accuracy"}))
        assert (found.metric, found.score) == ("accuracy", own)
        assert any("-0.500000" in line and "results.json" in line for line in log)

    @pytest.mark.long
    def test_regression_is_supported(self, bert, tmp_path):
        rows = [f"the cat {'is' if number % 2 else 'are'} big\t{number % 5}.5" for number in range(30)]
        for name in ("train.tsv", "dev.tsv"):
            (tmp_path / name).write_text("text\tlabel\n" + "\n".join(rows) + "\n")
        values = dict(
            base_flags(bert, "", str(tmp_path / "run")),
            task_name="size",
            task_type="regression",
            data_dir=None,
            adapter_init_scale=0.3,
        )
        values.update({f"{name}_file": str(tmp_path / f"{name}.tsv") for name in ("train", "dev")})
        run(values, do_train=True, do_eval=True, num_train_epochs=1.0)
        found = ablation.ablate(ablation.find_settings(values["output_dir"], {}))
        results = read_json(values["output_dir"], "results.json")
        assert found.score == results["metrics"][found.metric] and found.majority == 0.0
        assert len(found.scores) == 6


def make_result(layers: int = 4, shift: float = 0.0, **changes) -> ablation.RunAblation:
    scores = {span: 0.8 - 0.1 * (span[1] - span[0] + 1) - 0.01 * span[0] + shift for span in spans(layers)}
    return dataclasses.replace(
        ablation.RunAblation("runs/a", "CoLA", "accuracy", layers, 50, 0.8, 0.3, scores), **changes
    )


class TestSummary:
    def test_it_has_single_layers_halves_and_all(self):
        summary = ablation.summarize([make_result()])
        assert summary == pytest.approx(
            {
                "all_adapters": 80.0,
                "majority": 30.0,
                "worst_layer": 3,
                "without_worst_layer": -13.0,
                "without_lower_half": -20.0,
                "without_upper_half": -22.0,
                "without_all": -40.0,
            }
        )

    def test_it_is_a_table(self):
        lines = ablation.format_summary([make_result()]).split("\n")
        assert_mentions(lines[0], "CoLA", "50 dev examples", "1 run", "accuracy")
        assert [line.split()[-2:] for line in lines[3:7]] == [
            ["67.0", "-13.0"],
            ["60.0", "-20.0"],
            ["58.0", "-22.0"],
            ["40.0", "-40.0"],
        ]
        assert_mentions(lines[3], "layer 3")
        assert_mentions(lines[4], "layers 0 to 1")
        assert_mentions(lines[5], "layers 2 to 3")

    def test_a_network_of_one_layer_has_no_halves(self):
        assert "half" not in ablation.format_summary([make_result(1)])

    def test_runs_are_averaged(self):
        runs = [make_result(), make_result(shift=0.1, score=0.6)]
        assert ablation.summarize(runs)["without_all"] == pytest.approx((-40 - 10) / 2)
        assert_mentions(ablation.format_summary(runs), "2 runs")

    @pytest.mark.parametrize("other", [make_result(3, source="b"), make_result(source="b", metric="f1")])
    def test_runs_that_do_not_match_are_reported(self, other):
        assert_mentions(message_of(ablation.mean_changes, [make_result(), other]), "runs/a", " b ")


@pytest.mark.long
class TestCommand:
    @pytest.fixture(scope="class")
    def ablated(self, flags, tmp_path_factory):
        """The output folder of a command."""
        output = str(tmp_path_factory.mktemp("ablated") / "out")
        ablate.main(["--run=" + flags["output_dir"], "--output_dir=" + output])
        return output

    def test_it_writes_all_spans_and_the_heat_map(self, ablated, result):
        assert sorted(os.listdir(ablated)) == sorted(ablation.FILES)
        content = read_json(ablated, "ablation.json")
        assert [(row["first"], row["last"]) for row in content["spans"]] == spans(LAYERS)
        assert {(row["first"], row["last"]): row["score"] for row in content["spans"]} == result.scores
        assert content["summary"] == pytest.approx(ablation.summarize([result]))
        with open(os.path.join(ablated, "ablation.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["first", "last", "score", "change"]
        assert [float(row["change"]) for row in rows] == [row["change"] for row in content["spans"]]

    def test_the_run_stays_as_it_is(self, flags, ablated):
        assert not [name for name in os.listdir(flags["output_dir"]) if "ablation" in name]

    def test_several_runs_are_averaged(self, flags, tmp_path, capsys, result, monkeypatch):
        runs = iter([result, dataclasses.replace(result, scores=dict.fromkeys(result.scores, result.score))])
        monkeypatch.setattr(ablation, "ablate", lambda settings: next(runs))
        ablate.main(["--run", flags["output_dir"], flags["output_dir"], f"--output_dir={tmp_path}/out"])
        assert_mentions(capsys.readouterr().out, "2 runs", "ablation.png")
        content = read_json(str(tmp_path / "out"), "ablation.json")
        assert content["summary"]["without_all"] == pytest.approx(result.changes()[0, LAYERS - 1] / 2)

    def test_a_pack_is_ablated_on_the_data_of_the_command(self, flags, bert, tmp_path, result):
        pack = shutil.copy(os.path.join(flags["output_dir"], packs.FILE_NAME), str(tmp_path / "cola.safetensors"))
        ablate.main(
            [f"--adapter_pack={pack}", f"--bert_dir={bert}", f"--data_dir={flags['data_dir']}"]
            + [f"--output_dir={tmp_path}/out", "--eval_batch_size=24"]
        )
        content = read_json(str(tmp_path / "out"), "ablation.json")
        assert content["runs"][0]["source"] == pack
        assert {(row["first"], row["last"]): row["score"] for row in content["spans"]} == result.scores

    def test_a_moved_base_and_moved_data_can_be_named(self, flags, bert, tmp_path):
        path = copy_of(flags, tmp_path / "run")
        for name in ("results.json", "settings.json"):
            text = (tmp_path / "run" / name).read_text()
            (tmp_path / "run" / name).write_text(text.replace(bert, "/gone").replace(flags["data_dir"], "/nowhere"))
        assert_mentions(message_of(ablation.find_settings, path, {"bert_dir": bert}), "--data_dir=/nowhere")
        assert_mentions(message_of(ablation.find_settings, path, {"data_dir": flags["data_dir"]}), "/gone")
        moved = ablation.find_settings(path, {"bert_dir": bert, "data_dir": flags["data_dir"]})
        assert (moved.data_dir, os.path.dirname(moved.init_checkpoint)) == (flags["data_dir"], bert)
        assert (moved.adapter_size, moved.task_name, moved.eval_batch_size) == (4, "CoLA", 5)

    def test_an_earlier_ablation_is_replaced_only_on_request(
        self, flags, ablated, tmp_path, capsys, result, monkeypatch
    ):
        monkeypatch.setattr(ablation, "ablate", lambda settings: result)
        output = shutil.copytree(ablated, str(tmp_path / "out"))
        line = ["--run=" + flags["output_dir"], "--output_dir=" + output]
        assert_mentions(error_of(line, capsys), output, "--overwrite")
        ablate.main([*line, "--overwrite"])
        (tmp_path / "out" / "mine.txt").write_text("mine")
        assert_mentions(error_of([*line, "--overwrite"], capsys), "mine.txt")
        assert_mentions(error_of([*line[:1], f"--output_dir={flags['output_dir']}/out"], capsys), "inside")


def error_of(line, capsys) -> str:
    """Return the error message of a command that must fail."""
    with pytest.raises(SystemExit) as caught:
        ablate.main(line)
    assert caught.value.code not in (0, None)
    return f"{caught.value.code} {capsys.readouterr().err}"


class TestErrors:
    def test_a_run_without_adapters_is_reported(self, tmp_path):
        packs.write(str(tmp_path / packs.FILE_NAME), make_pack(mode="layer_norm"))
        message = message_of(ablation.find_settings, str(tmp_path), {})
        assert_mentions(message, tmp_path, "--tuning_mode=layer_norm", "--tuning_mode=adapter")

    def test_a_folder_without_a_run_is_reported(self, tmp_path):
        assert_mentions(message_of(ablation.find_settings, str(tmp_path), {}), tmp_path, packs.FILE_NAME)

    def test_a_task_of_questions_is_reported(self, tmp_path):
        packs.write(str(tmp_path / packs.FILE_NAME), make_pack(head="span"))
        assert_mentions(message_of(ablation.find_settings, str(tmp_path), {}), tmp_path, "question answering")

    @pytest.mark.long
    def test_runs_of_two_tasks_are_reported_before_anything_is_computed(self, flags, tmp_path):
        path = copy_of(flags, tmp_path / "run")
        change_results(path, "settings", task_name="MRPC")
        message = message_of(ablation.find_all_settings, [flags["output_dir"], path], {})
        assert_mentions(message, "cola", "mrpc", flags["output_dir"], path)

    @pytest.mark.long
    def test_a_damaged_setting_is_reported(self, flags, tmp_path):
        path = copy_of(flags, tmp_path / "run")
        change_results(path, "settings", eval_batch_size="many")
        assert_mentions(message_of(ablation.find_settings, path, {}), "results.json", "eval_batch_size")

    def test_a_pack_alone_is_reported(self, capsys):
        assert_mentions(error_of(["--adapter_pack=cola.safetensors"], capsys), "--bert_dir", "--data_dir")
