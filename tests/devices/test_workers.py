"""Messages between workers: values of all, in order, and what happens when one ends."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from typing import Callable, List

import pytest

from adapter_bert.common import errors
from adapter_bert.devices import launcher, workers
from adapter_bert.devices.cluster import Cluster
from adapter_bert.devices.workers import Workers
from tests.helpers import assert_mentions, message_of
from tests.kill import Program


@pytest.fixture
def addresses() -> tuple:
    return tuple(f"localhost:{port}" for port in launcher.free_ports(3))


def run_all(addresses: tuple, function: Callable[[Workers], object]) -> List[object]:
    """Return what a function returns, or the error that it raises, for each worker in a thread of its own."""
    found: List[object] = [None] * len(addresses)

    def work(rank: int) -> None:
        try:
            with Workers(Cluster(addresses, rank), start_seconds=20.0) as own:
                found[rank] = function(own)
        except errors.UserError as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(addresses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.parametrize(
    "host", ["localhost", pytest.param("[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="needs IPv6"))]
)
def test_every_worker_gets_the_values_of_all_in_order(addresses, host):
    addresses = tuple(address.replace("localhost", host) for address in addresses)

    def work(own: Workers) -> list:
        return [own.exchange({"rank": own.rank, "round": round_}) for round_ in range(3)]

    expected = [[{"rank": rank, "round": round_} for rank in range(3)] for round_ in range(3)]
    assert run_all(addresses, work) == [expected] * 3


def test_one_worker_needs_no_connection():
    with Workers() as own:
        assert own.is_first and own.exchange(5) == [5]
        with own.first_alone():
            pass


def test_the_first_worker_goes_first(addresses):
    order: List[int] = []

    def work(own: Workers) -> None:
        with own.first_alone():
            time.sleep(0.2 if own.is_first else 0.0)
            order.append(own.rank)

    run_all(addresses, work)
    assert order[0] == 0 and sorted(order) == [0, 1, 2]


@pytest.mark.parametrize("failing", [0, 2])
def test_all_workers_learn_why_one_has_failed(addresses, failing):
    def work(own: Workers) -> None:
        own.exchange()
        if own.rank == failing:
            raise errors.UserError("The disk is full.")
        own.exchange()

    found = run_all(addresses, work)
    assert str(found[failing]) == "The disk is full."
    for rank in {0, 1, 2} - {failing}:
        assert_mentions(
            str(found[rank]), f"orker {failing} ({addresses[failing]})", "The disk is full", f"worker {rank}"
        )


def test_a_worker_that_has_finished_may_end_before_the_others(addresses):
    def work(own: Workers) -> str:
        own.exchange()
        own.leave()
        time.sleep(0.3 * own.rank)
        return "done"

    assert run_all(addresses, work) == ["done"] * 3


def test_other_programs_that_connect_are_ignored(addresses):
    def work(own: Workers) -> list:
        return own.exchange(own.rank)

    def knock() -> None:
        for _ in range(50):
            try:
                with socket.create_connection(Cluster(addresses).endpoint(0), timeout=1) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return
            except OSError:
                time.sleep(0.02)

    stranger = threading.Thread(target=knock)
    stranger.start()
    assert run_all(addresses, work) == [[0, 1, 2]] * 3
    stranger.join()


def test_a_missing_worker_is_named(addresses):
    def start() -> None:
        with Workers(Cluster(addresses, 0), start_seconds=0.1):
            pass

    assert_mentions(message_of(start), f"worker 1 ({addresses[1]})", f"worker 2 ({addresses[2]})")


def test_another_number_of_workers_is_an_error(addresses):
    found = []

    def start(cluster: Cluster) -> None:
        try:
            with Workers(cluster, start_seconds=5.0) as own:
                own.exchange()
        except errors.UserError as error:
            found.append(str(error))

    other = threading.Thread(target=start, args=(Cluster(addresses[:2], 1),))
    other.start()
    start(Cluster(addresses, 0))
    other.join(20)
    assert any("worker 1 of 2" in message and "of 3" in message for message in found)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_in_use_is_an_error(addresses, rank):
    own = Cluster(addresses, rank)
    with socket.socket() as other:
        other.bind(("", own.port))
        other.listen(1)
        assert_mentions(
            message_of(Workers(own).__enter__), f"port {own.port}", own.name(rank), "Address already in use"
        )


WAIT = """
import sys, time
from adapter_bert.devices import workers
from adapter_bert.devices.cluster import Cluster
workers.GRACE_SECONDS = 0.5
with workers.Workers(Cluster(tuple(sys.argv[2:]), int(sys.argv[1]))) as own:
    own.exchange()
    print("connected", flush=True)
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("victim", [0, 2])
def test_a_process_that_is_busy_ends_when_another_one_is_killed(addresses, victim):
    programs = [Program.of_code(WAIT, str(rank), *addresses) for rank in range(3)]
    try:
        for program in programs:
            program.wait_for_line("connected")
        programs[victim].kill()
        for rank in {0, 1, 2} - {victim}:
            output, _ = programs[rank].process.communicate(timeout=60)
            assert programs[rank].process.returncode == 1
            assert_mentions(output, f"Worker {victim} ({addresses[victim]})", f"worker {rank}", "continues")
    finally:
        for program in programs:
            program.process.kill()


def test_a_step_that_takes_too_long_ends_the_process(addresses, monkeypatch):
    monkeypatch.setattr(workers, "_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(workers, "GRACE_SECONDS", 60.0)

    def work(own: Workers) -> str:
        own.exchange()
        if own.rank == 1:
            own.expect_end(0.1)
        return str(own.error(wait_seconds=20.0))

    found = run_all(addresses[:2], work)
    assert_mentions(str(found[1]), "hangs", "worker 1")


class TestLauncher:
    def run(self, code: str, count: int = 2, **options) -> subprocess.CompletedProcess:
        launch = (
            "import sys; from adapter_bert.devices import launcher; "
            f"sys.exit(launcher.run([sys.executable, '-c', sys.argv[1]], {count}, []))"
        )
        command = [sys.executable, "-c", launch, code]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)

    RANK = "import json, os, sys; task = json.loads(os.environ['TF_CONFIG']); rank = task['task']['index']; "

    def test_only_the_first_worker_has_the_terminal(self):
        process = self.run(self.RANK + "print(rank, len(task['cluster']['worker']))", count=3)
        assert (process.returncode, process.stdout) == (0, "0 3\n")

    def test_a_worker_that_fails_ends_all_and_its_last_line_is_shown(self):
        code = self.RANK + "import time; rank == 1 and sys.exit('no such file'); time.sleep(0.5)"
        process = self.run(code)
        assert process.returncode == 1
        assert_mentions(process.stdout, "Worker 1", "no such file")

    def test_the_exit_code_is_that_of_the_first_worker(self):
        process = self.run(self.RANK + "sys.exit(3 if rank == 0 else 4)")
        assert process.returncode == 3

    def test_a_killed_worker_is_named(self):
        code = self.RANK + "import time; rank == 1 and os.kill(os.getpid(), 9); time.sleep(1); sys.exit(2)"
        process = self.run(code)
        assert process.returncode == 2
        assert_mentions(process.stdout, "Worker 1", "SIGKILL")
