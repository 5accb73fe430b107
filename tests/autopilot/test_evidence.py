"""Kept loss and agreement, pooled over steps and over ranks."""

from __future__ import annotations

import torch
from torch import nn

from sifting import Sifter
from sifting.autopilot.evidence import FEWEST, Evidence, errors_in, errors_of
from sifting.autopilot.options import Option


def test_it_tells_a_scorer_that_knows_from_one_that_guesses() -> None:
    stream = torch.Generator().manual_seed(0)
    evidence = Evidence()
    for step in range(3 * FEWEST):
        losses_B = torch.rand(64, generator=stream) ** 4
        logits_BC = torch.randn(64, 5, generator=stream)
        labels_B = torch.randint(0, 5, (64,), generator=stream)
        scores = {"knows": losses_B, "guesses": torch.rand(64, generator=stream)}
        evidence.add(scores, losses_B, errors_of(logits_BC, labels_B), logits_BC)
        if step == 0:
            assert evidence.kept_loss(Option("knows", 2)) is None
    knows, guesses = (evidence.kept_loss(Option(name, 2)) for name in ("knows", "guesses"))
    assert knows is not None
    assert guesses is not None
    assert knows > 0.9
    assert abs(guesses - 0.5) < 0.1
    for ratio in (4, 8):
        assert evidence.kept_loss(Option("knows", ratio)) > 2 / ratio  # type: ignore[operator]


def test_what_is_not_finite_has_no_part_in_it() -> None:
    evidence = Evidence()
    losses_B = torch.tensor([1.0, 2.0, torch.nan, 3.0, 4.0, torch.inf])
    for _ in range(FEWEST):
        evidence.add({"a": torch.arange(6.0)}, losses_B)
    assert evidence.kept_loss(Option("a", 2)) == 0.7
    few = Evidence()
    few.add({"a": torch.arange(6.0)}, torch.full((6,), torch.nan))
    assert few.counts == {}


def test_states_and_ranks_add_up() -> None:
    parts = []
    for seed in range(2):
        stream = torch.Generator().manual_seed(seed)
        evidence = Evidence()
        for _ in range(FEWEST):
            losses_B = torch.rand(16, generator=stream)
            errors_BC = torch.randn(16, 3, generator=stream)
            evidence.add({"a": losses_B}, losses_B, errors_BC)
        again = Evidence()
        again.load_state_dict(evidence.state_dict())
        assert again.state_dict() == evidence.state_dict()
        parts.append(again)
    option = Option("a", 2)
    both = Evidence.joined(parts)
    each = [part.kept_loss(option) for part in parts]
    assert min(each) <= both.kept_loss(option) <= max(each)  # type: ignore[type-var,operator]
    assert both.agreement(option) is None or both.agreement(option) == both.agreement(option)


def test_errors_are_those_of_a_forward_that_predicts_one_class_per_sample() -> None:
    model, batch = nn.Linear(4, 3), (torch.randn(6, 4), torch.randint(0, 3, (6,)))
    sifter = Sifter(model, exit="last", score="loss", keep=0.5)
    scorer = sifter.chooser.scorer
    output = model(batch[0])
    assert errors_in(output, batch, scorer) is None, "nothing is known of the model yet"
    sifter.score(batch)
    found = errors_in(output, batch, scorer)
    assert found is not None
    assert torch.equal(found, errors_of(output, batch[1]))
    assert errors_in(None, batch, scorer) is None
    assert errors_in(output, (batch[0], torch.full((6,), -100)), scorer) is None
