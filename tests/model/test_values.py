"""Tensors inside what modules take and return."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from sifting.model.values import close, first_tensor, tensors_in, with_first_tensor

ONE, TWO, NEW = torch.tensor(1.0), torch.tensor(2.0), torch.tensor(7.0)
Pair = namedtuple("Pair", ["a", "b"])


@pytest.mark.parametrize(
    "value",
    [ONE, (ONE, TWO), [None, ONE], {"a": 3, "b": ONE}, Pair(None, ONE), BaseModelOutput(ONE)],
    ids=lambda value: type(value).__name__,
)
def test_the_first_tensor_is_found_and_replaced_in_a_copy(value: Any) -> None:
    assert first_tensor(value) is ONE
    changed = with_first_tensor(value, NEW)
    assert type(changed) is type(value)
    assert first_tensor(changed) is NEW
    assert first_tensor(value) is ONE, "what was given is left as it is"
    assert [*tensors_in(changed)][1:] == [*tensors_in(value)][1:]


def test_where_there_is_none_that_is_said() -> None:
    assert first_tensor({"a": [None, "x"]}) is None
    with pytest.raises(ValueError, match="a dict without a tensor"):
        with_first_tensor({"a": 1}, NEW)


def test_closeness_goes_by_the_scale_of_the_whole() -> None:
    large = torch.tensor([1e6, 1.0])
    assert close(large, large + torch.tensor([0.0, 1.0]))
    assert not close(torch.ones(2), torch.ones(2) + 1e-3)
    assert close(torch.ones(2).bfloat16(), torch.ones(2) + 1e-3), "half precision is coarse"
    assert not close(torch.ones(2), torch.tensor([1.0, torch.nan]))
    assert close(torch.ones(0), torch.ones(0))
    assert not close(torch.ones(2), torch.ones(2, device="meta"))
