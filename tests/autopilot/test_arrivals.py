"""Progress on new samples, against what the losses were made to do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sifting.autopilot.arrivals import FIRST, Arrivals, Mean, window_of
from sifting.measure.learning import progress

BATCH = 64


def losses_at(step: int, scores_B: Tensor, noise: torch.Generator) -> Tensor:
    """What scores high falls three times as fast as what scores low, in the step's logarithm."""
    fall = torch.where(scores_B > 0, 0.3, 0.1) * math.log2(max(1, step))
    return 4 - fall + 0.3 * torch.randn(len(scores_B), generator=noise)


def filled(steps: int = 800, *, new: bool | None = None) -> Arrivals:
    noise = torch.Generator().manual_seed(0)
    found = Arrivals()
    for step in range(steps):
        scores_B = torch.randn(BATCH, generator=noise)
        scores_B = torch.cat([scores_B.abs()[: BATCH // 2], -scores_B.abs()[BATCH // 2 :]])
        order = torch.randperm(BATCH, generator=noise)
        new_B = None if new is None else torch.full((BATCH,), new)
        found.add(step, scores_B[order], losses_at(step, scores_B[order], noise), new_B)
    return found


def test_the_share_is_what_the_losses_do() -> None:
    recent = filled().recent(800)
    assert recent is not None
    assert recent.share == pytest.approx(0.75, abs=3 * recent.error)
    assert recent.error < 0.03


def test_its_error_is_that_of_repeated_draws() -> None:
    shares, errors = [], []
    for seed in range(200):
        noise = torch.Generator().manual_seed(seed)
        found = Arrivals()
        for step in range(FIRST, 4 * FIRST, 8):
            scores_B = torch.arange(BATCH) - BATCH / 2 + 0.5
            found.add(step, scores_B, losses_at(step, scores_B, noise), None)
        recent = found.recent(4 * FIRST)
        assert recent is not None
        shares.append(recent.share)
        errors.append(recent.error)
    # the spread of steps inside a window is counted as noise, too: never too sure
    spread = float(torch.tensor(shares).std())
    assert spread < float(torch.tensor(errors).mean()) < 2 * spread


def test_with_the_same_samples_it_is_the_progress_on_them() -> None:
    scores = torch.arange(512) % 2 - 0.5
    before, after = 2 + torch.rand(512), torch.rand(512)
    found = Arrivals()
    found.add(FIRST, scores, before, None)
    found.add(2 * FIRST, scores, after, None)
    recent = found.recent(4 * FIRST)
    assert recent is not None
    assert recent.share == pytest.approx(progress(before, after, scores, 2).share)


def test_samples_that_were_trained_before_do_not_count() -> None:
    assert filled(new=False).recent(800) is None
    seen, unseen = filled(new=True).recent(800), filled().recent(800)
    assert seen == unseen


def test_nothing_is_said_before_two_windows_are_over() -> None:
    assert filled(150).recent(150) is None  # the second is under way
    assert filled(200).recent(200) is not None
    assert Arrivals().recent(10_000) is None


def test_losses_that_are_not_numbers_are_left_out() -> None:
    found = Arrivals()
    losses_B = torch.tensor([1.0, 2.0, math.nan, 3.0, 4.0, math.inf])
    found.add(FIRST, torch.arange(6.0), losses_B, None)
    kept, rest = found.windows[0]
    assert (kept.count, kept.value, rest.count, rest.value) == (2, 3.5, 2, 1.5)


def test_ranks_add_up_and_states_come_back() -> None:
    one, other = filled(400), filled(300)
    both = Arrivals.joined([one, other])
    for number, (kept, rest) in both.windows.items():
        parts = [part.windows.get(number, (Mean(), Mean())) for part in (one, other)]
        assert kept.count == sum(part[0].count for part in parts)
        assert rest.total == pytest.approx(sum(part[1].total for part in parts))
    again = Arrivals()
    again.load_state_dict(one.state_dict())
    assert again.windows == one.windows
    with pytest.raises(ValueError, match="'0' of the autopilot's new samples"):
        again.load_state_dict({"0": [1, 2, 3]})
    assert again.windows == one.windows
    assert window_of(FIRST - 1) is None
