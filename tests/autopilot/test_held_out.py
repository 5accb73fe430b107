"""Looking at held-out samples: on which of them progress is made."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, Trial
from sifting.autopilot.held_out import HeldOut
from sifting.autopilot.looks import BUDGET, FORWARD
from sifting.autopilot.options import Option
from sifting.measure.learning import Progress
from sifting.rng import RandomState
from tests.helpers.models import Net, candidates

UPDATES = 4000


def sifter_with(held_out: Any, *, updates: int | None = UPDATES) -> tuple[Net, Sifter, HeldOut]:
    torch.manual_seed(0)
    net = Net()
    sifter = Sifter(net, trial=Trial(held_out=held_out, updates=updates))
    assert sifter.pilot is not None
    sifter.pilot.acts = False
    return net, sifter, sifter.pilot.held_out


def train(net: Net, sifter: Sifter, steps: int = 3) -> None:
    data = TensorDataset(torch.randn(16 * steps, 8), torch.randint(0, 5, (16 * steps,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in sifter(DataLoader(data, batch_size=16)):
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_looks_are_planned_once_the_size_of_a_step_is_known() -> None:
    net, sifter, held_out = sifter_with(candidates(40))
    assert not held_out.looks
    train(net, sifter)
    assert held_out.looks
    (step, *_) = held_out.state_dict()["steps"]
    assert held_out.due(step - 1, step)
    assert not held_out.due(step, step + 1)


def test_a_look_notes_where_losses_fell_and_leaves_the_weights() -> None:
    net, sifter, held_out = sifter_with(candidates(40))
    train(net, sifter)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    for step in (100, 200, 300):
        held_out.look(step)
        with torch.no_grad():
            net.head.bias += 0.01
    net.load_state_dict(weights)
    option = Option(sifter.pilot.exit.looks, 2)  # type: ignore[union-attr]
    assert len(held_out.progress[option]) == 2, "from one look to the next"
    assert len(held_out.progress[Option("memory", 2)]) == 1, "ranked by a look before"
    assert sifter.stats().held_out_seen == 3 * held_out.state_dict()["samples"]
    assert held_out.recent(option) is not None


def test_with_more_effort_it_goes_by_the_samples_of_one_at_work_and_tells_of_all() -> None:
    told: dict[float, HeldOut] = {}
    torch.manual_seed(0)
    known = (
        Net()
    )  # as each one is below: what it says becomes the label, and more of it is progress
    batches = [(x, known(x).argmax(dim=1)) for x, _ in candidates(400)]
    for budget in (BUDGET, 10 * BUDGET):
        net, sifter, held_out = sifter_with(batches)
        held_out.budget = budget
        train(net, sifter)
        for step in (100, 200, 300):
            held_out.look(step)
            with torch.no_grad():
                net.head.weight *= 1.5
            assert held_out._average is not None
            held_out._average.update(10_000)
        told[budget] = held_out
    at_work, more = told.values()
    assert at_work.state_dict()["samples"] < more.state_dict()["samples"]
    option = Option(sifter.pilot.exit.looks, 2)  # type: ignore[union-attr]
    assert more.recent(option) == at_work.recent(option), "the same samples decide"
    assert at_work.shares() != more.shares(), "more are told of"
    assert at_work.others is None, "which it knows all of"
    assert more.others is not None
    count = more.at_work.samples
    assert count == at_work.state_dict()["samples"]
    assert all(len(one.drawn_N) == count for one in more.others.sets)
    shares = {one.progress.recent(option).share for one in more.others.sets}  # type: ignore[union-attr]
    assert len(shares) > 1, "other samples say something else"


@pytest.mark.parametrize(
    ("given", "tells"),
    [
        ({}, True),
        ({"loss_fn": torch.nn.CrossEntropyLoss()}, True),
        ({"loss_fn": torch.nn.MSELoss()}, False),
        ({"losses": lambda net, batch: (net(batch[0])[:, 0] - batch[1]).square()}, False),
    ],
)
def test_progress_tells_where_classes_are_predicted(given: dict[str, Any], tells: bool) -> None:
    torch.manual_seed(0)
    net = Net()
    x, labels = torch.randn(448, 8), torch.randint(0, 5, (448,))
    y = labels if tells else torch.randn(448, 5) if "loss_fn" in given else labels.float()
    held_out = [(x[48:], y[48:])]
    sifter = Sifter(net, trial=Trial(held_out=held_out, updates=UPDATES), **given)
    assert sifter.pilot is not None
    looking = sifter.pilot.held_out
    assert looking.tells, "nothing is known of the model yet"
    for batch_x, batch_y in sifter(DataLoader(TensorDataset(x[:48], y[:48]), batch_size=16)):
        out = net(batch_x)
        loss = F.cross_entropy(out, batch_y) if tells else (out - batch_y.reshape(16, -1)).square()
        loss.mean().backward()
    for step in (100, 200, 300):
        looking.look(step)
        with torch.no_grad():
            net.head.weight *= 0.9
    assert looking.tells == tells
    assert tells or looking.shares() == []


def test_the_log_has_no_share_of_progress_within_noise() -> None:
    held_out = sifter_with(candidates(40))[2]
    clear, noise = Progress(0.3, 0.1, 1e-4, 1e-4), Progress(1e-3, -5e-4, 1e-4, 1e-4)
    held_out.progress.update({Option("input", 2): [clear, clear], Option("tuned", 2): [noise]})
    (found,) = held_out.shares()
    assert (found["scorer"], found["share"]) == ("input", pytest.approx(0.75))
    assert math.isfinite(found["error"])


def test_held_out_losses_that_are_no_numbers_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batches = [(x.clone(), y) for x, y in candidates(40)]
    batches[0][0][:3] = math.nan
    net, sifter, held_out = sifter_with(batches)
    train(net, sifter)
    with caplog.at_level("INFO", logger="sifting"):
        held_out.look(100)
        held_out.look(200)
    (line,) = (line for line in caplog.messages if "held-out" in line)
    count = held_out.state_dict()["samples"]
    assert line == f"3 of {count} held-out losses are not a number: these samples tell nothing"


def test_held_out_samples_one_by_one_are_said_to_take_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = TensorDataset(torch.randn(400, 8), torch.randint(0, 5, (400,)))
    with caplog.at_level("INFO", logger="sifting"):
        for size, said in ((64, 0), (1, 1)):
            caplog.clear()
            net, sifter, _ = sifter_with(DataLoader(data, batch_size=size))
            train(net, sifter)
            assert sum("in batches of 1, and 16" in line for line in caplog.messages) == said


def test_losses_are_cut_off_at_that_of_guessing() -> None:
    net, sifter, held_out = sifter_with(candidates(40))
    assert held_out.guessing() == math.inf
    train(net, sifter)
    assert held_out.guessing() == pytest.approx(math.log(5))


def test_reading_them_draws_from_no_stream_and_is_alike_again() -> None:
    data = TensorDataset(torch.randn(480, 8), torch.randint(0, 5, (480,)))
    loader = DataLoader(data, batch_size=12, shuffle=True)
    _, _, held_out = sifter_with(loader)
    before = RandomState.now()
    first = held_out._held_out(200)
    assert before.same_as(RandomState.now())
    _, _, again = sifter_with(loader)
    for (x, _), (z, _) in zip(first, again._held_out(200), strict=True):
        assert torch.equal(x, z)


def test_what_looks_take_is_counted_also_those_to_come() -> None:
    net, sifter, held_out = sifter_with(candidates(40))
    train(net, sifter)
    plan = held_out.state_dict()
    spent, one = held_out.spent(3, 16)
    assert one == pytest.approx(plan["samples"] * FORWARD / 16)
    assert spent == pytest.approx(len(plan["steps"]) * one)


def test_its_state_comes_back_and_damage_is_refused() -> None:
    net, sifter, held_out = sifter_with(candidates(40))
    train(net, sifter)
    for step in (100, 200):
        held_out.look(step)
    state = held_out.state_dict()
    _, _, again = sifter_with(candidates(40))
    again.load_state_dict(state)
    assert again.progress == held_out.progress
    with pytest.raises(ValueError, match=r"its looks are of \d+ samples each"):
        again.load_state_dict({**state, "seen": [torch.zeros(3)]})


def test_without_held_out_samples_there_are_no_looks() -> None:
    net, sifter, held_out = sifter_with(None)
    train(net, sifter)
    assert not held_out.looks
    assert held_out.shares() == []


@pytest.mark.parametrize(
    ("samples", "updates", "why"),
    [(40, UPDATES, "it has 40 samples"), (400, 60, "cost too much of a run of 60 such batches")],
)
def test_held_out_samples_that_are_not_looked_at_are_said(
    samples: int, updates: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = torch.randn(samples, 8), torch.randint(0, 5, (samples,))
    net, sifter, held_out = sifter_with([(x, y)], updates=updates)
    with caplog.at_level("INFO", logger="sifting"):
        train(net, sifter)
    assert not held_out.looks
    assert [why in line for line in caplog.messages if "is not looked at" in line] == [True]


def test_samples_in_many_small_batches_are_too_many_for_the_run_and_not_too_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net, sifter, held_out = sifter_with(candidates(40), updates=60)
    with caplog.at_level("INFO", logger="sifting"):
        train(net, sifter)
    assert not held_out.looks
    assert "cost too much of a run of 60 such batches" in caplog.text


X, Y = torch.randn(200, 8), torch.randint(0, 5, (200,))
OF_ANOTHER_KIND: dict[str, tuple[Any, str]] = {
    "a pair of tensors": ((X, Y), r"batch 1 of the Trial's held_out= is \(200, 8\): no labels"),
    "samples": ([(x, y) for x, y in zip(X, Y, strict=True)], "batch 1 .*: len"),
    "too narrow": ([(X[:, :3], Y)], r"batch 1 .* \(200, 3\).*: .*shapes cannot be multiplied"),
    "another dtype": ([(X.double(), Y)], "batch 1 .*dtype.* Give a list or a loader of batches"),
    "other classes": ([(X, Y + 7)], r"batch 1 .*labels\[0\]"),
}


@pytest.mark.parametrize("kind", OF_ANOTHER_KIND)
def test_held_out_batches_of_another_kind_fail_with_the_first_step_and_are_named(kind: str) -> None:
    given, message = OF_ANOTHER_KIND[kind]
    net, sifter, _ = sifter_with(given)
    with pytest.raises(ValueError, match=message):
        train(net, sifter)
    assert sifter.step <= 2
