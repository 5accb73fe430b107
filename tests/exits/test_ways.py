"""Ways of scoring a model: exits, each with as much of a candidate as it looks at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from sifting.exits.block import BlockExit
from sifting.exits.economy import Economy
from sifting.exits.tuned import TunedExit
from sifting.exits.ways import Way, possible_ways
from tests.helpers.models import SMALL, Net, candidates, token_batch
from tests.helpers.plans import plan_of


def names(model: nn.Module, batch: Any, *, vary: bool = True) -> list[str]:
    plan = plan_of(model, batch)
    with torch.no_grad():
        return [
            way.name
            for way in possible_ways(plan, model, batch, generator=torch.Generator(), vary=vary)
        ]


def test_a_classifier_is_tried_at_its_blocks_and_on_its_input(net: Net) -> None:
    found = names(net, candidates(1)[0], vary=False)
    assert found[:3] == ["tuned", "exit 1", "input"]
    assert all(name.startswith("tuned at ") for name in found[3:])


def test_a_language_model_is_tried_with_fewer_positions_and_shorter_views() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    batch = token_batch(6, 24)
    found = names(model, batch)
    assert "exit 1" in found
    assert "exit 1, rows='labelled'" in found
    assert "exit 1, view=12" in found
    assert not any(name.startswith("input") for name in found)
    assert names(model, batch, vary=False) == ["tuned", "exit 1"]


def test_images_are_tried_smaller() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
    )
    found = names(model, (torch.randn(4, 3, 16, 16), torch.arange(4)))
    assert "tuned, view=8" in found
    assert "input" in found
    assert "input, view=8" not in found, "it looks at coarse images anyway"


def test_a_way_scores_by_its_own_economy(net: Net) -> None:
    batch = candidates(1)[0]
    plan = plan_of(net, batch)
    way = Way("exit 1", BlockExit(1))
    way.exit.bind(net, None)
    with torch.no_grad():
        way.prepare(plan, net, batch, "loss")
        found = way.score(plan, net, batch, "loss", learn=False)
        wanted = torch.nn.functional.cross_entropy(
            net.logits_at(batch[0], 1), batch[1], reduction="none"
        )
    torch.testing.assert_close(found, wanted)
    low = Way("exit 1", BlockExit(1), Economy(precision="bf16"))
    assert (way.shown, low.shown) == ("exit 1", "exit 1, bf16")


def test_what_does_not_fit_is_refused(net: Net) -> None:
    batch = candidates(1)[0]
    way = Way("exit 1, rows=2", BlockExit(1), Economy(rows=2, generator=torch.Generator()))
    way.exit.bind(net, None)
    with torch.no_grad(), pytest.raises(ValueError, match="rows=2"):
        way.prepare(plan_of(net, batch), net, batch, "loss")


def test_ways_at_one_place_are_the_same(net: Net) -> None:
    paths = {"a": "blocks.0", "b": "blocks.0", "c": "blocks.1"}
    one, two, other = (Way(name, TunedExit(path)) for name, path in paths.items())
    for way in (one, two, other):
        way.exit.bind(net, None)
        with torch.no_grad():
            way.exit.prepare(plan_of(net, candidates(1)[0]), net, candidates(1)[0])
    assert one.same(two)
    assert not one.same(other)
    assert not Way("d", BlockExit(1)).same(one)


def test_sequences_of_which_a_way_shows_nothing_are_scored_whole() -> None:
    """Nobody has asked for its view, so nobody could mend it."""
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL)).eval()
    batch = token_batch(6, 24)
    plan, exit = plan_of(model, batch), BlockExit(1)
    exit.bind(model, None)
    batch["attention_mask"][2, :15] = 0  # padded on the left
    way, whole = Way("exit 1, view=12", exit, Economy(view=12)), Way("exit 1", exit)
    with torch.no_grad():
        found, expected = (w.score(plan, model, batch, "loss", learn=False) for w in (way, whole))
    assert torch.equal(found, expected)
