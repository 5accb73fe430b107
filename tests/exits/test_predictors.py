"""The learned part of a tuned exit: small linear maps with an Adam of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sifting.exits.predictors import WIDTH, Linear, Predictor, Translator

CPU = torch.device("cpu")
X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > X[:, 1]).long()


def learned(steps: int = 60) -> Linear:
    predictor = Linear(X, (2,))
    predictor.ready(CPU, 0.1)
    for _ in range(steps):
        predictor.study(lambda: (F.cross_entropy(predictor(X), Y), len(Y)))
        predictor.step()
    return predictor


def test_it_is_nothing_at_first_and_learns() -> None:
    head, translator = Linear(X, (2,)), Translator(X[None])
    assert not head(X).any()
    assert torch.equal(translator(X), X), "a residual map"
    assert (learned()(X).argmax(1) == Y).double().mean() > 0.95


def test_by_width_many_features_do_not_throw_it_about() -> None:
    """At one rate for all, an update of a wide head changes its outputs by more than they should be."""
    generator = torch.Generator().manual_seed(1)
    losses: dict[Any, float] = {}
    for lr in (0.01, WIDTH):
        head = Linear(torch.zeros(1, 1024), (2,))
        head.ready(CPU, lr)
        generator.manual_seed(1)
        total = 0.0
        for _ in range(100):
            x = torch.randn(32, 1024, generator=generator)
            noise = torch.randn(32, generator=generator)
            y = (x[:, :256].mean(1) * 16 + noise > 0).long()
            total += float(F.cross_entropy(head(x), y).detach())
            head.study(lambda head=head, x=x, y=y: (F.cross_entropy(head(x), y), len(y)))  # type: ignore[misc]
            head.step()
        losses[lr] = total / 100
    assert losses[WIDTH] < 0.9 * losses[0.01]
    assert Linear(torch.zeros(1, 4), (2,)).rate(WIDTH) == 0.01
    assert Translator(X[None]).rate(WIDTH) == 0.01


def test_lessons_are_taken_together_by_how_much_they_are_of() -> None:
    one, two = (Linear(X, (2,)) for _ in range(2))
    for predictor in (one, two):
        predictor.ready(CPU, 0.1)
    one.study(lambda: (F.cross_entropy(one(X), Y), 64))
    for part in (slice(0, 48), slice(48, 64)):
        two.study(
            lambda part=part: (F.cross_entropy(two(X[part]), Y[part]), part.stop - part.start)
        )
    one.step()
    two.step()
    torch.testing.assert_close(one.weight, two.weight)
    assert two.lessons == []


def test_ranks_are_averaged_and_where_nobody_has_a_label_nothing_changes() -> None:
    predictor = Linear(X, (2,))
    predictor.ready(CPU, 0.1)
    seen: list[Tensor | float] = []

    def average(grads: list[Tensor], weight: Tensor | float) -> list[Tensor]:
        seen.append(weight)
        return [torch.zeros_like(grad) for grad in grads]

    predictor.study(lambda: (F.cross_entropy(predictor(X), Y), torch.tensor(64)))
    predictor.step(average)
    assert seen == [torch.tensor(64)]  # as it is: to read it would be to wait for it
    predictor.study(lambda: (0 * predictor(X).sum(), 0))
    predictor.step()
    assert not predictor.weight.any()


def test_a_broken_batch_does_not_break_it() -> None:
    predictor = learned(5)
    before = predictor.weight.detach().clone()
    predictor.study(lambda: (predictor(X * torch.nan).sum(), 64))
    predictor.step()
    assert predictor.weight.isfinite().all()
    torch.testing.assert_close(predictor.weight, before, atol=0.2, rtol=0.5)


def test_lessons_may_be_kept_apart_and_taken_in() -> None:
    predictor, whole = learned(3), learned(3)
    aside = predictor.aside()
    aside.study(lambda: (F.cross_entropy(aside(X), Y), 64))
    assert predictor.lessons == []
    predictor.take_in(aside.lessons)
    predictor.step()
    whole.study(lambda: (F.cross_entropy(whole(X), Y), 64))
    whole.step()
    assert torch.equal(predictor.weight, whole.weight)


@pytest.mark.parametrize("steps", [0, 3])
def test_it_goes_on_identically_from_its_state(steps: int) -> None:
    predictor = learned(steps)
    again = Predictor.load(copy.deepcopy(predictor.state_dict()))
    assert type(again) is Linear
    again.ready(CPU, 0.1)
    for one in (predictor, again):
        one.study(lambda one=one: (F.cross_entropy(one(X), Y), 64))
        one.step()
    assert torch.equal(predictor.weight, again.weight)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"kind": 9}, "'kind' of a predictor"),
        ({"weight": torch.zeros(3)}, "'weight'"),
        ({"bias": torch.zeros(7)}, "'bias'"),
        ({"weight": torch.full((2, 6), torch.nan)}, "finite numbers"),
        ({"moments": {0: {}}}, "moments"),
    ],
)
def test_a_damaged_state_is_refused(spoil: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Predictor.load({**learned(2).state_dict(), **spoil})


def test_moving_it_keeps_its_moments() -> None:
    predictor = learned(3)
    before = predictor.state_dict()["moments"]
    predictor.ready(torch.device("cpu"), 0.1)
    again = Predictor.load(predictor.state_dict())
    again.ready(CPU, 0.1)
    for index, slots in again.state_dict()["moments"].items():
        for name, value in slots.items():
            assert torch.equal(value, before[index][name])
