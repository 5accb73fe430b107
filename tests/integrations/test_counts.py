from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.integrations.counts import Epochs, candidate_count
from sifting.integrations.files import read_state, write_state
from sifting.select.schedule import Schedule, kept_count
from tests.helpers.models import Net


@given(st.integers(1, 512), st.sampled_from([1.0, 0.5, 0.25, 0.75, 0.1, 0.3, 2 / 3, 0.125]))
def test_as_many_candidates_as_keep_exactly_what_is_trained(trained: int, keep: float) -> None:
    whole = {0.75: 3, 0.3: 3, 2 / 3: 2}.get(keep, 1)
    if trained % whole:
        with pytest.raises(ValueError, match=f"batch_size={trained} .*set batch_size to"):
            candidate_count(trained, keep, name="batch_size")
    else:
        assert kept_count(keep, candidate_count(trained, keep, name="batch_size")) == trained


@pytest.mark.parametrize(
    "options",
    [{}, {"warmup_steps": 3}, {"warmup_steps": 9}, {"every": 3}, {"stop_step": 5}, {"keep": 0.3}],
)
@pytest.mark.parametrize("samples", [48, 50, 49])
def test_epochs_are_as_long_as_the_loader_makes_them(options: dict[str, Any], samples: int) -> None:
    options = {"keep": 0.5, **options}
    data = TensorDataset(torch.randn(samples, 8), torch.zeros(samples).long())
    loader = DataLoader(data, batch_size=8)
    sifter = Sifter(Net(), exit=1, score="loss", policy="random", audit_every=0, **options)
    sizes = [len(labels) for _, labels in loader]
    epochs = Epochs(Schedule(**options), sizes, accumulation=2)
    total = 0
    for epoch in range(4):
        trained = [len(labels) for _, labels in sifter(loader)]
        assert epochs[epoch].steps == len(trained)
        assert epochs[epoch].samples == sum(trained)
        assert epochs.locate(total) == (epoch, 0)
        total += epochs.updates(epoch)
        assert epochs.total(epoch + 1) == total


def test_a_state_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "sifter.pt"
    write_state({"step": 1}, path)
    with pytest.raises(Exception, match="pickle"):
        write_state({"step": 2, "bad": lambda: None}, path)
    assert read_state(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["sifter.pt"]
