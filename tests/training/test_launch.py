from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from sifting.training import launch
from tests.helpers.processes import Started, group_of, rank_of


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


def test_ranks_that_are_started_again_do_not_meet_at_the_addresses_of_before() -> None:
    """One store serves all restarts of `torchrun`; there the slower rank's old address is what is found first."""
    group = group_of(2)
    store = TCPStore("127.0.0.1", int(group["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    script = Path(__file__).with_name("meeting_run.py")
    for restarts, late in enumerate((0.0, 1.0, 1.0)):
        told = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        ranks = [
            Started([script, late], env={**group, **rank_of(rank), **told}) for rank in range(2)
        ]
        for rank in ranks:
            done = rank.wait(timeout=60)
            assert (done.returncode, done.stdout) == (0, "met\n"), done
    assert store.num_keys() > 0  # it is the one they met in


@pytest.mark.parametrize(
    "told",
    [
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"},
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_where_machines_count_for_themselves_or_nobody_counts_torch_says_where_to_meet(
    told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert launch._met_at() == {}
