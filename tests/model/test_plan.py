"""Plans: what is assumed and said, scores that suit it, losses= and functions of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.agreement import compare_gradients, compare_losses, reduced, verify
from sifting.model.call import Call, logits_of
from sifting.model.parts import rows_of, score_rows
from sifting.model.plan import Plan, probe_rows
from sifting.model.sample_losses import PerSampleLoss


def plan_of(model: nn.Module, batch: Any, loss_fn: Any = None, **options: Any) -> Plan:
    loss = None if loss_fn is None else PerSampleLoss(loss_fn)
    with torch.no_grad():
        return Plan.resolve(Call(), model.eval(), batch, loss, **options)


class Language(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.options = nn.Embedding(20, 8), nn.Linear(8, 20), options

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.head(self.table(ids))
        if labels is None:
            return {"logits": z}
        loss = F.cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **self.options)
        return {"logits": z, "loss": loss}


def text(rows: int = 4) -> dict[str, Tensor]:
    ids = torch.randint(0, 20, (rows, 6), generator=torch.Generator().manual_seed(0))
    return {"ids": ids, "labels": ids}


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
    assert losses.describe() == "losses=, one value a sample"


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


def test_losses_of_the_users_own() -> None:
    model = nn.Linear(3, 4)

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) - 1).square().mean(dim=1)

    plan = plan_of(model, (X, Y), losses=losses)
    assert plan.kind == "losses"
    assert plan.default_score() == "loss"
    with torch.no_grad():
        found = plan.exact_losses(model, (X, Y))
        torch.testing.assert_close(found, losses(model, (X, Y)))
    assert found is not None
    assert not found.requires_grad
    assert plan.losses(model(X), (X, Y)) is None
    with pytest.raises(ValueError, match="score='entropy' needs logits"):
        plan.check_score("entropy")
    by_class = plan_of(model, (X, Y), losses=losses, score="entropy")
    by_class.check_score("entropy")
    assert by_class.kind == "losses"


@pytest.mark.parametrize("wrong", [torch.zeros(()), torch.zeros(8, 2), 1.0])
def test_losses_must_be_one_a_sample(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"losses= gave .* for 8 samples: .*\(8,\)"):
        plan_of(nn.Linear(3, 4), (X, Y), losses=lambda model, batch: wrong)


def test_one_loss_is_enough() -> None:
    with pytest.raises(ValueError, match="loss_fn= and losses= both"):
        plan_of(nn.Linear(3, 4), (X, Y), nn.MSELoss(), losses=lambda m, b: X[:, 0])


def unsure(logits_NC: Tensor, labels_N: Tensor | None) -> Tensor:
    return 1 - logits_NC.softmax(-1).max(-1).values


def whole(logits: Tensor, labels: Tensor) -> Tensor:
    return unsure(logits, labels).mean(dim=1)


def test_score_functions_of_rows_and_of_whole_samples_are_told_apart() -> None:
    model, batch = Language(), text()
    plan = plan_of(model, batch)
    with torch.no_grad():
        assert plan.for_score(unsure, model, batch).by_rows
        assert not plan.for_score(whole, model, batch).by_rows
        assert not plan.for_score("entropy", model, batch).by_rows
        assert not plan.for_score(lambda z, y: z[0], model, batch).by_rows

        def said(z: Tensor, y: Tensor) -> Tensor:
            return whole(z, y)

        said.of_rows = True  # type: ignore[attr-defined]
        assert plan.for_score(said, model, batch).by_rows
        values: list[Tensor] = []
        plan.each_part(
            model, batch, lambda part, found, y: values.append(plan.score(part, found, y, unsure))
        )
        z = model(batch["ids"])["logits"]
    torch.testing.assert_close(values[0], whole(z[:, :-1], batch["labels"]))


def test_a_score_function_of_rows_must_give_one_a_row() -> None:
    part = plan_of(nn.Linear(3, 4), (X, Y)).parts[0]
    with pytest.raises(
        ValueError, match=r"gave \(8, 4\) for 8 rows: return a tensor of shape \(8,\)"
    ):
        score_rows(rows_of(part, torch.zeros(8, 4), Y), lambda z, y: z)


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


def test_what_two_samples_cannot_tell_more_can() -> None:
    batch = text(6)
    batch["labels"] = torch.full((6, 6), 7)
    batch["labels"][5] = 3
    model = Language(weight=torch.tensor([1.0] * 3 + [9.0] + [1.0] * 16))
    plan = plan_of(model, {name: value[:2] for name, value in batch.items()})
    assert plan.kind == "parts"
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"the model's own loss of 6 samples is .*class weights"),
    ):
        verify(plan, model, batch)
    good = Language()
    with torch.no_grad():
        verify(plan_of(good, text(2)), good, batch)


def test_rows_that_tell_most_are_tried() -> None:
    def rows(labels: Tensor) -> list[int] | None:
        found = probe_rows(Call(), (torch.zeros(len(labels), 3), labels))
        return None if found is None else found.tolist()

    assert rows(torch.tensor([1, 1, 1, 2, 1])) == [0, 1, 3]
    assert rows(torch.tensor([1, 2, 1, -1])) == [0, 1, 3]
    padded = torch.arange(20).reshape(4, 5) + 1
    padded[2, 3:] = 0
    assert rows(padded + 1000 * (padded > 0)) == [0, 1, 2]
    padded[3, 1] = 255
    assert rows(padded) == [0, 1, 2, 3]
    assert rows(torch.full((4,), -100)) is None
    assert rows(torch.tensor([[1.0, 0], [0, 1.0], [1.0, 1.0]])) == [0, 2]
