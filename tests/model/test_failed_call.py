"""A model that fails when it is called as the batch suggests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from sifting.model.failed_call import failed_calls, note_call

X, Y = torch.randn(8, 4), torch.arange(8) % 3


class Headless(nn.Module):
    """Has layers, and is never called itself, as some LightningModules are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)


@pytest.mark.parametrize(
    ("model", "batch", "called"),
    [
        (nn.Linear(4, 3), ((X, X), Y), r"takes 2 positional .* as Linear\(\(\d, 4\), \(\d, 4\)\)"),
        (nn.Linear(4, 3), (tuple(X), Y), r"must be Tensor, not tuple.* as Linear\(tuple of \d\)"),
        (nn.Linear(4, 3), ((X * 9).byte(), Y), r"RuntimeError.* as Linear\(\(\d, 4\)\)"),
        (Headless(), (X, Y), r"NotImplementedError.* as Headless\(\(\d, 4\)\)"),
    ],
)
@pytest.mark.parametrize("exit", ["last", "tuned"])
def test_a_wrong_call_is_shown_with_forward_as_the_remedy(
    model: nn.Module, batch: Any, called: str, exit: str
) -> None:
    sifter = Sifter(model, exit=exit, keep=0.5)
    with pytest.raises(ValueError, match=called + r".*pass forward=lambda model, batch"):
        next(iter(sifter([batch] * 2)))


def test_the_remedy_works() -> None:
    model = Headless()
    sifter = Sifter(model, exit="last", score="loss", forward=lambda m, b: m.layer(b[0]))
    want = F.cross_entropy(model.layer(X), Y, reduction="none")
    torch.testing.assert_close(sifter.score((X, Y)), want)


def test_a_users_own_forward_is_named() -> None:
    sifter = Sifter(nn.Linear(4, 3), exit="last", forward=lambda model, batch: model(batch))
    with pytest.raises(ValueError, match=r"forward=, which you passed, .*\[0\] \(\d, 4\)"):
        sifter.score((X, Y))


def test_errors_of_our_own_and_full_devices_are_left_as_they_are() -> None:
    for error in (RuntimeError("mine"), torch.OutOfMemoryError("full")):
        with pytest.raises(type(error), match=str(error)), failed_calls():
            if isinstance(error, torch.OutOfMemoryError):
                note_call(error, nn.Linear(1, 1), [X], {})
            raise error


class Detector(nn.Module):
    """Takes lists of images and of targets, and returns losses only, as detectors do in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))

    def forward(self, images: Any, targets: Any = None) -> dict[str, Tensor]:
        pairs = zip(images, targets, strict=True)
        found = [(self.layers(i[None]).mean((2, 3)), t["labels"]) for i, t in pairs]
        losses = [F.cross_entropy(z.expand(len(y), -1), y) for z, y in found]
        return {"loss": torch.stack(losses).mean()}


def test_a_detector_with_losses_of_its_own_is_sifted_by_default() -> None:
    data = [(torch.randn(3, 8, 8), {"labels": torch.tensor([i % 5])}) for i in range(32)]
    loader = DataLoader(data, batch_size=4, collate_fn=lambda rows: tuple(zip(*rows, strict=True)))  # type: ignore[arg-type]

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return torch.stack([model([i], [t])["loss"] for i, t in zip(*batch, strict=True)])

    for options in ({}, {"exit": "last", "keep": 0.5}, {"exit": MemoryExit(), "keep": 0.5}):
        model = Detector()
        for images, targets in Sifter(model, losses=losses, **options)(loader):
            assert len(images) == len(targets) == 4
            assert images[0].shape == (3, 8, 8)
            model(images, targets)["loss"].backward()
