"""Where the positions are that are scored."""

from __future__ import annotations

import torch

from sifting.model.positions import Places

MASK = torch.tensor([[True, False, True], [False, True, False]])
DOCUMENTS = torch.tensor([[0, 0, 1], [2, 2, 2]])


def test_positions_are_in_row_major_order() -> None:
    places = Places.of(MASK)
    assert list(zip(places.b_N.tolist(), places.t_N.tolist(), strict=True)) == [
        (0, 0),
        (0, 2),
        (1, 1),
    ]
    assert places.layout is None


def test_of_packed_rows_it_is_known_which_document_each_belongs_to() -> None:
    places = Places.of(MASK, DOCUMENTS)
    assert places.layout is not None
    assert places.layout.documents == 3


def test_moving_keeps_everything_and_nothing_is_copied_where_it_is_already() -> None:
    places = Places.of(MASK, DOCUMENTS)
    assert places.to(torch.zeros(1)) is places
    moved = places.to(torch.zeros(1, device="meta"))
    assert {t.device.type for t in (moved.mask_BT, moved.b_N, moved.t_N)} == {"meta"}
    assert moved.documents_BT is not None
    assert moved.documents_BT.device.type == "meta"
    assert moved.layout is not None
    assert Places.of(MASK).to(torch.zeros(1, device="meta")).layout is None
