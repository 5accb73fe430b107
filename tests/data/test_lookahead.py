"""Reading a source one step ahead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sifting.data.lookahead import Lookahead


def source(read: list[int], fails_at: int | None = None) -> Iterator[int]:
    for number in range(4):
        if number == fails_at:
            raise OSError("the disk")
        read.append(number)
        yield number


def test_what_is_read_ahead_is_read_once_and_in_order() -> None:
    read: list[int] = []
    items = Lookahead(source(read))
    assert next(items) == 0
    assert read == [0], "nothing is read before it is asked for"
    assert items.peek() == items.peek() == 1
    assert read == [0, 1]
    assert list(items) == [1, 2, 3]
    assert items.peek() is None
    assert list(items) == []


def test_an_error_in_reading_ahead_comes_in_its_turn() -> None:
    items = Lookahead(source([], fails_at=2))
    assert next(items) == 0
    assert items.peek() == 1
    assert next(items) == 1
    assert items.peek() is None
    assert items.peek() is None
    with pytest.raises(OSError, match="the disk"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)
