"""The server answers like the predictor, within its limits, while the bank changes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import ssl
import subprocess
import threading
import time
import urllib.request

import numpy as np
import pytest

from adapter_bert.weights import packs
from tests.helpers import make_pack, write_file
from tests.serving.server.servers import Address, serving, wait_until, write_bank

pytest.importorskip("starlette", reason="Needs the extra `serve`.")
pytest.importorskip("uvicorn", reason="Needs the extra `serve`.")

TEXTS = ["the cat is big .", "they see dogs", "a", "she runs and he runs , and they run and see the small dogs !"]


@pytest.fixture(scope="module")
def changing(tiny_bert, tmp_path_factory):
    """A server whose bank a test may change."""
    made = write_bank(str(tmp_path_factory.mktemp("changing") / "bank"), tiny_bert, {"first": {"seed": 1}})
    with serving(made) as address:
        yield address


class Records(logging.Handler):
    """Collects the lines of the server's log."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        from adapter_bert.serving.server.run import JsonFormatter

        self.lines.append(JsonFormatter().format(record))


@pytest.fixture
def server_log():
    handler, logger = Records(), logging.getLogger("adapter_bert.server")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)


class TestPredictions:
    @pytest.mark.parametrize("task", ["one", "three"])
    def test_classes_equal_those_of_the_predictor(self, server, expected, task):
        found = server.predict(task, *TEXTS).json["predictions"]
        for row, prediction in zip(found, expected.predict([(task, text) for text in TEXTS])):
            assert row["labels"] == prediction.label
            np.testing.assert_allclose(row["probabilities"], list(prediction.probabilities.values()), atol=1e-5)
        assert len(found) == len(TEXTS)

    def test_columns_pairs_and_bytes(self, server, expected):
        columns = {"texts": ["the cat", "the dog"], "second_texts": ["is big", {"b64": "cnVucw=="}]}
        found = server.request("/v1/models/one:predict", {"inputs": columns, "signature_name": "serving_default"})
        made = expected.predict([("one", ("the cat", "is big")), ("one", ("the dog", "runs"))])
        assert found.json["outputs"]["labels"] == [each.label for each in made]
        rows = [list(each.probabilities.values()) for each in made]
        np.testing.assert_allclose(found.json["outputs"]["probabilities"], rows, atol=1e-5)

    def test_classify(self, server, expected):
        body = {"context": {"second_texts": "is big"}, "examples": [{"texts": "the cat"}, {"texts": ["a dog"]}]}
        found = server.request("/v1/models/three:classify", body).json["results"]
        made = expected.predict([("three", ("the cat", "is big")), ("three", ("a dog", "is big"))])
        assert [[label for label, _ in row] for row in found] == [["bad", "so-so", "gut ✓"]] * 2
        rows = [list(each.probabilities.values()) for each in made]
        np.testing.assert_allclose([[score for _, score in row] for row in found], rows, atol=1e-5)

    def test_regress(self, server, expected):
        (number,) = expected.predict([("number", "the cat")])
        found = server.request("/v1/models/number:regress", {"examples": [{"texts": "the cat"}]}).json
        np.testing.assert_allclose(found["results"], [number.number], atol=1e-5)
        np.testing.assert_allclose(server.predict("number", "the cat").json["predictions"], [number.number], atol=1e-5)

    def test_questions(self, server, expected):
        question, context = "is the cat big ?", "they see it , and the cat is big , and the dog is small . " * 3
        (answer,) = expected.answer("squad", [(question, context)])
        body = {"instances": [{"questions": question, "contexts": context}]}
        (found,) = server.request("/v1/models/squad:predict", body).json["predictions"]
        assert found["answers"] == answer.text
        assert found["probabilities"] == pytest.approx(answer.candidates[0].probability, abs=1e-5)

    def test_requests_of_all_tasks_at_once(self, server, expected):
        names = ["one", "two", "three"]
        made = {name: expected.predict([(name, text) for text in TEXTS]) for name in names}
        wrong = []

        def send(number):
            name, index = names[number % 3], number % len(TEXTS)
            (found,) = server.predict(name, TEXTS[index]).json["predictions"]
            values = list(made[name][index].probabilities.values())
            if not np.allclose(found["probabilities"], values, atol=1e-5):
                wrong.append((name, found))

        threads = [threading.Thread(target=lambda n=n: [send(i) for i in range(n, n + 12)]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestErrors:
    @pytest.mark.parametrize(
        "path", ["nope:predict", "one/versions/7:predict", "..%2f..%2fbank.json:predict", "%00:predict"]
    )
    def test_unknown_tasks_and_versions(self, server, path):
        reply = server.request(f"/v1/models/{path}", {"instances": ["a"]})
        assert reply.status == 404 and reply.json["error"]

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"{", b"[]", b"3", b'"a"', b"\xff", b'{"instances": []}', b'{"instances": "a"}', b'{"instances": [3]}',
            b'{"instances": [null]}', b'{"instances": [{"nope": "a"}]}', b'{"instances": [{"second_texts": "a"}]}',
            b'{"inputs": {"texts": ["a"], "second_texts": ["b", "c"]}}', b'{"instances": ["a"], "inputs": ["a"]}',
            b"{}",
            b'{"instances": ["\\ud800"]}', b'{"instances": ["a"], "signature_name": "x"}', b"[" * 100_000,
            b'{"instances": ["a"], "more": 1}', b'{"instances": [{"b64": "?"}]}', b'{"inputs": [["a"]]}',
            b'{"inputs": {}}', b'{"inputs": []}', b'{"inputs": {"texts": []}}', b'{"inputs": null}',
            b'{"instances": [NaN]}', b'{"instances": [' + b"9" * 5000 + b"]}",
        ],
    )  # fmt: skip
    def test_wrong_bodies_get_400(self, server, body):
        reply = server.request("/v1/models/one:predict", body)
        assert reply.status == 400 and reply.json["error"], reply

    @pytest.mark.parametrize("path", ["one:regress", "squad:classify", "number:classify"])
    def test_methods_that_a_task_does_not_have(self, server, path):
        reply = server.request(f"/v1/models/{path}", {"examples": [{"texts": "a"}]})
        assert reply.status == 400 and reply.json["error"]

    def test_methods_and_paths_that_do_not_exist(self, server):
        assert server.request("/v1/models/one", {}).status == 405
        assert server.request("/v1/models").status == server.request("/nope").status == 404
        assert server.request("/nope").json["error"]


class TestLimits:
    @pytest.fixture(scope="class")
    def small(self, bank):
        with serving(bank, max_texts=4, max_tokens=20, max_queue=4, max_body_kb=2, timeout=1.0) as address:
            yield address

    def test_texts_tokens_and_bytes(self, small):
        assert small.predict("one", *["a"] * 4).status == 200
        assert small.predict("one", *["a"] * 5).status == 413
        assert small.predict("one", *["the cat is big and small"] * 3).status == 413
        assert small.predict("one", "x" * 3000).status == 413

    def test_a_long_paragraph_has_too_many_tokens(self, small):
        body = {"instances": [{"questions": "a", "contexts": "the cat is big . " * 60}]}
        assert small.request("/v1/models/squad:predict", body).status == 413

    def test_a_huge_body_is_refused_before_it_is_sent(self, small):
        connection = small.connect()
        connection.putrequest("POST", "/v1/models/one:predict")
        connection.putheader("Content-Length", str(10**9))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()

    def test_texts_that_take_long_to_normalize(self, server):
        assert server.predict("one", "e\u0301\u0323 o\u0308" * 200).status == 200
        for marks in (65, 90_000):
            assert server.predict("one", "a" + "\u0301\u0323" * (marks // 2) + "\u0301").status == 400

    def test_bodies_count_until_they_are_answered(self, small):
        for body in (b'{"instances": ["a"]}', b"x" * 2000, b"x" * 4000):
            small.request("/v1/models/one:predict", body)
        assert b"adapter_bert_body_bytes 0.0" in small.request("/metrics").body

    def test_compressed_bodies_are_refused(self, small):
        reply = small.request("/v1/models/one:predict", b"x", headers={"Content-Encoding": "gzip"})
        assert reply.status == 415

    def test_a_body_that_does_not_arrive(self, small):
        connection = small.connect()
        connection.putrequest("POST", "/v1/models/one:predict")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"instances"')
        assert connection.getresponse().status == 408
        connection.close()


class TestOverload:
    def test_a_full_queue_and_a_deadline(self, bank, monkeypatch):
        from adapter_bert.serving.task_predictor import TaskPredictor

        gate, batches = threading.Event(), []
        compute = TaskPredictor.compute_batch

        def wait_and_compute(self, rows):
            batches.append(rows)
            gate.wait(60)
            return compute(self, rows)

        monkeypatch.setattr(TaskPredictor, "compute_batch", wait_and_compute)
        with serving(bank, max_texts=2, max_queue=2, timeout=6.0) as address:
            replies, senders = [], []

            def is_full():
                return b"adapter_bert_queue_rows 2.0" in address.request("/metrics").body

            # One request for each thread that computes, which may be one or two, then one that stays in the queue.
            while len(batches) == len(senders):
                senders.append(threading.Thread(target=lambda: replies.append(address.predict("one", "a", "a"))))
                senders[-1].start()
                wait_until(lambda: len(batches) == len(senders) or (is_full() and not time.sleep(0.3) and is_full()))
            refused = address.predict("one", "a")
            assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
            for sender in senders:
                sender.join()
            assert [reply.status for reply in replies] == [504] * len(senders)
            assert b"adapter_bert_queue_rows 0.0" in address.request("/metrics").body
            gate.set()
            assert address.predict("one", "a").status == 200

    def test_requests_in_progress_are_answered_when_the_server_ends(self, bank, monkeypatch):
        from adapter_bert.serving.task_predictor import TaskPredictor

        computing, compute = threading.Event(), TaskPredictor.compute_batch

        def compute_slowly(self, rows):
            computing.set()
            threading.Event().wait(0.5)
            return compute(self, rows)

        monkeypatch.setattr(TaskPredictor, "compute_batch", compute_slowly)
        replies = []
        with serving(bank) as address:
            sender = threading.Thread(target=lambda: replies.append(address.predict("one", "a")))
            sender.start()
            assert computing.wait(60)
        sender.join()
        assert [reply.status for reply in replies] == [200]


class TestTheBank:
    def test_packs_are_added_replaced_and_removed(self, changing: Address):
        bank = changing.bank
        bank.add(make_pack(bank.base, seed=2), "second")
        wait_until(lambda: changing.predict("second", "the cat").status == 200)
        old = changing.request("/v1/models/second").json["model_version_status"][0]["version"]
        before = changing.predict("second", "the cat").json
        assert changing.request(f"/v1/models/second/versions/{old}:predict", {"instances": ["the cat"]}).json == before
        bank.add(make_pack(bank.base, seed=3), "second", replace=True)
        wait_until(lambda: changing.request(f"/v1/models/second/versions/{old}").status == 404)
        assert changing.predict("second", "the cat").json != before
        assert 'task="second"' in changing.request("/metrics").body.decode()
        bank.remove("second")
        wait_until(lambda: changing.predict("second", "the cat").status == 404)
        wait_until(lambda: 'task="second"' not in changing.request("/metrics").body.decode())

    def test_versions_depend_on_the_content_only(self, changing: Address, tmp_path):
        bank = changing.bank
        states = {}
        for name in ("copy", "other"):
            bank.add(make_pack(bank.base, seed=1 + (name == "other")), name)
            wait_until(lambda name=name: changing.request(f"/v1/models/{name}").status == 200)
        for name in ("first", "copy", "other"):
            states[name] = changing.request(f"/v1/models/{name}").json["model_version_status"][0]["version"]
        assert states["first"] == states["copy"] != states["other"]

    def test_a_damaged_pack_is_reported_and_the_old_version_stays(self, changing: Address, server_log):
        bank = changing.bank
        bank.add(make_pack(bank.base, seed=5), "damaged")
        wait_until(lambda: changing.request("/v1/models/damaged").status == 200)
        path, before = bank.path("damaged"), changing.predict("damaged", "the cat").json
        shutil.copy(path, path + ".old")
        with open(path, "r+b") as file:
            file.seek(-5, os.SEEK_END)
            file.write(b"x")
        wait_until(lambda: any("damaged" in line and '"error"' in line for line in server_log))
        assert changing.predict("damaged", "the cat").json == before
        states = {each["name"]: each for each in changing.request("/v2/repository/index", {}).json}
        assert states["damaged"]["state"] == "READY" and states["damaged"]["reason"]
        assert bank.folder not in json.dumps(states)
        assert b"adapter_bert_bank_problems 1.0" in changing.request("/metrics").body
        packs.write(path, make_pack(bank.base, seed=6))
        wait_until(lambda: changing.predict("damaged", "the cat").json != before)
        assert b"adapter_bert_bank_problems 0.0" in changing.request("/metrics").body

    def test_a_bank_that_cannot_be_read_is_an_outage(self, changing: Address, server_log):
        bank = changing.bank
        os.rename(os.path.join(bank.folder, "packs"), os.path.join(bank.folder, "moved"))
        wait_until(lambda: any("stay as they are" in line for line in server_log))
        assert changing.predict("first", "the cat").status == 200
        os.rename(os.path.join(bank.folder, "moved"), os.path.join(bank.folder, "packs"))
        assert changing.predict("first", "the cat").status == 200

    def test_unload_and_load(self, changing: Address):
        bank = changing.bank
        bank.add(make_pack(bank.base, seed=8), "managed")
        wait_until(lambda: changing.request("/v1/models/managed").status == 200)
        assert changing.request("/v2/repository/models/managed/unload", {}).status == 200
        assert changing.predict("managed", "a").status == 404
        assert changing.request("/v2/models/managed/ready").status == 404
        bank.add(make_pack(bank.base, seed=9), "marker")  # the folder has been looked at since
        wait_until(lambda: changing.request("/v1/models/marker").status == 200)
        assert changing.predict("managed", "a").status == 404
        assert changing.request("/v2/repository/models/managed/load", {}).status == 200
        assert changing.predict("managed", "a").status == 200

    @pytest.mark.parametrize("name", ["nope", "..", "%2e%2e%2fbank", "a%2f..%2ffirst", "%00"])
    def test_only_names_of_packs_are_loaded(self, changing: Address, name):
        for action in ("load", "unload"):
            assert changing.request(f"/v2/repository/models/{name}/{action}", {}).status == 404


class TestTenants:
    @pytest.fixture(scope="class")
    def file(self, tmp_path_factory):
        return tmp_path_factory.mktemp("tenants")

    @pytest.fixture(scope="class")
    def keyed(self, bank, file):
        path = write_file(file, "tenants.toml", self.content())
        with serving(bank, tenants=path) as address:
            yield address

    def content(self, **extra):
        from adapter_bert.serving.server.tenants import hash_key

        tenants = {
            "a": "use = ['one', 'number']\nmanage = ['number']",
            "b": "use = ['*']\nmetrics = true",
            **extra,
        }
        return "\n".join(
            f"[tenants.{name}]\nkeys = ['sha256:{hash_key('key ' + name).hex()}']\n{rest}"
            for name, rest in tenants.items()
        )

    def test_without_a_valid_key_nothing_is_served(self, keyed):
        for key in (None, "wrong", "key"):
            for path, body in (
                ("/v1/models/one:predict", {"instances": ["a"]}), ("/v1/models/one", None), ("/metrics", None),
                ("/v1/models/nope", None), ("/v2/models/one", None), ("/v2/repository/index", {}),
                ("/v2/repository/models/one/unload", {}),
            ):  # fmt: skip
                reply = keyed.request(path, body, key)
                assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer", path
        assert keyed.request("/v2/health/ready").status == keyed.request("/").status == 200

    def test_forbidden_and_unknown_tasks_look_the_same(self, keyed):
        paths = ["/v1/models/{}:predict", "/v1/models/{}", "/v1/models/{}/metadata", "/v2/models/{}/infer",
                 "/v2/models/{}", "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"]  # fmt: skip
        for path in paths:
            body = (
                {"instances": ["a"]} if ":predict" in path else {} if "infer" in path or "repository" in path else None
            )
            replies = [keyed.request(path.format(name), body, "key a") for name in ("two", "nix")]
            shown = [(each.status, each.body.replace(b"two", b"nix")) for each in replies]
            assert shown[0] == shown[1] and replies[0].status == 404, path

    def test_rights(self, keyed):
        assert keyed.predict("one", "a", key="key a").status == 200
        assert keyed.predict("two", "a", key="key b").status == 200
        listed = keyed.request("/v2/repository/index", {}, "key a").json
        assert [each["name"] for each in listed] == ["number", "one"]
        assert keyed.request("/v2/repository/models/one/unload", {}, "key a").status == 403
        assert keyed.request("/v2/repository/models/number/unload", {}, "key a").status == 200
        assert keyed.request("/v2/repository/models/number/load", {}, "key a").status == 200
        assert keyed.request("/metrics", key="key a").status == 403
        assert b'tenant="a"' in keyed.request("/metrics", key="key b").body

    def test_the_file_is_read_again(self, keyed, file):
        write_file(file, "tenants.toml", self.content(c="use = ['two']"))
        wait_until(lambda: keyed.predict("two", "a", key="key c").status == 200)
        write_file(file, "tenants.toml", "broken [")
        assert keyed.predict("two", "a", key="key c").status == 200
        write_file(file, "tenants.toml", self.content())
        wait_until(lambda: keyed.predict("two", "a", key="key c").status == 401)
        assert keyed.predict("one", "a", key="key a").status == 200


@pytest.mark.skipif(not shutil.which("openssl"), reason="Needs the program openssl.")
def test_https(bank, tmp_path):
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True)
    with serving(bank, tls_cert=cert, tls_key=key) as address:
        trusted = ssl.create_default_context(cafile=cert)
        with urllib.request.urlopen(f"https://127.0.0.1:{address.port}/v1/models/one", context=trusted) as answer:
            assert answer.status == 200
        with pytest.raises(OSError):
            address.request("/v1/models/one")


class TestLogsAndHeaders:
    def test_the_log_has_facts_but_no_texts(self, server, server_log):
        secret = "cat dog secret12345"
        assert server.predict("one", secret).status == 200
        assert server.predict("one", secret, secret * 9999).status == 413
        assert server.request("/v1/models/one:predict", b'{"instances": [{"secret12345": 1}]}').status == 400
        wait_until(lambda: len(server_log) >= 3)
        lines = [json.loads(line) for line in server_log]
        assert {line["status"] for line in lines} >= {200, 413, 400}
        (good,) = [line for line in lines if line["status"] == 200 and line.get("task") == "one"]
        assert good["texts"] == 1 and good["tokens"] == 5 and good["tenant"] == "anyone" and good["ms"] > 0
        assert not any("secret12345" in line for line in server_log)

    def test_metrics(self, server):
        assert server.predict("two", "a", "b").status == 200
        text = server.request("/metrics").body.decode()
        assert 'adapter_bert_texts_total{task="two",tenant="anyone"}' in text
        assert "adapter_bert_tasks 5.0" in text and "adapter_bert_batch_rows_bucket" in text
        server.request("/v1/models/some-random-name")
        assert "some-random-name" not in server.request("/metrics").body.decode()

    def test_security_headers(self, server):
        for path in ("/", "/v1/models/one", "/nope"):
            headers = server.request(path).headers
            assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
            assert "server" not in headers and "access-control-allow-origin" not in headers
        policy = server.request("/").headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
