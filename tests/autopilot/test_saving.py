"""What a difference is worth in time: held against curves whose answer is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sifting.autopilot.saving import LENGTHS, saving


def losses(length: float, *, noise: float = 0.0, seed: int = 0) -> Tensor:
    """Two draws of 400 held-out losses that fall by 0.4 nats for a piece's length."""
    stream = torch.Generator().manual_seed(seed)
    own_M = torch.rand(400, generator=torch.Generator().manual_seed(9))
    return 2 + own_M - 0.4 * length + noise * torch.randn(2, 400, generator=stream)


@pytest.mark.parametrize("worth", [0.8, 1.0, 1.2, 1.4])
def test_an_option_that_is_as_good_as_a_longer_piece_saves_the_difference(worth: float) -> None:
    longer = {length: losses(length) for length in LENGTHS}
    found = saving(losses(1.0), losses(worth), longer)
    assert found is not None
    assert found.value == pytest.approx(1 - 1 / worth, abs=1e-6)
    assert found.low == pytest.approx(found.high, abs=1e-6)


def test_the_interval_holds_what_is_true_about_as_often_as_it_says() -> None:
    held = []
    for seed in range(40):
        noisy = {n: losses(n, noise=0.3, seed=10 * seed + i) for i, n in enumerate(LENGTHS)}
        plain, option = (
            losses(n, noise=0.3, seed=10 * seed + 5 + n_) for n_, n in ((1, 1.0), (2, 1.2))
        )
        found = saving(plain, option, noisy)
        held.append(found is not None and found.low <= 1 - 1 / 1.2 <= found.high)
    assert sum(held) >= 32


def test_nothing_is_said_where_more_training_does_not_help() -> None:
    flat = {length: losses(1.0, noise=0.3, seed=round(100 * length)) for length in LENGTHS}
    assert saving(losses(1.0, noise=0.3), losses(1.5), flat) is None
