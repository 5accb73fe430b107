"""Loaders that keep their own place."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from sifting.data.marks import keeps_its_place, mark_of


@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")
def test_torchdatas_loader_and_what_is_made_of_it_resume_by_themselves() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    class Own(stateful):  # type: ignore[misc, valid-type]
        pass

    assert keeps_its_place(stateful(range(3)))
    assert keeps_its_place(Own(range(3)))
    assert not keeps_its_place(DataLoader(range(3)))

    class StatefulDataLoader(DataLoader[Any]):
        """Of the same name, and somebody else's."""

    assert not keeps_its_place(StatefulDataLoader(range(3)))


def test_what_a_loader_says_of_its_place_comes_back() -> None:
    mark = mark_of([{"any": "thing"}, 2, 5, 30])
    assert (mark.loader, mark.passes, mark.taken, mark.total) == ({"any": "thing"}, 2, 5, 30)
    for plain in ([{}, -1, 5, 30], [{}, 2, 5], [{}, 2, "x", 30]):
        with pytest.raises(ValueError, match=r"place|argument"):
            mark_of(plain)
