from __future__ import annotations

import pytest
import torch

from sifting.training import launch


def test_the_gpu_that_was_asked_for_is_the_one_whose_random_stream_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(launch.torch, "empty", lambda *a, **k: None)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for device in ("cpu", "cuda", "cuda:1"):
        with launch.process_group(device) as given:
            assert given == device
    assert chosen == ["cuda:1"]
