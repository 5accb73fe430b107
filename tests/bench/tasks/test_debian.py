"""Fine-tuning a pretrained encoder on descriptions of Debian packages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sifting.bench.tasks.debian import DEBIAN, HEAD, Classifier, find_encoder
from sifting.training.recipe import DataError

SMOKE = DEBIAN.presets["smoke"]


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIFT_DATA", str(tmp_path / "none"))


def test_what_stands_in_has_words_that_tell_its_classes(capsys: pytest.CaptureFixture[str]) -> None:
    data = DEBIAN.read(SMOKE)
    assert data.classes == 5
    ids, there, labels = data.train.tensors_N
    assert ids.shape == there.shape == (SMOKE.samples, SMOKE.tokens)
    assert torch.equal(ids[:, 0] // 10, labels)
    assert "a made-up language stands in" in capsys.readouterr().err


def test_an_encoder_of_ones_own_has_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no config\.json: give the folder of a model"):
        find_encoder(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert find_encoder(str(tmp_path)) == tmp_path


def test_padding_does_not_count_in_the_mean() -> None:
    class Encoder(nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
            found = type("Output", (), {})()
            found.last_hidden_state = input_ids[..., None].float()
            return found

    model = Classifier(Encoder(), 1, 1)
    nn.init.ones_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    ids = torch.tensor([[2, 4, 99], [1, 1, 1]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert model(ids, mask).flatten().tolist() == [3.0, 0.0]


def test_the_head_learns_faster_than_the_encoder() -> None:
    problem = DEBIAN.problem(replace(SMOKE, max_lr=1e-4), DEBIAN.read(SMOKE))
    rates = sorted(group["lr"] for group in problem.optimizer.param_groups)
    assert rates == pytest.approx([1e-4, HEAD * 1e-4])
    counted = sum(len(group["params"]) for group in problem.optimizer.param_groups)
    assert counted == len(list(problem.model.parameters()))
