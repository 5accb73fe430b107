"""What one step costs each of some devices."""

from __future__ import annotations

import pytest
import torch

from sifting import cost
from sifting.cost import BERT_BASE, predict
from sifting.parallel.ranks import Share


def test_moved_samples_are_what_chance_moves():
    generator = torch.Generator().manual_seed(0)
    for devices, candidates, keep in ((2, 32, 0.5), (8, 64, 0.5), (4, 16, 0.25), (32, 8, 0.5)):
        moved = []
        for _ in range(300):
            total = devices * candidates
            kept = torch.randperm(total, generator=generator)[: int(keep * total)].sort().values
            shares = [Share(rank, (candidates,) * devices, kept) for rank in range(devices)]
            moved.append(sum(sum(share.sent) - share.sent[share.rank] for share in shares))
        estimate = cost.moved_samples(candidates, keep, devices)
        assert sum(moved) / len(moved) == pytest.approx(estimate, rel=0.1)


def test_a_prediction_is_made_of_flops_memory_and_moved_samples():
    found = predict(BERT_BASE, exit=2, keep=0.25, batch=16, devices=4)
    assert (found.exit, found.blocks, found.candidates, found.kept) == (2, 12, 64, 16)
    assert found.scoring_flops == cost.scoring_flops(BERT_BASE, 64, exit=2)
    assert found.update_flops == cost.update_flops(BERT_BASE, 16)
    assert found.ratio == pytest.approx(cost.scoring_ratio(BERT_BASE, exit=2, keep=0.25))
    assert found.scoring_share == pytest.approx(found.ratio / (1 + found.ratio))
    assert found.moved == cost.moved_samples(64, 0.25, 4)
    assert found.peak_bytes == max(found.scoring_bytes, found.update_bytes)
    assert (found.scoring_seconds, found.talking_seconds) == (None, None)


def test_speeds_make_seconds():
    found = predict(BERT_BASE, devices=2, tflops=10, bandwidth=5, sequence_bytes=1000)
    assert found.scoring_seconds == pytest.approx(found.scoring_flops / 10e12)
    assert found.update_seconds == pytest.approx(found.update_flops / 10e12)
    told = found.moved / 2 * 1000 + found.gathered_bytes
    assert found.talking_seconds == pytest.approx(told / 5e9)
    assert predict(BERT_BASE, bandwidth=5).talking_seconds == 0.0, "alone, nobody is talked to"


def test_entropy_holds_more_logits_at_once():
    loss, entropy = (predict(BERT_BASE, batch=1, entropy=entropy) for entropy in (False, True))
    assert entropy.scoring_bytes > loss.scoring_bytes
    assert entropy.scoring_flops == loss.scoring_flops


def test_the_whole_model_hands_on_the_states_after_all_that_is_frozen():
    found = predict(BERT_BASE, exit=None, batch=8, frozen=3, reuse=True)
    spared = cost.update_flops(BERT_BASE, 8) - cost.update_flops(BERT_BASE, 8, frozen=3, reused=3)
    backward = cost.update_flops(BERT_BASE, 8) - cost.update_flops(BERT_BASE, 8, frozen=3)
    assert found.reused_flops == pytest.approx(spared - backward)
    assert found.added == pytest.approx(found.ratio - found.reused_flops / found.update_flops)
