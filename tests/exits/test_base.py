"""The protocol of an exit, and what an exit that says nothing does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sifting import Sifter
from sifting.exits.base import Exit, Setting, TrainedBatch, ids_in
from sifting.model.call import Call
from sifting.model.plan import Plan
from tests.helpers.models import Net, candidates
from tests.helpers.plans import plan_of


class First(Exit):
    """The least an exit has to say: it scores by the first input."""

    def bind(self, model: nn.Module, stack: str | None) -> None:
        pass

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        pass

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Any, learn: bool) -> Tensor:
        return batch[0][:, 0]


def test_three_methods_make_an_exit_that_selects_and_resumes(net: Net) -> None:
    sifter = Sifter(net, exit=First(), score="loss", keep=0.5, draws="batch")
    for x, _ in sifter(data := candidates(3)):
        kept = x
    wanted = data[2][0][:, 0].topk(6).values.sort().values
    torch.testing.assert_close(kept[:, 0].sort().values, wanted)
    again = Sifter(net, exit=First(), score="loss", keep=0.5, draws="batch")
    again.load_state_dict(sifter.state_dict())
    assert again.step == 3


def test_what_an_exit_does_not_say_is_that_it_does_not() -> None:
    exit = First()
    flags = (exit.observes, exit.by_id, exit.learns, exit.shardable, exit.pipelined)
    assert (exit.runs, flags) == (True, (False,) * 5)
    assert exit.compared() is None
    assert exit.unlearned() == exit.state_dict() == {}
    scores = torch.ones(3)
    assert exit.refined(None, None, None, scores, None) is scores  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="First does not score by IDs"):
        exit.score_ids([1])
    with pytest.raises(TypeError, match="First does not score beside a training step"):
        exit.beside(lambda module: module)
    with pytest.raises(ValueError, match=r"weights of a learned exit \(weight\), .* is a First"):
        exit.load_state_dict({"weight": 1})


def test_ids_are_found_as_the_user_says() -> None:
    call = Call(ids="row")
    batch = {"x": torch.zeros(2, 3), "row": torch.tensor([7, 9])}
    assert list(ids_in(call, batch)) == [7, 9]
    with pytest.raises(ValueError, match="a MemoryExit has to know which sample is which"):
        ids_in(Call(), batch)
    with pytest.raises(ValueError, match=r"gave 3 IDs for 2 samples"):
        ids_in(Call(ids=lambda batch: [1, 2, 3]), batch)


def test_what_an_exit_is_told_is_frozen() -> None:
    for told in (Setting("loss", "rank", Call()), TrainedBatch(Call(), None)):
        with pytest.raises(AttributeError):
            told.call = Call()  # type: ignore[misc]


def test_what_an_exit_takes_is_a_share_of_a_forward_by_where_it_is(net: Net) -> None:
    batch = candidates(1)[0]
    plan = plan_of(net, batch)
    exit = First()
    assert exit.work(plan, net, batch) == 1.0, "not known: as dear as can be"
    exit.place = "blocks.0"  # type: ignore[attr-defined]
    with torch.no_grad():
        assert 0 < exit.work(plan, net, batch) < 0.5


def test_two_exits_of_a_kind_are_called_the_same() -> None:
    assert repr(First()) == repr(First()) == "First()"
