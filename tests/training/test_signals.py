from __future__ import annotations

import signal
import time

import pytest

from sifting.training import signals
from sifting.training.signals import at_once, exit_code, listening


def test_one_that_comes_later_stops_at_once_with_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "PATIENCE", 0.01)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        heard: list[str] = []
        with pytest.raises(KeyboardInterrupt) as stopped, listening(heard.append):
            signal.raise_signal(number)
            time.sleep(0.02)
            signal.raise_signal(number)
        assert heard == [number.name]
        assert exit_code(at_once(stopped.value)) == code


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with listening(lambda name: None):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
