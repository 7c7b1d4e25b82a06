"""scripts/serve.py as a process: its errors, its end, and its restart after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from scripts import serve
from tests.helpers import ROOT, assert_mentions, write_file
from tests.serving.server.servers import Address, wait_until

pytest.importorskip("starlette", reason="Needs the extra `serve`.")
pytest.importorskip("uvicorn", reason="Needs the extra `serve`.")


def start(bank, *flags):
    """Start the script; return the process, its address and the lines of its log."""
    command = [
        sys.executable,
        os.path.join(ROOT, "scripts", "serve.py"),
        "--bank=" + bank.folder,
        "--threads=1",
        *flags,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=ROOT), text=True)
    lines = []

    def read():
        for line in process.stderr:
            lines.append(json.loads(line))

    threading.Thread(target=read, daemon=True).start()
    wait_until(lambda: process.poll() is not None or any("address" in line for line in lines), 120)
    assert process.poll() is None, lines
    address = next(line["address"] for line in lines if "address" in line)
    return process, Address(int(address.rpartition(":")[2])), lines


def error_of(*words) -> str:
    with pytest.raises(SystemExit) as caught:
        serve.main(list(words))
    message = str(caught.value)
    assert "error: " in message and "\n" not in message
    return message


@pytest.mark.parametrize(
    "flags, facts",
    [
        (["--port=99999"], ["--port", "99999"]),
        (["--threads=-1"], ["--threads", "-1"]),
        (["--timeout=0"], ["--timeout", "0.0"]),
        (["--timeout=nan"], ["--timeout", "nan"]),
        (["--tls_cert=x.pem"], ["--tls_cert", "--tls_key"]),
        (["--tls_cert=x.pem", "--tls_key=x.pem"], ["--tls_cert=x.pem", "no such file"]),
        (["--max_texts=5", "--max_queue=4"], ["--max_texts=5", "--max_queue=4"]),
        (["--tenants=nowhere.toml"], ["nowhere.toml"]),
        (["--precision=float8"], ["float8"]),
    ],
)
def test_wrong_flags_are_reported(bank, flags, facts):
    assert_mentions(error_of("--bank=" + bank.folder, *flags), *facts)


def test_a_missing_bank_and_missing_packages_are_reported(bank, monkeypatch, tmp_path):
    assert_mentions(error_of(f"--bank={tmp_path}/none"), "none", "bank.py create")
    monkeypatch.setattr(serve, "_NEEDED", ("starlette", "not_installed"))
    assert_mentions(error_of("--bank=" + bank.folder), "not_installed", "pip install -e .[serve]")


def test_a_key_is_created(capsys, tmp_path):
    from adapter_bert.serving.server.tenants import Tenants

    serve.main(["--create_key"])
    key, entry = (line.rpartition("  ")[2] for line in capsys.readouterr().out.splitlines())
    path = write_file(tmp_path, "t.toml", f"[tenants.a]\nkeys = [{entry}]\nuse = ['*']")
    assert Tenants.read(path).find(f"Bearer {key}").name == "a"


def test_a_taken_port_is_reported(server, bank):
    assert_mentions(error_of("--bank=" + bank.folder, f"--port={server.port}"), str(server.port))


@pytest.mark.long
def test_sigterm_ends_the_process_after_the_last_answer(bank):
    process, server, lines = start(bank, "--port=0", "--max_texts=1000", "--max_tokens=100000", "--batch_delay_ms=500")
    replies = []
    senders = [
        threading.Thread(target=lambda: replies.append(server.predict("one", *["the cat is big"] * 8)))
        for _ in range(8)
    ]
    idle = server.connect()
    idle.request("GET", "/v2/health/ready")
    assert idle.getresponse().read()
    for sender in senders:
        sender.start()
    wait_until(lambda: b"adapter_bert_queue_rows 64.0" in server.request("/metrics").body or replies)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    for sender in senders:
        sender.join()
    assert [reply.status for reply in replies] == [200] * 8
    with pytest.raises(OSError):
        server.predict("one", "a")
    assert lines[-1]["message"] == "The server has ended."


@pytest.mark.long
def test_a_killed_server_serves_again_after_a_restart(bank):
    process, server, _ = start(bank, "--port=0")
    before = server.predict("one", "the cat").json
    process.kill()
    process.wait(60)
    process, server, _ = start(bank, f"--port={server.port}")  # the same port
    assert server.predict("one", "the cat").json == before
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
