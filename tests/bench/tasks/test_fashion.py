from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sifting.bench.tasks import fashion
from sifting.bench.tasks.fashion import (
    CLEAN,
    FashionConfig,
    long_tail,
    with_copies,
    with_random_labels,
)
from sifting.bench.tasks.rows import TaskRows
from sifting.exits.additive import AdditiveExit

SMOKE = CLEAN.presets["smoke"]


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIFT_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(fashion, "PACKAGE", str(tmp_path / "none"))


def test_random_labels_are_the_same_in_every_run_and_of_the_share_asked_for() -> None:
    labels = torch.zeros(20_000, dtype=torch.uint8)
    changed = with_random_labels(labels, 0.2)
    assert torch.equal(changed, with_random_labels(labels, 0.2))
    assert float((changed != 0).double().mean()) == pytest.approx(0.18, abs=0.01)
    assert torch.equal(with_random_labels(labels, 0.0), labels)


def test_a_long_tail_keeps_every_class() -> None:
    labels = torch.arange(10).repeat(200)
    counts = labels[long_tail(labels, 100.0)].bincount()
    assert counts[0] == 200
    assert counts[-1] == 2
    assert (counts.diff() <= 0).all()


def test_copies_are_shifted_and_keep_their_labels() -> None:
    pixels = torch.zeros(3, 28, 28, dtype=torch.uint8)
    pixels[:, 10:18, 10:18] = 200
    copied = with_copies(TaskRows(pixels, torch.tensor([4, 5, 6])), 10)
    assert copied.tensors_N[1].tolist() == [4] * 10 + [5] * 10 + [6] * 10
    assert (copied.tensors_N[0].sum(dim=(1, 2)) == 64 * 200).all()  # moved, and nothing lost
    assert len(torch.unique(copied.tensors_N[0], dim=0)) > 5


def test_held_out_and_trained_images_are_different_ones() -> None:
    data = fashion.read(replace(SMOKE, samples=None))
    trained = {row.numpy().tobytes() for row in data.train.tensors_N[0]}
    apart = [row.numpy().tobytes() not in trained for row in data.held_out.tensors_N[0]]
    assert sum(apart) >= 0.99 * len(apart)


@pytest.mark.parametrize(
    ("arm", "changed"), [("baseline", False), ("memory", False), ("sift", True)]
)
def test_only_the_papers_arms_train_the_papers_network(arm: str, changed: bool) -> None:
    problem = fashion.problem(replace(SMOKE, arm=arm), fashion.read(SMOKE))
    assert isinstance(problem.exit, AdditiveExit) == changed
    assert any("sift_exit" in name for name, _ in problem.model.named_parameters()) == changed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random_labels": 1.5}, r"random_labels=1.5: give a share"),
        ({"tail": 0.5}, r"tail=0.5: give at least 1"),
        ({"max_lr": 0.0}, r"max_lr=0.0: give a number above 0"),
        ({"length": 0}, r"length=0: give at least 1"),
    ],
)
def test_bad_settings_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FashionConfig(**options)  # type: ignore[arg-type]
