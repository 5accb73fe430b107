"""Asking the loss predictor of a batch that was rehearsed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.autopilot.predicting import predict
from sifting.exits.auto import PREDICTED
from tests.helpers.models import Net


def trained() -> tuple[Sifter, tuple[torch.Tensor, torch.Tensor]]:
    """An autopilot whose predictor has heard losses of all samples twice."""
    torch.manual_seed(0)
    net = Net()
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 5, (64,)))
    sifter = Sifter(net)
    for _ in range(12):
        for x, y in sifter(DataLoader(data, batch_size=16)):
            F.cross_entropy(net(x), y).backward()
            net.zero_grad()
    return sifter, data[:16]


def test_it_has_nothing_to_say_before_there_is_anything_to_go_by() -> None:
    sifter = Sifter(Net())
    batch = (torch.randn(6, 8), torch.zeros(6).long())
    assert sifter.pilot is not None
    exit = sifter.pilot.exit
    assert predict(sifter._scorer, exit, batch, {}, [0, 1, 2, 3, 4, 5]) == {}
    scores = sifter._scorer.rehearse(batch, None)
    assert predict(sifter._scorer, exit, None, scores, None) == {}
    assert predict(sifter._scorer, exit, batch, scores, None) == {}, "whose samples are not known"


def test_of_samples_that_are_known_it_says_a_loss_each() -> None:
    sifter, batch = trained()
    ids = list(range(16))
    scores = sifter._scorer.rehearse(batch, ids, learn=False)
    assert sifter.pilot is not None
    exit = sifter.pilot.exit
    found = predict(sifter._scorer, exit, batch, scores, ids, note=False)
    assert set(found) == ({PREDICTED} if exit.predictor.ready else set())
    for losses_B in found.values():
        assert losses_B.shape == (16,)
        assert losses_B.isfinite().all()
    assert not exit.predictor.waits, "nothing is noted where nothing will be heard"
