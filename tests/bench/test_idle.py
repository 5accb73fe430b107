"""Waiting until a machine is quiet."""

from __future__ import annotations

import os

import pytest

from sifting.bench.idle import BUSY, EVERY, load, wait_until_quiet


def waited(loads: list[float | None], cores: int = 2) -> tuple[float, list[str], list[float]]:
    said: list[str] = []
    slept: list[float] = []
    found = iter(loads)
    seconds = wait_until_quiet(
        said.append, cores=cores, look=lambda: next(found), sleep=slept.append
    )
    return seconds, said, slept


def test_a_quiet_machine_is_not_waited_for() -> None:
    assert waited([BUSY * 2]) == (0.0, [], [])
    assert waited([None]) == (0.0, [], []), "nor one that does not tell"


def test_a_busy_one_is_looked_at_again_and_again_and_said_once() -> None:
    seconds, said, slept = waited([9.0, 8.0, 7.0, 1.0])
    assert (seconds, slept) == (3 * EVERY, [EVERY] * 3)
    assert said == ["waiting until the load is at most 2.5 (it is 9.0)"]


def test_the_load_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 2.0, 3.0))
    assert load() == 1.5
    monkeypatch.delattr(os, "getloadavg")
    assert load() is None
