"""Kept loss and agreement against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from sifting.measure.kept_loss import GradientAgreement, agreement, kept_loss, products


def test_kept_loss_by_hand() -> None:
    losses_B = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0])
    assert kept_loss(losses_B, losses_B, 2) == pytest.approx(14 / 16)  # three of five
    assert kept_loss(-losses_B, losses_B, 2) == pytest.approx(4 / 16)
    assert kept_loss(losses_B, torch.zeros(5), 4) == 0.25


def test_agreement_is_that_of_the_last_layers_gradients() -> None:
    """Against gradients that autograd takes of each sample's loss, one by one."""
    stream = torch.Generator().manual_seed(1)
    layer = torch.nn.Linear(6, 4).double()
    features_BH = torch.randn(24, 6, generator=stream).double()
    labels_B = torch.randint(0, 4, (24,), generator=stream)
    grads = []
    for i in range(24):
        loss = torch.nn.functional.cross_entropy(layer(features_BH[i : i + 1]), labels_B[i : i + 1])
        found = torch.autograd.grad(loss, [layer.weight, layer.bias])
        grads.append(torch.cat([g.flatten() for g in found]))
    grads_BP = torch.stack(grads)
    kept_K = torch.tensor([3, 5, 7, 11, 13, 17])
    gram_BB = grads_BP @ grads_BP.T
    scale = gram_BB.diagonal().mean()
    off_BB = gram_BB - torch.diag(gram_BB.diagonal())
    a_kept, a_all = off_BB[kept_K].sum() / (6 * 23), off_BB.sum() / (24 * 23)
    b_kept, b_all = gram_BB[kept_K][:, kept_K].mean(), scale / 6 + (1 - 1 / 6) * a_all
    errors_BC = layer(features_BH).softmax(1) - torch.nn.functional.one_hot(labels_B, 4)
    found = agreement(products(errors_BC.detach(), features_BH), kept_K)
    wanted = [float(v / scale) for v in (a_kept, b_kept, a_all, b_all)]
    assert list(vars(found).values()) == pytest.approx(wanted)
    if a_all > 0:
        value = (a_kept / b_kept.sqrt()) / (a_all / b_all.sqrt())
        assert found.value == pytest.approx(float(value))


def test_what_cannot_be_told_is_not_a_number() -> None:
    assert math.isnan(GradientAgreement().value)
    assert math.isnan(agreement(torch.zeros(4, 4), torch.tensor([0, 1])).value)
    assert agreement(torch.ones(1, 1), torch.tensor([0])) == GradientAgreement()
