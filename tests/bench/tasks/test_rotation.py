"""By what angle is an image rotated?"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sifting.bench.tasks.rotation import MOST, ROTATION, measure, rotated, squares


def test_each_image_is_rotated_by_its_own_angle() -> None:
    image = torch.zeros(3, 21, 21, dtype=torch.uint8)
    image[:, 10, 10:20] = 255  # a hand that points right
    rows = rotated(image, seed=0)
    pixels, angles = rows.tensors_N
    assert float(angles.abs().max()) <= 1
    for turned, angle in zip(pixels, angles, strict=True):
        places = (turned > 100).nonzero().float() - 10
        tip = places[places.norm(dim=1).argmax()]
        found = math.atan2(-float(tip[0]), float(tip[1]))
        assert abs(found) == pytest.approx(abs(float(angle) * MOST), abs=0.12)
    assert torch.equal(rotated(image, seed=0).tensors_N[1], angles)


def test_angles_of_training_held_out_and_test_are_drawn_apart(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SIFT_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("sifting.bench.tasks.fashion.PACKAGE", str(tmp_path / "none"))
    data = ROTATION.read(ROTATION.presets["smoke"])
    first = [rows.tensors_N[1][:5].tolist() for rows in (data.train, data.held_out, data.test)]
    assert len({tuple(angles) for angles in first}) == 3
    assert data.classes == 0


def test_the_error_is_squared_and_averaged() -> None:
    rows = rotated(torch.zeros(6, 28, 28, dtype=torch.uint8), seed=1)

    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 1)

    angles = rows.tensors_N[1]
    assert measure(Nothing(), rows)["squared_error"] == pytest.approx(float(angles.square().mean()))
    batch = rows.__getitems__([0, 1])
    torch.testing.assert_close(squares(Nothing(), batch), angles[:2].square())
