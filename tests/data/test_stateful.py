"""`torchdata`'s StatefulDataLoader: begun before it is sifted, and resumed by its own state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from sifting.data.stateful import (
    Beginning,
    OwnPlace,
    Said,
    exact_state,
    fits,
    keeps_its_place,
    order_is_lost,
    settled,
)
from sifting.rng import RandomState
from tests.helpers.loaders import (
    Counted,
    ids,
    make_loader,
    model,
    seed_everything,
    streams,
    through_a_file,
    walk,
)

torchdata = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata's
    pytest.mark.filterwarnings("ignore::sifting.SiftingWarning"),
]
KINDS = (
    *("shuffled", "generator", "ordered", "weighted", "distributed", "varying", "numpy"),
    *("grouped", "own"),
)


class Quiet(Counted):
    """Nothing is drawn at random when a sample is read, so that workers may be started again."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        x[-1] = 0
        return x, y


def fresh(kind: str, data: Counted | None = None, **options: Any) -> Any:
    seed_everything()
    cls = torchdata.StatefulDataLoader
    loader = make_loader(kind, Counted() if data is None else data, cls=cls, **options)
    seed_everything()
    return loader


def sifter_of(way: str = "scored", **options: Any) -> Sifter:
    exit: Any = MemoryExit() if way == "memory" else "last"
    return Sifter(model(), exit=exit, score="loss", audit_every=0, **options)


def trained(
    loader: Any, *, sifter: Sifter | None = None, asked: bool = True, epochs: int = 2
) -> tuple[Any, list[Any]]:
    """Every epoch and the streams at the end; what the loader says of its place after each step."""
    now = torch.get_rng_state()
    net = model() if sifter is None else sifter.model
    torch.set_rng_state(now)
    found: list[Any] = []
    said = []
    for epoch in range(epochs):
        batches = loader if sifter is None else sifter(loader)
        found.append([])
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for x, y in batches:
            net(x)
            torch.rand(2)
            found[-1].append(torch.cat([x, y[:, None]], dim=1).tolist())
            if asked:
                said.append(copy.deepcopy(loader.state_dict()))
    return (found, streams()), said


WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 1, "prefetch_factor": 3},
    {"num_workers": 2, "persistent_workers": True, "snapshot_every_n_steps": 3},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [False, True])
def test_keeping_all_is_the_plain_loop_and_says_what_it_says(kind: str, begun: bool) -> None:
    found = []
    for sifter in (None, sifter_of(keep=1.0), sifter_of("memory", warmup_steps=99)):
        loader = fresh(kind)
        if begun:
            loader.state_dict()
        found.append(trained(loader, sifter=sifter))
    for other in found[1:]:
        assert other[0] == found[0][0]
        assert [plain(one) for one in other[1]] == [plain(one) for one in found[0][1]]


@pytest.mark.parametrize("options", WORKERS[1:], ids=str)
@pytest.mark.parametrize("begun", [False, True])
def test_so_it_is_with_workers(options: dict[str, Any], begun: bool) -> None:
    found = []
    for sifter in (None, sifter_of("memory", warmup_steps=99)):
        loader = fresh("shuffled", **options)
        if begun:
            loader.state_dict()
        found.append(trained(loader, sifter=sifter))
    assert found[0][0] == found[1][0]  # the random column too, which is drawn in the workers
    assert [plain(one) for one in found[0][1]] == [plain(one) for one in found[1][1]]


def plain(state: Any) -> Any:
    """A state that can be compared; what is in it besides the order depends on when it was asked for."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    return {k: plain(v) for k, v in state.items()} if isinstance(state, dict) else state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [2, 4, 8])
def test_states_of_plain_and_sifted_loops_serve_each_other(kind: str, stop: int) -> None:
    """A loop that saves the loader's state alone continues where it was, with and without the line."""
    said = trained(fresh(kind))[1][stop - 1]
    for keep in (1.0, 0.5):
        sifted = trained(fresh(kind), sifter=sifter_of(keep=keep))[1][stop - 1]
        assert plain(order_of(sifted)) == plain(order_of(said))  # at any ratio, of as many steps
    found = []
    for sifter in (None, sifter_of(keep=1.0), sifter_of("memory", warmup_steps=99)):
        loader = fresh(kind)
        loader.load_state_dict(copy.deepcopy(said))
        found.append(trained(loader, sifter=sifter, asked=False)[0])
    assert found[0] == found[1] == found[2]


def order_of(state: Any) -> Any:
    main = state.get("_snapshot", {}).get("_main_snapshot", state)
    return {name: main[name] for name in main if "sampler" in name}


@pytest.mark.parametrize("options", WORKERS, ids=str)
@pytest.mark.parametrize("stop", [2, 4, 8])
def test_a_loaders_state_alone_resumes_with_workers(options: dict[str, Any], stop: int) -> None:
    said = trained(fresh("shuffled", **options), sifter=sifter_of(keep=0.5))[1][stop - 1]
    found = []
    for sifter in (None, sifter_of(keep=1.0)):
        loader = fresh("shuffled", **options)
        loader.load_state_dict(copy.deepcopy(said))
        found.append(trained(loader, sifter=sifter))
    (want, said), (got, told) = found
    assert [ids(epoch) for epoch in got[0]] == [ids(epoch) for epoch in want[0]]
    assert got[1] == want[1]
    if "snapshot_every_n_steps" not in options:  # a place can be told as one before it, and how far
        assert [plain(order_of(one)) for one in told] == [plain(order_of(one)) for one in said]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("way", "both"), [("scored", True), ("memory", True), ("memory", False)])
def test_the_sifters_state_decides_where_both_are_loaded(kind: str, way: str, both: bool) -> None:
    check_resumed(kind, way, both=both, begun=False)
    check_resumed(kind, way, both=both, begun=True)


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_does_from_within_warm_up(kind: str) -> None:
    check_resumed(kind, "scored", both=False, begun=False, stops=(2,), warmup=3)


@pytest.mark.parametrize("options", WORKERS[1:], ids=str)
@pytest.mark.parametrize("way", ["scored", "memory"])
@pytest.mark.parametrize("begun", [False, True])
def test_so_it_does_with_workers(options: dict[str, Any], way: str, begun: bool) -> None:
    check_resumed("shuffled", way, both=True, begun=begun, stops=(3, 9), **options)


def check_resumed(
    kind: str,
    way: str,
    *,
    both: bool,
    begun: bool,
    stops: tuple[int, ...] = (1, 6),
    warmup: int = 0,
    **options: Any,
) -> None:
    def begin() -> tuple[Any, Sifter, Counted]:
        data = Quiet()
        loader = fresh(kind, data, **options)
        if begun:
            loader.state_dict()
        keep = {"keep": lambda step: 0.5 if step % 2 else 0.3, "warmup_steps": warmup}
        return loader, sifter_of(way, **keep), data

    loader, sifter, whole_data = begin()
    (whole, end), _ = trained(loader, sifter=sifter, asked=False)
    for stop in stops:
        if stop in (len(whole[0]), sum(map(len, whole))):
            continue  # between two epochs there is no place to find again
        loader, sifter, _ = begin()
        found: list[Any] = []
        while sum(map(len, found)) < stop:
            left = stop - sum(map(len, found))
            found.append(
                walk(sifter(loader), loader, sifter.model, epoch=len(found), stop=left, draws=2)
            )
        state, now = through_a_file(sifter), RandomState.now()
        said = copy.deepcopy(loader.state_dict())
        loader, sifter, data = begin()
        if both:
            loader.load_state_dict(said)
        sifter.load_state_dict(state)
        now.restore()
        for epoch in range(len(found) - 1, 2):
            rest = walk(sifter(loader), loader, sifter.model, epoch=epoch, draws=2)
            found[epoch:] = [found[epoch] + rest if epoch < len(found) else rest]
        assert [ids(one) for one in found] == [ids(one) for one in whole], (stop, both, begun)
        if not options:
            assert data.read == whole_data.read[len(whole_data.read) - len(data.read) :]
            assert streams() == end


def test_an_order_that_workers_were_sent_and_no_sampler_tells() -> None:
    """It is trained as it comes, by exits that need no IDs; a memory is refused, and so is resuming."""
    found = []
    for sifter in (None, sifter_of(warmup_steps=99)):
        loader = fresh("weighted", num_workers=1)
        loader.state_dict()
        assert order_is_lost(loader)
        found.append(trained(loader, sifter=sifter, asked=False)[0])
    assert found[0] == found[1]

    loader = fresh("weighted", num_workers=1)
    loader.state_dict()
    with pytest.raises(
        ValueError, match=r"MemoryExit.* needs to know which sample is which, and the"
    ):
        sifter_of("memory")(loader)
    sifter = sifter_of(keep=0.5)
    assert [len(batch) for batch in walk(sifter(loader), loader, sifter.model, stop=2)] == [5, 5]
    state = through_a_file(sifter)
    for begun in (False, True):
        loader, sifter = fresh("weighted", num_workers=1), sifter_of(keep=0.5)
        if begun:
            loader.state_dict()
        sifter.load_state_dict(state)
        with pytest.raises(
            ValueError, match=r"cannot resume in the middle of this epoch: the load"
        ):
            next(iter(sifter(loader)))


def test_ids_in_the_batch_serve_a_memory_where_the_order_is_lost() -> None:
    loader = fresh("weighted", num_workers=1)
    loader.state_dict()
    sifter = sifter_of("memory", keep=0.5, ids=lambda batch: batch[0][:, 0].long())
    (whole, _), _ = trained(loader, sifter=sifter, asked=False)
    assert [len(batch) for batch in whole[0]] == [5] * 7 + [2]
    losses = sifter.exit.state_dict()["losses"]
    assert not losses[[int(row[0]) for row in whole[0][0]]].isnan().any()


def test_what_is_settled_is_taken_once() -> None:
    assert settled(DataLoader(Counted(), 5)) == Beginning()
    loader = fresh("shuffled")
    assert settled(loader) == Beginning()
    loader.state_dict()
    assert settled(loader).drawn
    assert settled(loader) == Beginning()
    assert keeps_its_place(loader)
    assert not keeps_its_place(DataLoader(Counted(), 5))


def test_a_state_some_steps_after_a_snapshot_is_made_exact() -> None:
    main = {"_num_workers": 2, "_sampler_iter_yielded": 4}
    snapshot = {"_main_snapshot": main, "_snapshot_step": 4, "_last_yielded_worker_id": 1}
    state = {"_snapshot": snapshot, "_steps_since_snapshot": 3, "_iterator_finished": False}
    found = exact_state(state, Said("sampler", "iterator"))
    assert found["_steps_since_snapshot"] == 0
    assert found["_snapshot"]["_snapshot_step"] == 7
    assert found["_snapshot"]["_last_yielded_worker_id"] == 0
    own = OwnPlace(found, 7)
    assert own.said == ("sampler", "iterator")
    assert fits(own, DataLoader(Counted(), num_workers=2))
    assert not fits(own, DataLoader(Counted()))


@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")
def test_torchdatas_loader_and_what_is_made_of_it_resume_by_themselves() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    class Own(stateful):  # type: ignore[misc, valid-type]
        pass

    assert keeps_its_place(stateful(range(3)))
    assert keeps_its_place(Own(range(3)))
    assert not keeps_its_place(DataLoader(range(3)))

    class StatefulDataLoader(DataLoader[Any]):
        """Of the same name, and somebody else's."""

    assert not keeps_its_place(StatefulDataLoader(range(3)))
