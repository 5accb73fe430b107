"""What a checkpoint of a run holds, and putting it back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sifting.plain import Plain
from sifting.training.checkpointing import Parts, RunProgress, not_finite
from sifting.training.engine import Engine
from sifting.training.run_folder import RunError
from sifting.training.run_writer import RunFolder
from tests.helpers.engines import ARMS, PACE, build

HERE = Path("checkpoints/step-00000004")
pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


def engine_at(path: Path, updates: int) -> Engine:
    engine = build(RunFolder.create(path, config={}), pace=PACE, arm=ARMS[1])
    engine.advance(updates)
    return engine


def parts_of(engine: Engine) -> Parts:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return Parts(engine.task, engine.sifter, scaler, None)


@pytest.fixture
def state(tmp_path: Path) -> dict[str, Any]:
    engine = engine_at(tmp_path / "first", 4)
    losses = [torch.tensor(1.0), torch.tensor(3.0)]
    return parts_of(engine).state(
        RunProgress(engine.update, engine.seconds, {"accuracy": 0.5}, losses)
    )


def test_what_was_saved_is_put_back(state: dict[str, Any], tmp_path: Path) -> None:
    parts = parts_of(engine_at(tmp_path / "again", 0))
    progress = parts.load(state, where=HERE, pace=PACE)
    assert (progress.update, progress.last) == (4, {"accuracy": 0.5})
    assert [loss.item() for loss in progress.losses] == [1.0, 3.0]
    assert progress.seconds["forward"] > 0
    assert parts.sifter.step == 4
    for name, value in parts.task.model.state_dict().items():
        assert torch.equal(value, state["model"][name])
    assert parts.task.schedule is not None
    assert parts.task.schedule.last_epoch == 4


@dataclass
class TwoRanks:
    """Two ranks, of which the second had losses that are higher by ten."""

    rank: int
    world: int = 2

    def gather(self, value: Any) -> list[Any]:
        return [value, value + 10] if isinstance(value, Tensor) else [value, value]


def test_each_rank_gets_its_own_losses_back(tmp_path: Path) -> None:
    losses = [torch.tensor(1.0), torch.tensor(3.0)]
    parts = parts_of(engine_at(tmp_path / "first", 4))
    state = replace(parts, ranks=TwoRanks(0)).state(RunProgress(4, losses=losses))
    for ranks, own in ((TwoRanks(0), [1, 3]), (TwoRanks(1), [11, 13]), (None, [6, 8])):
        again = replace(parts, ranks=ranks)
        assert [float(loss) for loss in again._own_losses(Plain(state, "the run"))] == own


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"update": -1}, "cannot be resumed: .*update"),
        ({"update": PACE.updates + 1}, "cannot be resumed: .*update"),
        ({"update": 5}, "cannot be resumed: its sifter has made 4 steps, and 5 updates are 5"),
        ({"model": {}}, "cannot be resumed: Error.* loading state_dict"),
        ({"losses": torch.zeros(2, 2, 2)}, "cannot be resumed: .*losses"),
        ({"schedule": {}}, "cannot be resumed: .*schedule"),
        ({"seconds": {"forward": "x"}}, "cannot be resumed: .*seconds"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_state_of_this_run_is_refused_by_name(
    state: dict[str, Any], tmp_path: Path, spoil: dict[str, Any], message: str
) -> None:
    parts = parts_of(engine_at(tmp_path / "again", 0))
    with pytest.raises(RunError, match=f"the checkpoint {HERE} {message}"):
        parts.load({**state, **spoil}, where=HERE, pace=PACE)


def test_another_run_may_begin_with_its_weights_and_no_more(
    state: dict[str, Any], tmp_path: Path
) -> None:
    parts = parts_of(engine_at(tmp_path / "again", 0))
    progress = parts.begin(state, where=HERE, pace=PACE)
    assert (progress.update, progress.losses, progress.last) == (4, [], {})
    assert parts.sifter.step == 0, "its sifter is new"
    with pytest.raises(RunError, match=f"no run can start from the checkpoint {HERE}"):
        parts.begin({**state, "optimizer": {}}, where=HERE, pace=PACE)
    with pytest.raises(RunError, match=r"loading state_dict for \w+: Missing key"):
        parts.begin({**state, "model": {}}, where=HERE, pace=PACE)


def test_the_first_parameter_that_is_not_finite_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert not_finite(model) is None
    model[1].weight.data[0, 0] = torch.inf
    assert not_finite(model) == "1.weight"
