"""A loop of one's own: batches that somebody else drew."""

from __future__ import annotations

import warnings

import pytest
import torch

from sifting import Sifter
from sifting.by_hand import rehearse, select
from tests.helpers.models import Net, candidates


def test_a_loop_of_ones_own_is_counted(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss", keep=lambda step: 0.5 if step < 2 else 0.25)
    assert [len(sifter.select(batch).indices) for batch in candidates(3)] == [6, 6, 3]
    stats = sifter.stats()
    assert (stats.steps, stats.candidates_seen, stats.samples_trained) == (3, 36, 15)


def test_a_single_sample_is_no_choice(net: Net) -> None:
    with pytest.raises(ValueError, match="a candidate batch of 1 leaves nothing to choose from"):
        Sifter(net, exit=1).select(candidates(1, size=1)[0])


def test_rehearsing_sifts_and_audits_every_batch_silently(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss", warmup_steps=50, every=4, audit_every=0)
    rehearse(sifter)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in sifter(candidates(6)):
            pass
    stats = sifter.stats()
    assert (stats.selections, stats.audits) == (6, 6)
    assert sifter.auditor.silent


def test_what_was_selected_is_what_is_observed_next(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    selection = select(sifter, candidates(1)[0])
    assert sifter.weights is selection.weights
    with pytest.raises(ValueError, match="one loss for each of the 6 samples"):
        sifter.observe(torch.zeros(5))
