"""Plans: what is assumed and said, scores that suit it, losses= and functions of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.agreement import compare_gradients, compare_losses, reduced
from sifting.model.call import logits_of
from sifting.model.plan import Plan
from tests.helpers.plans import Language, plan_of, text

X, Y = torch.randn(8, 3), torch.arange(8) % 4


def test_the_objective_is_said_in_one_line() -> None:
    assert plan_of(Language(), text()).describe() == (
        "logits → labels by cross-entropy, shifted by one, mean over labelled positions; found by matching "
        "the model's own loss"
    )
    assert plan_of(nn.Linear(3, 4), (X, Y)).describe() == (
        "logits → labels by cross-entropy; assumed, since the model gives no loss of its own"
    )
    assert plan_of(nn.Linear(3, 4), (X, Y), nn.CrossEntropyLoss()).describe() == (
        "logits → labels by CrossEntropyLoss; as given by you"
    )
    losses = plan_of(nn.Linear(3, 4), (X, Y), losses=lambda m, b: m(b[0]).sum(dim=1))
    assert losses.describe() == "losses=, one value per sample"


@pytest.mark.parametrize(
    ("model", "batch", "loss_fn", "score"),
    [
        (nn.Linear(3, 4), (X, Y), None, "entropy"),
        (nn.Linear(3, 4), (X, Y), nn.CrossEntropyLoss(), "entropy"),
        (nn.Linear(3, 1), (X, Y % 2), None, "loss"),
        (nn.Linear(3, 4), (X, torch.randn(8, 4)), nn.MSELoss(), "loss"),
        (nn.Linear(3, 4), (X, (torch.randn(8, 4) > 0).float()), nn.BCEWithLogitsLoss(), "loss"),
        (Language(), text(), None, "entropy"),
    ],
)
def test_the_default_score_suits_the_objective(
    model: nn.Module, batch: Any, loss_fn: Any, score: str
) -> None:
    plan = plan_of(model, batch, loss_fn)
    assert plan.default_score() == score
    plan.check_score(score)


# Is what is trained what is scored?


def gradient(
    loss_of: Any, model: nn.Module, x: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    z = logits_of(model(x))["logits"]
    z.retain_grad()
    loss_of(z).backward()
    assert z.grad is not None
    return {"logits": z.detach()}, {"logits": z.grad}


@pytest.mark.parametrize(
    ("same", "trained"),
    [
        (True, lambda z: F.cross_entropy(z, Y)),
        (True, lambda z: 128 * F.cross_entropy(z, Y) / 3),
        (False, lambda z: F.cross_entropy(z, Y, label_smoothing=0.3)),
        (False, lambda z: F.cross_entropy(z, Y, weight=torch.tensor([0.1, 1.0, 5.0, 1.0]))),
        (False, lambda z: F.mse_loss(z, F.one_hot(Y, 4).float())),
        (False, lambda z: F.cross_entropy(z, Y.flip(0))),
    ],
)
def test_the_gradient_at_the_outputs_shows_which_loss_is_trained(same: bool, trained: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    plan = plan_of(model, (X, Y))
    found = compare_gradients(plan, *gradient(trained, model, X), (X, Y))
    assert found is not None
    assert found.same == same
    assert same or "loss_fn=" in found.message


def test_weights_of_the_sifter_are_no_disagreement() -> None:
    torch.manual_seed(0)
    model, weights = nn.Linear(3, 4), torch.rand(8) * 3
    plan = plan_of(model, (X, Y))
    seen = gradient(lambda z: (weights * F.cross_entropy(z, Y, reduction="none")).mean(), model, X)
    weighted = compare_gradients(plan, *seen, (X, Y), weights_B=weights)
    assert weighted is not None
    assert weighted.same


def test_the_gradient_of_a_shifted_loss() -> None:
    model, batch = Language(), text()
    plan = plan_of(model, batch)
    y = batch["labels"]
    for shift, same in ((1, True), (0, False)):

        def trained(z: Tensor, shift: int = shift) -> Tensor:
            return F.cross_entropy(z[:, : 6 - shift].flatten(0, 1), y[:, shift:].flatten())

        found = compare_gradients(plan, *gradient(trained, model, batch["ids"]), batch)
        assert found is not None
        assert found.same == same


def test_values_of_trained_and_scored_losses() -> None:
    model, batch = nn.Linear(3, 4), (X, Y)
    plan = plan_of(model, batch)
    with torch.no_grad():
        scored, z = plan.losses(model(X), batch), model(X)
    assert scored is not None
    assert compare_losses(plan, F.cross_entropy(z, Y), scored).same
    smoothed = compare_losses(plan, 1 + F.cross_entropy(z, Y), scored)
    assert not smoothed.same
    assert "not " in smoothed.message
    weight = torch.tensor([0.1, 1.0, 5.0, 1.0])
    own = plan_of(model, batch, nn.CrossEntropyLoss(weight=weight))
    with torch.no_grad():
        scored = own.losses(z, batch)
        assert scored is not None
        trained = F.cross_entropy(z, Y, weight=weight)
        assert compare_losses(own, trained, scored, reduced(own, {"logits": z}, batch)).same


def test_a_plan_says_by_what_losses_are_found() -> None:
    batch = (torch.randn(8, 3), torch.arange(8) % 4)
    model = nn.Linear(3, 4)
    kinds = {
        "parts": plan_of(model, batch),
        "loss_fn": plan_of(model, batch, F.cross_entropy),
        "losses": plan_of(model, batch, losses=lambda m, b: m(b[0])[:, 0]),
    }
    for kind, plan in kinds.items():
        assert isinstance(plan, Plan)
        assert plan.kind == kind
        with torch.no_grad():
            found = plan.exact_losses(model, batch)
        assert (found is None) == (kind == "parts"), "those are to be had from the parts"
        assert found is None or found.shape == (8,)
    output = model(batch[0])
    found = kinds["parts"].losses(output, batch)
    torch.testing.assert_close(found, F.cross_entropy(output, batch[1], reduction="none"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quick_losses_are_the_losses_to_the_last_bit(dtype: torch.dtype) -> None:
    model = nn.Linear(3, 4)
    plan, output = plan_of(model, (X, Y)), model(X).to(dtype)
    quick_B = plan.quick_losses(output, (X, Y))
    assert quick_B is not None
    wanted_B = plan.losses(output, (X, Y))
    assert wanted_B is not None
    assert torch.equal(quick_B, wanted_B)


def test_quick_losses_leave_every_other_case_to_losses() -> None:
    model = nn.Linear(3, 4)
    plan, output = plan_of(model, (X, Y)), model(X)
    wrong, none = Y.clone(), Y.clone()
    wrong[3], none[3] = 9, -100
    for labels in (wrong, none, Y[:5], Y.int(), F.one_hot(Y, 4).float(), Y[:0]):
        assert plan.quick_losses(output, (X, labels)) is None
    assert plan.quick_losses(output[:0], (X[:0], Y[:0])) is None
    text_plan = plan_of(Language(), text())
    assert text_plan.quick_losses(Language()(text()["ids"]), text()) is None
    own = plan_of(model, (X, Y), nn.CrossEntropyLoss(label_smoothing=0.1))
    assert own.quick_losses(output, (X, Y)) is None
