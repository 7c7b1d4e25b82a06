"""Work in several processes gives what one would give, and leaves no process behind, however it ends."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, parallel
from tests.helpers import ROOT

PATIENCE = 30.0

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux alone")


def children():
    """The processes that this one has started and that are still there."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = file.read().rpartition(")")[2].split()[1]
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == os.getpid():
            found.add(int(name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """No test may leave a process, nor change which signals are let through."""
    before = children(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    assert (children() - before[0], signal.pthread_sigmask(signal.SIG_BLOCK, ())) == (set(), before[1])


def slow_square(number):
    time.sleep(0.002 * (number % 3))
    return number * number


# ---------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("processes", [1, 2, 3, None])
@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_results_come_in_the_order_of_the_items(processes, count):
    results = list(parallel.map_in_order(slow_square, range(count), processes))
    assert results == [number * number for number in range(count)]


def test_slow_items_do_not_change_the_order():
    def slow_at_first(number):
        time.sleep(0.3 if number == 0 else 0)
        return number

    assert list(parallel.map_in_order(slow_at_first, range(30), 3)) == list(range(30))


def test_the_work_is_done_in_other_processes_or_here():
    def process(_):
        time.sleep(0.01)
        return os.getpid()

    others = set(parallel.map_in_order(process, range(40), 2))
    assert len(others) == 2 and os.getpid() not in others
    assert set(parallel.map_in_order(process, range(3), 1)) == {os.getpid()}


def test_any_function_will_do_and_pools_do_not_mix():
    """Functions inside of functions, that no message between processes could hold; two pools at a time."""
    letters = iter("ab")
    pools = [parallel.map_in_order(lambda n, letter=letter: (letter, n), range(20), 2) for letter in letters]
    assert list(zip(*pools)) == [(("a", n), ("b", n)) for n in range(20)]


def test_large_results_pass():
    results = parallel.map_in_order(lambda number: bytes([number]) * 3_000_000, range(12), 2)
    assert [(len(result), result[:1]) for result in results] == [(3_000_000, bytes([n])) for n in range(12)]


@pytest.mark.parametrize("size, lists", [(2, [[0, 1], [2, 3], [4]]), (5, [[0, 1, 2, 3, 4]]), (9, [[0, 1, 2, 3, 4]])])
def test_chunks_are_lists_of_a_size(size, lists):
    assert list(parallel.chunks(range(5), size)) == lists
    assert list(parallel.chunks([], size)) == []
    endless = parallel.chunks(itertools.count(), size)
    assert next(endless) == list(range(size)), "no more is read than is asked for"


def test_there_is_a_process_for_each_core_that_may_be_used(monkeypatch):
    assert parallel.num_processes() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(sys, "platform", "win32")
    assert parallel.num_processes() == 1


# ----------------------------------------------------------------------------------------------- items and memory


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_items_are_read_as_they_are_needed(processes):
    read = 0

    def items():
        nonlocal read
        while True:
            read += 1
            yield read

    results = parallel.map_in_order(slow_square, items(), processes)
    assert read == 0, "nothing is done before something is asked for"
    ahead = 0 if processes == 1 else processes * parallel.WAITING
    for done in range(1, 40):
        next(results)
        assert read <= done + ahead
    results.close()
    time.sleep(0.05)
    assert read <= 39 + ahead


def test_closing_half_way_ends_the_processes():
    results = parallel.map_in_order(slow_square, itertools.count(), 3)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(children()) >= 3
    results.close()


def test_a_loop_that_is_left_ends_the_processes():
    for result in parallel.map_in_order(slow_square, itertools.count(), 2):
        if result > 50:
            break


def test_a_generator_that_was_never_asked_starts_nothing():
    before = children()
    results = parallel.map_in_order(slow_square, itertools.count(), 2)
    assert children() == before
    del results


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("error", [errors.UserError("paragraph 7 is odd"), ValueError("7"), SystemExit("7 is the end")])
def test_an_error_in_the_work_reaches_the_caller(error, processes):
    def fail_at_7(number):
        if number == 7:
            raise error
        return number

    results = parallel.map_in_order(fail_at_7, range(100), processes)
    assert list(itertools.islice(results, 7)) == list(range(7)), "what was before it is there"
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


def test_a_result_that_cannot_travel_is_an_error():
    results = parallel.map_in_order(lambda number: lambda: number, range(5), 2)
    with pytest.raises(Exception, match="(?i)pickle|local object"):
        list(results)


def test_a_killed_process_is_an_error_and_no_wait():
    def die_at_5(number):
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    started = time.time()
    with pytest.raises(errors.UserError, match="ended with code -9"):
        list(parallel.map_in_order(die_at_5, range(100), 2))
    assert time.time() - started < PATIENCE


def test_a_process_killed_amid_a_message_is_an_error_and_no_wait():
    before = children()
    results = parallel.map_in_order(lambda number: bytes(20_000_000), itertools.count(), 2)
    next(results)
    time.sleep(0.5)  # the next results are made, and too large to be sent before they are asked for
    os.kill(min(children() - before), signal.SIGKILL)
    started = time.time()
    with pytest.raises(errors.UserError, match="ended with code -9"):
        list(results)
    assert time.time() - started < PATIENCE


def test_an_error_that_cannot_travel_is_told_in_words():
    class OddError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def fail(number):
        raise OddError(number, "more")

    with pytest.raises(RuntimeError, match="OddError: 0 and more") as caught:
        list(parallel.map_in_order(fail, range(3), 2))
    assert "in fail" in str(caught.value.__cause__), "where it arose is told too"


# ------------------------------------------------------------------------------------- ends from outside, sessions

PROGRAM = """
import itertools, os, sys, time
sys.path.insert(0, {root!r})
from adapter_bert.common import parallel

def work(number):
    deadline = time.time() + 0.01
    while time.time() < deadline:
        pass
    return bytes(2_000_000)

for number, _ in enumerate(parallel.map_in_order(work, itertools.count(), 3)):
    os.write(1, b"x")
"""


def started_program():
    """A program at work in four processes, in a session of its own; all of them hold its output open."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(root=ROOT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell may have started the tests with Ctrl-C switched off.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.read(20) == b"x" * 20
    return process


def end_of(process):
    """Waits for the end of a program and of all that it started; returns what it said last."""
    try:
        return process.communicate(timeout=PATIENCE)[1].decode()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_one_that_started_them(number):
    """It cannot tell them, as when memory or the time of a job is up; they must not wait for work for ever."""
    process = started_program()
    process.send_signal(number)
    end_of(process)
    assert process.returncode == -number


def test_ctrl_c_ends_all_with_one_message():
    """A terminal sends it to all processes; one that it stopped amid a message would leave the others waiting."""
    for seconds in (0.0, 0.013, 0.027, 0.051, 0.11):
        process = started_program()
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        said = end_of(process)
        assert said.count("Traceback") == 1 and said.strip().endswith("KeyboardInterrupt"), said
        assert process.returncode != 0


def test_works_where_tensorflow_has_been_at_work():
    with tf.Graph().as_default(), tf.Session() as session:
        total = tf.reduce_sum(tf.matmul(tf.ones([200, 200]), tf.ones([200, 200])))
        assert session.run(total) == 200.0**3

        def record(number):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            return tf.train.Example(features=tf.train.Features(feature={"n": feature})).SerializeToString()

        for _ in range(3):
            results = parallel.map_in_order(record, range(50), 2)
            examples = [tf.train.Example.FromString(result) for result in results]
            assert [example.features.feature["n"].int64_list.value[0] for example in examples] == list(range(50))
            assert session.run(total) == 200.0**3, "and goes on to work"
