"""ahead=1: the next candidates are scored beside the step, with the weights of this one."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sifting import AdditiveExit, MemoryExit, Sifter
from sifting.exits.beside import Beside
from sifting.exits.block import BlockExit
from sifting.exits.thread_context import Context
from sifting.exits.turns import ThreadTurn
from sifting.rng import RandomState
from tests.helpers.loaders import KINDS, Counted, make_loader, seed_everything, streams
from tests.helpers.models import Net

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

STEPS = 7
EXITS: dict[str, dict[str, Any]] = {
    "block": {"exit": 2, "score": "loss"},
    "last": {"exit": "last", "score": "entropy", "score_batch_size": 5},
    "tuned": {"exit": "tuned"},
    "input": {"exit": "input", "forward": lambda model, batch: model(batch[0] * 1.0)},
}


def make_net() -> Net:
    torch.manual_seed(3)
    return Net(features=5, classes=3)  # dropout, and a batch norm whose statistics move


class Pairs(Dataset[Any]):
    """Samples with a random number in them, drawn from the stream that dropout draws from."""

    def __init__(self, samples: int = 64) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, 4, generator=generator)
        self.y = torch.randint(0, 3, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.cat([self.x[index], torch.rand(1)]), self.y[index]


def make_loader_of(kind: str) -> Any:
    data = Pairs()
    loader = DataLoader(data, 8, shuffle=True)
    return {
        "samples": loader,
        "pool": [next(iter(loader)) for _ in range(8)],
        "batch": DataLoader(data, 16, shuffle=True),
    }[kind]


class LateScores:
    """The reference: candidates are scored when they are asked for, by a model that is one step old."""

    def __init__(self, sifter: Sifter) -> None:
        self.sifter, self.old = sifter, copy.deepcopy(sifter.model)
        self.score = sifter._scorer.scores
        self.late = False
        sifter._scorer.scores = self  # type: ignore[method-assign, assignment]

    def __call__(self, batch: Any, *, learn: bool, ids: Any = None) -> Tensor | None:
        scorer, model = self.sifter._scorer, self.sifter.model
        if not self.late:
            return self.score(batch, learn=learn)
        now, noted = copy.deepcopy(model.state_dict()), scorer.autocast
        model.load_state_dict(self.old.state_dict())
        scorer.autocast = self.noted
        try:
            return self.score(batch, learn=learn)
        finally:
            model.load_state_dict(now)
            scorer.autocast = noted

    def remember(self) -> None:
        """When a batch is handed out: from the third on, candidates are scored ahead."""
        self.old.load_state_dict(self.sifter.model.state_dict())
        self.noted = self.sifter._scorer.autocast
        self.late = self.sifter.step > 1


def train(
    sifter: Sifter,
    loader: Any,
    *,
    steps: int = STEPS,
    every: int = 1,
    autocast: bool = False,
    call: Callable[..., Any] | None = None,
    on_batch: Callable[[int], None] = lambda step: None,
    optimizer: torch.optim.Optimizer | None = None,
    compiles: bool = False,
) -> list[Any]:
    """A loop: what each step trained, and its loss."""
    model = sifter.model
    call = call or model
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.05)
    if compiles:
        optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
    scaler = torch.amp.GradScaler("cpu", enabled=autocast)
    found: list[Any] = []
    for x, y in sifter(loader):
        on_batch(len(found))
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            loss = F.cross_entropy(call(x), y)
        scaler.scale(loss).backward()
        if len(found) % every == every - 1:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found.append((x.tolist(), y.tolist(), loss.item()))
        if len(found) == steps:
            break
    return found


def reference(options: dict[str, Any], kind: str, **how: Any) -> list[Any]:
    """The same loop, scored in the loop by weights that are one step old, candidates drawn as early."""
    sifter = Sifter(make_net(), ahead=1, audit_every=0, **options)
    beside = sifter.beside
    assert beside is not None
    beside.begin = lambda: None  # type: ignore[method-assign]
    late = LateScores(sifter)
    seed_everything()
    return train(sifter, make_loader_of(kind), on_batch=lambda step: late.remember(), **how)


@pytest.mark.parametrize("kind", ["samples", "pool", "batch"])
@pytest.mark.parametrize("exit", EXITS)
def test_choices_are_those_of_weights_one_update_old(exit: str, kind: str) -> None:
    options = {**EXITS[exit], **({"draws": "batch"} if kind == "batch" else {})}
    want = reference(options, kind, steps=4 if kind == "batch" else STEPS)
    sifter = Sifter(make_net(), ahead=1, audit_every=0, **options)
    used = counted(sifter)
    seed_everything()
    loader = make_loader_of(kind)
    assert train(sifter, loader, steps=4 if kind == "batch" else STEPS) == want
    assert len(used) == len(want) - 2  # all but the first two were scored beside a step
    if exit == "input":
        return  # which looks at nothing that is trained
    plain = Sifter(make_net(), audit_every=0, **options)
    seed_everything()
    assert train(plain, make_loader_of(kind), steps=len(want)) != want


def counted(sifter: Sifter) -> list[Any]:
    """Scores that were made beside a step."""
    beside, found = sifter.beside, []
    assert beside is not None
    take = beside.take

    def counting(batch: Any) -> Tensor | None:
        scores = take(batch)
        if scores is not None:
            found.append(scores)
        return scores

    beside.take = counting  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("how", [{"every": 3}, {"autocast": True}], ids=str)
def test_accumulation_and_autocast(how: dict[str, Any]) -> None:
    options = EXITS["tuned"]
    sifter = Sifter(make_net(), ahead=1, audit_every=0, **options)
    used = counted(sifter)
    seed_everything()
    assert train(sifter, make_loader_of("samples"), **how) == reference(options, "samples", **how)
    assert len(used) == STEPS - 2


def test_sampled_positions_are_drawn_once_and_put_back_where_they_are_not_used() -> None:
    """`rows=` draws from the sifter's own stream, in the loop's order."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 16)
            self.blocks = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
            self.head = nn.Linear(16, 20)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def choices(ahead: int, steps: int) -> tuple[list[Any], Tensor]:
        torch.manual_seed(4)
        net, tokens = Tagger(), torch.randint(0, 20, (64, 12))
        options: dict[str, Any] = {"exit": 1, "score": "loss", "rows": 3, "audit_every": 0}
        sifter = Sifter(net, ahead=ahead, **options)
        batches = [(x, x.roll(1, 1)) for x in tokens.split(8)]
        found = []
        for x, _ in sifter(batches):  # nothing is trained: weights are the same at any age
            found.append(x.tolist())
            sifter.wait()
            if len(found) == steps:
                break
        return found, sifter._generator.get_state()

    for steps in (8, 5):
        found, state = choices(1, steps)
        want, wanted_state = choices(0, steps)
        assert found == want
        assert torch.equal(state, wanted_state)


def test_gradients_are_whole_under_autocast() -> None:
    """Weights that the thread casts, without gradients, must not be used by the step."""
    net = make_net()
    sifter = Sifter(net, ahead=1, audit_every=0, **EXITS["block"])

    def check(step: int) -> None:
        sifter.wait()

    train(sifter, make_loader_of("samples"), autocast=True, on_batch=check)
    net.zero_grad()
    sifter = Sifter(net, ahead=1, audit_every=0, **EXITS["block"])
    for step, (x, y) in enumerate(sifter(make_loader_of("samples"))):
        with torch.autocast("cpu", torch.bfloat16):
            sifter.wait()  # the thread has cast its weights while this one's cache is open
            F.cross_entropy(net(x), y).backward()
        assert all(p.grad is not None and p.grad.any() for p in net.blocks.parameters())
        net.zero_grad()
        if step == 4:
            break


@pytest.mark.parametrize("kind", ["samples", "pool", "batch"])
@pytest.mark.parametrize("exit", ["block", "tuned", "input"])
def test_a_state_taken_in_flight_goes_on_identically(exit: str, kind: str, tmp_path: Any) -> None:
    options = {**EXITS[exit], **({"draws": "batch"} if kind == "batch" else {})}
    saved: dict[str, Any] = {}
    loader = make_loader_of(kind)
    sifter = Sifter(make_net(), ahead=1, audit_every=3, **options)
    optimizer = torch.optim.Adam(sifter.model.parameters(), lr=0.05)

    def save(step: int) -> None:
        if step == 3:
            state = {
                "sifter": sifter.state_dict(),
                "model": sifter.model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "rng": torch.get_rng_state(),
            }
            torch.save(state, tmp_path / "state.pt")

    seed_everything()
    whole = train(
        sifter, loader, steps=4 if kind == "batch" else 7, on_batch=save, optimizer=optimizer
    )
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    again = Sifter(make_net(), ahead=1, audit_every=3, **options)
    again.model.load_state_dict(saved["model"])
    optimizer = torch.optim.Adam(again.model.parameters(), lr=0.05)
    optimizer.load_state_dict(saved["optimizer"])
    again.load_state_dict(saved["sifter"])
    torch.set_rng_state(saved["rng"])
    # the step that the state was taken in is trained again, from the batch that was handed out
    x, y, loss = whole[3]
    value = F.cross_entropy(again.model(torch.tensor(x)), torch.tensor(y))
    assert value.item() == loss
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    rest = train(again, loader, steps=3, optimizer=optimizer)
    assert rest == whole[4:]
    assert again.stats().audits == sifter.stats().audits


@pytest.mark.parametrize("kind", ["samples", "pool"])
@pytest.mark.parametrize("exit", ["block", "tuned"])
def test_a_state_taken_after_the_loop_was_left_goes_on_identically(exit: str, kind: str) -> None:
    """What was scored ahead had weights that nobody has any more, so it is part of the state."""
    options = {**EXITS[exit], "explore": 0.25, "audit_every": 0}
    seed_everything()
    whole = train(Sifter(make_net(), ahead=1, **options), make_loader_of(kind))
    for steps in (2, 3, 5):
        seed_everything()
        sifter, loader = Sifter(make_net(), ahead=1, **options), make_loader_of(kind)
        optimizer = torch.optim.Adam(sifter.model.parameters(), lr=0.05)
        assert train(sifter, loader, steps=steps, optimizer=optimizer) == whole[:steps]
        streams_then = RandomState.now()
        again = Sifter(sifter.model, ahead=1, **options)
        again.load_state_dict(sifter.state_dict())
        streams_then.restore()
        rest = train(again, loader, steps=STEPS - steps, optimizer=optimizer)
        assert rest == whole[steps:]


def test_what_was_left_is_of_no_use_once_something_else_was_drawn() -> None:
    sifter = Sifter(make_net(), ahead=1, audit_every=0, explore=0.25, **EXITS["block"])
    loader = make_loader_of("samples")
    train(sifter, loader, steps=4)
    assert sifter.state_dict()["ahead"] is not None
    assert sifter.state_dict(epoch_over=True)["ahead"] is None
    sifter.select(next(iter(loader)))
    assert sifter.state_dict()["ahead"] is None
    train(sifter, loader, steps=4)
    assert sifter.state_dict()["ahead"] is not None
    for _ in sifter(loader):
        pass
    assert sifter.state_dict()["ahead"] is None, "the epoch is over"


def test_keep_one_and_warm_up_are_the_plain_loop() -> None:
    for options in ({"keep": 1.0}, {"warmup_steps": 99}, {"policy": "random", "keep": 1.0}):
        sifter = Sifter(make_net(), keep=1.0)
        seed_everything()
        want = train(sifter, make_loader_of("samples")), streams()
        sifter = Sifter(make_net(), exit=1, ahead=1, **options)
        seed_everything()
        assert (train(sifter, make_loader_of("samples")), streams()) == want


@pytest.mark.parametrize("kind", KINDS)
def test_every_loader_gives_what_it_gives_without(kind: str) -> None:
    """The same candidates, in the same order: an epoch reads what it reads without ahead=."""
    read = []
    for ahead in (0, 1):
        data = Counted()
        sifter = Sifter(make_net(), exit=1, score="loss", ahead=ahead, audit_every=0)
        seed_everything()
        loader = make_loader(kind, data)
        sizes = [len(y) for _ in range(2) for _, y in sifter(loader)]
        read.append((sizes, data.read))
    assert read[0] == read[1]


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("sifting-ahead")]

    net = make_net()
    sifter = Sifter(net, ahead=1, audit_every=0, **EXITS["tuned"])
    train(sifter, make_loader_of("samples"), steps=4)  # left by break
    assert not threads()
    assert not hooks
    with pytest.raises(ZeroDivisionError):
        train(sifter, make_loader_of("samples"), on_batch=lambda step: 1 // (3 - step))
    assert not threads()
    assert not hooks
    assert sifter.beside is not None
    assert sifter.beside.ahead is None
    kept = [value.clone() for value in net.state_dict().values()]
    modes = [module.training for module in net.modules()]
    members = {path: module._modules.copy() for path, module in net.named_modules()}
    for step, _ in enumerate(sifter(make_loader_of("samples"))):
        before = RandomState.now()
        if step > 2:
            assert threads()
            sifter.wait()
        assert before.same_as(RandomState.now())
        if step == 5:
            break
    assert all(torch.equal(a, b) for a, b in zip(kept, net.state_dict().values(), strict=True))
    assert modes == [module.training for module in net.modules()]
    assert members == {path: module._modules for path, module in net.named_modules()}
    assert not any(module._forward_hooks for module in net.modules())
    lessons = [p.lessons for p in sifter.exit.predictors.values()]  # type: ignore[attr-defined]
    assert not any(lessons)


class Failing(nn.Module):
    """Fails in the thread, at its third call there."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.calls: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            self.calls.append("beside")
            if len(self.calls) == 3:
                raise ArithmeticError("the third")
        return self.net(x)


def test_a_failure_beside_the_step_surfaces_in_the_loop() -> None:
    sifter = Sifter(Failing(), exit="last", score="loss", ahead=1, audit_every=0)
    steps: list[int] = []
    with pytest.raises(ArithmeticError, match="the third") as caught:
        train(sifter, make_loader_of("samples"), on_batch=steps.append)
    assert steps == [0, 1, 2, 3]  # the steps before are trained
    assert any(
        frame.name == "forward" for frame in traceback.extract_tb(caught.value.__traceback__)
    )
    assert not [t for t in threading.enumerate() if t.name.startswith("sifting-ahead")]


def test_a_thread_that_fails_before_it_reads_anything_does_not_hold_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sifter = Sifter(make_net(), ahead=1, audit_every=0, **EXITS["block"])

    def fail(context: Context) -> Any:
        raise ArithmeticError("no context")

    def on_batch(step: int) -> None:
        if step == 3:
            monkeypatch.setattr(Context, "open", fail)

    with pytest.raises(ArithmeticError, match="no context"):
        train(sifter, make_loader_of("samples"), on_batch=on_batch)


def test_a_loader_that_fails_ahead_fails_in_its_turn() -> None:
    def batches() -> Iterator[Any]:
        loader = make_loader_of("pool")
        yield from loader[:6]
        raise OSError("no more")

    sifter = Sifter(make_net(), exit=1, score="loss", ahead=1, draws="batch", audit_every=0)
    steps: list[int] = []
    with pytest.raises(OSError, match="no more"):
        train(sifter, batches(), on_batch=steps.append, steps=99)
    assert len(steps) == 6


def test_optimizers_wait_and_other_writers_are_told() -> None:
    net = make_net()
    sifter = Sifter(net, ahead=1, audit_every=0, **EXITS["block"])
    with pytest.raises(
        RuntimeError, match=r"parameter 'embed.weight' was written .* sifter.wait\(\)"
    ):
        for step, _ in enumerate(sifter(make_loader_of("samples"))):
            with torch.no_grad():
                net.embed.weight.add_(1.0)
            assert step < 4
    for step, _ in enumerate(sifter(make_loader_of("samples"))):
        sifter.wait()
        with torch.no_grad():
            net.embed.weight.add_(1.0)
        if step == 4:
            break


def test_a_step_waits_for_what_is_read_and_not_for_its_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU the scores are read back when the device has come to them, which holds up nobody."""
    net, late = make_net(), threading.Event()
    unlearned = BlockExit.unlearned

    def slowly(self: BlockExit) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert late.wait(20)
        return unlearned(self)

    monkeypatch.setattr(BlockExit, "unlearned", slowly)
    sifter = Sifter(net, ahead=1, audit_every=0, **EXITS["block"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(sifter(make_loader_of("samples"))):
        late.clear()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()  # while the thread is still at it
        late.set()
        if step == 4:
            break


def test_each_optimizer_of_a_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may work in streams of their own, each of which has to be held."""
    net, held = make_net(), []
    hold = ThreadTurn.hold
    monkeypatch.setattr(ThreadTurn, "hold", lambda self: (held.append(self), hold(self)))
    sifter = Sifter(net, ahead=1, audit_every=0, **EXITS["block"])
    parts = [net.embed, net.blocks, net.head]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
    for step, (x, y) in enumerate(sifter(make_loader_of("samples"))):
        F.cross_entropy(net(x), y).backward()
        held.clear()
        for optimizer in optimizers:
            optimizer.step()
        assert len(held) == (3 if step > 0 else 0)
        if step == 3:
            break


def test_a_compiled_step_of_an_optimizer_waits_too() -> None:
    how: dict[str, Any] = {"steps": 5, "compiles": True}
    sifter = Sifter(make_net(), ahead=1, audit_every=0, **EXITS["block"])
    seed_everything()
    found = train(sifter, make_loader_of("samples"), **how)
    assert found == reference(EXITS["block"], "samples", **how)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit": 1, "ahead": 2}, "ahead=2: choose 1"),
        ({"ahead": 1}, "ahead=1 and keep='auto'"),
        ({"exit": MemoryExit(), "ahead": 1}, "runs nothing to score"),
    ],
)
def test_what_does_not_go_together_is_named_at_construction(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sifter(make_net(), **options)


def test_an_additive_exit_is_refused() -> None:
    net = make_net()
    with pytest.raises(
        ValueError, match=r"ahead=1: AdditiveExit\('blocks.0'\) cannot score a copy"
    ):
        Sifter(net, exit=AdditiveExit(net, "blocks.0"), score="loss", ahead=1)


class Noisy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * torch.rand(())


def test_what_could_not_be_repeated_is_refused_on_the_first_batch() -> None:
    loader = make_loader_of("samples")
    noisy = Noisy(features=5, classes=3)
    with pytest.raises(ValueError, match="scoring draws random numbers"):
        next(iter(Sifter(noisy, exit=1, score="loss", ahead=1)(loader)))
    net = make_net()
    forward = {"forward": lambda model, batch: net(batch[0]), "labels": lambda batch: batch[1]}
    with pytest.raises(ValueError, match="still runs 'the model' of the model itself"):
        next(iter(Sifter(net, exit="last", score="loss", ahead=1, **forward)(loader)))
    net.blocks[0].register_forward_hook(lambda module, args, output: output + 1)
    with pytest.raises(ValueError, match=r"a forward hook on 'blocks.0' .* changes what passes"):
        next(iter(Sifter(net, exit=1, score="loss", ahead=1)(loader)))


def test_hooks_that_only_look_are_not_run_beside_the_step() -> None:
    net, seen = make_net(), []
    net.blocks[0].register_forward_hook(lambda *_: seen.append(threading.current_thread().name))
    sifter = Sifter(net, ahead=1, audit_every=0, **EXITS["block"])
    used = counted(sifter)
    train(sifter, make_loader_of("samples"))
    assert len(used) == STEPS - 2
    assert set(seen) == {threading.main_thread().name}


def test_compiled_models() -> None:
    net = make_net()
    compiled = torch.compile(net, backend="eager")
    sifter = Sifter(compiled, ahead=1, audit_every=0, **EXITS["block"])  # type: ignore[arg-type]
    used = counted(sifter)
    seed_everything()
    found = train(sifter, make_loader_of("samples"))
    assert found == reference(EXITS["block"], "samples")
    assert len(used) == STEPS - 2


def test_where_nothing_is_drawn_ahead_there_is_nothing_to_save_or_to_take() -> None:
    beside = Sifter(make_net(), ahead=1, **EXITS["block"]).beside
    assert isinstance(beside, Beside)
    beside.wait()
    assert beside.state_dict() is None
    assert beside.take((torch.zeros(2, 8), torch.zeros(2).long())) is None


def test_a_loop_left_open_ends_with_the_interpreter_and_says_nothing() -> None:
    code = """
import torch
from torch import nn
from sifting import Sifter
net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))
batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(8)]
loop = iter(Sifter(net, exit=1, score="loss", ahead=1)(batches))
for _ in range(4):
    next(loop)
print("over")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "over\n")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
