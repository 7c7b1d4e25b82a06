"""Questions answered from Python get the answers of run_squad.py."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import run_squad
from adapter_bert.evaluation.answers import AnswerRules
from adapter_bert.serving.predictor import Predictor
from adapter_bert.serving.task_predictor import TaskPredictor
from adapter_bert.tasks import squad
from adapter_bert.weights import bases
from tests.helpers import assert_mentions, base_flags, make_pack, message_of, write_squad


@pytest.fixture(scope="module", params=[False, True], ids=["v1.1", "v2.0"])
def answered(request, tiny_bert, tmp_path_factory):
    """Return a run, its questions with their paragraphs, and the answers in its files."""
    folder = str(tmp_path_factory.mktemp("squad"))
    train, dev = (write_squad(os.path.join(folder, f"{n}.json"), *size, request.param) for n, size in
                  (("train", (48, 0)), ("dev", (24, 200))))  # fmt: skip
    flags = base_flags(tiny_bert, "", os.path.join(folder, "run"))
    del flags["task_name"], flags["data_dir"]
    flags.update(max_seq_length=32, max_query_length=8, doc_stride=9, num_train_epochs=3, learning_rate=2e-2)
    flags.update(train_file=train, predict_file=dev, do_train=True, do_predict=True)
    run_squad.run_task(run_squad.SquadSettings(**flags, version_2_with_negative=request.param))
    with open(os.path.join(flags["output_dir"], "nbest_predictions.json")) as file:
        candidates = json.load(file)
    with open(os.path.join(flags["output_dir"], "predictions.json")) as file:
        texts = json.load(file)
    found = [(q, p.context) for p in squad.read(dev).paragraphs for q in p.questions]
    questions = [(question.text, context) for question, context in found]
    return flags["output_dir"], questions, [(texts[q.id], candidates[q.id]) for q, _ in found]


def test_answers_equal_those_of_run_squad(answered):
    folder, questions, expected = answered
    with Predictor.from_run(folder) as predictor:
        found = predictor.answer(questions)
    assert len(found) == 24 and len({answer.text for answer in found}) > 1
    assert [answer.text for answer in found] == [text for text, _ in expected]
    for answer, (_, candidates) in zip(found, expected):
        assert answer.candidates[0].text == candidates[0]["text"]
        logits = [candidates[0]["start_logit"], candidates[0]["end_logit"]]
        np.testing.assert_allclose(answer.candidates[0][2:], logits, atol=1e-4)


def test_answers_of_a_task_beside_others(answered, tiny_bert):
    folder, questions, expected = answered
    base = bases.Base.find(tiny_bert)
    with TaskPredictor(base) as predictor:
        predictor.add("label", make_pack(base))
        predictor.add("squad", folder)
        predictor.add("other", make_pack(base, head="span", max_seq_length=32, training={"max_query_length": 8,
                                                                                         "doc_stride": 9}))  # fmt: skip
        assert [answer.text for answer in predictor.answer("squad", questions)] == [text for text, _ in expected]
        assert [a.text for a in predictor.answer("other", questions)] != [text for text, _ in expected]
        assert_mentions(message_of(predictor.predict, [("squad", "a")]), "squad", "answer")
        assert_mentions(message_of(predictor.answer, "label", questions), "label", "predict")


def test_rules_and_empty_paragraphs(answered):
    folder, questions, _ = answered
    with Predictor.from_run(folder) as predictor:
        assert predictor.answer([]) == []
        never = predictor.answer(questions[:3], AnswerRules(version_2=True, null_threshold=-1e9))
        assert [answer.text for answer in never] == ["", "", ""]
        empty, real = predictor.answer([("is it ?", ""), questions[0]])
        assert empty.text == "" and real == predictor.answer(questions[:1])[0]
        for wrong, fact in (([("a",)], "item 0"), ([("a", "b"), ("a", None)], "item 1"), ("text", "found str")):
            assert_mentions(message_of(predictor.answer, wrong), fact)
