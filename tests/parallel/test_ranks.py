"""Two gloo processes for real: tests start the scripts beside them on both."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sifting import Sifter
from sifting.parallel.ranks import Ranks, Share, even_count
from tests.helpers.processes import run_ranks, start_ranks
from tests.parallel.scripts import (
    ahead,
    budgeting,
    comparing_ways,
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
        pytest.param(comparing_ways, 2, id="ranks-take-the-same-way-of-scoring"),
        pytest.param(piloting, 4, id="an-autopilot-decides-alike-on-two-ranks"),
        pytest.param(budgeting, 3, id="a-budget-of-tokens-is-kept-by-each-or-divided"),
        pytest.param(remembering, 4, id="ranks-share-a-memory-and-read-only-what-they-train"),
    ],
)
def test_on_two_ranks(script: ModuleType, checks: int) -> None:
    done = run_ranks([script.__file__])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == checks


def test_gradients_are_averaged_without_a_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, to read a number is to wait for everything that was asked for before it."""
    ranks = Ranks.__new__(Ranks)
    ranks.group = None
    other = torch.tensor([30.0, 0.0, 10.0])  # gradients 3 and 0 of ten samples
    monkeypatch.setattr(Ranks, "where", torch.device("cpu"))
    monkeypatch.setattr(dist, "all_reduce", lambda flat, group: flat.add_(other))
    for name in ("__float__", "__bool__", "__int__", "item", "tolist"):
        monkeypatch.setattr(Tensor, name, lambda self: pytest.fail("it was read"))
    own = [torch.ones(1), torch.full((1, 1), 2.0)]
    found = [ranks.average(own, weight) for weight in (10, torch.tensor(10))]
    other.zero_()
    nothing = ranks.average([torch.zeros(2)], torch.tensor(0))
    monkeypatch.undo()
    for mean in found:
        assert [part.tolist() for part in mean] == [[2.0], [[1.0]]]
    assert nothing[0].tolist() == [0.0, 0.0]


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


def test_kept_samples_are_dealt_out_evenly_and_in_order() -> None:
    kept = torch.tensor([0, 1, 2, 9, 10, 11])
    shares = [Share(rank, (8, 8, 8), kept) for rank in range(3)]
    assert [share.mine for share in shares] == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert [share.leaving.tolist() for share in shares] == [[0, 1, 2], [1, 2, 3], []]
    for one in shares:
        for other in shares:
            assert one.sent[other.rank] == other.received[one.rank]
    assert sum(sum(share.received) for share in shares) == len(kept)


def test_what_ranks_say_of_their_own_reaches_who_trains_it() -> None:
    kept = torch.tensor([1, 6, 2, 7])  # dealt by what they cost: not in ascending order
    said = ["1 of 0", "2 of 0", "6 of 1", "7 of 1"]  # each rank's own, rank 0's first
    found = [Share(rank, (4, 4), kept, (2, 2)).among(said) for rank in range(2)]
    assert found == [["1 of 0", "6 of 1"], ["2 of 0", "7 of 1"]]


def test_counts_are_made_even_within_what_there_is() -> None:
    assert [even_count(n, (4, 4)) for n in (1, 2, 3, 8)] == [2, 2, 4, 8]
    assert even_count(9, (5, 4)) == 8
