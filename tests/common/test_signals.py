"""The first signal asks for a stop, the second one acts as usual."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from adapter_bert.common import signals


@pytest.fixture
def handled():
    """Signals that reach the ordinary handlers."""
    received = []
    earlier = {number: signal.signal(number, lambda n, frame: received.append(n)) for number in signals.SIGNALS}
    yield received
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_first_signal_is_a_request_and_a_second_acts_as_usual(handled, number):
    with signals.deferred() as stop:
        assert not stop.is_set
        os.kill(os.getpid(), number)
        assert stop.is_set and handled == []
        os.kill(os.getpid(), number)
        assert handled == [number]


def test_handlers_are_restored_even_after_an_error(handled):
    with pytest.raises(ValueError), signals.deferred():
        raise ValueError
    for number in signals.SIGNALS:
        os.kill(os.getpid(), number)
    assert handled == list(signals.SIGNALS)


@pytest.mark.parametrize("enabled", [True, False])
def test_signals_act_as_usual_in_another_thread_or_if_disabled(handled, enabled):
    stops = []

    def work():
        with signals.deferred(enabled) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            stops.append(stop.is_set)

    if enabled:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    assert (stops, handled) == ([False], [signal.SIGTERM])
