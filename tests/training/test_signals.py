"""Being asked to stop."""

from __future__ import annotations

import signal
import threading

import pytest

from sifting.training.signals import PATIENCE, at_once, exit_code, listening


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_is_a_request_and_one_that_comes_later_stops_at_once(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, heard = [5.0], []
    monkeypatch.setattr("sifting.training.signals.time.monotonic", lambda: now[0])
    with pytest.raises(KeyboardInterrupt) as stopped, listening(heard.append):
        signal.raise_signal(number)
        now[0] += 0.9 * PATIENCE
        signal.raise_signal(number)  # the same request, told twice
        assert heard == [number.name]
        now[0] += PATIENCE
        signal.raise_signal(number)
    assert heard == [number.name]
    assert exit_code(at_once(stopped.value)) == code


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with listening(lambda name: None):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_hears_nothing_and_runs() -> None:
    ran: list[bool] = []

    def work() -> None:
        with listening(lambda name: None):
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]


def test_codes_are_those_of_shells() -> None:
    assert exit_code("SIGTERM") == 128 + signal.SIGTERM
    assert exit_code("deadline") == 130, "what is no signal ends as Ctrl-C does"
