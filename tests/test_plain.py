"""`plain`: states are read whole before anything changes; every value of a sifter's state is damaged once."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from sifting import MemoryExit, Sifter, Trial
from sifting.plain import MOST, Plain, generator_state
from sifting.reference import HeldOutReference
from tests.helpers.models import Net

Path = tuple[Any, ...]
JUNK: list[Any] = [None, -1, 1.5, math.nan, 10**30, True, "junk", [], {}, [{}], torch.zeros(3)]


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (lambda p: p.whole("a"), {"a": True}),
        (lambda p: p.whole("a"), {"a": 2.0}),
        (lambda p: p.whole("a"), {"a": MOST + 1}),
        (lambda p: p.whole("a", most=2), {"a": 3}),
        (lambda p: p.flag("a"), {"a": 1}),
        (lambda p: p.number("a"), {"a": math.inf}),
        (lambda p: p.numbers("a", length=2), {"a": [1.0]}),
        (lambda p: p.numbers("a"), {"a": "12"}),
        (lambda p: p.items("a"), {"a": "12"}),
        (lambda p: p.inside("a"), {"a": [1]}),
        (lambda p: p.tensor("a"), {"a": [1]}),
        (lambda p: p.tensor("a", shape=(2,)), {"a": torch.zeros(3)}),
        (lambda p: p.tensor("a", dims=2), {"a": torch.zeros(3)}),
        (lambda p: p.made("a", generator_state), {"a": torch.zeros(3, dtype=torch.uint8)}),
        (lambda p: p.get("a"), {}),
        (lambda p: list(p), {3: 4}),
    ],
)
def test_what_a_value_must_be_is_said(read: Callable[[Plain], Any], content: Any) -> None:
    with pytest.raises(ValueError, match=r"^the state is damaged: .*\bthe part\b"):
        read(Plain(content, "the part"))


def test_what_is_sound_is_given_back() -> None:
    found = Plain({"n": 3, "x": 1, "list": (1, math.nan), "yes": True}, "the part")
    assert (found.whole("n"), found.number("x"), found.flag("yes")) == (3, 1.0, True)
    assert math.isnan(found.numbers("list", nan=True)[1])


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


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a.nan_to_num(-7), b.nan_to_num(-7))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


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
