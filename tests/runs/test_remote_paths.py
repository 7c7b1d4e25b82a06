"""Every path on a remote file system: data, base, features, runs, packs and banks. Nothing is written locally."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import tarfile
import tempfile
import zipfile

import pytest
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.evaluation.glue_submission import make_submission
from adapter_bert.experiments import stream
from adapter_bert.experiments.sweep_folder import SweepFolder
from adapter_bert.serving import layer_vectors
from adapter_bert.serving.predictor import Predictor
from adapter_bert.settings import base_files
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.extract import ExtractSettings
from adapter_bert.tasks.custom import formats
from adapter_bert.training import engine
from adapter_bert.weights import bases, checkpoints, packs
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.exchange import huggingface
from adapter_bert.weights.run_folder import RunFolder
from scripts import ablate, convert_hf_checkpoint, run_stream, score_squad, split_squad
from scripts import bank as bank_script
from scripts import predict as predict_script
from tests.helpers import (
    assert_mentions,
    cola_rows,
    make_pack,
    message_of,
    squad_paragraphs,
    tiny_config,
    write_bert,
    write_file,
    write_squad,
)
from tests.runs.conftest import cola_flags
from tests.runs.helpers import run
from tests.runs.remote import content_of, names_in, new_bucket, read_bytes, read_text, upload, write_text
from tests.runs.test_squad_runs import flags_for

pytestmark = pytest.mark.smoke

SENTENCES = ["the cat is big .", "the dogs are not small .", "she runs"]


@pytest.fixture(autouse=True)
def nothing_is_written_locally(tmp_path, monkeypatch):
    folders = [tmp_path / "here", tmp_path / "temporary"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    monkeypatch.setattr(tempfile, "tempdir", str(folders[1]))
    yield
    assert [os.listdir(folder) for folder in folders] == [[], []]


@pytest.fixture(scope="module")
def bucket(tiny_bert, cola_dir) -> str:
    """A bucket with a base and the data of CoLA. No name in it is the beginning of another."""
    bucket = new_bucket()
    upload(tiny_bert, f"{bucket}/bert")
    upload(cola_dir, f"{bucket}/data/CoLA")
    return bucket


@pytest.fixture(scope="module")
def remote_run(bucket) -> dict:
    """The flags of a run that was killed at step 8 and continued, evaluated and predicted. Read only."""

    class Killed(BaseException):
        pass

    save = checkpoints.TrainedSaver.save

    def save_and_die(self, session, path, global_step=None, **options):
        save(self, session, path, global_step, **options)
        raise Killed

    flags = cola_flags(f"{bucket}/bert", f"{bucket}/data/CoLA", f"{bucket}/runs/cola")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoints.TrainedSaver, "save", save_and_die)
        run(flags, do_train=True, do_eval=True)
    assert RunFolder(flags["output_dir"]).latest_step() == 8
    run(flags, do_train=True, do_eval=True, do_predict=True)
    return flags


@pytest.fixture
def base(tiny_bert) -> bases.Base:
    return bases.Base.find(tiny_bert)


def fingerprints_of(flags: dict) -> dict:
    """Return the fingerprints of data, base, weights and predictions of a remote run."""
    return RunFolder(flags["output_dir"]).read_results().fingerprints


class TestClassification:
    def test_a_killed_and_continued_run_equals_the_same_local_run(self, remote_run, trained_run):
        local, remote = trained_run.flags["output_dir"], remote_run["output_dir"]
        assert fingerprints_of(remote_run) == trained_run.results.fingerprints
        assert names_in(remote) == names_in(local)
        for name in ("eval_results.txt", "class_report.txt", "test_results.tsv", "CoLA.tsv"):
            assert read_bytes(f"{remote}/{name}") == read_bytes(f"{local}/{name}"), name

    def test_features_have_the_names_and_the_content_of_local_ones(self, remote_run, trained_run):
        folders = [
            os.path.join(os.path.dirname(flags["output_dir"]), "features") for flags in (remote_run, trained_run.flags)
        ]
        remote, local = ({os.path.basename(path): data for path, data in content_of(each).items()} for each in folders)
        assert remote and remote == local

    def test_recorded_paths_are_those_of_the_user(self, remote_run):
        recorded = RunFolder(remote_run["output_dir"]).read_settings()
        assert recorded["init_checkpoint"] == remote_run["init_checkpoint"]

    def test_a_run_is_evaluated_again_and_nothing_but_results_changes(self, remote_run):
        before = names_in(remote_run["output_dir"])
        results = run(remote_run, do_eval=True, do_predict=True)
        assert results.fingerprints == fingerprints_of(remote_run)
        assert names_in(remote_run["output_dir"]) == before

    def test_predictions_are_packed_for_the_server_of_glue(self):
        bucket = new_bucket()
        rows = "".join(f"{number}\t1\n" for number in range(1063))
        tf.gfile.MakeDirs(f"{bucket}/runs/cola")
        write_text(f"{bucket}/runs/cola/CoLA.tsv", "index\tprediction\n" + rows)
        output = f"{bucket}/glue/submission.zip"
        for overwrite in (False, True):
            make_submission([f"{bucket}/runs"], output, True, overwrite)
        assert_mentions(message_of(make_submission, [f"{bucket}/runs"], output, True), output, "--overwrite")
        with zipfile.ZipFile(io.BytesIO(read_bytes(output))) as archive:
            assert archive.namelist() == ["CoLA.tsv"]

    def test_a_run_never_overwrites_its_inputs(self, remote_run):
        path = f"{remote_run['output_dir']}/test_predictions.csv"
        flags = dict(remote_run, data_dir=None, task_name="own", train_file=write_text(path, "text,label\na,1\nb,0\n"))
        try:
            assert_mentions(message_of(run, flags, do_train=True), f"--train_file={path}", "--output_dir")
        finally:
            tf.gfile.Remove(path)

    def test_what_is_missing_is_named(self, remote_run, bucket):
        for name in ("vocab_file", "bert_config_file", "init_checkpoint"):
            changes = {name: f"{bucket}/missing", "output_dir": f"{bucket}/runs/none", "do_train": True}
            assert_mentions(message_of(run, remote_run, **changes), f"{bucket}/missing")
        assert_mentions(message_of(run, remote_run, output_dir="none://a/b", do_train=True), "none")
        assert not tf.gfile.Exists(f"{bucket}/runs/none")


class TestCustomData:
    @pytest.fixture(scope="class")
    def tables(self, bucket) -> dict:
        """The flags of three tables with the texts of CoLA."""
        flags = {}
        for number, split in enumerate(("train", "dev", "test")):
            rows = [row.split("\t") for row in cola_rows(24, 24 * number)]
            text = "text,label\n" + "".join(f'"{cells[3]}",{cells[1]}\n' for cells in rows)
            flags[f"{split}_file"] = write_text(f"{bucket}/own_{split}.csv", text)
        return flags

    @pytest.mark.long
    def test_a_run_with_a_sentencepiece_model(self, bucket, tables, spm_model_file, tmp_path_factory):
        folder = str(tmp_path_factory.mktemp("spm") / "base")
        tokenizer = tokenization.SentencePieceTokenizer(spm_model_file)
        write_bert(folder, tiny_config(vocab_size=len(tokenizer.vocab)))
        os.remove(os.path.join(folder, "vocab.txt"))
        upload(folder, f"{bucket}/spm")
        upload(spm_model_file, f"{bucket}/spm/tiny.model")
        out = f"{bucket}/runs/own"
        flags = dict(cola_flags(f"{bucket}/spm", "", out), task_name="own", data_dir=None, vocab_file=None, **tables)
        flags.update(spm_model_file=f"{bucket}/spm/tiny.model", worst_mistakes=3, num_train_epochs=1)
        run(flags, do_train=True, do_eval=True, do_predict=True)
        rows = list(csv.reader(io.StringIO(read_text(f"{out}/test_predictions.csv"))))
        assert len(rows) == 25 and rows[0][0] == "text"
        assert {"test_predictions.csv", "worst_mistakes.csv", "results.json"} <= set(names_in(out))

    def test_folders_and_archives_are_read(self, bucket, tmp_path_factory):
        folder = tmp_path_factory.mktemp("reviews") / "reviews"
        for label in ("good", "bad"):
            write_file(folder, f"{label}/1.txt", f"a {label} film")
        with tarfile.open(f"{folder}.tar.gz", "w:gz") as archive:
            archive.add(str(folder), "reviews")
        paths = [upload(str(folder), f"{bucket}/texts"), upload(f"{folder}.tar.gz", f"{bucket}/packed.tar.gz")]
        for path in (paths[0], paths[0] + "/", paths[1] + "//reviews"):
            rows = formats.read_table(path).rows
            assert [row.cells for row in rows] == [["a bad film", "bad"], ["a good film", "good"]], path


class TestSquad:
    @pytest.mark.long
    def test_a_run_is_trained_scored_and_answered(self, bucket, tmp_path_factory):
        local = str(tmp_path_factory.mktemp("squad"))
        write_squad(os.path.join(local, "train-v2.0.json"), 16, 0, True)
        write_squad(os.path.join(local, "dev-v2.0.json"), 8, 200, True)
        data, out = upload(local, f"{bucket}/squad"), f"{bucket}/runs/squad"
        flags = flags_for(f"{bucket}/bert", data, out, "v2.0", num_train_epochs=1)
        results = run(flags, do_train=True, do_predict=True)
        assert fingerprints_of(flags) == results.fingerprints
        for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
            assert len(json.loads(read_text(f"{out}/{name}"))) == 8
        score_squad.main([f"{data}/dev-v2.0.json", f"{out}/predictions.json", f"--output={bucket}/scores.json"])
        assert json.loads(read_text(f"{bucket}/scores.json"))["total"] == 8

    def test_a_file_is_split(self, bucket):
        articles = [{"title": name, "paragraphs": squad_paragraphs(1, n)} for n, name in enumerate("AB")]
        given = write_text(f"{bucket}/all.json", json.dumps({"version": "1.1", "data": articles}))
        command = [given, "--dev_articles=1", f"--train_out={bucket}/split/a.json", f"--dev_out={bucket}/split/b.json"]
        split_squad.main(command)
        assert [len(json.loads(read_text(f"{bucket}/split/{name}.json"))["data"]) for name in "ab"] == [1, 1]
        with pytest.raises(SystemExit, match="--overwrite"):
            split_squad.main(command)
        split_squad.main([*command, "--overwrite"])


class TestPacks:
    def test_a_run_starts_from_a_pack(self, bucket, remote_run):
        pack = f"{bucket}/cola.safetensors"
        tf.gfile.Copy(f"{remote_run['output_dir']}/{packs.FILE_NAME}", pack)
        flags = dict(remote_run, adapter_pack=pack, output_dir=f"{bucket}/runs/second")
        results = run(flags, do_eval=True)
        assert results.fingerprints["predictions"] == fingerprints_of(remote_run)["predictions"]

    def test_vectors_are_extracted(self, bucket, remote_run):
        given = write_text(f"{bucket}/texts.txt", "\n".join(SENTENCES) + "\n")
        settings = ExtractSettings(
            bert_dir=f"{bucket}/bert",
            input_file=given,
            output_file=f"{bucket}/new/vectors.jsonl",
            adapter_pack=remote_run["output_dir"],
            max_seq_length=16,
            layers="-1",
        )
        settings.validate()
        assert layer_vectors.extract(settings) == len(SENTENCES)
        assert len(read_text(settings.output_file).splitlines()) == len(SENTENCES)
        assert_mentions(message_of(layer_vectors.extract, settings), settings.output_file)

    def test_texts_are_predicted(self, bucket, remote_run):
        with Predictor.from_run(remote_run["output_dir"], threads=1) as predictor:
            expected = [prediction.label for prediction in predictor.predict(SENTENCES)]
        for ending, header in (("txt", []), ("csv", ["text"])):
            given = write_text(f"{bucket}/given.{ending}", "\n".join([*header, *SENTENCES]) + "\n")
            output = f"{bucket}/predicted/{ending}.csv"
            command = ["--run=" + remote_run["output_dir"], "--input=" + given, "--output=" + output, "--threads=1"]
            predict_script.main(command)
            assert [row["predicted_label"] for row in csv.DictReader(io.StringIO(read_text(output)))] == expected
            with pytest.raises(SystemExit, match="--overwrite"):
                predict_script.main(command)
        with pytest.raises(SystemExit, match="is the input"):
            predict_script.main([*command[:1], "--input=" + output, "--output=" + output])


def test_a_warm_engine_notices_that_a_remote_file_has_changed(bucket):
    path = write_text(f"{bucket}/changing.txt", "one")
    before = engine._file_state(path, None)
    assert engine._file_state(path, None) == before
    write_text(path, "three")
    assert engine._file_state(path, None) != before


class TestBank:
    @pytest.fixture
    def created(self, bucket) -> str:
        """An empty bank, in a bucket of its own."""
        folder = f"{new_bucket()}/banks/mine"
        bank_script.main(["create", f"--bank={folder}/", f"--base={bucket}/bert"])
        return folder

    def test_packs_are_added_listed_used_and_removed(self, created, remote_run, capsys):
        here = f"--bank={created}"
        bank_script.main(["add", here, remote_run["output_dir"]])
        with pytest.raises(SystemExit, match="--replace"):
            bank_script.main(["add", here, remote_run["output_dir"]])
        bank_script.main(["add", here, remote_run["output_dir"], "--replace"])
        bank_script.main(
            ["add", here, remote_run["output_dir"], "--name=second", "--results", remote_run["output_dir"]]
        )
        capsys.readouterr()
        bank_script.main(["list", here])
        assert_mentions(capsys.readouterr().out, "cola ", "second ", "2 packs", "786")
        bank_script.main(["verify", here])
        bank_script.main(["show", here, "cola"])
        assert_mentions(capsys.readouterr().out, "3 of 3 are good", f"{created}/packs/cola.safetensors")
        predict_script.main([here, "--task=cola", "--threads=1", *SENTENCES])
        assert len(capsys.readouterr().out.splitlines()) == len(SENTENCES) + 1
        bank_script.main(["export", here, "cola", f"--output={created}.safetensors"])
        assert packs.read(f"{created}.safetensors").fingerprint == fingerprints_of(remote_run)["pack"]
        bank_script.main(["remove", here, "cola"])
        assert Bank.open(created).names() == ["second"]

    def test_a_damaged_pack_is_reported(self, created):
        bank = Bank.open(created)
        path = bank.add(make_pack(bank.base), "good")
        write_text(bank.path("good").replace("good", "bad"), "damaged")
        assert [name for name, problem in bank.verify() if problem] == ["bad"]
        assert [summary.name for summary in bank.summaries() if summary.problem] == ["bad"]
        assert packs.read(path).config == bank.read("good").config

    def test_it_contains_exactly_its_files(self, created, bucket):
        copied = {f"base/{name}" for name in tf.gfile.ListDirectory(f"{bucket}/bert")}
        found = {path[len(created) + 1 :] for path in content_of(os.path.dirname(created))}
        assert found == copied | {"bank.json"}

    def test_a_folder_in_use_is_left_alone(self, created, bucket):
        before = content_of(created)
        base = bases.Base.find(f"{bucket}/bert")
        assert_mentions(message_of(Bank.create, created, base), created, "already exists")
        assert_mentions(message_of(Bank.create, f"{created}/base/new", base), created, "inside")
        assert_mentions(message_of(Bank.create, f"{bucket}/bert/new", base), f"{bucket}/bert", "inside")
        assert_mentions(message_of(Bank.create, "gs://bucket/", base), "gs://bucket/")
        assert_mentions(message_of(Bank.open, f"{bucket}/runs"), f"{bucket}/runs", "scripts/bank.py create")
        flags = cola_flags(f"{bucket}/bert", f"{bucket}/data/CoLA", f"{created}/runs")
        assert_mentions(message_of(run, flags, do_train=True), "--output_dir", f"inside the bank {created}")
        assert content_of(created) == before

    def test_a_failed_creation_leaves_nothing(self, bucket, monkeypatch):
        folder = f"{new_bucket()}/bank"
        monkeypatch.setattr(Bank, "tensors", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Bank.create(folder, bases.Base.find(f"{bucket}/bert"))
        assert content_of(os.path.dirname(folder)) == {}


@pytest.mark.long
def test_a_stream_of_tasks(bucket):
    own = new_bucket()
    tasks = write_text(f"{own}/tasks.txt", f"--task_name=CoLA --data_dir={bucket}/data/CoLA\n")
    common = ClassifierSettings(
        output_dir=f"{own}/out",
        do_train=True,
        do_eval=True,
        train_batch_size=8,
        learning_rate=1e-2,
        num_train_epochs=1,
        max_seq_length=16,
        adapter_size=4,
        seed=1,
    )
    learning = stream.Stream(
        run_stream.find_bank(f"{own}/bank", f"{bucket}/bert"), stream.read_tasks(tasks, common), f"{own}/out"
    )
    table = learning.learn()
    assert stream.compare(table) == (0, 0)
    assert Bank.open(f"{own}/bank").names() == ["cola"]
    assert json.loads(read_text(f"{own}/out/stream.json"))["tasks"] == ["cola"]
    assert stream.compare(learning.learn()) == (0, 0), "the same command again"


NOWHERE = "none://bucket/file"  # a file system that TensorFlow does not have


class TestErrors:
    """A remote path that cannot be read or written is an error in one line that names it."""

    FLAGS = ("bert_dir", "data_dir", "output_dir", "feature_cache_dir", "init_checkpoint", "adapter_pack", "vocab_file")

    @pytest.mark.parametrize("flag", [*FLAGS, "spm_model_file", "bert_config_file", "bert_hub_module_handle"])
    def test_of_a_run(self, bucket, flag):
        flags = cola_flags(f"{bucket}/bert", f"{bucket}/data/CoLA", f"{bucket}/runs/none")
        if flag == "bert_hub_module_handle":
            flags.update(bert_config_file=None, vocab_file=None, init_checkpoint=None)
        if flag == "spm_model_file":
            flags.update(vocab_file=None)
        assert_mentions(message_of(run, dict(flags, **{flag: NOWHERE}), do_train=True, do_eval=True), "none")

    @pytest.mark.parametrize("flag", ["train_file", "predict_file"])
    def test_of_squad(self, bucket, flag):
        flags = flags_for(f"{bucket}/bert", f"{bucket}/squad", f"{bucket}/runs/none", **{flag: NOWHERE})
        assert_mentions(message_of(run, flags, do_train=flag == "train_file", do_predict=flag != "train_file"), NOWHERE)

    @pytest.mark.parametrize(
        "main, words",
        [
            (predict_script.main, ["--run", NOWHERE, "text"]),
            (predict_script.main, ["--adapter_pack", NOWHERE, "--bert_dir", "BUCKET/bert", "text"]),
            (predict_script.main, ["--adapter_pack", "BUCKET/runs/cola", "--bert_dir", NOWHERE, "text"]),
            (predict_script.main, ["--bank", NOWHERE, "--task=cola", "text"]),
            (predict_script.main, ["--run", "BUCKET/runs/cola", "--threads=1", "--input", NOWHERE]),
            (predict_script.main, ["--run", "BUCKET/runs/cola", "--output", NOWHERE + ".csv", "text"]),
            (bank_script.main, ["create", "--bank", NOWHERE, "--base", "BUCKET/bert"]),
            (bank_script.main, ["create", "--bank", "BUCKET/none", "--base", NOWHERE]),
            (bank_script.main, ["list", "--bank", NOWHERE]),
            (split_squad.main, [NOWHERE, "--train_out=a", "--dev_out=b"]),
            (score_squad.main, [NOWHERE, NOWHERE]),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, list) else None,
    )
    def test_of_a_script(self, bucket, remote_run, main, words):
        with pytest.raises(SystemExit) as caught:
            main([word.replace("BUCKET", bucket) for word in words])
        assert_mentions(str(caught.value), "error: ", "none:")
        assert "\n" not in str(caught.value)


class TestLimits:
    def test_frozen_layers_are_not_cached(self, bucket, log):
        flags = cola_flags(f"{bucket}/bert", f"{bucket}/data/CoLA", f"{bucket}/runs/frozen")
        run(flags, do_train=True, tuning_mode="head", cache_frozen_layers=True, num_train_epochs=1)
        assert_mentions("\n".join(log), "No cache for --cache_frozen_layers", "local")

    @pytest.mark.parametrize("form, name", [("adapterhub", "hub"), ("checkpoint", "model.ckpt")])
    def test_exports_are_local_folders(self, bucket, form, name):
        folder = f"{new_bucket()}/bank"
        bank = Bank.create(folder, bases.Base.find(f"{bucket}/bert"))
        bank.add(make_pack(bank.base), "cola")
        output = f"{bucket}/exports/{name}"
        with pytest.raises(SystemExit) as caught:
            bank_script.main(["export", f"--bank={folder}", "cola", f"--format={form}", f"--output={output}"])
        assert_mentions(str(caught.value), "--output", output, "local")
        assert not tf.gfile.Exists(f"{bucket}/exports")

    def test_a_bank_is_not_made_from_an_unconverted_model(self, base, tmp_path_factory):
        theirs = str(tmp_path_factory.mktemp("theirs") / "bert")
        huggingface.export_base(base, theirs, do_lower_case=True)
        folder = f"{new_bucket()}/bank"
        with pytest.raises(SystemExit, match=f"--bank={folder} .*convert_hf_checkpoint"):
            bank_script.main(["create", f"--bank={folder}", f"--base={theirs}"])
        assert not tf.gfile.Exists(folder)

    def test_sweeps_ablations_and_conversions_are_local(self, bucket, monkeypatch):
        assert_mentions(
            message_of(SweepFolder, f"{bucket}/sweep"), "--output_dir", "--sweep", f"{bucket}/sweep", "local"
        )
        command = ["--run", f"{bucket}/runs/cola", f"--output_dir={bucket}/ablation"]
        with pytest.raises(SystemExit, match="--output_dir.* must be local"):
            ablate.main(command)
        for source, fact in (("--hf_dir", "local folder"), ("--base_dir", "--output_dir")):
            output = ["--output_dir", f"{bucket}/converted", "--do_lower_case=true"]
            monkeypatch.setattr(sys, "argv", ["convert", source, f"{bucket}/bert", *output])
            with pytest.raises(SystemExit, match=fact):
                convert_hf_checkpoint.main()

    def test_the_cache_of_downloads_is_local(self, bucket, monkeypatch):
        monkeypatch.setenv(base_files.CACHE_VARIABLE, f"{bucket}/cache")
        flags = cola_flags(f"{bucket}/bert", f"{bucket}/data/CoLA", f"{bucket}/runs/none")
        message = message_of(run, dict(flags, bert_hub_module_handle="https://host/module"), do_train=True)
        assert_mentions(message, base_files.CACHE_VARIABLE, f"{bucket}/cache", "local")
