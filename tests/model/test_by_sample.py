"""Exact losses of each sample from what gives them whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter
from sifting.model.by_sample import check_reduced, given_losses, reduced_losses
from sifting.model.call import Call
from tests.helpers.plans import plan_of


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 6), nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)]), nn.Linear(6, 4)
    )


def denoising(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - 1).square().mean(dim=1)


def test_losses_are_scored_and_audited() -> None:
    net, batch = model(), (torch.randn(8, 3), torch.arange(8) % 4)
    sifter = Sifter(net, exit="last", score="loss", losses=denoising, audit_every=1)
    with torch.no_grad():
        torch.testing.assert_close(sifter.score(batch), denoising(net, batch))
    sifter.select(batch)
    assert sifter.stats().rho_approx > 1
    assert "losses=, one value per sample" in repr(sifter)
    early = Sifter(net, exit=1, score="loss", losses=denoising).score(batch)
    assert not torch.allclose(early, sifter.score(batch))


def test_losses_that_are_not_one_a_sample_are_refused() -> None:
    batch = (torch.randn(8, 3), torch.arange(8) % 4)
    sifter = Sifter(model(), exit="last", score="loss", losses=lambda m, b: m(b[0]).mean())
    with pytest.raises(ValueError, match=r"losses= gave \(\) for \d samples"):
        sifter.score(batch)


X, Y = torch.randn(8, 3), torch.arange(8) % 4


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


class Reducing(nn.Module):
    """A classifier that gives the loss of a batch and nothing else."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.options = nn.Linear(3, 4), options

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(x), labels, **self.options)


def batch_of(labels: list[int]) -> dict[str, Tensor]:
    x = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(1))
    return {"x": x, "labels": torch.tensor(labels)}


def test_a_reduced_loss_is_taken_one_sample_at_a_time() -> None:
    model, batch = Reducing(), batch_of([0, 1, -100, 2])
    with torch.no_grad():
        found = reduced_losses(Call(), model, batch)
        z = model.linear(batch["x"])
    wanted = F.cross_entropy(z, batch["labels"], reduction="none")
    torch.testing.assert_close(found, wanted)
    assert found[2] == 0, "what has no label"


def test_a_label_of_no_class_names_its_row() -> None:
    with pytest.raises(ValueError, match=r"failed on row 1, whose labels are {'labels': 77}"):
        reduced_losses(Call(), Reducing(), batch_of([0, 77]))


def test_a_batchs_loss_that_is_no_mean_of_its_samples_is_refused() -> None:
    batch = batch_of([0, 1, 2, 3])
    for options in ({}, {"reduction": "sum"}):
        model = Reducing(**options)
        with torch.no_grad():
            check_reduced(Call(), model, batch, model(**batch))
    weighted = Reducing(weight=torch.tensor([1.0, 9.0, 1.0, 5.0]))
    with torch.no_grad(), pytest.raises(ValueError, match=r"class weights.*losses=lambda"):
        check_reduced(Call(), weighted, batch, weighted(**batch))


def test_the_users_losses_are_one_a_sample_without_a_gradient() -> None:
    model = nn.Linear(3, 1)
    found = given_losses(lambda m, b: m(b).squeeze(1), Call(), model, torch.ones(5, 3))
    assert found.shape == (5,)
    assert not found.requires_grad
    with pytest.raises(ValueError, match="losses= gave list for 5 samples"):
        given_losses(lambda m, b: [1.0] * 5, Call(), model, torch.ones(5, 3))  # type: ignore[arg-type, return-value]
