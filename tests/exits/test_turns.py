"""What a device does first: on streams that only write down what they are told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sifting.exits.turns import LOWEST, ThreadTurn, side_stream


class Stream:
    """A stream of a pretended device: notes events as they are recorded and waited for."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said, self.device = name, said, torch.device("cuda", 0)

    def record_event(self) -> str:
        self.said.append(f"{self.name} records")
        return f"{self.name} so far"

    def wait_event(self, event: str) -> None:
        self.said.append(f"{self.name} waits for {event}")


class OnCuda(torch.Tensor):
    """A tensor that says it is on a GPU, and which streams use it."""

    is_cuda = True  # type: ignore[assignment]
    used: list[str]

    def record_stream(self, stream: Any) -> None:
        self.used.append(stream.name)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream("step", found))
    return found


def test_the_device_holds_the_step_and_its_host_goes_on(said: list[str]) -> None:
    thread = Stream("thread", said)
    batch = torch.zeros(2).as_subclass(OnCuda)
    batch.used = []
    turn = ThreadTurn(thread)
    reading, scored = threading.Event(), threading.Event()

    def work() -> None:
        with turn.working({"x": batch, "y": [1]}):
            said.append("parameters are read")
        reading.wait(10)  # the scores, which take the device a while
        scored.set()

    beside = threading.Thread(target=work)
    beside.start()
    turn.hold()
    said.append("parameters are written")
    assert not scored.is_set()  # the host did not wait for the scores
    reading.set()
    beside.join()
    assert said == [
        "step records",  # what the copy of the model is made by
        "thread waits for step so far",
        "parameters are read",
        "thread records",
        "step waits for thread so far",
        "parameters are written",
    ]
    assert batch.used == ["thread"]  # its memory is not given to others before


def test_without_streams_the_host_waits_and_a_failure_lets_it_go() -> None:
    turn, begun, go = ThreadTurn(None), threading.Event(), threading.Event()

    def work() -> None:
        with pytest.raises(ArithmeticError), turn.working(None):
            begun.set()
            go.wait(10)
            raise ArithmeticError

    beside = threading.Thread(target=work)
    beside.start()
    begun.wait(10)
    assert not turn.over
    go.set()
    turn.hold()
    assert turn.over
    beside.join()


def test_a_device_that_records_no_event_any_more_holds_nobody(said: list[str]) -> None:
    """After a fault of the device every call of it fails, in the thread and then in the step."""

    class Broken(Stream):
        def record_event(self) -> str:
            raise RuntimeError("device-side assert")

    turn = ThreadTurn(Broken("thread", said))

    def work() -> None:
        with turn.working({}):
            pass

    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work)
        future.add_done_callback(turn.ended)
        turn.hold()
    assert isinstance(future.exception(), RuntimeError)


def test_a_stream_of_the_lowest_priority_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: asked.append(priority))
    assert side_stream(torch.device("cpu")) is None
    assert not asked
    side_stream(torch.device("cuda", 0))
    assert asked == [LOWEST]
