"""The user's own loss function, made to give one value per sample."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.sample_losses import PerSampleLoss

Z, Y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(),
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.0),
        lambda z, y: F.cross_entropy(z, y),
        lambda z, y: F.cross_entropy(z, y, reduction="none"),
    ],
    ids=["module", "function", "partial", "reduces", "one each"],
)
def test_every_way_to_write_it_gives_one_value_a_sample(loss_fn: Any) -> None:
    wanted = F.cross_entropy(Z, Y, reduction="none")
    torch.testing.assert_close(PerSampleLoss(loss_fn)(Z, Y), wanted)
    assert PerSampleLoss(loss_fn).reduced(Z, Y).item() == pytest.approx(wanted.mean().item())


def test_a_module_of_the_user_is_not_changed() -> None:
    own = nn.MSELoss()
    PerSampleLoss(own)(Z, Z + 1)
    assert own.reduction == "mean"


def test_a_loss_that_sums_is_summed() -> None:
    torch.testing.assert_close(
        PerSampleLoss(nn.MSELoss(reduction="sum"))(Z, Z + 2), torch.full((4,), 12.0)
    )
    torch.testing.assert_close(PerSampleLoss(nn.MSELoss())(Z, Z + 2), torch.full((4,), 4.0))


def test_positions_that_the_loss_ignores_do_not_count() -> None:
    z, y = torch.randn(2, 5, 4), torch.tensor([[0, 9, 9, 9, 2], [1, 2, 3, 9, 9]])
    found = PerSampleLoss(nn.CrossEntropyLoss(ignore_index=9))(z.movedim(-1, 1), y)
    wanted = [F.cross_entropy(z[i], y[i], ignore_index=9) for i in range(2)]
    torch.testing.assert_close(found, torch.stack(wanted))


def test_positions_may_predict_the_next() -> None:
    z, y = torch.randn(2, 7, 4), torch.randint(0, 4, (2, 7))
    found = PerSampleLoss(nn.CrossEntropyLoss(), shift=1)(z, y)
    wanted = [F.cross_entropy(z[i, :-1], y[i, 1:]) for i in range(2)]
    torch.testing.assert_close(found, torch.stack(wanted))


def test_one_column_of_outputs_is_met_by_plain_labels() -> None:
    found = PerSampleLoss(nn.BCEWithLogitsLoss())(Z[:, :1], torch.tensor([0, 1, 1, 0]))
    wanted = F.binary_cross_entropy_with_logits(
        Z[:, 0], torch.tensor([0.0, 1.0, 1.0, 0.0]), reduction="none"
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("loss_fn", "outputs", "labels", "message"),
    [
        (
            nn.MSELoss(),
            Z,
            torch.zeros(4, 2),
            r"MSELoss compares outputs \(4, 3\) with labels \(4, 2\)",
        ),
        (nn.CrossEntropyLoss(), Z[:, :1], Y, "has a single class, so every loss is 0"),
        (nn.CrossEntropyLoss(), Z, Y + 5, r"labels\[0\] is 5"),
        (lambda z, y: z[:2, 0], Z, Y, r"loss_fn gave a tensor of shape \(2,\) for 4 samples"),
        (
            lambda z, y: (z - y).square(),
            Z[:, :1],
            Y.float(),
            "compares every sample with every other",
        ),
        (
            functools.partial(
                F.cross_entropy, weight=torch.tensor([1.0, 5.0, 9.0]), reduction="mean"
            ),
            Z,
            Y,
            None,
        ),
    ],
    ids=["shapes", "single", "label", "too few", "broadcast", "weights"],
)
def test_what_is_no_loss_of_samples_is_named(
    loss_fn: Any, outputs: Tensor, labels: Tensor, message: str | None
) -> None:
    loss = PerSampleLoss(loss_fn)
    if message is None:  # weights of classes count in a sample's own value
        weights = torch.tensor([1.0, 5.0, 9.0])
        wanted = F.cross_entropy(outputs, labels, reduction="none") * weights[labels]
        torch.testing.assert_close(loss(outputs, labels), wanted)
        return
    with pytest.raises(ValueError, match=message):
        loss(outputs, labels)


def test_weights_that_only_a_batch_shows_are_refused() -> None:
    weights = torch.tensor([1.0, 5.0, 9.0])
    with pytest.raises(ValueError, match="weighs samples against one another"):
        PerSampleLoss(lambda z, y: F.cross_entropy(z, y, weight=weights))(Z, Y)


def test_a_function_that_mixes_samples_is_found_out() -> None:
    def mixing(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z - z.mean(0), y, reduction="none")

    with pytest.raises(ValueError, match=r"loss_fn mixes samples: that of row \d"):
        PerSampleLoss(mixing).check(Z, Y)
    PerSampleLoss(F.cross_entropy).check(Z, Y)
    with pytest.raises(ValueError, match=r"loss_fn failed on outputs \(4, 3\)"):
        PerSampleLoss(lambda z, y: z @ y.float()).check(Z, Y)


def test_types_are_named_and_names_shown() -> None:
    with pytest.raises(TypeError, match="loss_fn='mse' is not callable"):
        PerSampleLoss("mse")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss_fn gave a float"):
        PerSampleLoss(lambda z, y: 0.5)(Z, Y)
    shown = [str(PerSampleLoss(f)) for f in (nn.MSELoss(), F.mse_loss, lambda z, y: z)]
    assert shown == ["MSELoss", "mse_loss", "loss_fn"]
