"""Two ranks choose together as one process would, and train the same model."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as DDP

from sifting import Sifter, TunedExit
from tests.parallel.scripts.common import candidates, differ, make_net, part, run, train

STEPS = 6


def everyones(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def one_process_and_two(**settings: Any) -> None:
    alone, model = make_net(), make_net()
    ddp = DDP(model)
    settings |= {"audit_every": 2, "seed": 3, "draws": "batch"}
    one = Sifter(alone, **copy.deepcopy(settings))
    two = Sifter(ddp, scope="global", **settings)

    def seen(sifter: Sifter, together: bool) -> Any:
        batches = [candidates(step) for step in range(STEPS)]
        for x, y in sifter([part(b) for b in batches] if together else batches):
            selection = sifter.observer.current.selection
            assert selection is not None
            log.append((x.clone(), y.clone(), sifter.weights, selection))
            yield x, y

    log: list[tuple[Tensor, Tensor, Tensor, Any]] = []
    losses = train(alone, seen(one, together=False))
    expected, log = log, []
    mine = train(ddp, seen(two, together=True))
    for step, (x, y, weights, whole) in enumerate(expected):
        shares = everyones(log[step])
        for wanted, place in ((x, 0), (y, 1), (weights, 2)):
            torch.testing.assert_close(torch.cat([share[place] for share in shares]), wanted)
        for name in ("indices", "explored"):
            joined = torch.cat([getattr(share[3], name) for share in shares])
            assert torch.equal(joined, getattr(whole, name)), (settings, step, name)
        torch.testing.assert_close(shares[1][3].scores, whole.scores)
    torch.testing.assert_close(torch.tensor(everyones(mine)).mean(0), torch.tensor(losses))
    assert differ(alone, model) < 1e-5, differ(alone, model)
    a, b = one.stats(), two.stats()
    assert a.audits == b.audits == 3
    for name in ("rho_approx", "recall", "rank_correlation", "misclassified"):
        assert a[name] == pytest.approx(b[name], rel=1e-5), name
    reduced = two.stats(reduce=True)
    for name in ("steps", "selections", "candidates_seen", "samples_trained", "audits"):
        assert a[name] == reduced[name], name
    if a.rho_explored is not None:
        assert a.rho_explored == pytest.approx(reduced.rho_explored, rel=1e-5)


def check_global_choice_is_that_of_one_process() -> None:
    one_process_and_two(exit=1, score="loss")
    one_process_and_two(exit=2, score="entropy", policy="percentile", explore=0.25, trim=0.1)
    one_process_and_two(exit=1, score="loss", policy="proportional", keep=0.25, explore=0.5)
    one_process_and_two(exit="last", score="margin", policy="random", score_batch_size=3)
    one_process_and_two(exit=TunedExit(1, lr=0.05), score="loss")


def check_samples_move_in_batches_of_any_kind() -> None:
    rank = dist.get_rank()
    sizes = (5, 3)  # also where ranks have unequal numbers
    ids = torch.arange(8)
    own = ids.split(list(sizes))[rank]
    batch = {
        "x": own.double().unsqueeze(1).expand(-1, 6).clone(),
        "labels": own % 4,
        "half": own.to(torch.bfloat16).reshape(-1, 1, 1),
        "flag": own % 2 == 0,
        "none": torch.zeros(len(own), 0),
        "more": ([f"sample {i}" for i in own.tolist()], own.numpy() * 10),
        "words": numpy.array([f"w{i}" * (1 + i) for i in own.tolist()]),
        "boxes": [{"box": torch.full((int(i) + 1, 4), float(i))} for i in own],
        "split": "train",
    }
    order = torch.tensor([3.0, 0, 5, 1, 7, 6, 2, 4])
    sifter = Sifter(
        make_net(),
        exit="last",
        score=lambda logits, labels: order.split(list(sizes))[rank][: len(labels)],
        forward=lambda model, batch: model(batch["x"]),
        labels=lambda batch: batch["labels"],
        scope="global",
        audit_every=0,
    )
    selection = sifter.select(batch)
    kept = [[2, 4], [5, 7]][rank]
    assert selection.indices.tolist() == kept
    found = selection.batch
    assert found["x"][:, 0].tolist() == kept
    assert found["half"].flatten().tolist() == kept
    assert found["half"].dtype is torch.bfloat16
    assert found["flag"].tolist() == [i % 2 == 0 for i in kept]
    assert found["none"].shape == (2, 0)
    assert found["more"][0] == [f"sample {i}" for i in kept]
    assert isinstance(found["more"][1], numpy.ndarray)
    assert found["more"][1].tolist() == [10 * i for i in kept]
    assert found["words"].tolist() == [f"w{i}" * (1 + i) for i in kept]
    assert [len(boxes["box"]) for boxes in found["boxes"]] == [i + 1 for i in kept]
    assert found["split"] == "train"


def check_keeping_all_is_plain_ddp() -> None:
    for scope in ("rank", "global"):
        plain, sifted = DDP(make_net(torch.float32)), DDP(make_net(torch.float32))
        data = [part(candidates(step, dtype=torch.float32)) for step in range(4)]
        sifter = Sifter(sifted, exit=1, keep=1.0, scope=scope)
        assert train(plain, iter(data)) == train(sifted, iter(sifter(data)))
        assert differ(plain, sifted) == 0


def check_mistakes_are_told_to_all_ranks() -> None:
    rank = dist.get_rank()
    with pytest.raises(ValueError, match="seed=0 on rank 0 but 1 on rank 1"):
        Sifter(make_net(), exit=1, scope="global", seed=rank)
    with pytest.raises(ValueError, match=r"trim=0\.0 on rank 0 but 0\.1 on rank 1"):
        Sifter(make_net(), exit=1, scope="global", trim=rank / 10)
    sifter = Sifter(
        make_net(),
        exit="last",
        scope="global",
        forward=lambda model, batch: model(batch["x"].mean(1)),
        labels=lambda batch: batch["y"],
    )
    longer = {"x": torch.zeros(4, 3 + rank, 6).double(), "y": torch.zeros(4, dtype=torch.long)}
    with pytest.raises(ValueError, match=r"rank 1 has .*float64\[4, 6\].*padding='max_length'"):
        sifter.select(longer)
    odd = Sifter(make_net(), exit=1, scope="global", draws="batch")
    with pytest.raises(ValueError, match="of 7 candidates on each of 2 ranks makes 7, which does"):
        next(iter(odd([part(candidates(0, size=14))])))
    assert len(odd.select(part(candidates(0, size=14))).batch[1]) == 4  # a short last batch
    broken = Sifter(make_net(), exit=1, scope="global")
    x, y = part(candidates(0))
    if rank == 1:
        x[0] = torch.nan
    with pytest.raises(ValueError, match=r"1 of 16 candidates are not finite \(rows 8\)"):
        broken.select((x, y))
    apart = Sifter(make_net(), exit=1, scope="global", explore=0.5)
    apart.chooser.generator.manual_seed(rank)
    with pytest.raises(ValueError, match="random streams differ"):
        apart.select(part(candidates(0)))


def check_tuned_exits_stay_the_same_on_all_ranks() -> None:
    alone = make_net()
    one = Sifter(alone, exit=TunedExit(1), score="loss", audit_every=0)
    two = Sifter(DDP(copy.deepcopy(alone)), exit=TunedExit(1), score="loss", audit_every=0)
    for step in range(4):
        one.select(candidates(step))
        x, y = part(candidates(step))
        if dist.get_rank() == 1 and step == 2:
            y = torch.full_like(y, -100)  # nothing to learn from on this rank
        two.select((x, y))
        mine, single = (s.exit.predictors["logits"] for s in (two, one))
        theirs = everyones(mine.weight.detach())
        assert torch.equal(theirs[0], theirs[1])
        if step < 2:
            torch.testing.assert_close(mine.weight, single.weight)


def check_reduced_stats() -> None:
    rank = dist.get_rank()
    model = DDP(make_net())
    sifter = Sifter(model, exit=1, score="loss", audit_every=1)
    train(model, iter(sifter([part(candidates(step)) for step in range(3)])))
    local, reduced = sifter.stats(), sifter.stats(reduce=True)
    assert (local.candidates_seen, reduced.candidates_seen) == (48, 96)
    assert (local.samples_trained, reduced.samples_trained) == (24, 48)
    assert (local.steps, reduced.steps, reduced.audits) == (3, 3, 3)
    rhos = [stats.rho_approx for stats in everyones(local)]
    assert rhos[0] != rhos[1]
    assert reduced.rho_approx == pytest.approx(sum(rhos) / 2)
    times = [stats.seconds_scoring for stats in everyones(local)]
    assert reduced.seconds_scoring == pytest.approx(sum(times) / 2)
    assert everyones(dict(reduced))[rank] == everyones(dict(reduced))[1 - rank]


if __name__ == "__main__":
    run(
        [
            check_global_choice_is_that_of_one_process,
            check_samples_move_in_batches_of_any_kind,
            check_keeping_all_is_plain_ddp,
            check_mistakes_are_told_to_all_ranks,
            check_tuned_exits_stay_the_same_on_all_ranks,
            check_reduced_stats,
        ]
    )
