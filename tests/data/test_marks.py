"""Loaders that keep their own place."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from sifting.data.marks import LoaderMark, Marks, go_to_mark, mark_of


def test_what_a_loader_says_of_its_place_comes_back() -> None:
    mark = mark_of([{"any": "thing"}, 2, 5, 30])
    assert (mark.loader, mark.passes, mark.taken, mark.total) == ({"any": "thing"}, 2, 5, 30)
    for plain in ([{}, -1, 5, 30], [{}, 2, 5], [{}, 2, "x", 30]):
        with pytest.raises(ValueError, match=r"place|argument"):
            mark_of(plain)


def test_a_loader_that_has_no_place_of_its_own_has_no_marks() -> None:
    loader = DataLoader(range(3))
    marks = Marks(loader)
    assert not marks.kept
    assert marks.now(1, 2, 2) is None
    with pytest.raises(
        ValueError, match="a StatefulDataLoader's own, and this loader is a DataLoader"
    ):
        go_to_mark(loader, LoaderMark({}, 1, 2, 2))
