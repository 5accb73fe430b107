"""Scores that are not finite."""

from __future__ import annotations

import pytest
import torch

from sifting import Sifter
from sifting.chooser.finite import NotFinite, finite
from tests.helpers.models import Net, candidates

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


def test_scores_that_are_not_finite(net: Net) -> None:
    x, y = candidates(1)[0]
    x[3] = torch.nan
    x[7] = torch.inf
    with pytest.raises(
        ValueError, match=r"2 of 12 candidates are not finite \(rows 3, 7\).*nonfinite='drop'"
    ):
        Sifter(net, exit=1, score="loss").select((x, y))
    kept = Sifter(net, exit=1, score="loss", nonfinite="drop").select((x, y)).indices.tolist()
    assert len(kept) == 6
    assert not {3, 7} & set(kept)


def test_scores_that_are_not_finite_rank_last_or_are_named() -> None:
    scores = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf])
    assert finite(scores, drop=True).tolist() == [1.0, *[-torch.inf] * 3]
    with pytest.raises(NotFinite, match=r"3 of 4 candidates are not finite \(rows 1, 2, 3\)"):
        finite(scores, drop=False)
    large = torch.full((4,), 3e38)
    assert finite(large, drop=False) is large, "only too large to be added"
