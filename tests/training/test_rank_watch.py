from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch.distributed as dist

from sifting.training import rank_watch
from sifting.training.rank_watch import RankWatch, Sign, hung, watching


def sign(rank: int, update: int, doing: str, *, silent: float = 1.0, still: float = 100.0) -> Sign:
    return Sign(rank, f"process {rank}", update, doing, silent, still)


def test_a_rank_that_says_nothing_is_named_whatever_it_does() -> None:
    signs = {0: sign(0, 5, "backward"), 1: sign(1, 5, "evaluation", silent=70)}
    assert hung(signs, 60) == (
        "rank 1 (process 1) has not answered for 70 s, since update 5 (evaluation)"
    )
    assert hung(signs, 80) is None


def test_of_ranks_that_stand_still_the_one_that_the_others_wait_for_is_named() -> None:
    signs = {0: sign(0, 5, "backward"), 1: sign(1, 5, "drawing"), 2: sign(2, 5, "backward")}
    assert hung(signs, 60) == (
        "rank 1 (process 1) has not moved on for 100 s, since update 5 (reading and choosing samples)"
    )


def test_where_nobody_is_behind_all_are_named() -> None:
    said = hung({0: sign(0, 5, "backward"), 1: sign(1, 5, "backward")}, 60)
    assert said is not None
    assert "rank 0" in said
    assert "rank 1" in said


@pytest.mark.parametrize("doing", ["evaluation", "saving"])
def test_what_may_take_long_is_waited_for(doing: str) -> None:
    assert hung({0: sign(0, 5, doing), 1: sign(1, 5, "drawing")}, 60) is None


def test_one_that_still_moves_is_waited_for() -> None:
    assert hung({0: sign(0, 5, "backward"), 1: sign(1, 4, "drawing", still=3)}, 60) is None


def test_nobody_hangs_where_nobody_has_spoken_yet() -> None:
    assert hung({}, 60) is None


def test_a_rank_that_has_never_spoken_is_named_and_not_the_one_that_waits_for_it() -> None:
    mute = Sign(1, "", 0, "drawing", silent=70, still=70)
    said = "rank 1 has not answered for 70 s, since training began"
    assert hung({0: sign(0, 5, "backward"), 1: mute}, 60) == said
    assert hung({0: sign(0, 5, "backward"), 1: mute}, 80) is None


def test_a_rank_alone_is_not_watched() -> None:
    before = threading.active_count()
    with watching(object(), 1.0, label="sift train"):  # type: ignore[arg-type]
        assert threading.active_count() == before


@dataclass
class Training:
    update: int = 7
    doing: str = "backward"


class Silent:
    """A store that answers nobody until it is told to, as one with a rank that is stopped."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def clone(self) -> Silent:
        return self

    def set_timeout(self, timeout: timedelta) -> None: ...

    def set(self, key: str, value: str) -> None:
        self.answers.wait(30)

    def check(self, keys: list[str]) -> bool:
        return False


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Silent:
    """Where this rank, the first of two, meets the other."""
    store = Silent()
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    return store


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set where the process would have ended."""
    event = threading.Event()

    def end(code: int) -> None:
        assert code == 2
        event.set()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(code)

    monkeypatch.setattr(rank_watch.os, "_exit", end)
    return event


def test_ranks_that_meet_at_one_that_is_stopped_end_with_a_message(
    store: Silent, ended: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = RankWatch(Training(), timeout=0.2, label="sift train")
    watch.start()
    assert ended.wait(10)
    store.answers.set()
    watch.stop()
    assert "rank 0, or torchrun, which the ranks meet at, has not answered" in (
        said := capsys.readouterr().err
    )
    assert "since update 7: rank 0 ends too" in said


class Answering(Silent):
    """A store that answers, which holds what ranks have said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.said[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self.said for key in keys)

    def get(self, key: str) -> bytes:
        return self.said[key].encode()


def test_ranks_speak_at_once_and_one_that_never_does_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
    ended: threading.Event,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Answering()
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    watch = RankWatch(Training(), timeout=0.5, label="sift train")
    watch.start()
    deadline = time.monotonic() + 10
    while "sift/rank-0" not in store.said and time.monotonic() < deadline:
        time.sleep(0.001)
    assert "sift/rank-0" in store.said
    assert ended.wait(10)
    watch.stop()
    assert "rank 1 has not answered for" in capsys.readouterr().err
    assert "since training began" in store.said["sift/given-up"]


def test_stopping_waits_for_a_call_of_the_store_that_is_under_way(store: Silent) -> None:
    watch = RankWatch(Training(), timeout=20.0, label="sift train")
    watch.every = 0.01
    watch.start()
    time.sleep(0.05)
    threading.Timer(0.2, store.answers.set).start()
    watch.stop()
    assert store.answers.is_set()
    assert not any(thread.name == "sift-ranks" for thread in threading.enumerate())


def test_stopping_ends_the_process_where_the_store_never_answers(
    store: Silent, ended: threading.Event
) -> None:
    watch = RankWatch(Training(), timeout=0.3, label="sift train")
    watch.every = 0.1
    watch.start()
    time.sleep(0.15)  # it talks now
    with pytest.raises(SystemExit):
        watch.stop()
    assert ended.is_set()
    store.answers.set()
