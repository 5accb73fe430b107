"""Scoring a compiled model: the blocks up to the exit as graphs of their own, where the clock says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, TunedExit
from sifting.exits.block import BlockExit
from sifting.exits.graphs import Graphs
from tests.helpers.models import Net

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Compiler:
    """A backend that runs graphs as they are, and counts them by whether gradients are wanted."""

    def __init__(self, *, fails: bool = False) -> None:
        self.training = self.scoring = 0
        self.fails = fails

    def __call__(self, graph: Any, inputs: Any) -> Any:
        if torch.is_grad_enabled():
            self.training += 1
        else:
            self.scoring += 1
            if self.fails:
                raise NotImplementedError("no such kernel")
        return graph.forward


class Clock:
    """Graphs take half of the time of modules, or twice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, faster: bool) -> None:
        self.seconds, self.faster = 0.0, faster
        measure = Graphs.measure

        def timed(graphs: Graphs, run: Any, device: torch.device) -> None:
            def counted() -> Tensor:
                self.seconds += 1.0 if graphs.on == self.faster else 2.0
                return run()

            measure(graphs, counted, device)

        monkeypatch.setattr(Graphs, "measure", timed)
        monkeypatch.setattr("sifting.exits.graphs.now", lambda: self.seconds)


def make(backend: Any, **options: Any) -> Sifter:
    torch.manual_seed(3)
    net: Any = Net()
    if backend is not None:
        net = torch.compile(net, backend=backend)
    return Sifter(net, **{"exit": 2, "score": "loss", "keep": 0.5, "audit_every": 3, **options})


def train(sifter: Sifter, steps: int = 7, *, autocast: bool = False) -> list[Any]:
    """What each step trained, and its loss, without dropout: a graph draws numbers of its own."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(64, 8, generator=generator), torch.randint(0, 5, (64,), generator=generator)
    )
    optimizer = torch.optim.SGD(sifter.model.parameters(), lr=0.1)
    found: list[Any] = []
    torch.manual_seed(0)
    sifter.model.eval()
    for x, y in sifter(DataLoader(data, 8, shuffle=True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(sifter.model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((x.tolist(), loss.item()))
        if len(found) == steps:
            break
    return found


@pytest.mark.parametrize("options", [{}, {"exit": "tuned"}, {"score_batch_size": 5}], ids=str)
def test_choices_are_those_of_the_modules_and_blocks_are_compiled_once(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = train(make(None, **options))
    Clock(monkeypatch, faster=True)
    compiler = Compiler()
    sifter = make(compiler, **options)
    assert sifter._scorer.graphs.on is None
    first = train(sifter, steps=1)
    assert compiler.scoring == 0  # nothing was trained yet, so its autocast is not known
    assert first == want[:1]
    sifter = make(compiler, **options)
    assert train(sifter) == want
    assert compiler.scoring >= 1
    assert sifter._scorer.graphs.on is True
    net = sifter._scorer.model
    assert not any("forward" in module.__dict__ for module in net.modules())


@pytest.mark.parametrize("autocast", [False, True])
def test_later_steps_compile_nothing_more(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, faster=True)
    compiler, counts = Compiler(), []
    sifter = make(compiler)
    for steps in (2, 6):
        train(sifter, steps, autocast=autocast)
        counts.append(compiler.scoring)
    assert counts[0] == counts[1] == 1  # both blocks are one graph: they are of one shape


class Stages(nn.Module):
    """No stack of blocks: a place in it is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Linear(8, 12), nn.Linear(12, 24)
        self.narrow, self.head = nn.Linear(24, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.narrow(self.wide(self.stem(x).relu()).relu()).relu())


def test_modules_up_to_another_place_are_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, faster=True)
    found = []
    for compiler in (None, Compiler()):
        torch.manual_seed(3)
        net: Any = Stages()
        options: dict[str, Any] = {"exit": TunedExit("wide"), "keep": 0.5, "audit_every": 0}
        sifter = Sifter(
            net if compiler is None else torch.compile(net, backend=compiler), **options
        )
        found.append(train(sifter))
        if compiler is not None:
            assert sifter._scorer.graphs.on is True
            assert set(sifter._scorer.graphs._made) == {net.stem, net.wide}
            assert compiler.scoring == 2
    assert found[0] == found[1]


def test_the_way_that_was_found_best_is_compiled_once_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sifting.exits.best.FIRST", 2)
    monkeypatch.setattr("sifting.exits.ways.EXITS", {"exit 1": lambda: BlockExit(1)})
    monkeypatch.setattr("sifting.exits.ways._earlier", lambda *_: [])
    Clock(monkeypatch, faster=True)
    compiler = Compiler()
    sifter = make(compiler, exit="auto")
    train(sifter, 2)
    assert compiler.scoring == 0  # while ways are compared, they are as they are
    train(sifter, 3)
    assert sifter._scorer.graphs.on is True
    assert compiler.scoring == 1


def test_a_clock_that_says_no_leaves_the_modules_to_score(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sifting")
    Clock(monkeypatch, faster=False)
    sifter = make(Compiler())
    ran: list[bool] = []
    block = sifter._scorer.model.blocks[0]
    block.register_forward_hook(lambda m, a, o: ran.append("forward" in m.__dict__))
    train(sifter, 3)
    assert sifter._scorer.graphs.on is False
    assert ran[-1] is False
    assert "takes 2.00 of the time as compiled graphs of its own" in caplog.text


def test_a_compiler_that_fails_is_told_of_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sifting")
    Clock(monkeypatch, faster=True)
    want = train(make(None))
    assert train(make(Compiler(fails=True))) == want
    assert "scored without compiled graphs (" in caplog.text


def test_scores_that_differ_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sifting")
    graphs = Graphs(torch.compile(nn.Linear(2, 2), backend="eager"))  # type: ignore[arg-type]
    graphs.measure(lambda: torch.arange(4.0) + (0.1 if graphs.on else 0.0), torch.device("cpu"))
    assert graphs.on is False
    assert "differ by more than rounding" in caplog.text


def test_the_state_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, faster=True)
    sifter = make(Compiler())
    train(sifter, 2)
    again, plain = make(Compiler()), make(None)
    for other in (again, plain):
        other.load_state_dict(sifter.state_dict())
    assert again._scorer.graphs.on is True
    assert plain._scorer.graphs.on is False  # nothing of it is compiled


@pytest.mark.parametrize("options", [{"exit": "last"}, {"ahead": 1}], ids=str)
def test_what_has_no_block_or_runs_beside_the_step_is_not_measured(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, faster=True)
    sifter = make(Compiler(), **options)
    train(sifter, 4)
    assert sifter._scorer.graphs.on is None


def test_a_model_compiled_in_place_is_known() -> None:
    net = Net()
    assert Graphs(net).on is False
    net.compile(backend="eager")
    assert Graphs(net).on is None
