"""The predictor of losses: what it learns, who is asked, and that a run by it can be resumed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, Trial
from sifting.autopilot.options import Option
from sifting.exits.auto import PREDICTED
from sifting.exits.loss_predictor import FEWEST, LossPredictor, features
from sifting.measure.kept_loss import kept_loss

BATCH = 16


def samples(size: int = 640) -> TensorDataset:
    """Some of them hard, by a feature that a linear predictor sees, and some by their own noise."""
    stream = torch.Generator().manual_seed(2)
    x = torch.randn(size, 6, generator=stream)
    blurred = x[:, 1] + 0.5 * torch.randn(size, generator=stream)
    return TensorDataset(x, (blurred > 0).long())


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def train(model: nn.Module, batches: Any, steps: int) -> Iterator[None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0
    while done < steps:
        for x, y in batches:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            yield
            if done == steps:
                return


def rehearsing() -> tuple[nn.Module, Sifter]:
    model = make_model()
    sifter = Sifter(model, audit_every=0)
    assert sifter.pilot is not None
    sifter.pilot.pacing.cost = 0.01  # as of a model that is worth choosing for
    return model, sifter


def test_it_ranks_by_memory_and_exit_better_than_by_either() -> None:
    """Losses of which each half is told by another."""
    stream = torch.Generator().manual_seed(1)
    memory_B, exit_B = (torch.rand(2000, generator=stream) for _ in range(2))
    losses_B = (memory_B.sqrt() + exit_B).square()
    inputs = features(memory_B, torch.zeros(2000), exit_B, None)
    predictor = LossPredictor()
    for first in range(0, 1000, 100):
        predictor.learn(inputs[first : first + 100], losses_B[first : first + 100])
    by = {"predicted": predictor(inputs), "memory": memory_B, "exit": exit_B, "exact": losses_B}
    share = {name: float(kept_loss(one[1000:], losses_B[1000:], 2)) for name, one in by.items()}
    assert share["predicted"] > share["exact"] - 0.001
    assert share["predicted"] > max(share["memory"], share["exit"]) + 0.03


def test_of_samples_never_trained_it_goes_by_the_exit() -> None:
    unknown = torch.full((600,), math.nan)
    exit_B = torch.rand(600)
    inputs = features(unknown, torch.zeros(600), exit_B, 2 * exit_B)
    predictor = LossPredictor()
    predictor.learn(inputs, exit_B.square())
    assert torch.allclose(predictor(inputs), exit_B.square(), atol=0.02)


def test_what_is_old_counts_less() -> None:
    memory_B = torch.rand(FEWEST)
    inputs = features(memory_B, torch.zeros(FEWEST), torch.zeros(FEWEST), None)
    predictor = LossPredictor()
    predictor.learn(inputs, memory_B)
    for _ in range(300):
        predictor.learn(inputs[:50], 0.1 * memory_B[:50])
    assert torch.allclose(predictor(inputs), 0.1 * memory_B, atol=0.02)


def test_losses_that_are_not_finite_teach_nothing() -> None:
    inputs = features(torch.rand(4), torch.zeros(4), torch.rand(4), None)
    predictor = LossPredictor()
    predictor.learn(inputs, torch.tensor([1.0, math.nan, math.inf, 2.0]))
    assert predictor.seen == 2
    assert predictor(inputs).isfinite().all()


def test_it_learns_from_samples_that_were_noted_and_from_no_others() -> None:
    inputs_BF = features(torch.rand(4), torch.zeros(4), torch.rand(4), None)
    noted, taught = LossPredictor(), LossPredictor()
    noted.note(["a", "b", "c", "d"], inputs_BF)
    assert noted.waits
    noted.hear(["x", "d", "b"], torch.tensor([9.0, 1.0, 2.0]))
    assert not noted.waits
    taught.learn(inputs_BF[[3, 1]], torch.tensor([1.0, 2.0]))
    assert noted.seen == taught.seen == 2
    assert torch.equal(noted.products_F, taught.products_F)
    noted.hear(["a"], torch.tensor([1.0]))
    assert noted.seen == 2


def test_losses_may_be_negative() -> None:
    memory_B = torch.randn(1000)
    inputs = features(memory_B, torch.zeros(1000), torch.zeros(1000), None)
    predictor = LossPredictor()
    predictor.learn(inputs, memory_B)
    assert float(torch.corrcoef(torch.stack([predictor(inputs), memory_B]))[0, 1]) > 0.95


@pytest.mark.parametrize("name", ["squares", "products"])
def test_a_damaged_state_is_refused_and_changes_nothing(name: str) -> None:
    predictor = LossPredictor()
    predictor.learn(features(torch.rand(8), torch.zeros(8), torch.rand(8), None), torch.rand(8))
    before = predictor.state_dict()
    with pytest.raises(ValueError, match=f"{name} of the loss predictor"):
        predictor.load_state_dict({**before, name: torch.zeros(2)})
    after = predictor.state_dict()
    assert torch.equal(after["squares"], before["squares"])
    assert after["seen"] == 8


def test_it_competes_where_samples_are_known_and_looked_at() -> None:
    model, sifter = rehearsing()
    pilot = sifter.pilot
    assert pilot is not None
    for _ in train(model, sifter(DataLoader(samples(), BATCH, shuffle=True)), 120):
        pass
    assert pilot.exit.competing == ("input", "memory", PREDICTED)
    assert pilot.evidence.counts[PREDICTED] >= 8
    share = {name: pilot.evidence.kept_loss(Option(name, 2)) for name in pilot.exit.competing}
    assert (share[PREDICTED] or 0) > max(share["input"] or 0, share["memory"] or 0)
    # by kept loss alone it is never taken up: wrong labels have high losses, too
    assert all(
        one.learnable is False for one in pilot.judge() if one.option == Option(PREDICTED, 2)
    )


def test_it_is_not_asked_where_samples_are_not_known() -> None:
    data, (model, sifter) = samples(), rehearsing()
    pilot = sifter.pilot
    assert pilot is not None
    batches = [data[i : i + BATCH] for i in range(0, 320, BATCH)]
    for _ in train(model, sifter(batches), 20):
        pass
    assert PREDICTED not in pilot.evidence.counts
    assert pilot.exit.predictor.seen == 0


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_run_that_selects_by_it_goes_on_as_if_it_had_not_been_stopped(stop: int) -> None:
    def loader() -> Any:
        return DataLoader(
            samples(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5)
        )

    model, sifter = rehearsing()
    pilot = sifter.pilot
    assert pilot is not None
    for _ in train(model, sifter(loader()), 40 * 3):
        pass
    assert pilot.exit.predictor.ready
    pilot.decision = replace(pilot.decision, option=Option(PREDICTED, 2))
    pilot.exit.active = PREDICTED
    seen = pilot.exit.predictor.seen
    saved: dict[str, Any] = {}
    weights: dict[str, Tensor] = {}
    running = train(model, sifter(loader()), 12)
    for number, _ in enumerate(running):
        if number == stop:
            saved = copy.deepcopy(sifter.state_dict())
            weights = copy.deepcopy(model.state_dict())
    assert pilot.exit.predictor.seen == seen + 12 * BATCH
    other, again = rehearsing()
    other.load_state_dict(weights)
    again.load_state_dict(saved)
    for _ in train(other, again(loader()), 12 - stop - 1):
        pass
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_a_piece_by_it_leaves_nothing_behind() -> None:
    model, data = make_model(), samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial = Trial(
        held_out=[data[:64]],
        updates=400,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer,
    )
    sifter = Sifter(model, trial=trial, audit_every=0)
    pilot = sifter.pilot
    assert pilot is not None
    pilot.pacing.cost = 0.01
    for _ in train(model, sifter(DataLoader(data, BATCH, shuffle=True)), 100):
        pass
    assert pilot.trials is not None
    pieces = pilot.trials.pieces
    before = copy.deepcopy(pilot.exit.state_dict())
    weights = copy.deepcopy(model.state_dict())
    with pieces.open() as aside:
        pieces.train(aside, Option(PREDICTED, 2), updates=5, size=BATCH, draw=0)
        assert any(not torch.equal(model.state_dict()[k], v) for k, v in weights.items())
    assert all(torch.equal(model.state_dict()[k], v) for k, v in weights.items())
    after = pilot.exit.state_dict()
    assert after["predictor"]["seen"] == before["predictor"]["seen"] > FEWEST
    assert torch.equal(after["predictor"]["squares"], before["predictor"]["squares"])
    assert torch.equal(after["scorers"]["memory"]["losses"], before["scorers"]["memory"]["losses"])
