"""The warm predictor: the answers of the command line, in the order given, and plain words for what is no text."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import sys
import threading

import numpy as np
import pytest

from adapter_bert.common import errors
from adapter_bert.serving.predictor import Prediction, Predictor, _batches
from adapter_bert.weights import packs
from adapter_bert.weights.exchange import huggingface
from adapter_bert.weights.run_folder import RunFolder
from run_classifier import ClassifierSettings, run_task
from scripts import predict as predict_script
from tests.helpers import base_flags, make_pack, message_of, tiny_config, write_bert


@pytest.fixture(scope="module")
def trained(tiny_bert, cola_dir, tmp_path_factory):
    """The output folder of a short run, with predictions of the test split."""
    flags = base_flags(tiny_bert, cola_dir, str(tmp_path_factory.mktemp("predictor") / "run"))
    run_task(ClassifierSettings(**flags, num_train_epochs=1, learning_rate=1e-2, do_train=True, do_predict=True))
    return flags["output_dir"]


@pytest.fixture(scope="module")
def sentences(cola_dir):
    with open(os.path.join(cola_dir, "test.tsv")) as file:
        return [line.rstrip("\n").split("\t")[1] for line in file][1:]


@pytest.fixture(scope="module")
def predictor(trained):
    with Predictor.from_run(trained, threads=1) as made:
        yield made


def regression_pack(trained, path):
    """A pack like that of the run, with a head that predicts a number."""
    pack = packs.read(os.path.join(trained, packs.FILE_NAME))
    tensors = dict(pack.tensors, output_weights=pack.tensors["output_weights"][:1], output_bias=np.float32([3.0]))
    packs.write(path, packs.Pack(dataclasses.replace(pack.config, head="regression", labels=[]), tensors))
    return path


def probabilities(predictions):
    return [list(prediction.probabilities.values()) for prediction in predictions]


def test_the_probabilities_are_those_that_the_command_line_writes(trained, sentences, predictor):
    written = np.loadtxt(os.path.join(trained, "test_results.tsv"), delimiter="\t")
    found = predictor.predict(sentences)
    np.testing.assert_allclose(probabilities(found), written, atol=1e-5)
    assert [prediction.label for prediction in found] == [["0", "1"][row.argmax()] for row in written]
    assert list(found[0].probabilities) == ["0", "1"] and found[0].number is None


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_results_come_in_the_order_given_whatever_the_batches_are(predictor, batch_size):
    texts = ["the cat is big .", "dogs", "", "the big dog and the small cats are not big , and they run !", "she runs"]
    alone = [predictor.predict([text])[0] for text in texts]
    together = predictor.predict(texts, batch_size=batch_size)
    np.testing.assert_allclose(probabilities(together), probabilities(alone), atol=1e-5)
    assert len({tuple(row) for row in probabilities(alone)}) == len(texts)


def test_a_pair_is_another_text_than_its_parts(predictor):
    pair, listed, first, joined = predictor.predict(
        [("the cat is", "big ."), ["the cat is", "big ."], ("the cat is", None), "the cat is big ."]
    )
    alone = predictor.predict(["the cat is"])[0]
    found, expected = probabilities([pair, first]), probabilities([listed, alone])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert abs(pair.probabilities["1"] - joined.probabilities["1"]) > 1e-3


def test_a_text_of_any_length_is_cut_as_in_training(predictor):
    words = "the cat is big and " * 50
    cut = " ".join(words.split()[:14])  # 16 tokens with the two special ones
    np.testing.assert_allclose(*[probabilities(predictor.predict([text])) for text in (words, cut)], atol=1e-6)


def test_a_regression_gives_numbers(trained, tmp_path, sentences):
    pack = regression_pack(trained, str(tmp_path / "number.safetensors"))
    base = RunFolder(trained).read_settings()["init_checkpoint"]
    with Predictor(init_checkpoint=base, adapter_pack=pack) as made:
        found = made.predict(sentences[:2])
    assert all(isinstance(prediction.number, float) for prediction in found)
    assert found[0] == Prediction(None, {}, found[0].number)
    assert abs(found[0].number - 3.0) < 3.0 and found[0].number != found[1].number


def test_an_empty_list_has_no_predictions(predictor):
    assert predictor.predict([]) == []


@pytest.mark.parametrize(
    "texts, told",
    [
        ("a text", "takes a list of texts, found str"),
        (None, "takes a list of texts, found NoneType"),
        (["a", None], "strings and pairs of strings; number 1 is None"),
        ([b"a"], "number 0 is b'a'"),
        ([("a", 1)], "number 0 is ('a', 1)"),
        ([("a", "b", "c")], "number 0 is ('a', 'b', 'c')"),
        ([(None, "b")], "number 0 is (None, 'b')"),
    ],
    ids=["string", "none", "none_in_list", "bytes", "number", "three", "no_first"],
)
def test_what_is_no_text_is_refused(predictor, texts, told):
    assert told in message_of(predictor.predict, texts)


def test_texts_that_are_shared_among_threads_get_the_answers_of_one_thread(predictor, trained, sentences):
    with Predictor.from_run(trained, threads=2) as shared:
        for count in (0, 1, 2, 3, len(sentences)):
            for one, two in zip(predictor.predict(sentences[:count]), shared.predict(sentences[:count])):
                assert two.label == one.label
                assert two.probabilities == pytest.approx(one.probabilities, abs=1e-5)


@pytest.mark.parametrize(
    "lengths, batch_size, threads, expected",
    [
        ([], 4, 2, []),
        ([5], 4, 2, [[0]]),
        ([5, 9], 4, 2, [[1], [0]]),
        ([5, 9, 7, 6], 4, 2, [[1, 2], [3, 0]]),
        ([5, 9, 7, 6, 8], 2, 2, [[1, 4], [2, 3], [0]]),
        ([5, 9, 7], 4, 1, [[1, 2, 0]]),
    ],
)
def test_batches_have_texts_of_like_length_and_work_for_every_thread(lengths, batch_size, threads, expected):
    assert _batches(lengths, batch_size, threads) == expected


@pytest.mark.parametrize("threads", [-1, 1.5, True])
def test_a_number_of_threads_that_is_none_is_told(trained, threads):
    with pytest.raises(errors.UserError, match="threads must be an integer of at least 0"):
        Predictor.from_run(trained, threads=threads)


def test_several_threads_get_their_own_answers(predictor, sentences):
    expected = predictor.predict(sentences, batch_size=1)
    found = {}

    def work(index):
        found[index] = [predictor.predict([sentences[index]])[0] for _ in range(20)]

    threads = [threading.Thread(target=work, args=[index]) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answers == [expected[index]] * 20 for index, answers in found.items()) and len(found) == 4


def test_a_closed_predictor_says_so(trained):
    made = Predictor.from_run(trained)
    made.close()
    made.close()
    assert "closed" in message_of(made.predict, ["a"])


class TestRefusals:
    def test_a_folder_without_a_run(self, tmp_path):
        assert "names the base" in message_of(Predictor.from_run, str(tmp_path))

    def test_another_base(self, trained, tmp_path):
        other = write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
        assert "another base" in message_of(Predictor.from_run, trained, init_checkpoint=other)

    def test_another_vocabulary(self, trained, tiny_bert, tmp_path):
        vocabulary = tmp_path / "vocab.txt"
        with open(os.path.join(tiny_bert, "vocab.txt")) as file:
            vocabulary.write_text(file.read().replace("cat\ndog\n", "dog\ncat\n"))
        assert "another tokenizer" in message_of(Predictor.from_run, trained, vocab_file=str(vocabulary))

    def test_no_vocabulary_beside_the_base(self, trained, tiny_bert, tmp_path):
        for name in os.listdir(tiny_bert):
            if name.startswith("bert_model.ckpt"):
                shutil.copy(os.path.join(tiny_bert, name), str(tmp_path))
        moved = str(tmp_path / "bert_model.ckpt")
        assert "Expected a vocab.txt beside" in message_of(Predictor.from_run, trained, init_checkpoint=moved)

    def test_more_tokens_than_the_model_has_positions(self, trained):
        assert "sequence length 33" in message_of(Predictor.from_run, trained, max_seq_length=33)

    def test_a_pack_for_questions(self, trained, tmp_path):
        pack = packs.read(os.path.join(trained, packs.FILE_NAME))
        tensors = {name: value for name, value in pack.tensors.items() if not name.startswith("output_")}
        tensors.update({"cls/squad/output_weights": np.zeros([2, 16], np.float32)})
        tensors.update({"cls/squad/output_bias": np.zeros([2], np.float32)})
        path = str(tmp_path / "squad.safetensors")
        packs.write(path, packs.Pack(dataclasses.replace(pack.config, head="span", labels=[]), tensors))
        assert "run_squad.py" in message_of(Predictor, "unused", path)


class TestScript:
    def run(self, monkeypatch, capsys, words, given=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        predict_script.main(words)
        return capsys.readouterr().out.splitlines()

    def test_a_line_for_each_line(self, monkeypatch, capsys, trained, predictor, sentences):
        lines = self.run(monkeypatch, capsys, ["--run=" + trained], "\n".join(sentences) + "\n")
        assert lines[0] == "label\t0\t1"
        expected = predictor.predict(sentences)
        for line, prediction in zip(lines[1:], expected):
            label, *values = line.split("\t")
            assert label == prediction.label
            np.testing.assert_allclose(
                [float(value) for value in values], list(prediction.probabilities.values()), atol=1e-5
            )
        assert len(lines) == 1 + len(sentences)

    def test_pairs_of_a_file_line_by_line(self, monkeypatch, capsys, trained, predictor, tmp_path):
        (tmp_path / "pairs.tsv").write_text("the cat is\tbig .\nthe dog\n")
        words = ["--run=" + trained, "--pairs", "--line_by_line", "--input=" + str(tmp_path / "pairs.tsv")]
        lines = self.run(monkeypatch, capsys, words)
        expected = predictor.predict([("the cat is", "big ."), "the dog"])
        assert [line.split("\t")[0] for line in lines[1:]] == [prediction.label for prediction in expected]

    def test_a_missing_run_is_told_in_one_line(self, monkeypatch, capsys):
        with pytest.raises(SystemExit) as caught:
            predict_script.main(["--run=nowhere"])
        assert "error: --run=nowhere: there is no such folder" in str(caught.value)


def test_the_probabilities_are_those_of_hugging_face(tmp_path):
    """A converted BERT with its classifier as a pack of mode `head`."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from adapter_bert.weights import bases

    values = {name: getattr(tiny_config(), name) for name in vars(tiny_config())}
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**values, num_labels=3)).eval()
    model.bert.save_pretrained(str(tmp_path / "hf"))
    write_bert(str(tmp_path / "words"), tiny_config())
    shutil.copy(str(tmp_path / "words" / "vocab.txt"), str(tmp_path / "hf"))
    huggingface.convert(str(tmp_path / "hf"), str(tmp_path / "base"))
    base = bases.Base.find(str(tmp_path / "base"))
    state = {name: value.detach().numpy() for name, value in model.classifier.named_parameters()}
    config = make_pack(base, mode="head", labels=["a", "b", "c"], max_seq_length=32).config
    packs.write(
        str(tmp_path / "three.safetensors"),
        packs.Pack(config, {"output_weights": state["weight"], "output_bias": state["bias"]}),
    )
    texts = ["the cat is big .", "dogs", ("they see it", "and run , not she !")]
    with Predictor(base.checkpoint, str(tmp_path / "three.safetensors")) as made:
        found = probabilities(made.predict(texts))
        for text, row in zip(texts, found):
            ids, segments = made._encode(*(text if isinstance(text, tuple) else (text, None)))
            with torch.inference_mode():
                logits = model(torch.tensor([ids]), token_type_ids=torch.tensor([segments])).logits
            np.testing.assert_allclose(row, logits.softmax(-1)[0].numpy(), atol=1e-5)
