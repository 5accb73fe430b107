from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sifting.selection import scores


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 40), st.floats(0.1, 30))
def test_every_score_equals_its_definition(
    seed: int, rows: int, classes: int, scale: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(rows, classes, generator=g)
    y = torch.randint(0, classes, (rows,), generator=g)
    p = z.double().softmax(-1)
    log_p = z.double().log_softmax(-1)
    top = p.sort(descending=True).values
    want = {
        "loss": -log_p[torch.arange(rows), y],
        "entropy": -(p * log_p).sum(-1),
        "margin": 1 - top[:, 0] + top[:, 1],
        "grad_norm": (p - F.one_hot(y, classes)).norm(dim=-1),
    }
    for name, function in scores.BY_NAME.items():
        got = function(z, y)
        assert (got >= 0).all()
        torch.testing.assert_close(got, want[name].float(), rtol=1e-4, atol=2e-4)


def test_grad_norm_is_the_gradient_at_the_logits() -> None:
    z = torch.randn(5, 7, requires_grad=True)
    y = torch.randint(0, 7, (5,))
    (grad,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="sum"), z)
    torch.testing.assert_close(scores.grad_norm(z.detach(), y), grad.norm(dim=-1))


def test_soft_labels() -> None:
    z, y = torch.randn(4, 3), torch.rand(4, 3).softmax(-1)
    torch.testing.assert_close(scores.loss(z, y), -(y * z.log_softmax(-1)).sum(-1))
    torch.testing.assert_close(scores.grad_norm(z, y), (z.softmax(-1) - y).norm(dim=-1))


def test_a_class_that_is_ruled_out_does_not_make_the_entropy_nan() -> None:
    z = torch.tensor([[0.0, 0.0, -torch.inf]])
    torch.testing.assert_close(scores.entropy(z), torch.log(torch.tensor([2.0])))


def test_half_precision_logits_are_scored_in_single() -> None:
    z = torch.randn(3, 50).bfloat16()
    assert scores.entropy(z).dtype == torch.float32
    torch.testing.assert_close(scores.entropy(z), scores.entropy(z.float()))


def test_margin_needs_two_classes() -> None:
    with pytest.raises(ValueError, match="at least 2 classes; the logits have 1"):
        scores.margin(torch.zeros(2, 1))
