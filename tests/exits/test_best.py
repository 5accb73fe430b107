"""exit="auto" with a fixed ratio: every way is measured, and the best net gain is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, SiftingWarning
from sifting.exits.best import AGAIN, FIRST, LATER, BestExit
from sifting.exits.block import BlockExit
from sifting.exits.economy import Economy
from sifting.exits.tuned import TunedExit
from sifting.exits.ways import Way
from sifting.measure.costs import Costs, WayCost
from tests.helpers.models import SMALL, Net, token_batch


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("best", "economy"):
        monkeypatch.setattr(f"sifting.exits.{module}.now", clock)
    # what is faster is tested in test_economy.py, and takes a while on a processor without bf16
    monkeypatch.setattr(
        Economy, "measure", lambda self, run, device, **how: setattr(self, "low", False)
    )
    return clock


def _charge(monkeypatch: Any, clock: Clock, prices: dict[str, float], other: float) -> None:
    """Let scoring take so many seconds, by the way's name."""
    score = Way.score

    def charged(self: Way, *args: Any, **kwargs: Any) -> Tensor:
        clock.seconds += prices.get(self.name, other)
        return score(self, *args, **kwargs)

    monkeypatch.setattr(Way, "score", charged)


def _batches(count: int, size: int = 32) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(3)
    found = []
    for _ in range(count):
        x = torch.randn(size, 8)
        found.append((x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()))
    return found


def _run(sifter: Sifter, clock: Clock, batches: list[Any]) -> None:
    for batch in batches:
        sifter.select(batch)
        clock.seconds += 1.0  # the user's step


def test_every_way_is_measured_and_the_dear_one_is_left(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    _charge(monkeypatch, clock, {"exit 1": 50.0}, other=0.05)
    sifter = Sifter(Net(), keep=0.5, exit="auto", score="loss", audit_every=0)
    exit = sifter.exit
    assert isinstance(exit, BestExit)
    batches = _batches(FIRST + 2)
    _run(sifter, clock, batches[: FIRST - 1])
    assert exit.used is None
    assert "measured on 15 of 16 selections so far" in str(sifter.costs())
    _run(sifter, clock, batches[FIRST - 1 :])
    used = exit.used
    assert used is not None
    costs = sifter.costs()
    assert {way.name for way in costs} >= {"tuned", "exit 1", "input"}
    by_name = {way.name: way for way in costs}
    assert by_name["exit 1"].cost == pytest.approx(50.0)
    assert by_name["tuned"].cost == pytest.approx(0.05)
    assert used.name != "exit 1"
    assert costs[0].used == (costs[0].gain == max(way.gain for way in costs))
    assert "in use" in str(costs)


def test_what_a_device_had_to_do_before_is_no_ways_to_pay(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the exact losses are still being computed when the first way is asked."""
    torch.manual_seed(0)
    queued: list[float] = []

    def wait(device: torch.device) -> None:
        clock.seconds += sum(queued)
        queued.clear()

    def queueing(method: Any, seconds: float) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            queued.append(seconds)
            return method(self, *args, **kwargs)

        return call

    monkeypatch.setattr("sifting.exits.best._wait", wait)
    monkeypatch.setattr(BlockExit, "examine", queueing(BlockExit.examine, 7.0))
    monkeypatch.setattr(Way, "score", queueing(Way.score, 0.2))
    monkeypatch.setattr(TunedExit, "learn", queueing(TunedExit.learn, 0.1))
    sifter = Sifter(Net(), keep=0.5, exit="auto", score="loss", audit_every=0)
    _run(sifter, clock, _batches(FIRST + 1))
    costs = {way.name: way.cost for way in sifter.costs()}
    assert costs["exit 1"] == pytest.approx(0.2)
    assert costs["tuned"] == pytest.approx(0.3)


def test_during_a_look_the_exact_losses_choose(clock: Clock) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    sifter = Sifter(model, keep=0.5, exit="auto", score="loss", audit_every=0, explore=0.0)
    exact = Sifter(model, keep=0.5, exit="last", score="loss")
    (batch,) = _batches(1)
    assert torch.equal(sifter.select(batch).scores, exact.score(batch))


def test_afterwards_only_the_way_in_use_runs_until_it_is_looked_at_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("sifting.exits.best.AGAIN", FIRST + 3)
    calls: list[str] = []
    score = Way.score

    def noted(self: Way, *args: Any, **kwargs: Any) -> Tensor:
        calls.append(self.name)
        return score(self, *args, **kwargs)

    monkeypatch.setattr(Way, "score", noted)
    sifter = Sifter(Net(), keep=0.5, exit="auto", audit_every=0)
    exit = sifter.exit
    assert isinstance(exit, BestExit)
    batches = _batches(FIRST + 3 + LATER)
    _run(sifter, clock, batches[:FIRST])
    exit._lessons = 0  # the others learn along: below
    calls.clear()
    _run(sifter, clock, batches[FIRST : FIRST + 3])
    assert exit.used is not None
    assert calls == [exit.used.name] * 3
    assert exit.looking
    _run(sifter, clock, batches[FIRST + 3 :])
    assert set(calls) == {way.name for way in exit.ways}
    assert not exit.looking
    assert exit.used is not None


class Chain(nn.Module):
    """A classifier whose first block learns what its inputs do not show to a linear head."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in "abcd"]
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        found: Tensor = self.head(x)
        return found


def _products(generator: torch.Generator, size: int = 64) -> tuple[Tensor, Tensor]:
    """Labels by the signs of products, more or less certain: no linear map tells them."""
    x = torch.randn(size, 8, generator=generator)
    noise = 0.3 * torch.randn(2, size, generator=generator) * x[:, 7].abs()
    first, second = x[:, 0] * x[:, 1] + noise[0], x[:, 2] * x[:, 3] + noise[1]
    return x, (first > 0).long() + 2 * (second > 0).long()


def _trained(
    sifters: list[Sifter], model: nn.Module, clock: Clock, steps: int, *, skip: int = 0
) -> list[list[list[int]]]:
    """What each chooses, step by step, while a model learns from the first one's choice."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    chosen: list[list[list[int]]] = [[] for _ in sifters]
    for step in range(steps):
        x, y = _products(generator)
        if step < skip:
            continue
        found = [sifter.select((x, y)) for sifter in sifters]
        for told, choice in zip(chosen, found, strict=True):
            told.append(choice.indices.tolist())
        kept = found[0].indices
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[kept]), y[kept]).backward()
        optimizer.step()
        clock.seconds += 1.0
    return chosen


PRICES = {"input": 0.0, "exit 1": 0.06, "tuned": 0.06}


def test_heads_that_were_not_in_use_are_judged_by_what_they_can_learn(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first nothing ranks, and the cheapest is taken; later the features do, for a head that was taught."""
    torch.manual_seed(1)
    _charge(monkeypatch, clock, PRICES, other=0.05)
    model = Chain()
    sifter = Sifter(model, keep=0.5, exit="auto", score="loss", audit_every=0, seed=3)
    taught = Sifter(model, keep=0.5, exit="tuned", score="loss", audit_every=0)
    exit = sifter.exit
    assert isinstance(exit, BestExit)
    _trained([sifter, taught], model, clock, AGAIN + LATER)
    assert not exit.looking
    by_name = {way.name: way for way in sifter.costs()}
    x, y = _products(torch.Generator().manual_seed(1), size=2048)
    scores_B = taught.score((x, y))
    exact_B = nn.functional.cross_entropy(model.eval()(x), y, reduction="none").detach()
    best = float(exact_B[scores_B.argsort(descending=True)[:1024]].sum() / exact_B.sum())
    assert best > 0.6
    # of all that a head can learn there, which is best − ½
    assert by_name["tuned"].kept_loss - 0.5 > 0.6 * (best - 0.5)
    assert repr(exit) == "BestExit(tuned)"


def test_lessons_take_a_hundredth_of_the_steps_between_two_looks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    _charge(monkeypatch, clock, PRICES, other=0.05)
    calls: list[str] = []
    score = Way.score

    def noted(self: Way, *args: Any, **kwargs: Any) -> Tensor:
        calls.append(self.name)
        return score(self, *args, **kwargs)

    monkeypatch.setattr(Way, "score", noted)
    model = Chain()
    sifter = Sifter(model, keep=0.5, exit="auto", score="loss", audit_every=0, seed=3)
    exit = sifter.exit
    assert isinstance(exit, BestExit)
    spent = []
    for end in (FIRST, AGAIN, AGAIN + LATER, 3 * AGAIN):
        skip = exit._selections
        calls.clear()
        _trained([sifter], model, clock, end, skip=skip)
        assert exit.used is not None
        others = [name for name in calls if name != exit.used.name]
        spent.append(sum(PRICES.get(name, 0.05) for name in others))
        if end in (AGAIN, 3 * AGAIN):
            assert exit.looking
            assert 0 < spent[-1] <= 0.01 * (end - skip)
            assert exit.used.name not in exit._pupils


def test_lessons_are_resumed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    _charge(monkeypatch, clock, PRICES, other=0.05)
    for name, value in {"FIRST": 4, "LATER": 4, "AGAIN": 60}.items():
        monkeypatch.setattr(f"sifting.exits.best.{name}", value)
    monkeypatch.setattr("sifting.exits.teaching.SHARE", 0.02)
    made = Chain()
    sifter = Sifter(made, keep=0.5, exit="auto", score="loss", audit_every=0, seed=3)
    exit = sifter.exit
    assert isinstance(exit, BestExit)
    _trained([sifter], made, clock, 54)
    assert exit._learning
    torch.manual_seed(1)
    model = Chain()
    model.load_state_dict(made.state_dict())
    resumed = Sifter(model, keep=0.5, exit="auto", score="loss", audit_every=0, seed=3)
    resumed.load_state_dict(sifter.state_dict())
    before = clock.seconds
    whole = _trained([sifter], made, clock, 70, skip=54)
    clock.seconds = before
    assert _trained([resumed], model, clock, 70, skip=54) == whole
    assert repr(resumed.exit) == repr(exit)
    assert str(resumed.costs()) == str(sifter.costs())


def test_a_look_that_passes_by_the_next_one_is_followed_by_others(clock: Clock) -> None:
    torch.manual_seed(0)
    exit = BestExit()
    sifter = Sifter(Net(), keep=0.5, exit=exit, audit_every=0)
    _run(sifter, clock, _batches(2))
    exit._next = FIRST
    _run(sifter, clock, _batches(FIRST - 2))
    assert not exit.looking
    assert exit._next == 3 * FIRST


def test_it_goes_on_identically_from_a_state(clock: Clock) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    batches = _batches(FIRST + 4)
    for cut in (5, FIRST + 1):
        one = Sifter(model, keep=0.5, exit="auto", audit_every=0)
        _run(one, clock, batches[:cut])
        two = Sifter(model, keep=0.5, exit="auto", audit_every=0, seed=9)
        two.load_state_dict(one.state_dict())
        again = Sifter(model, keep=0.5, exit="auto", audit_every=0)
        again.load_state_dict(two.state_dict())  # a state of what was loaded and not used yet
        for batch in batches[cut:]:
            chosen = [sifter.select(batch).indices for sifter in (one, two, again)]
            clock.seconds += 1.0
            assert torch.equal(chosen[0], chosen[1])
            assert torch.equal(chosen[0], chosen[2])
        assert repr(one.exit) == repr(two.exit)


def test_the_ways_of_a_state_go_on_whatever_the_next_batch_is_like(clock: Clock) -> None:
    """How many positions are labelled, and how long sequences are, differs from batch to batch."""
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL)).eval()
    one = Sifter(model, keep=0.5, exit="auto", audit_every=0)
    _run(one, clock, [token_batch(size=8, length=32)] * FIRST)
    assert isinstance(one.exit, BestExit)
    # the way in use is one that a batch of another length would not suggest
    one.exit.used = next(way for way in one.exit.ways if way.name == "exit 1, view=16")
    two = Sifter(model, keep=0.5, exit="auto", audit_every=0)
    two.load_state_dict(one.state_dict())
    batch = token_batch(size=8, length=24)
    chosen = [sifter.select(batch).indices for sifter in (one, two)]
    assert torch.equal(*chosen)
    assert isinstance(two.exit, BestExit)
    assert [way.name for way in two.exit.ways] == [way.name for way in one.exit.ways]
    assert repr(two.exit) == "BestExit(exit 1, view=16)"


def test_where_the_way_in_use_is_not_to_be_had_any_more_all_are_measured_anew(
    clock: Clock,
) -> None:
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL)).eval()
    batches = [token_batch(size=8, length=32)] * (FIRST + 3)
    one = Sifter(model, keep=0.5, exit="auto", audit_every=0)
    _run(one, clock, batches[:FIRST])
    assert isinstance(one.exit, BestExit)
    one.exit.used = next(way for way in one.exit.ways if way.name == "exit 1, view=16")
    two = Sifter(model, keep=0.5, exit="auto", audit_every=0, rows=2)
    with pytest.warns(SiftingWarning, match="saved with other settings"):
        two.load_state_dict(one.state_dict())
    _run(two, clock, batches[:1])
    assert isinstance(two.exit, BestExit)
    assert two.exit.looking
    _run(two, clock, batches[1:])
    assert two.exit.used is not None


def test_language_models_are_tried_with_fewer_rows_and_shorter_views(clock: Clock) -> None:
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    sifter = Sifter(model, keep=0.5, exit="auto", audit_every=0)
    batch = token_batch(size=8, length=32)
    sifter.select(batch)
    names = {way.name for way in sifter.costs()}
    assert {"exit 1", "exit 1, rows='labelled'", "exit 1, view=16", "tuned"} <= names
    assert any(name.startswith("exit 1, rows=") and "labelled" not in name for name in names)


def test_what_the_user_asks_for_is_not_varied(clock: Clock) -> None:
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    sifter = Sifter(model, keep=0.5, exit="auto", audit_every=0, rows=2)
    sifter.select(token_batch(size=8, length=32))
    assert {way.name for way in sifter.costs()} == {"exit 1", "tuned"}


@pytest.mark.parametrize("less", [{"view": 8}, {"rows": 1}, {"precision": "bf16"}])
@pytest.mark.parametrize("score", ["loss", "entropy"])
def test_ways_that_see_a_part_are_held_against_losses_of_the_whole(
    clock: Clock, less: dict[str, Any], score: Any
) -> None:
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL)).eval()
    sifter = Sifter(model, keep=0.5, exit="auto", score=score, score_batch_size=6, **less)
    batch = token_batch(size=16, length=32)
    exact_B, chosen_by_B = (
        Sifter(model, keep=0.5, exit="last", score=name).score(batch) for name in ("loss", score)
    )
    torch.testing.assert_close(sifter.select(batch).scores, chosen_by_B)
    exit = sifter.exit
    assert isinstance(exit, BestExit)
    by_name = {way.name: way.measured[0][2] for way in exit.ways}
    early_B = Sifter(model, keep=0.5, exit=1, score=score, seed=0, **less).select(batch).scores
    top_K = early_B.argsort(descending=True, stable=True)[:8]
    assert by_name["exit 1"] == pytest.approx(float(exact_B[top_K].sum() / exact_B.sum()))


def test_images_are_tried_smaller_and_at_earlier_modules(clock: Clock) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    data = TensorDataset(torch.randn(16, 3, 16, 16), torch.randint(0, 4, (16,)))
    sifter = Sifter(model, keep=0.5, exit="auto")
    for images, labels in sifter(DataLoader(data, batch_size=8)):
        assert images.shape == (8, 3, 16, 16)
        nn.functional.cross_entropy(model(images), labels).backward()
    names = {way.name for way in sifter.costs()}
    assert {"tuned", "tuned, view=8", "input"} <= names
    assert "exit 1" in sifter.exit.refused  # type: ignore[attr-defined]


def test_a_fixed_exit_has_its_own_cost_in_the_table() -> None:
    torch.manual_seed(0)
    model = Net()
    sifter = Sifter(model, keep=0.5, exit="last", audit_every=1)
    batches = _batches(2, size=16)
    assert "not audited yet" in str(sifter.costs())
    for x, y in sifter(batches):
        nn.functional.cross_entropy(model(x), y).backward()
    (way,) = sifter.costs()
    assert way.used
    assert way.cost > 0
    assert 0 <= way.recall <= 1
    assert way.kept_loss == pytest.approx(0.5 * (sifter.stats().rho_approx or 0))


def test_a_table_is_in_the_order_of_net_gains_with_unknown_ones_last() -> None:
    nan = float("nan")
    costs = Costs(
        [WayCost("b", nan, 0, 0, 0.9), WayCost("c", 1.0, 0, 0, 0.9), WayCost("a", 0.1, 0, 0, 0.6)]
    )
    assert [way.name for way in costs] == ["a", "c", "b"]
    assert AGAIN > FIRST > LATER
