"""Two gloo processes for real: tests start the scripts beside them on both."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from sifting import Sifter
from tests.helpers.processes import run_ranks, start_ranks
from tests.parallel.scripts import (
    ahead,
    budgeting,
    piloting,
    remembering,
    resuming,
    scoring_less,
    selecting,
    sharding,
)


@pytest.mark.parametrize(
    ("script", "checks"),
    [
        pytest.param(selecting, 6, id="two-ranks-choose-as-one-process-does"),
        pytest.param(sharding, 7, id="a-sharded-model-is-scored-as-a-whole-one-is"),
        pytest.param(ahead, 4, id="candidates-are-scored-beside-the-step-on-two-ranks"),
        pytest.param(scoring_less, 2, id="less-of-each-candidate-is-scored-on-two-ranks"),
        pytest.param(piloting, 4, id="an-autopilot-decides-alike-on-two-ranks"),
        pytest.param(budgeting, 3, id="a-budget-of-tokens-is-kept-by-each-or-divided"),
        pytest.param(remembering, 4, id="ranks-share-a-memory-and-read-only-what-they-train"),
    ],
)
def test_on_two_ranks(script: ModuleType, checks: int) -> None:
    done = run_ranks([script.__file__])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == checks


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


def test_a_rank_whose_peer_has_died_says_so(tmp_path: Path) -> None:
    """Without a launcher that ends it, it ends by itself."""
    first, last = start_ranks([resuming.__file__, tmp_path, "--die-at", 8])
    ended = first.wait()
    assert last.wait().returncode == 13
    assert ended.returncode != 0
    assert "rank 0 of 2 got no answer while" in ended.stderr
    assert "another rank has ended" in ended.stderr
