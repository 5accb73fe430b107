"""Training a short piece from weights as they are, without a trace."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, Trial
from sifting.autopilot.options import PLAIN, Option
from sifting.autopilot.pieces import Pieces
from tests.helpers.models import Net, candidates

DATA = TensorDataset(torch.arange(480.0).reshape(60, 8) / 480, torch.arange(60) % 5)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def pieces_of(loader: Any, **options: Any) -> tuple[Net, Pieces, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    optimizer = options.pop("optimizer", torch.optim.SGD)(net.parameters(), lr=0.5)
    given = {"held_out": candidates(20), "updates": 1000, "loss": loss, "optimizer": optimizer}
    sifter = Sifter(net, trial=Trial(**{**given, **options}))
    assert sifter.pilot is not None
    assert sifter.pilot.trials is not None
    pieces = sifter.pilot.trials.pieces
    pieces.reads(loader)
    sifter.score(candidates(1)[0])
    return net, pieces, optimizer


def test_a_plain_piece_is_training_with_a_rate_that_cools_to_nothing() -> None:
    net, pieces, optimizer = pieces_of(DataLoader(DATA, batch_size=8, shuffle=True))
    rates: list[float] = []
    seen: list[int] = []
    step = optimizer.step

    def noting(*args: Any, **kwargs: Any) -> Any:
        rates.append(optimizer.param_groups[0]["lr"])
        return step(*args, **kwargs)

    net.embed.register_forward_hook(lambda m, args, out: seen.append(len(args[0])))
    optimizer.step = noting  # type: ignore[method-assign]
    before = copy.deepcopy(net.state_dict())
    with pieces.open() as aside:
        pieces.train(aside, PLAIN, updates=4, size=8, draw=0)
        assert not torch.equal(net.head.weight, before["head.weight"])
    assert rates == pytest.approx([0.5, 0.375, 0.25, 0.125])
    assert seen == [8] * 4
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_pieces_of_one_draw_meet_the_same_samples_first() -> None:
    net, pieces, _ = pieces_of(DataLoader(DATA, batch_size=8))
    met: list[list[float]] = []
    net.embed.register_forward_hook(lambda m, args, out: met.append(args[0][:, 0].tolist()))
    with pieces.open() as aside:
        for draw in (0, 0, 1):
            pieces.train(aside, PLAIN, updates=1, size=8, draw=draw)
    assert met[0] == met[1] != met[2]


def test_an_option_draws_more_and_trains_as_many() -> None:
    net, pieces, _ = pieces_of(DataLoader(DATA, batch_size=8))
    trained: list[int] = []
    net.head.register_full_backward_hook(lambda m, i, o: trained.append(len(o[0])))
    for option in (Option(pieces.exit.looks, 2), Option("memory", 4)):
        with pieces.open() as aside:
            pieces.train(aside, option, updates=2, size=8, draw=0)
    assert trained == [8] * 4


@pytest.mark.parametrize(
    ("loader", "options", "why"),
    [
        (
            DataLoader(DATA, batch_size=8),
            {"loss": None, "optimizer": None},
            "no loss= and optimizer=",
        ),
        (candidates(3), {}, "a list cannot be read beside the run"),
        (DataLoader(DATA, batch_size=40), {}, "its data set has 60 samples for batches of 40"),
        (DataLoader(DATA, batch_size=8), {"lbfgs": True}, "LBFGS calls the loss by itself"),
    ],
    ids=["no loss", "list", "small", "lbfgs"],
)
def test_where_no_piece_can_be_trained_it_says_why(
    loader: Any, options: dict[str, Any], why: str
) -> None:
    torch.manual_seed(0)
    net = Net()
    kind = torch.optim.LBFGS if options.pop("lbfgs", False) else torch.optim.SGD
    given = {"loss": loss, "optimizer": kind(net.parameters(), lr=0.5), **options}
    sifter = Sifter(net, trial=Trial(held_out=candidates(20), updates=1000, **given))
    assert sifter.pilot is not None
    assert sifter.pilot.trials is not None
    pieces = sifter.pilot.trials.pieces
    pieces.reads(loader)
    said = pieces.unable(getattr(loader, "batch_size", 12))
    assert said is not None
    assert why in said


def test_a_loader_that_can_be_read_has_nothing_against_it() -> None:
    _, pieces, _ = pieces_of(DataLoader(DATA, batch_size=8))
    assert pieces.unable(8) is None


class Augmented(TensorDataset):
    """What is drawn is a place and a seed, and neither alone can be read."""

    def __getitem__(self, drawn: Any) -> Any:
        place, _seed = drawn
        return super().__getitem__(place)

    def sample_id(self, drawn: Any) -> int:
        return int(drawn[0])


def test_what_a_sampler_draws_is_read_and_a_memory_knows_it_by_its_id() -> None:
    order: Any = [(place, 7) for place in range(60)]
    _, pieces, _ = pieces_of(DataLoader(Augmented(*DATA.tensors), 4, sampler=order))
    pieces.note(order[:40])
    assert pieces.unable(4) is None
    assert pieces.draws is not None
    pieces.draws.begin(0)
    (_, y), ids = pieces._batch(PLAIN, 4)
    assert [one % 5 for one in ids] == y.tolist()
    memory: Any = pieces.exit.memory
    pieces.rule = replace(pieces.rule, explore=0.0)
    asked: list[Any] = []
    memory.score_ids = lambda ids: asked.extend(ids) or torch.tensor(ids).float()
    (_, y), ids = pieces._batch(Option("memory", 2), 4)
    assert ids == sorted(ids, key=asked.index)
    assert set(ids) == set(sorted(asked)[4:])
    assert [one % 5 for one in ids] == y.tolist()
    pieces.seen = pieces.seen
    assert pieces.seen == order[:40]
