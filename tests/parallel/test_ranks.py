"""Two gloo processes for real: each test starts a script of tests/ranks under torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sifting import Sifter
from sifting.checkpoint import latest, load, state_of

SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
import resuming  # noqa: E402

LIMIT = 120  # seconds; a busy machine needs some of them to start


def torchrun(script: str, *arguments: object, restarts: int = 0) -> subprocess.CompletedProcess:
    """Run a script on two ranks of this machine."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--max-restarts", str(restarts)),
            *(str(SCRIPTS / script), *map(str, arguments)),
        ],
        # a store of its own for each restart: in a shared one, ranks can find their peers'
        # addresses of before it
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_two_ranks_choose_as_one_process_does():
    done = torchrun("selecting.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == 6


def test_a_sharded_model_is_scored_as_a_whole_one_is():
    done = torchrun("sharding.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == 7


def test_choosing_together_needs_a_process_group():
    with pytest.raises(ValueError, match=r"no process group .*init_process_group\(\).*torchrun"):
        Sifter(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), exit=1, scope="global")
    with pytest.raises(ValueError, match="scope='world': choose 'rank' or 'global'"):
        Sifter(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), exit=1, scope="world")


def test_stats_of_a_plain_run_are_reduced_already():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    sifter = Sifter(model, exit=1, score="loss")
    sifter.select((torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])))
    assert sifter.stats(reduce=True) == sifter.stats()


def finals(*folders: Path) -> list[float]:
    """The largest difference of each folder's final parameters from the first's."""
    first, *others = (torch.load(folder / "final.pt", weights_only=True) for folder in folders)
    return [
        max(float((a - b).abs().max()) for a, b in zip(first, other, strict=True))
        for other in others
    ]


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_checkpoints_go_on_with_another_number_of_ranks(tmp_path):
    """Saved by two ranks and loaded by one, by one and loaded by two, sharded and not."""
    alone, two = tmp_path / "alone", tmp_path / "two"
    resuming.go(alone)
    one = {step: tmp_path / f"one-{step}" for step in (3, 6, 9)}
    for step, folder in one.items():
        resuming.go(folder, stop_at=step)
        assert latest(folder).name == f"step-{step:09d}"
    done = torchrun("resuming.py", two, one[3], one[9], one[6], "--shard", 3)
    assert done.returncode == 0, done.stderr
    ended = f"{resuming.STEPS_LAST} steps, {resuming.CANDIDATES_LAST} candidates"
    assert done.stdout.splitlines() == [
        ended,
        *("went on from step-000000003", ended),
        *("went on from step-000000009", ended),
        *("went on from step-000000006", ended),
    ]
    assert max(finals(alone, one[6], one[9])) < 1e-5
    # (two ranks from the start make another first choice: an exit that has learned nothing yet
    # ranks all alike, and of equals the first are kept, where ranks take every other sample)
    for step in (6, 9):
        folder = tmp_path / f"back-{step}"
        folder.mkdir()
        (folder / f"step-{step:09d}").symlink_to(two / f"step-{step:09d}")
        sifter = resuming.go(folder)
        assert sifter.step == resuming.STEPS_LAST
        assert sifter.stats().candidates_seen == resuming.CANDIDATES_LAST
        assert finals(two, folder)[0] < 1e-5


def on(ranks: int, size: int, *, divides: bool = True) -> DataLoader[Any]:
    """The loader of the first of some ranks."""
    data = TensorDataset(
        torch.zeros(resuming.SAMPLES, resuming.FEATURES).double(),
        torch.zeros(resuming.SAMPLES, dtype=torch.long),
    )
    sampler = DistributedSampler(data, num_replicas=ranks, rank=0) if divides else None
    return DataLoader(data, size, sampler=sampler)


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_what_other_ranks_cannot_go_on_with_is_refused(tmp_path):
    saved = resuming.go(tmp_path, stop_at=6).state_dict()

    def go_on(loader: DataLoader[Any]) -> None:
        other = resuming.make(shard=False, lively=False)[2]
        other.load_state_dict(state_of([saved], rank=1, world=2))
        next(iter(other(loader)))

    go_on(on(2, 4))
    with pytest.raises(
        ValueError, match="8 batches of this loader hold 24 samples, and 32 had been"
    ):
        go_on(on(2, 3))
    with pytest.raises(
        ValueError, match=r"divides it among none: give it a DistributedSampler\(num"
    ):
        go_on(on(2, 4, divides=False))
    with pytest.raises(
        ValueError, match=r"1 ranks saved in .* with 3: their batches do not divide"
    ):
        state_of([saved], rank=0, world=3)
    for change, message in (
        ({"replicas": None}, "does not divide one order among them"),
        (
            {"stream": {**saved["cursor"]["position"]["stream"], "carry": [1]}},
            "between two batches",
        ),
    ):
        position = {**saved["cursor"]["position"], **change}
        broken = {**saved, "cursor": {**saved["cursor"], "position": position}}
        with pytest.raises(ValueError, match=message + r".*state_dict\(epoch_over=True\)"):
            state_of([broken], rank=0, world=2)


def test_ranks_share_a_memory_and_read_only_what_they_train():
    done = torchrun("remembering.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == 4


def test_a_checkpoint_that_was_cut_off_does_not_count(tmp_path):
    assert latest(tmp_path / "none") is None
    for step in (3, 6):
        resuming.go(tmp_path, stop_at=step, keep=1)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000000006"]
    (tmp_path / "step-000000009").mkdir()
    assert latest(tmp_path).name == "step-000000006"
    model, optimizer, sifter = resuming.make(shard=False, lively=False)
    with pytest.raises(ValueError, match=r"step-000000009 is not a whole checkpoint"):
        load(tmp_path / "step-000000009", model=model, optimizer=optimizer, sifter=sifter)


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_a_restarted_job_ends_as_one_that_was_never_stopped(tmp_path):
    folders = tmp_path / "killed", tmp_path / "whole"
    for folder in folders:
        folder.mkdir()
    done = torchrun("resuming.py", *folders, "--lively", "--die-at", 8, restarts=1)
    assert done.returncode == 0, done.stderr
    # the run that was killed goes on; the other is then made from its start without a break
    assert done.stdout.count("went on from") == 1
    assert "went on from step-000000006" in done.stdout
    assert finals(*folders) == [0.0]


def test_a_rank_that_dies_ends_the_job(tmp_path):
    begin = time.monotonic()
    done = torchrun("resuming.py", tmp_path, "--die-at", 8)
    assert done.returncode != 0
    assert "exitcode  : 13" in done.stderr
    assert time.monotonic() - begin < 60


def test_a_rank_whose_peer_has_died_says_so(tmp_path):
    """Without a launcher that ends it, it ends by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    setting = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "resuming.py"), str(tmp_path), "--die-at", "8"],
            env={**setting, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        told = ranks[0].communicate(timeout=LIMIT)[1]
        ranks[1].communicate(timeout=LIMIT)
    finally:
        for process in ranks:
            process.kill()
    assert ranks[1].returncode == 13
    assert ranks[0].returncode != 0
    assert "rank 0 of 2 got no answer while" in told
    assert "another rank has ended" in told
