"""Real clients and message definitions: Triton's client, and the messages of tensorflow-serving-api."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

pytest.importorskip("starlette", reason="Needs the extra `serve`.")
pytest.importorskip("uvicorn", reason="Needs the extra `serve`.")

TEXTS = ["the cat is big .", "they see dogs ✓"]


def infer(server, task, tensors, **more):
    return server.request(f"/v2/models/{task}/infer", {"inputs": tensors, **more})


def bytes_tensor(name, *texts, **changes):
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts), **changes}


class TestTritonClient:
    @pytest.fixture
    def client(self, server):
        http = pytest.importorskip("tritonclient.http", reason="Needs tritonclient[http].")
        with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            yield client

    @staticmethod
    def inputs(binary=True, **texts):
        import tritonclient.http as http

        made = []
        for name, values in texts.items():
            made.append(http.InferInput(name, [len(values)], "BYTES"))
            made[-1].set_data_from_numpy(np.array([value.encode() for value in values], object), binary)
        return made

    def test_health_and_metadata(self, client):
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("three") and not client.is_model_ready("nope")
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        found = client.get_model_metadata("three")
        assert found["name"] == "three" and [each["name"] for each in found["inputs"]] == ["texts", "second_texts"]
        assert client.get_model_metadata("three", found["versions"][0]) == found
        assert {each["name"] for each in client.get_model_repository_index()} >= {"one", "three", "squad"}

    @pytest.mark.parametrize("binary_input", [True, False])
    @pytest.mark.parametrize("binary_output", [True, False, None])
    def test_inference(self, client, expected, binary_input, binary_output):
        import tritonclient.http as http

        names = ["labels", "probabilities", "classes"]
        outputs = None if binary_output is None else [http.InferRequestedOutput(each, binary_output) for each in names]
        answer = client.infer("three", self.inputs(binary_input, texts=TEXTS), outputs=outputs, request_id="7")
        made = expected.predict([("three", text) for text in TEXTS])
        labels = [each.decode() if isinstance(each, bytes) else each for each in answer.as_numpy("labels")]
        assert labels == [each.label for each in made]
        rows = [list(each.probabilities.values()) for each in made]
        np.testing.assert_allclose(answer.as_numpy("probabilities"), rows, atol=1e-5)
        classes = [each.decode() if isinstance(each, bytes) else each for each in answer.as_numpy("classes")[0]]
        assert classes == list(made[0].probabilities) == ["bad", "so-so", "gut ✓"]
        assert answer.get_response()["id"] == "7"

    def test_pairs_questions_and_numbers(self, client, expected):
        answer = client.infer("number", self.inputs(texts=["the cat"], second_texts=["is big"]))
        (made,) = expected.predict([("number", ("the cat", "is big"))])
        np.testing.assert_allclose(answer.as_numpy("values"), [made.number], atol=1e-5)
        question, context = "is the cat big ?", "they see it , and the cat is big ."
        answer = client.infer("squad", self.inputs(questions=[question], contexts=[context]))
        assert answer.as_numpy("answers")[0].decode() == expected.answer("squad", [(question, context)])[0].text

    def test_the_most_probable_classes(self, client, expected):
        import tritonclient.http as http

        wanted = [http.InferRequestedOutput("probabilities", class_count=2)]
        (row,) = client.infer("three", self.inputs(texts=TEXTS[:1]), outputs=wanted).as_numpy("probabilities")
        probabilities = expected.predict([("three", TEXTS[0])])[0].probabilities
        best = sorted(probabilities, key=lambda label: -probabilities[label])[:2]
        assert [each.decode().split(":")[2] for each in row] == best

    def test_unload_and_load(self, client):
        client.unload_model("two")
        assert not client.is_model_ready("two")
        client.load_model("two")
        assert client.is_model_ready("two")

    def test_errors(self, client):
        from tritonclient.utils import InferenceServerException

        with pytest.raises(InferenceServerException, match="Servable not found"):
            client.infer("nope", self.inputs(texts=["a"]))
        with pytest.raises(InferenceServerException, match="Unknown input"):
            client.infer("one", self.inputs(words=["a"]))


class TestInferenceV2:
    def test_shapes(self, server):
        for tensor in (bytes_tensor("texts", "a", "b"), bytes_tensor("texts", "a", "b", shape=[2, 1]),
                       bytes_tensor("texts", shape=[2, 1], data=[["a"], ["b"]])):  # fmt: skip
            reply = infer(server, "one", [tensor])
            assert reply.status == 200
            assert [each["shape"] for each in reply.json["outputs"]] == [[2], [2, 2], [2, 2]]

    @pytest.mark.parametrize(
        "change",
        [
            {"shape": [2]}, {"shape": [0]}, {"shape": [-1]}, {"shape": [1, 2]}, {"shape": []}, {"shape": None},
            {"shape": [True]}, {"shape": [10**30]}, {"datatype": "FP32"}, {"datatype": 3}, {"data": "a"}, {"data": [3]},
            {"data": [None]}, {"data": None}, {"name": "nope"}, {"name": None}, {"name": []}, {"parameters": 3},
            {"parameters": {"binary_data_size": 4}}, {"parameters": {"binary_data_size": -1}},
        ],
    )  # fmt: skip
    def test_wrong_tensors(self, server, change):
        assert infer(server, "one", [{**bytes_tensor("texts", "a"), **change}]).status in (400, 413)

    @pytest.mark.parametrize(
        "change",
        [
            {"inputs": 3}, {"inputs": []}, {"inputs": [3]}, {"outputs": 3}, {"outputs": [3]}, {"outputs": [{}]},
            {"outputs": [{"name": "nope"}]}, {"outputs": [{"name": "labels", "parameters": {"classification": 1}}]},
            {"outputs": [{"name": "probabilities", "parameters": {"classification": "x"}}]}, {"parameters": 3},
            {"parameters": {"timeout": -1}}, {"parameters": {"timeout": "x"}},
        ],
    )  # fmt: skip
    def test_wrong_requests(self, server, change):
        reply = server.request("/v2/models/one/infer", {"inputs": [bytes_tensor("texts", "a")], **change})
        assert reply.status == 400 and reply.json["error"]

    @pytest.mark.parametrize(
        "data", [b"", b"\x01", b"\x05\0\0\0a", b"\xff\xff\xff\xffa", b"\x01\0\0\0\xff", b"\0\0\0\0" * 2]
    )
    def test_wrong_binary_data(self, server, data):
        tensor = bytes_tensor("texts", "a", parameters={"binary_data_size": len(data)})
        del tensor["data"]
        head = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        assert server.request("/v2/models/one/infer", head + data, headers=headers).status == 400
        good = struct.pack("<I", 1) + b"a"
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(good)}}]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        assert server.request("/v2/models/one/infer", head + good, headers=headers).status == 200
        assert server.request("/v2/models/one/infer", head + good + b"x", headers=headers).status == 400

    @pytest.mark.parametrize("length", ["x", "-1", "99999", "9" * 50, "²"])
    def test_wrong_header_lengths(self, server, length):
        body = json.dumps({"inputs": [bytes_tensor("texts", "a")]}).encode()
        headers = {"Inference-Header-Content-Length": length.encode("latin-1")}
        assert server.request("/v2/models/one/infer", body, headers=headers).status == 400

    def test_a_deadline_of_the_request(self, server):
        reply = infer(server, "one", [bytes_tensor("texts", *["the cat is big"] * 200)], parameters={"timeout": 1})
        assert reply.status == 504


class TestTensorFlowServingMessages:
    """Needs the messages: pip install --no-deps tensorflow-serving-api."""

    @pytest.fixture(scope="class")
    def parse(self):
        json_format = pytest.importorskip("google.protobuf.json_format")
        pytest.importorskip("tensorflow_serving.apis", reason="Needs tensorflow-serving-api.")

        def parse(content, message):
            return json_format.ParseDict(content, message)  # unknown fields raise errors

        return parse

    def test_status(self, server, parse):
        from tensorflow_serving.apis import get_model_status_pb2

        found = parse(server.request("/v1/models/one").json, get_model_status_pb2.GetModelStatusResponse())
        (status,) = found.model_version_status
        assert status.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
        assert status.status.error_code == 0 and status.version > 0
        assert server.request(f"/v1/models/one/versions/{status.version}").status == 200

    @pytest.mark.parametrize("task", ["three", "number", "squad"])
    def test_metadata(self, server, parse, task):
        from tensorflow.core.framework import types_pb2
        from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2

        content = server.request(f"/v1/models/{task}/metadata").json
        spec = parse(content["model_spec"], model_pb2.ModelSpec())
        assert spec.name == task and spec.version.value > 0
        signatures = parse(content["metadata"]["signature_def"], get_model_metadata_pb2.SignatureDefMap())
        signature = signatures.signature_def["serving_default"]
        assert signature.method_name == "tensorflow/serving/predict"
        assert {each.dtype for each in signature.inputs.values()} == {types_pb2.DT_STRING}
        outputs = {name: [dim.size for dim in each.tensor_shape.dim] for name, each in signature.outputs.items()}
        assert (
            outputs
            == {
                "three": {"labels": [-1], "probabilities": [-1, 3], "classes": [-1, 3]},
                "number": {"values": [-1]},
                "squad": {"answers": [-1], "probabilities": [-1]},
            }[task]
        )

    def test_results_fit_into_the_messages(self, server, parse):
        from tensorflow_serving.apis import classification_pb2, regression_pb2

        body = {"examples": [{"texts": "the cat"}]}
        found = server.request("/v1/models/three:classify", body).json["results"]
        rows = [{"classes": [{"label": label, "score": score} for label, score in row]} for row in found]
        parse({"classifications": rows}, classification_pb2.ClassificationResult())
        found = server.request("/v1/models/number:regress", body).json["results"]
        parse({"regressions": [{"value": value} for value in found]}, regression_pb2.RegressionResult())
