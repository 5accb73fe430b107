"""Labelled positions of a sequence, sampled: as many of each, from all over it."""

from __future__ import annotations

import pytest
import torch

from sifting.model.sampling import check_count, stratified


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_each_row_gives_as_many_and_only_what_counts() -> None:
    mask_BT = torch.rand(20, 64, generator=_generator(1)) < 0.4
    found_BT = stratified(mask_BT, 5, _generator())
    assert bool((mask_BT | ~found_BT).all())
    assert found_BT.sum(dim=1).tolist() == mask_BT.sum(dim=1).clamp(max=5).tolist()


def test_rows_with_fewer_keep_all_of_them() -> None:
    mask_BT = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    found_BT = stratified(mask_BT, 3, _generator())
    assert torch.equal(found_BT[:2], mask_BT[:2])
    assert int(found_BT[2].sum()) == 3


def test_one_is_drawn_from_each_stretch_and_all_alike() -> None:
    counts_T = torch.zeros(12)
    for seed in range(600):
        found_T = stratified(torch.ones(1, 12).bool(), 4, _generator(seed))[0]
        assert found_T.view(4, 3).sum(dim=1).tolist() == [1, 1, 1, 1]
        counts_T += found_T
    assert bool((counts_T > 150).all())  # of 200 expected
    assert bool((counts_T < 250).all())


def test_documents_of_one_row_are_sampled_one_by_one() -> None:
    documents_BT = torch.tensor([[0, 0, 0, 0, 2, 2, 2, -1], [1, 1, 1, 1, 1, 1, -1, -1]])
    mask_BT = documents_BT >= 0
    mask_BT[0, 0] = False
    found_BT = stratified(mask_BT, 2, _generator(), documents_BT=documents_BT)
    assert bool((mask_BT | ~found_BT).all())
    assert torch.bincount(documents_BT[found_BT]).tolist() == [2, 2, 2]


@pytest.mark.parametrize("rows", [0, -3, True, 2.5, "all"])
def test_what_is_no_count_is_refused_by_its_value(rows: object) -> None:
    with pytest.raises(ValueError, match=f"rows={rows!r}: give how many"):
        check_count(rows)
