"""`Predictor` gives the same predictions as run_classifier.py."""

from __future__ import annotations

import itertools
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adapter_bert.serving.engine import Prediction, plan_batches
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases, packs
from adapter_bert.weights.exchange import huggingface
from tests.helpers import assert_mentions, make_pack, message_of, tiny_config, write_bert
from tests.serving.helpers import probabilities, write_pack


def test_probabilities_equal_those_of_run_classifier(trained, sentences, predictor):
    written = np.loadtxt(os.path.join(trained, "test_results.tsv"), delimiter="\t")
    found = predictor.predict(sentences)
    np.testing.assert_allclose(probabilities(found), written, atol=1e-5)
    assert [prediction.label for prediction in found] == [["0", "1"][row.argmax()] for row in written]
    assert list(found[0].probabilities) == ["0", "1"] and found[0].number is None


def test_batch_size_and_threads_change_neither_order_nor_results(predictor, trained):
    texts = ["the cat is big .", "dogs", "", "the big dog and the small cats are not big , and they run !", "she runs"]
    alone = probabilities(predictor.predict([text])[0] for text in texts)
    assert len({tuple(row) for row in alone}) == len(texts)
    with Predictor.from_run(trained, threads=2) as two_threads:
        for made, batch_size, count in itertools.product((predictor, two_threads), (1, 3, 100), (0, 1, 2, 5)):
            together = probabilities(made.predict(texts[:count], batch_size=batch_size))
            assert len(together) == count
            np.testing.assert_allclose(together, alone[:count], atol=1e-5)


def test_a_pair_differs_from_the_joined_text(predictor):
    pair, listed, first, joined = predictor.predict(
        [("the cat is", "big ."), ["the cat is", "big ."], ("the cat is", None), "the cat is big ."]
    )
    alone = predictor.predict(["the cat is"])[0]
    found, expected = probabilities([pair, first]), probabilities([listed, alone])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert abs(pair.probabilities["1"] - joined.probabilities["1"]) > 1e-3


def test_long_texts_are_truncated_as_in_training(predictor):
    words = "the cat is big and " * 50
    cut = " ".join(words.split()[:14])  # 16 tokens with the two special ones
    np.testing.assert_allclose(*[probabilities(predictor.predict([text])) for text in (words, cut)], atol=1e-6)


def test_regression_returns_numbers(tiny_bert, tmp_path, sentences):
    path = write_pack(tmp_path, tiny_bert, head="regression")
    with Predictor(bases.Base.find(tiny_bert).checkpoint, path) as made:
        found = made.predict(sentences[:2])
    assert all(isinstance(prediction.number, float) for prediction in found)
    assert found[0] == Prediction(None, {}, found[0].number)
    assert found[0].number != found[1].number


@pytest.mark.parametrize(
    "texts, fact",
    [
        ("a text", "found str"),
        (None, "found NoneType"),
        (["a", None], "item 1 is None"),
        ([b"a"], "item 0 is b'a'"),
        ([("a", 1)], "item 0 is ('a', 1)"),
        ([("a", "b", "c")], "item 0 is ('a', 'b', 'c')"),
        ([(None, "b")], "item 0 is (None, 'b')"),
    ],
)
def test_items_that_are_not_texts_are_reported(predictor, texts, fact):
    assert_mentions(message_of(predictor.predict, texts), fact)


@pytest.mark.parametrize(
    "lengths, batch_size, threads, expected",
    [([], 4, 2, []), ([5, 9, 7, 6], 4, 2, [[1, 2], [3, 0]]), ([5, 9, 7, 6, 8], 2, 2, [[1, 4], [2, 3], [0]])],
)
def test_batches_have_similar_lengths_and_use_all_threads(lengths, batch_size, threads, expected):
    assert plan_batches(lengths, batch_size, threads) == expected


def test_several_threads_can_use_one_predictor(predictor, sentences):
    expected = predictor.predict(sentences, batch_size=1)
    indices = [index for index in range(4) for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: predictor.predict([sentences[index]])[0], indices))
    assert found == [expected[index] for index in indices]


def test_a_closed_predictor_raises_an_error(trained):
    predictor = Predictor.from_run(trained)
    predictor.close()
    predictor.close()
    assert_mentions(message_of(predictor.predict, ["a"]), "closed")


class TestErrors:
    def test_a_folder_without_a_run(self, tmp_path):
        assert_mentions(message_of(Predictor.from_run, str(tmp_path)), tmp_path, "init_checkpoint")

    def test_another_base(self, trained, tmp_path):
        other = write_bert(str(tmp_path / "other"), tiny_config(), seed=8)
        assert_mentions(message_of(Predictor.from_run, trained, init_checkpoint=other), "another base", other)

    def test_another_vocabulary(self, trained, tiny_bert, tmp_path):
        vocabulary = tmp_path / "vocab.txt"
        with open(os.path.join(tiny_bert, "vocab.txt")) as file:
            vocabulary.write_text(file.read().replace("cat\ndog\n", "dog\ncat\n"))
        message = message_of(Predictor.from_run, trained, vocab_file=str(vocabulary))
        assert_mentions(message, "another tokenizer", vocabulary)

    def test_no_vocabulary_beside_the_base(self, trained, tiny_bert, tmp_path):
        for name in os.listdir(tiny_bert):
            if name.startswith("bert_model.ckpt"):
                shutil.copy(os.path.join(tiny_bert, name), str(tmp_path))
        moved = str(tmp_path / "bert_model.ckpt")
        message = message_of(Predictor.from_run, trained, init_checkpoint=moved)
        assert_mentions(message, "vocab.txt", moved, "vocab_file")

    @pytest.mark.parametrize(("change", "fact"), [({"max_seq_length": 33}, "33"), ({"threads": -1}, "threads")])
    def test_invalid_numbers(self, trained, change, fact):
        assert_mentions(message_of(Predictor.from_run, trained, **change), fact)

    def test_predict_with_a_pack_for_question_answering(self, tiny_bert, tmp_path):
        path = write_pack(tmp_path, tiny_bert, head="span", task="questions")
        with Predictor(bases.Base.find(tiny_bert).checkpoint, path) as made:
            assert_mentions(message_of(made.predict, []), "questions", "answer", "run_squad.py")

    def test_answer_with_a_pack_for_classification(self, predictor):
        assert_mentions(message_of(predictor.answer, [("is it big ?", "it is big .")]), "classification", "predict")


def test_probabilities_equal_hugging_faces(tmp_path):
    """Compare a converted BERT, with its classifier as a pack of mode `head`."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
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
    pack = packs.Pack(config, {"output_weights": state["weight"], "output_bias": state["bias"]})
    packs.write(str(tmp_path / "three.safetensors"), pack)
    texts = ["the cat is big .", "dogs", ("they see it", "and run , not she !")]
    with Predictor(base.checkpoint, str(tmp_path / "three.safetensors")) as made:
        found = probabilities(made.predict(texts))
        for text, row in zip(texts, found):
            features = made._encoder.encode(InputExample("", *([text] if isinstance(text, str) else text)))
            ids, segments = (torch.tensor([features[name]]) for name in ("input_ids", "segment_ids"))
            with torch.inference_mode():
                logits = model(ids, token_type_ids=segments).logits
            np.testing.assert_allclose(row, logits.softmax(-1)[0].numpy(), atol=1e-5)
