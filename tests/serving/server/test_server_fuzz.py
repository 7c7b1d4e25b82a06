"""Whatever is sent, the server never answers 500, and answers in JSON."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import urllib.parse

import pytest

pytest.importorskip("starlette", reason="Needs the extra `serve`.")
pytest.importorskip("uvicorn", reason="Needs the extra `serve`.")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st

# Requests of each test; more: ADAPTER_BERT_FUZZ=20000 pytest -k server_fuzz
COUNT = int(os.environ.get("ADAPTER_BERT_FUZZ", 60))
SETTINGS = hypothesis.settings(
    max_examples=COUNT,
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)

texts = st.one_of(st.sampled_from(["", "the cat is big .", "a" * 300, "\ud800", "\x00", "✓ 猫"]), st.text(max_size=30))
names = st.sampled_from(
    [
        "texts",
        "second_texts",
        "questions",
        "contexts",
        "labels",
        "probabilities",
        "b64",
        "name",
        "data",
        "shape",
        "datatype",
        "x",
    ]
)
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), texts, st.sampled_from(["BYTES", "serving_default"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(names, values),
        "shape": st.one_of(st.lists(st.integers(-1, 3), max_size=3), values),
        "datatype": st.one_of(st.sampled_from(["BYTES", "FP32"]), values),
        "data": st.one_of(st.lists(texts, max_size=3), values),
        "parameters": st.one_of(
            st.dictionaries(
                st.sampled_from(["binary_data_size", "binary_data", "classification"]),
                st.one_of(st.integers(-2, 40), st.booleans(), values),
                max_size=3,
            ),
            values,
        ),
    },
)
examples = st.one_of(texts, st.dictionaries(names, st.one_of(texts, values), max_size=3), values)
bodies = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "instances": st.one_of(st.lists(examples, max_size=4), values),
            "signature_name": st.one_of(st.just("serving_default"), values),
        },
    ),
    st.fixed_dictionaries({"inputs": st.one_of(st.dictionaries(names, st.lists(texts, max_size=3)), values)}),
    st.fixed_dictionaries(
        {"examples": st.one_of(st.lists(st.dictionaries(names, texts, max_size=2), max_size=3), values)},
        optional={"context": values},
    ),
    st.fixed_dictionaries(
        {"inputs": st.one_of(st.lists(tensors, max_size=3), values)},
        optional={
            "outputs": st.one_of(st.lists(tensors, max_size=3), values),
            "id": values,
            "parameters": st.one_of(
                st.dictionaries(st.sampled_from(["timeout", "binary_data_output"]), values), values
            ),
        },
    ),
    values,
)
tasks = st.one_of(st.sampled_from(["one", "three", "number", "squad", "nope", "..", ""]), st.text(max_size=5))
paths = st.builds(
    lambda start, task, version, end: start + urllib.parse.quote(task, "", errors="surrogatepass") + version + end,
    st.sampled_from(["/v1/models/", "/v2/models/", "/v2/repository/models/"]),
    tasks,
    st.sampled_from(["", "", "/versions/1", "/versions/x", "/labels/x"]),
    st.sampled_from([":predict", ":classify", ":regress", "/infer", "/load", "", "/metadata", "/ready", ":", "/"]),
)


def check(reply) -> None:
    assert reply.status < 500 or reply.status == 504, reply  # 504: a request may ask for a short deadline
    if reply.body and "json" in reply.headers.get("content-type", ""):
        content = reply.json
        assert reply.status == 200 or content["error"]


def test_json(server):
    @SETTINGS
    @hypothesis.given(paths, bodies)
    def run(path, body):
        check(server.request(path, json.dumps(body).encode()))

    run()


def test_valid_requests_with_any_text(server):
    @SETTINGS
    @hypothesis.given(
        st.sampled_from(["one", "three", "number", "squad"]), st.text(max_size=200), st.text(max_size=200)
    )
    def run(task, first, second):
        inputs = ("questions", "contexts") if task == "squad" else ("texts", "second_texts")
        reply = server.request(f"/v1/models/{task}:predict", {"inputs": dict(zip(inputs, ([first], [second])))})
        assert reply.status in (200, 413), (reply, first, second)

    run()


def test_bytes_and_headers(server):
    lengths = st.one_of(st.integers(-5, 200).map(str), st.text("0123456789 -x", max_size=12))

    @SETTINGS
    @hypothesis.given(
        paths, st.binary(max_size=200), lengths, st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS"])
    )
    def run(path, body, length, method):
        headers = {"Inference-Header-Content-Length": length, "Authorization": f"Bearer {length}"}
        check(server.request(path, body, method=method, headers=headers))

    run()


def test_requests_that_are_not_http(server):
    pieces = st.sampled_from(
        [b"GET ", b"POST ", b"/", b"/v1/models/one:predict", b" HTTP/1.1\r\n", b" HTTP/9\r\n", b"\r\n", b"Host: x\r\n",
         b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\n", b"\x00",
         b"{}", b"Content-Length: 99999999999999999999\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n",
         b"Connection: upgrade\r\n", b"A" * 40_000]
    )  # fmt: skip

    @SETTINGS
    @hypothesis.given(st.lists(pieces, max_size=8))
    def run(parts):
        connection = socket.create_connection(("127.0.0.1", server.port), 30)
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            connection.sendall(b"".join(parts))
            with contextlib.suppress(OSError):  # the server may have closed the connection
                connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(100)
            assert not answer.startswith(b"HTTP/1.1 500"), parts

    run()
    assert server.predict("one", "the cat").status == 200
