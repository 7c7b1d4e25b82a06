"""Several processes give the results of one, and leave no process behind, however the work ends."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import time

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, parallel
from tests.kill import Program

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux only"),
]


def children():
    """The running worker processes."""
    return {process.pid for process in multiprocessing.active_children()}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """No test may leave a process, or change the signal mask."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    assert (children(), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == (set(), mask)


def slow_square(number):
    time.sleep(0.1 if number == 0 else 0.002 * (number % 3))
    return number * number


@pytest.mark.parametrize("processes", [1, 2, 3, None])
@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_results_are_in_the_order_of_the_items(processes, count):
    results = list(parallel.map_in_order(slow_square, range(count), processes))
    assert results == [number * number for number in range(count)]


def test_the_work_is_done_in_other_processes_or_in_this_one():
    def process(_):
        time.sleep(0.01)
        return os.getpid()

    others = set(parallel.map_in_order(process, range(40), 2))
    assert len(others) == 2 and os.getpid() not in others
    assert set(parallel.map_in_order(process, range(3), 1)) == {os.getpid()}


def test_functions_need_not_be_picklable_results_may_be_large_and_pools_do_not_mix():
    pools = [parallel.map_in_order(lambda n, letter=letter: (n, letter * 3_000_000), range(9), 2) for letter in "ab"]
    for number, results in enumerate(zip(*pools)):
        assert results == ((number, "a" * 3_000_000), (number, "b" * 3_000_000))
    assert number == 8


def test_chunks_are_lists_of_one_size():
    assert list(parallel.chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(parallel.chunks([], 2)) == []
    assert next(parallel.chunks(itertools.count(), 2)) == [0, 1], "no more is read than needed"


def test_there_is_a_process_per_core(monkeypatch):
    assert parallel.num_processes() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(sys, "platform", "win32")
    assert parallel.num_processes() == 1


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_items_are_read_when_needed_and_processes_end_with_the_generator(processes):
    """The fixture checks that no process is left."""
    read = 0

    def items():
        nonlocal read
        while True:
            read += 1
            yield read

    results = parallel.map_in_order(slow_square, items(), processes)
    assert (read, children()) == (0, set()), "nothing happens before the first result is requested"
    ahead = 0 if processes == 1 else processes * parallel.READ_AHEAD
    for done in range(1, 40):
        next(results)
        assert read <= done + ahead
    assert len(children()) == (processes if processes > 1 else 0)
    results.close()
    assert read <= 39 + ahead


# ---------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("error", [errors.UserError("paragraph 7 is odd"), ValueError("7"), SystemExit("7 is the end")])
def test_an_error_in_the_work_reaches_the_caller_after_earlier_results(error, processes):
    def fail_at_7(number):
        if number == 7:
            raise error
        return number

    results = parallel.map_in_order(fail_at_7, range(100), processes)
    assert list(itertools.islice(results, 7)) == list(range(7))
    with pytest.raises(type(error), match=str(error)):
        next(results)
    assert next(results, "end") == "end"


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_the_items_reaches_the_caller(processes):
    def items():
        yield from range(12)
        raise errors.UserError("the file ends here")

    with pytest.raises(errors.UserError, match="the file ends here"):
        list(parallel.map_in_order(slow_square, items(), processes))


def test_a_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises(Exception, match="(?i)pickle|local object"):
        list(parallel.map_in_order(lambda number: lambda: number, range(5), 2))


def test_an_error_that_cannot_be_pickled_becomes_text_with_its_traceback():
    class OddError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def fail(number):
        raise OddError(number, "more")

    with pytest.raises(RuntimeError, match="OddError: 0 and more") as caught:
        list(parallel.map_in_order(fail, range(3), 2))
    assert "in fail" in str(caught.value.__cause__)


def test_a_killed_worker_is_an_error():
    def die_at_5(number):
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(errors.UserError, match="killed.*memory"):
        list(parallel.map_in_order(die_at_5, range(100), 2))


# ------------------------------------------------------------------------------ signals and sessions

PROGRAM = """
import itertools, os, time
from adapter_bert.common import parallel

def work(number):
    deadline = time.time() + 0.01
    while time.time() < deadline:
        pass
    return bytes(2_000_000)

for number, _ in enumerate(parallel.map_in_order(work, itertools.count(), 3)):
    print("result", flush=True)
"""


def start_program():
    """Start a program at work in four processes, which all hold its output open."""
    # A shell may have started the tests with Ctrl-C disabled.
    enable_ctrl_c = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    program = Program([sys.executable, "-c", PROGRAM], **enable_ctrl_c)
    return program.wait_for_line("result", 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_parent(number):
    """`end` waits until no process holds the output open."""
    assert start_program().end(number) == -number


@pytest.mark.parametrize("seconds", [0.0, 0.013, 0.027, 0.051, 0.11])
def test_ctrl_c_ends_all_processes_with_one_traceback(seconds):
    """A terminal sends it to all processes."""
    program = start_program()
    time.sleep(seconds)
    os.killpg(program.process.pid, signal.SIGINT)
    said = program.process.communicate(timeout=60)[0]
    assert said.count("Traceback") == 1 and said.strip().endswith("KeyboardInterrupt"), said
    assert program.process.returncode != 0


def test_workers_can_be_forked_after_tensorflow_was_used():
    with tf.Graph().as_default(), tf.Session() as session:
        total = tf.reduce_sum(tf.matmul(tf.ones([200, 200]), tf.ones([200, 200])))
        assert session.run(total) == 200.0**3

        def record(number):
            return tf.train.Int64List(value=[number]).SerializeToString()

        for _ in range(3):
            results = list(parallel.map_in_order(record, range(50), 2))
            assert results == [record(number) for number in range(50)]
            assert session.run(total) == 200.0**3
