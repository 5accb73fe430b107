"""Reading a source one step ahead, where that is asked for; what goes wrong there is said in its turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Lookahead(Generic[T]):
    """An iterator whose next item can be read before it is asked for.

    >>> items = Lookahead(iter("ab"))
    >>> next(items), items.peek(), next(items), items.peek()
    ('a', 'b', 'b', None)

    An error in reading ahead is raised when the item is asked for, after those before it.

    Args:
        source: what is read.
    """

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._read: list[T] = []
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._read:
            return self._read.pop()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return next(self._source)

    def peek(self) -> T | None:
        """The next item, read now; None where there is none, or none that can be read."""
        if not self._read and self._error is None:
            try:
                self._read.append(next(self._source))
            except StopIteration:
                return None
            except Exception as error:
                self._error = error
        return self._read[-1] if self._read else None
