"""Scoring a compiled model: the blocks up to the exit as graphs of their own, where the clock says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
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


def train(sifter: Sifter, steps: int = 7) -> list[Any]:
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
    made = compiler.scoring
    assert made >= 1
    assert sifter._scorer.graphs.on is True
    sifter = make(compiler, **options)
    assert train(sifter) == want
    assert first == want[:1]
    net = sifter._scorer.model
    assert not any("forward" in module.__dict__ for module in net.modules())


def test_later_steps_compile_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, faster=True)
    compiler, counts = Compiler(), []
    sifter = make(compiler)
    for steps in (2, 6):
        train(sifter, steps)
        counts.append(compiler.scoring)
    assert counts[0] == counts[1] >= 1


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
    assert "take 2.00 of the time as compiled graphs of their own" in caplog.text


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
