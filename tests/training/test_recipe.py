from __future__ import annotations

import pytest
import torch

from sifting.cli import train as cli
from sifting.training import recipe


def test_a_device_that_is_not_there_is_named_before_the_data_is_read(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe, "train", lambda *a, **k: pytest.fail("the data is read"))
    assert cli.main(["bert", "--device", "cuda:99", "--out", f"{tmp_path}/run"]) == 2
    assert "device='cuda:99' cannot be used here" in capsys.readouterr().err


def test_the_gpu_that_was_asked_for_is_the_one_whose_random_stream_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(recipe.torch, "empty", lambda *a, **k: None)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for device in ("cpu", "cuda", "cuda:1"):
        with recipe.joined(device) as given:
            assert given == device
    assert chosen == ["cuda:1"]
