"""Where a loader that keeps its own place says that it is, between two of its batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from sifting.data.hugging_face import begin_whole
from sifting.data.stateful import base_of, resumes_by_itself
from sifting.plain import Plain


class LoaderMark(NamedTuple):
    """Where a loader is, in its own words.

    Attributes:
        loader: its state.
        passes: begun in the epoch.
        taken: batches of the pass under way.
        total: batches of the epoch.
    """

    loader: Any
    passes: int
    taken: int
    total: int


def mark_of(plain: Any) -> LoaderMark:
    """A mark from what a state holds of it."""
    found = Plain(dict(zip(LoaderMark._fields, plain, strict=True)), "the loader's own place")
    return LoaderMark(found.get("loader"), *(found.whole(name) for name in LoaderMark._fields[1:]))


def go_to_mark(loader: Any, mark: LoaderMark) -> None:
    """Let a loader continue from a mark when it is iterated."""
    if not resumes_by_itself(loader):
        raise ValueError(
            "cannot resume: the state is a StatefulDataLoader's own, and this loader is a "
            f"{type(loader).__name__}: give the loader that it was saved with"
        )
    loader.load_state_dict(mark.loader)


def going_on(loader: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    """An iteration from a mark, after which the loader's next ones begin at the beginning."""
    yield from islice(iterator, 1)  # by then the stream has looked where to begin
    begin_whole(base_of(loader).dataset)
    yield from iterator


class Marks:
    """The marks of one epoch over a loader; none of one that would not continue with the same samples.

    Attributes:
        kept: whether there are any.
        last: before the batch taken last.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self.kept = loader, resumes_by_itself(loader)
        # Accelerate's loaders begin when the first batch is asked for, and draw then what they drew in
        # the first place: to have that drawn again, a batch must be read again
        self._exact = base_of(loader) is loader
        self.last: LoaderMark | None = None

    def now(self, passes: int, taken: int, total: int) -> LoaderMark | None:
        """Where the loader is; at the beginning of a pass, a batch before the end of the last.

        There a data set may not know yet that it begins again: many take note of it only when the
        first sample is asked for.
        """
        if not self.kept or not taken:
            return self.last
        # a copy: a data set may go on writing to what it gave
        return LoaderMark(copy.deepcopy(self._loader.state_dict()), passes, taken, total)

    def after(self, passes: int, taken: int, total: int) -> LoaderMark | None:
        """Where to continue from, after batches of which nothing is left; not at the end of a pass."""
        found = self.now(passes, taken, total) if self._exact else self.last
        return self.last if found is not None and _ended(found.loader) else found


def _ended(state: Any) -> bool:
    """Whether a loader, or one of its workers, has met the end of its stream."""
    if not isinstance(state, dict):
        return False
    return bool(state.get("fetcher_ended")) or any(map(_ended, state.values()))
