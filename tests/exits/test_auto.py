"""The exit of the autopilot: several scorers, of which one is in use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from sifting import MemoryExit
from sifting.exits import make_competing, make_exit
from sifting.exits.auto import MEMORY, AutoExit
from sifting.exits.base import Setting, TrainedBatch
from sifting.exits.block import BlockExit
from sifting.exits.input import InputExit
from sifting.exits.tuned import TunedExit
from sifting.model.call import Call
from tests.helpers.models import SMALL, Net, candidates, token_batch
from tests.helpers.plans import plan_of


def prepared(model: nn.Module, batch: Any, exit: AutoExit | None = None) -> tuple[AutoExit, Any]:
    exit = exit or AutoExit()
    exit.suits(Setting("entropy", "rank", Call()))
    exit.bind(model, None)
    plan = plan_of(model, batch)
    with torch.no_grad():
        exit.prepare(plan, model, batch)
    return exit, plan


def test_the_cheapest_that_fits_looks_at_the_samples(net: Net) -> None:
    exit, _ = prepared(net, candidates(1)[0])
    assert (exit.active, exit.looks, exit.runs) == ("input", "input", False)
    assert exit.refused == {"tuned": "'input' is cheaper"}
    assert exit.costs["input"] == exit.costs[MEMORY] == 0.0
    assert exit.competing == ("input", MEMORY, "predicted")


def test_a_language_model_has_it_at_a_block() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    exit, _ = prepared(model, token_batch())
    assert exit.looks == "tuned"
    assert exit.runs
    assert 0 < exit.costs["tuned"] < 0.6
    assert "input" in exit.refused


def test_all_are_compared_where_they_can_be(net: Net) -> None:
    batch = candidates(1)[0]
    exit, plan = prepared(net, batch)
    with torch.no_grad():
        alone = exit.scores_of_all(plan, net, batch, "entropy", learn=False)
        known = exit.scores_of_all(plan, net, batch, "entropy", learn=False, ids=list(range(12)))
    assert set(alone) == {"input"}
    assert set(known) == {"input", MEMORY}


def test_losses_that_are_trained_are_remembered_and_new_samples_told_apart(net: Net) -> None:
    exit, _ = prepared(net, candidates(1)[0])
    exit.expect(20)
    exit.observe(TrainedBatch(Call(), None, ids=[3, 4]), torch.tensor([1.0, 2.0]))
    exit.end_step()
    new = exit.new([3, 4, 5])
    assert new is not None
    assert new.tolist() == [False, False, True]
    assert exit.new(None) is None
    exit.observe(
        TrainedBatch(Call(), None), torch.tensor([1.0])
    )  # without IDs: nothing to remember


def test_ids_that_no_memory_takes_are_no_reason_not_to_train(net: Net) -> None:
    batch = candidates(1)[0]
    exit, plan = prepared(net, batch)
    with torch.no_grad():
        found = exit.scores_of_all(plan, net, batch, "entropy", learn=False, ids=[-1] * 12)
    assert set(found) == {"input"}
    assert MEMORY in exit.refused


def test_where_none_fits_it_says_why(net: Net) -> None:
    exit = AutoExit({"exit": BlockExit(9)})
    with pytest.raises(ValueError, match="exit=9 is out of range"):
        exit.bind(net, None)
    nobody = AutoExit({})
    nobody.refused["input"] = "it does not fit"
    with pytest.raises(
        ValueError, match=r"none of the autopilot's scorers fits .*input: it does not fit"
    ):
        nobody.score(None, net, None, "loss", False)  # type: ignore[arg-type]


def test_it_goes_on_from_its_state_and_refuses_another_exits(net: Net) -> None:
    exit, _ = prepared(net, candidates(1)[0])
    exit.expect(20)
    exit.observe(TrainedBatch(Call(), None, ids=[3]), torch.tensor([1.0]))
    exit.end_step()
    again = AutoExit()
    again.load_state_dict(exit.state_dict())
    assert (again.active, again.looks, again.refused) == (exit.active, exit.looks, exit.refused)
    assert sorted(again.scorers) == sorted(exit.scorers)
    with pytest.raises(ValueError, match="not what an autopilot's exit has learned"):
        again.load_state_dict({"weight": torch.zeros(1)})


def test_what_exit_stands_for() -> None:
    assert isinstance(make_exit("input"), InputExit)
    assert isinstance(make_exit(2), BlockExit)
    memory = MemoryExit()
    assert make_exit(memory) is memory
    assert list(make_competing(memory).scorers) == [MEMORY]
    own = AutoExit({"exit": TunedExit()})
    assert make_competing(own) is own
