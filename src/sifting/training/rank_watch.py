"""Ranks that hang: noticed by the others, named, and the run ended on all of them.

A rank that dies ends the job by itself. One that is stopped, or waits for something that never comes,
leaves the others waiting in a collective. So every rank says now and then how far it is, in the store
that the process group meets in, and looks at what the others say.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch.distributed as dist

from sifting.terminal import say
from sifting.training.run_folder import RunError

GIVEN_UP = "sift/given-up"
# what a rank does within an update, in this order
ORDER = ("drawing", "forward", "backward", "optimizer", "evaluation", "saving")
LONG = ("evaluation", "saving")  # may take any time
# what gloo and NCCL say where another rank has ended
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out", "NCCL")
WORDS = {"drawing": "reading and choosing samples", "saving": "writing a checkpoint"}


class Worker(Protocol):
    """What is watched: an `Engine`."""

    @property
    def update(self) -> int: ...

    @property
    def doing(self) -> str: ...


@dataclass(frozen=True)
class Sign:
    """What one rank last said, and how long ago.

    Attributes:
        rank: which.
        process: its process, in words; empty where it has said nothing yet.
        update: updates it has made.
        doing: one of `ORDER`.
        silent: seconds since it last said anything.
        still: seconds since it last moved on.
    """

    rank: int
    process: str
    update: int
    doing: str
    silent: float
    still: float

    @property
    def place(self) -> tuple[int, int]:
        """How far it is."""
        return self.update, ORDER.index(self.doing) if self.doing in ORDER else 0


def hung(signs: Mapping[int, Sign], timeout: float) -> str | None:
    """Which ranks hang, in words; None while none does.

    >>> here = Sign(0, "process 7", 12, "backward", silent=1, still=70)
    >>> gone = Sign(1, "process 8", 12, "drawing", silent=65, still=65)
    >>> hung({0: here, 1: gone}, timeout=60)
    'rank 1 (process 8) has not answered for 65 s, since update 12 (reading and choosing samples)'
    >>> hung({0: here, 1: gone}, timeout=90) is None
    True
    >>> hung({0: here, 1: Sign(1, "", 0, "drawing", silent=70, still=70)}, timeout=60)
    'rank 1 has not answered for 70 s, since training began'

    Args:
        signs: by rank.
        timeout: seconds without a sign, or without moving on, after which a rank hangs.
    """
    silent = [sign for sign in signs.values() if sign.silent > timeout]
    if silent:
        return "; ".join(_told(sign, "has not answered", sign.silent) for sign in silent)
    if not signs or any(sign.still <= timeout or sign.doing in LONG for sign in signs.values()):
        return None
    last = min(sign.place for sign in signs.values())  # those before it wait for it
    behind = [sign for sign in signs.values() if sign.place == last]
    return "; ".join(_told(sign, "has not moved on", sign.still) for sign in behind)


def _told(sign: Sign, what: str, seconds: float) -> str:
    if not sign.process:
        return f"rank {sign.rank} has not answered for {seconds:.0f} s, since training began"
    doing = WORDS.get(sign.doing, sign.doing)
    return f"rank {sign.rank} ({sign.process}) {what} for {seconds:.0f} s, since update {sign.update} ({doing})"


class RankWatch:
    """Says how far this rank is, and looks at the others, in threads of its own.

    One talks to the store, which may be with a rank that is stopped, and then answers nobody; the other
    looks at the clock alone.

    Args:
        worker: whose progress is told.
        timeout: see `hung`.
        label: of the command, before messages.
    """

    def __init__(self, worker: Worker, timeout: float, label: str) -> None:
        self.worker, self.timeout, self.label = worker, timeout, label
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        # a client of its own: the group's may be waiting
        group_store: Any = dist.distributed_c10d._get_default_store()
        self.store = group_store.clone()
        self.store.set_timeout(timedelta(seconds=max(1.0, timeout)))
        self.every = min(timeout / 10, 5.0)
        self.over = threading.Event()
        self._seen: dict[int, tuple[Any, float, float]] = {}  # said, when it changed, when it moved
        self._since = time.monotonic()  # when it began to look
        self._beats = 0
        self._threads = [
            threading.Thread(target=work, name="sift-ranks", daemon=True)
            for work in (self._talk, self._wait_for_answers)
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Watch no longer; where the store does not answer, the process ends."""
        self.over.set()
        for (
            thread
        ) in self._threads:  # one in a call of the store at the interpreter's end aborts it
            thread.join(timeout=self.timeout + self.every)
            if thread.is_alive():
                self._end(self._unanswered(self.timeout))

    def _talk(self) -> None:
        """Until it is over; where a rank hangs, the process ends."""
        before, pause = time.monotonic(), 0.0  # at once: a rank that stops soon is known by then
        while not self.over.wait(pause):
            now, pause = time.monotonic(), self.every
            if now - before > self.every + self.timeout / 2:
                # this process itself was stopped: it knows nothing of the others
                self._seen.clear()
                self._since = now
            before = now
            try:
                self._tell()
                given_up = self._given_up()
                why = given_up or hung(self._look(now), self.timeout)
                if why is not None and given_up is None:
                    self.store.set(GIVEN_UP, why)  # so that all say the same
            except RuntimeError as error:
                why = f"rank 0, or torchrun, which the ranks meet at, does not answer ({_first(error)})"
            if why is not None and not self.over.is_set():
                self._end(why)

    def _wait_for_answers(self) -> None:
        """Until it is over; where the store has not answered for too long, the process ends."""
        silent, beats, before = 0.0, self._beats, time.monotonic()
        while not self.over.wait(self.every):
            now = time.monotonic()
            # of a time in which this process itself was stopped, only a part counts
            silent += min(now - before, 2 * self.every)
            before = now
            if self._beats != beats:
                silent, beats = 0.0, self._beats
            elif silent > self.timeout:
                self._end(self._unanswered(silent))

    def _unanswered(self, seconds: float) -> str:
        return (
            "rank 0, or torchrun, which the ranks meet at, has not answered for "
            f"{seconds:.0f} s, since update {self.worker.update}"
        )

    def _end(self, why: str) -> NoReturn:
        say(
            f"{self.label}: {why}: rank {self.rank} ends too; --resume continues from the last checkpoint",
            error=True,
        )
        os._exit(2)  # the main thread waits where no exception reaches it

    def _tell(self) -> None:
        self._beats += 1
        process = f"process {os.getpid()} on {platform.node()}"
        said = [self._beats, self.worker.update, self.worker.doing, process]
        self.store.set(f"sift/rank-{self.rank}", json.dumps(said))

    def reason_of(self, error: RuntimeError) -> str:
        """What to say where a collective failed; anything else is raised as it is."""
        with suppress(RuntimeError):  # of a store that is gone too
            why = self._given_up()
            if why is not None:
                return (
                    f"{why}: rank {self.rank} ends too; --resume continues from the last checkpoint"
                )
        if not any(word in str(error) for word in LOST):
            raise error
        return (
            f"another rank is gone ({_first(error)}); --resume continues from the last checkpoint"
        )

    def _given_up(self) -> str | None:
        if not self.store.check([GIVEN_UP]):
            return None
        return str(self.store.get(GIVEN_UP).decode())

    def _look(self, now: float) -> dict[int, Sign]:
        signs = {}
        for rank in range(self.world):
            key = f"sift/rank-{rank}"
            if not self.store.check([key]):
                mute = now - self._since
                signs[rank] = Sign(rank, "", 0, ORDER[0], mute, mute)
                continue
            said = json.loads(self.store.get(key))
            old, told, moved = self._seen.get(rank, (None, now, now))
            if old is not None and said[0] != old[0]:
                told = now
            if old is not None and said[1:3] != old[1:3]:
                moved = now
            self._seen[rank] = said, told, moved
            signs[rank] = Sign(rank, said[3], said[1], said[2], now - told, now - moved)
        return signs


@contextmanager
def watching(worker: Worker, timeout: float | None, *, label: str) -> Iterator[None]:
    """While open, a rank that hangs ends the run on all ranks; nothing where there is one alone.

    Args:
        worker: what trains on this rank.
        timeout: see `hung`; None for none.
        label: of the command, before messages.
    """
    if timeout is None or not dist.is_available() or not dist.is_initialized():
        yield
        return
    watch = RankWatch(worker, timeout, label)
    watch.start()
    try:
        yield
    except RuntimeError as error:
        raise RunError(watch.reason_of(error)) from error
    finally:
        watch.stop()


def _first(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
