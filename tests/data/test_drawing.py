from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from sifting.data.drawing import IndexSource
from tests.helpers.loaders import Counted


def test_an_order_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in_order=False.*draws='batch'"):
        IndexSource(DataLoader(Counted(), 4, num_workers=1, in_order=False), whole=True)


def test_how_many_steps_a_pass_has_is_said_where_it_can_be() -> None:
    source = IndexSource(DataLoader(Counted(), 4), whole=False)
    assert source.steps_of_a_pass(lambda step, size: 2 * size) == 5  # 37 candidates, 8 a step
    source = IndexSource(DataLoader(Counted(), batch_sampler=[[1, 2], [3]]), whole=False)
    with pytest.raises(TypeError, match="how many samples a list gives cannot be told"):
        source.steps_of_a_pass(lambda step, size: size)
