"""The state of a sifter: going on from it is resuming identically; damage changes nothing."""

from __future__ import annotations

import copy
import io
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import MemoryExit, Sifter, SiftingWarning, Trial, TunedExit
from sifting.reference import HeldOutReference
from sifting.state import VERSION, load_saved, saved
from tests.helpers.models import Net, candidates
from tests.helpers.states import same


class TestResume:
    @pytest.mark.parametrize("stop_after", [1, 3, 5, 8])
    @pytest.mark.parametrize("exit", [1, "tuned"])
    def test_state_round_trip_continues_identically_mid_epoch(
        self, stop_after: int, exit: Any
    ) -> None:
        data = TensorDataset(torch.randn(96, 8), torch.randint(0, 5, (96,)))

        def run(stop: int | None, state: bytes | None = None) -> tuple[list[list[int]], bytes]:
            torch.manual_seed(11)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            sifter = Sifter(net, exit=exit, score="entropy", warmup_steps=3, explore=0.3)
            loader = DataLoader(data, batch_size=12, shuffle=True)
            if state is not None:
                saved = torch.load(io.BytesIO(state), weights_only=True)
                sifter.load_state_dict(saved["sifter"])
                net.load_state_dict(saved["net"])
                torch.set_rng_state(saved["rng"])
            seen: list[list[int]] = []
            for _epoch in range(2):
                for x, y in sifter(loader):
                    F.cross_entropy(net(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    seen.append((x[:, 0] * 1000).long().tolist())
                    if len(seen) == stop:
                        buffer = io.BytesIO()
                        torch.save(
                            {
                                "sifter": sifter.state_dict(),
                                "net": net.state_dict(),
                                "rng": torch.get_rng_state(),
                            },
                            buffer,
                        )
                        return seen, buffer.getvalue()
            return seen, b""

        whole, _ = run(None)
        first, state = run(stop_after)
        rest, _ = run(None, state)
        # the resumed run goes through the rest of epoch one and the whole of epoch two
        assert first + rest == whole

    def test_state_is_plain_tensors_and_numbers(self, net: Net) -> None:
        sifter = Sifter(net, exit="tuned", audit_every=1)
        for _ in sifter(candidates(3)):
            state = sifter.state_dict()

        def leaves(node: Any) -> Iterator[Any]:
            for value in node.values() if isinstance(node, dict) else node:
                if isinstance(value, dict | list | tuple):
                    yield from leaves(value)
                else:
                    yield value

        assert all(v is None or isinstance(v, Tensor | int | float | str) for v in leaves(state))

    def test_a_state_of_another_kind_is_refused(self, net: Net) -> None:
        state = Sifter(net, exit="tuned").state_dict()
        with pytest.raises(ValueError, match="has version 9"):
            Sifter(net, exit="tuned").load_state_dict({**state, "version": 9})
        trained = Sifter(net, exit="tuned")
        trained.select(candidates(1)[0])
        with pytest.raises(ValueError, match=r"weights of a learned exit .* is a BlockExit"):
            Sifter(net, exit=1).load_state_dict(trained.state_dict())

    @pytest.mark.parametrize(
        ("before", "now", "message"),
        [
            (
                {"exit": 1, "keep": 0.5},
                {},
                r"saved with keep=0.5, .* an autopilot .*pass the keep=",
            ),
            (
                {},
                {"exit": "tuned", "keep": 0.5},
                r"exit=AutoExit.*'s is TunedExit\(.*make the sifter",
            ),
            ({"exit": "input"}, {"exit": "tuned"}, r"with exit=InputExit\(\), and .* is TunedExit"),
        ],
    )
    def test_what_another_sifter_has_learned_is_refused_by_name(
        self, net: Net, before: dict[str, Any], now: dict[str, Any], message: str
    ) -> None:
        """It is not damaged: it was saved with other settings."""
        saved = Sifter(net, **before)
        saved.select(candidates(1)[0])
        with pytest.raises(ValueError, match=message):
            Sifter(net, **now).load_state_dict(saved.state_dict())

    @pytest.mark.parametrize(
        ("asked", "changed"),
        [
            ({}, {"keep": 0.25}),
            ({"exit": "input", "loss_fn": nn.BCEWithLogitsLoss()}, {"score": "loss"}),
            ({"loss_fn": nn.BCEWithLogitsLoss()}, {"exit": TunedExit("2")}),
            ({"exit": "last", "losses": lambda m, b: m(b[0]).sum(dim=1)}, {"explore": 0.5}),
        ],
    )
    def test_what_a_first_batch_shows_is_no_other_setting(
        self, asked: dict[str, Any], changed: dict[str, Any]
    ) -> None:
        """The place of an exit, and the score that suits, are found on it; nobody changed them."""
        model = nn.Sequential(
            nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)
        )
        labels = (torch.rand(12, 4) if "loss_fn" in asked else torch.arange(12) % 4).round()
        saved = Sifter(model, **{"keep": 0.5, **asked})
        saved.select((torch.randn(12, 8), labels))
        state = saved.state_dict()
        Sifter(model, **{"keep": 0.5, **asked}).load_state_dict(state)  # a warning is an error
        with pytest.warns(SiftingWarning, match=f"other settings: {next(iter(changed))}="):
            Sifter(model, **{"keep": 0.5, **asked, **changed}).load_state_dict(state)


Path = tuple[Any, ...]


JUNK: list[Any] = [None, -1, 1.5, math.nan, 10**30, True, "junk", [], {}, [{}], torch.zeros(3)]


def trained(exit: Any, kind: str) -> tuple[Callable[[], Sifter], dict[str, Any]]:
    """A way to make a sifter, and a state from the middle of an epoch."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 5, (48,)))
    loader: Any = DataLoader(data, batch_size=8, shuffle=True)
    held_out = [(data.tensors[0][:16], data.tensors[1][:16])]
    if kind in ("batches", "pool"):
        loader = list(loader)
    net = Net()

    def make() -> Sifter:
        made = MemoryExit() if exit == "memory" else exit
        draws = "batch" if kind == "batches" else "samples"
        if exit == "auto":
            trial = Trial(held_out=held_out, updates=20) if kind == "trial" else None
            return Sifter(net, keep="auto", trial=trial, audit_every=1)
        if exit == "reference":
            reference = HeldOutReference(held_out)
            return Sifter(net, exit="last", score="reducible", reference=reference, keep=0.5)
        if exit == "best":
            return Sifter(net, exit="auto", keep=0.5, audit_every=1)
        if kind == "ahead":
            return Sifter(net, exit=exit, keep=0.5, ahead=1, audit_every=1)
        return Sifter(net, exit=made, explore=0.3, audit_every=1, draws=draws)  # type: ignore[arg-type]

    sifter = make()
    for number, (x, y) in enumerate(sifter(loader)):
        F.cross_entropy(net(x), y).backward()
        if number == 3:
            state = copy.deepcopy(sifter.state_dict())  # here: with what is scored ahead
            break
    return make, state


def places(node: Any, path: Path = ()) -> Iterator[Path]:
    """Every place of a state, mappings and lists themselves among them."""
    if path:
        yield path
    if isinstance(node, dict):
        for name, value in node.items():
            yield from places(value, (*path, name))
    elif isinstance(node, list):
        for name, value in enumerate(node[:2]):
            yield from places(value, (*path, name))


def changed(state: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """The state with another value at a place, or without it; what is not on the way is shared."""
    copied: Any = copy.copy(state)
    node = copied
    for name in path[:-1]:
        node[name] = copy.copy(node[name])
        node = node[name]
    if value is KeyError:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return copied  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("exit", "kind"),
    [
        ("tuned", "indices"),
        (1, "batches"),
        (1, "pool"),
        ("memory", "indices"),
        ("auto", "indices"),
        ("auto", "trial"),
        ("reference", "indices"),
        ("best", "indices"),
        ("tuned", "ahead"),
    ],
)
@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_a_state_that_is_refused_changes_nothing(exit: Any, kind: str) -> None:
    make, state = trained(exit, kind)
    sifter = make()
    before = sifter.state_dict()
    refused, junk = 0, itertools.cycle(JUNK)
    for path in places(state):
        for value in [KeyError, next(junk), next(junk), next(junk)]:
            damaged = changed(state, path, value)
            try:
                sifter.load_state_dict(damaged)
            except ValueError:
                refused += 1
                assert same(sifter.state_dict(), before), (path, value)
            else:
                sifter = make()
                assert same(sifter.state_dict(), before), (path, value)
    assert refused > 100
    sifter.load_state_dict(state)
    assert same(sifter.state_dict(), state)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"steps": -1}, "'steps'"),
        ({"steps": 10**30}, "'steps'"),
        ({"selections": 10**9}, "1000000000 selections, and 4 steps"),
        ({"audits": 5}, "5 audits, and 4 selections"),
        ({"steps": 1, "selections": 1, "audits": 1}, "4 steps of an epoch are made, and 1 in all"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts: dict[str, int], said: str) -> None:
    make, state = trained(1, "indices")
    state["meter"]["counts"].update(counts)
    with pytest.raises(ValueError, match=said):
        make().load_state_dict(state)


def test_a_state_says_its_version_and_another_is_refused_by_it(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    state = saved(sifter, epoch_over=False)
    assert state["version"] == VERSION
    with pytest.raises(
        ValueError, match=rf"has version {VERSION - 1}, and this release reads version {VERSION}"
    ):
        load_saved(sifter, {**state, "version": VERSION - 1})
    with pytest.raises(ValueError, match=r"has version tensor\(\[\]\)"):
        load_saved(sifter, {**state, "version": torch.zeros(0)})
    with pytest.raises(ValueError, match="has version 'junk'"):
        load_saved(sifter, "junk")  # type: ignore[arg-type]


def test_between_epochs_there_is_no_place_to_go_on_from(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    for _ in sifter(candidates(3)):
        assert saved(sifter, epoch_over=False)["cursor"]["position"] is not None
        assert saved(sifter, epoch_over=True)["cursor"]["position"] is None


@pytest.mark.parametrize(
    ("exit", "kind", "path", "value"),
    [
        ("auto", "trial", ("exit", "looks"), "nobody"),
        ("auto", "trial", ("pilot", "pacing", "seconds"), math.nan),
        ("reference", "indices", ("reference", "exit", "logits", "weight"), "junk"),
        ("best", "indices", ("exit", "ways", "tuned", "exit", "logits", "kind"), "other"),
        ("best", "indices", ("exit", "ways", "exit 1", "economy"), None),
        ("tuned", "ahead", ("ahead", "lessons", "logits", 0, 0, 0), torch.zeros(3)),
        ("tuned", "ahead", ("ahead", "lessons"), {"nobody": []}),
        ("memory", "indices", ("cursor", "position", "stream", "sizes", 0, 0), 0),
        ("memory", "indices", ("settings", "keep"), torch.zeros(3)),
    ],
)
@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_what_is_put_back_later_is_looked_at_at_once(
    exit: Any, kind: str, path: Path, value: Any
) -> None:
    make, state = trained(exit, kind)
    with pytest.raises(ValueError, match="the state is damaged"):
        make().load_state_dict(changed(state, path, value))


def test_a_refused_state_leaves_what_is_scored_ahead() -> None:
    torch.manual_seed(0)
    net = Net()
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 5, (48,)))
    sifter = Sifter(net, exit="tuned", keep=0.5, ahead=1, audit_every=0)
    for number, (x, y) in enumerate(sifter(DataLoader(data, batch_size=8, shuffle=True))):
        F.cross_entropy(net(x), y).backward()
        if number == 2:
            before = copy.deepcopy(sifter.state_dict())
            with pytest.raises(ValueError, match="damaged"):
                sifter.load_state_dict(changed(before, ("exit", "logits", "weight"), None))
            assert before["ahead"] is not None
            assert same(sifter.state_dict(), before)
            break


def test_candidates_that_another_rank_has_drawn_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> tuple[Sifter, DataLoader[Any]]:
        data = TensorDataset(torch.randn(48, 8), torch.randint(0, 5, (48,)))
        return Sifter(Net(), exit=1), DataLoader(data, batch_size=8)

    sifter, loader = make()
    monkeypatch.setattr("sifting.state.rank_of", lambda: (0, 2))
    next(iter(sifter(loader)))
    inside = sifter.state_dict()
    for rank in ((1, 2), (0, 1), (0, 4)):
        other, loader = make()
        between = other.state_dict()
        monkeypatch.setattr("sifting.state.rank_of", lambda rank=rank: rank)
        with pytest.raises(ValueError, match=r"by rank 0 of 2, whose .*Portable"):
            other.load_state_dict(inside)
        other.load_state_dict({**between, "rank": [0, 2]})  # between epochs a state is any rank's
        older = {name: part for name, part in inside.items() if name != "rank"}
        other.load_state_dict(older)  # releases before did not say
    monkeypatch.setattr("sifting.state.rank_of", lambda: (0, 2))
    make()[0].load_state_dict(inside)
