from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sifting import Sifter
from sifting.training.engine import Engine, Pace, Task
from sifting.training.loggers import scalars, to_writer
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers.models import Net
from tests.helpers.run_folders import made, write


class Board:
    """As a SummaryWriter."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[int, float]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert global_step is not None
        self.seen.setdefault(tag, {})[global_step] = scalar_value


class Wandb:
    """As a run of wandb: a step never goes back."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, data: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        assert not self.rows or step >= self.rows[-1][0]
        self.rows.append((step, data))


def train(path: Path, watch: Any) -> list[dict[str, Any]]:
    """Ten updates of a small model, and the log they leave."""
    model = Net()
    x, y = torch.randn(64, 8), torch.randint(0, 5, (64,))
    task = Task(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)],
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        lambda model: {"accuracy": float((model(x).argmax(1) == y).double().mean())},
    )
    sifter = Sifter(model, exit=1, score="loss", keep=0.5, audit_every=4)
    pace = Pace(10, log_every=5, evaluate_every=5, checkpoint_every=10)
    Engine(task, sifter, pace, RunFolder.create(path, config={}), watch=watch).run()
    watch(sifter.stats(), step=11)
    return read_run(path).metrics


def test_both_kinds_of_writer_get_what_the_log_has(tmp_path: Path) -> None:
    board, wandb = Board(), Wandb()
    log = train(tmp_path / "board", to_writer(board))
    for record in log:
        for name, value in scalars(record).items():
            assert name in board.seen
            if name.startswith(("train", "eval")):
                assert board.seen[name][record["step"]] == value
    assert {"train/loss", "eval/accuracy", "sifting/rho_approx", "seconds/scoring"} <= set(
        board.seen
    )
    assert board.seen["sifting/selections"] == {11: 10.0}
    log = train(tmp_path / "wandb", to_writer(wandb))
    assert [(step, data) for step, data in wandb.rows[:-1]] == [
        (record["step"], scalars(record)) for record in log
    ]


def test_names_are_flat_and_what_is_unknown_is_left_out() -> None:
    record = made("baseline", 0, points=1, reference=True).metrics[0]
    found = scalars({**record, "planned": 50, "note": "text", "flag": True})
    assert found["train/loss"] == record["loss"]
    assert found["reference/forward"] == record["reference"]["forward"]
    assert found["machine/load"] == 0.5
    assert not {name for name in found if "planned" in name or "note" in name or "flag" in name}
    assert "sifting/recall" not in found
    assert all(isinstance(value, float) for value in found.values())


def test_a_writer_of_neither_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="dict has neither add_scalar nor log"):
        to_writer({})


def test_the_real_summary_writer_takes_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        to_writer(writer)({"kind": "eval", "step": 7, "accuracy": 0.5})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("eval/accuracy")] == [(7, 0.5)]


def test_the_log_loads_into_pandas_in_the_documented_line(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    line = 'pandas.read_json("RUN/metrics.jsonl", lines=True)'
    guide = Path(__file__).parents[2] / "docs" / "run-format.md"
    assert line in guide.read_text(encoding="utf-8")
    run = write(made("sift", 0, points=4), tmp_path)
    table = eval(line.replace("RUN", str(run)), {"pandas": pandas})
    log = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(table) == len(log)
    evals = table[table.kind == "eval"]
    assert evals.accuracy.tolist() == pytest.approx(
        [m["accuracy"] for m in log if m["kind"] == "eval"]
    )
    flat = pandas.DataFrame([scalars(record) for record in log])
    assert flat["seconds/forward"].iloc[-1] == log[-1]["seconds"]["forward"]
