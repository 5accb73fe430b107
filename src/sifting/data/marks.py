"""Loaders that keep their own place: which do, and what they say of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sifting.plain import Plain


class LoaderMark(NamedTuple):
    """Where a loader is, in its own words."""

    loader: Any
    passes: int
    taken: int
    total: int


def mark_of(plain: Any) -> LoaderMark:
    """A mark from what a state holds of it."""
    found = Plain(dict(zip(LoaderMark._fields, plain, strict=True)), "the loader's own place")
    return LoaderMark(found.get("loader"), *(found.whole(name) for name in LoaderMark._fields[1:]))


def keeps_its_place(loader: Any) -> bool:
    """Whether a loader resumes by itself: `torchdata`'s does, from what its data set says."""
    return any(
        kind.__name__ == "StatefulDataLoader" and kind.__module__.split(".")[0] == "torchdata"
        for kind in type(loader).__mro__
    )
