"""Clients that are slow, greedy or hostile do not keep the server from serving others."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading

import pytest

pytest.importorskip("starlette", reason="Needs the extra `serve`.")
pytest.importorskip("uvicorn", reason="Needs the extra `serve`.")
pytestmark = pytest.mark.long

from tests.serving.server.servers import serving, wait_until

HEADERS = b"POST /v1/models/one:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def strict(bank):
    with serving(bank, timeout=2.0, max_body_kb=64) as address:
        yield address


@contextlib.contextmanager
def connections(server, count=1):
    """Open connections."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", server.port), 60)))
            for _ in range(count)
        ]


def open_connections(server) -> int:
    lines = server.request("/metrics").body.decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("adapter_bert_connections ")).split()[1])) - 1


def assert_others_are_served(server) -> None:
    assert server.predict("one", "the cat").status == 200


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", HEADERS % 50, HEADERS % 50 + b'{"instances"'],
    ids=["nothing", "headers", "no body", "body"],
)
def test_half_a_request_is_given_up(strict, sent):
    with connections(strict, 20) as opened:
        for each in opened:
            each.sendall(sent)
        assert_others_are_served(strict)
        for each in opened:
            answer = each.recv(1000)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
    wait_until(lambda: open_connections(strict) == 0)


def test_a_client_that_sends_byte_by_byte(strict):
    with connections(strict) as (slow,):
        slow.sendall(HEADERS % 1000)
        with contextlib.suppress(OSError):
            for _ in range(60):
                slow.sendall(b" ")
                assert_others_are_served(strict)
        slow.settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def test_headers_byte_by_byte(strict):
    with connections(strict) as (slow,), pytest.raises(OSError):
        for _ in range(3000):
            slow.sendall(b"X")
            threading.Event().wait(0.01)


def test_endless_headers_and_endless_bodies(strict):
    start = b"GET / HTTP/1.1\r\n"
    chunked = b"%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    post = chunked % b"POST /v1/models/one:predict"
    for first, more in (
        (start, b"X-Header: " + b"x" * 1000 + b"\r\n"),
        (start + b"X-Header: ", b"x" * 1000),
        (post, b"3e8\r\n" + b" " * 1000 + b"\r\n"),
        (post, b"1\r\n \r\n" * 200),
        (chunked % b"GET /" + b"0\r\n", b"X-Trailer: " + b"x" * 1000 + b"\r\n"),
        (post + b"0\r\nX-Trailer: ", b"x" * 1000),
    ):
        with connections(strict) as (greedy,), contextlib.suppress(ConnectionError):
            greedy.sendall(first)
            for _ in range(10_000):
                greedy.sendall(more)
            pytest.fail("The server has read ten megabytes.")
        assert_others_are_served(strict)


def test_bodies_of_a_gigabyte(strict):
    with connections(strict, 20) as opened:
        for each in opened:
            each.sendall(HEADERS % 10**9 + b" " * 10_000)
        assert_others_are_served(strict)
        for each in opened:
            with contextlib.suppress(ConnectionError):
                assert each.recv(1000).startswith(b"HTTP/1.1 413")


def test_many_bodies_at_the_same_time_are_limited(strict):
    with connections(strict, 80) as opened:  # 64 KB each; the limit is 64 of these
        for each in opened:
            with contextlib.suppress(ConnectionError):
                each.sendall(HEADERS % 65_000 + b" " * 64_000)
        answers = []
        for each in opened:
            with contextlib.suppress(ConnectionError):
                answers.append(each.recv(1000)[:12])
        assert b"HTTP/1.1 503" in answers
    assert_others_are_served(strict)


def test_clients_that_do_not_read(strict):
    with connections(strict, 3) as opened:
        for each in opened:
            each.setblocking(False)
            with contextlib.suppress(OSError):  # until all buffers are full
                for _ in range(5000):
                    each.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        assert_others_are_served(strict)
        wait_until(lambda: open_connections(strict) == 0)


def test_a_thousand_open_connections(bank):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2600:
        pytest.skip(f"Needs 2,600 open files; the limit is {hard}.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2600), hard))
    with serving(bank, timeout=60.0) as server, connections(server, 1000) as opened:
        wait_until(lambda: open_connections(server) >= 1000)
        assert_others_are_served(server)
        for each in opened[::10]:
            each.sendall(b"GET /v1/models/one HTTP/1.1\r\nHost: x\r\n\r\n")
        assert all(each.recv(100).startswith(b"HTTP/1.1 200") for each in opened[::10])


def test_connections_beyond_the_maximum_are_closed(bank):
    with serving(bank, max_connections=10) as server:
        with connections(server, 30) as opened:
            for each in opened[15:]:
                with contextlib.suppress(ConnectionError):
                    assert each.recv(10) == b""
        wait_until(lambda: open_connections(server) == 0)
        assert_others_are_served(server)


def test_clients_that_do_not_wait_for_their_answers(strict):
    body = b'{"instances": ["the cat is big"]}'
    for _ in range(50):
        with connections(strict) as (impatient,):
            impatient.sendall(HEADERS % len(body) + body)
    assert_others_are_served(strict)
    wait_until(lambda: b"adapter_bert_queue_rows 0.0" in strict.request("/metrics").body)


def test_pipelined_requests_are_answered_in_order(strict):
    with connections(strict) as (client,):
        names = ["one", "two", "number"] * 5
        client.sendall(b"".join(b"GET /v1/models/%s/metadata HTTP/1.1\r\nHost: x\r\n\r\n" % n.encode() for n in names))
        found = b""
        while found.count(b'"model_spec"') < len(names):
            found += client.recv(65536)
    order = [part[:20].partition(b'"')[0].decode() for part in found.split(b'"model_spec":{"name":"')[1:]]
    assert order == names
