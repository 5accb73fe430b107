"""A LightningModule in place of a Problem: its loaders, its hooks, and what it logs."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from sifting.compare.modules import of_module
from sifting.compare.workload import FunctionWorkload, OwnConfig
from tests.helpers.lightning_runs import data
from tests.helpers.models import Net


class Bare(pl.LightningModule):
    """Without loaders of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(pl.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.held = data(32)

    def train_dataloader(self) -> Any:
        return DataLoader(data(), 16, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.held, 16)


class Gathering(Bare):
    """Its metric is gathered over an epoch, and what it trains on is made in `setup`."""

    def __init__(self) -> None:
        super().__init__()
        self.hits = MulticlassAccuracy(5, average="micro")

    def setup(self, stage: str) -> None:
        self.held = data(24)

    train_dataloader, val_dataloader = Data.train_dataloader, Data.val_dataloader

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.hits(self.net(batch[0]), batch[1])
        self.log("hits", self.hits)

    def on_validation_epoch_end(self) -> None:
        self.log("twice_hits", 2 * self.hits.compute())

    def configure_optimizers(self) -> Any:
        return {"optimizer": super().configure_optimizers(), "monitor": "hits"}


def problem_of(build: Any) -> Any:
    return FunctionWorkload("mine:build", build).problem(OwnConfig())


def test_a_module_comes_with_its_data_module() -> None:
    problem = problem_of(lambda seed: (Bare(), Data()))
    batch = next(iter(problem.batches()))
    assert problem.batch == len(batch[1]) == 16
    assert problem.loss(problem.model, batch).requires_grad
    assert problem.evaluate(problem.model).keys() == {"val_loss"}
    assert (problem.metric, problem.lower_is_better) == ("val_loss", True)
    again = of_module(Bare(), "build()", data=Data())
    assert len(list(again.held_out())) == 2  # type: ignore[operator, arg-type]
    with pytest.raises(ValueError, match="returned a Bare with a dict: give a LightningModule"):
        problem_of(lambda seed: (Bare(), {}))


def test_a_metric_that_is_gathered_over_an_epoch_counts_as_a_whole() -> None:
    problem = problem_of(lambda seed: Gathering())
    batches = list(problem.held_out())
    assert [len(batch[1]) for batch in batches] == [16, 8]  # of which a mean of means is another
    for _ in range(2):  # it is gathered anew each time
        found = problem.evaluate(problem.model)
        with torch.no_grad():
            right = [problem.model(x).argmax(1) == y for x, y in batches]
        assert found["hits"] == pytest.approx(float(torch.cat(right).float().mean()))
        assert found["twice_hits"] == pytest.approx(2 * found["hits"])


def test_what_is_missing_or_asks_for_a_trainer_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"train_dataloader of the Bare gives none.*as a tuple"):
        problem_of(lambda seed: Bare())

    class Several(Gathering):
        def val_dataloader(self) -> Any:
            return [super().val_dataloader()] * 2

    with pytest.raises(ValueError, match="val_dataloader of the Several gives a list of several"):
        problem_of(lambda seed: Several())

    class Asking(Gathering):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * self.trainer.world_size

    problem = problem_of(lambda seed: Asking())
    with pytest.raises(ValueError, match=r"a step asks for self\.trainer"):
        problem.loss(problem.model, next(iter(problem.batches())))


def test_a_function_that_returns_the_same_model_again_is_refused() -> None:
    shared = Bare()
    workload = FunctionWorkload("mine:build", lambda seed: (shared, Data()))
    workload.with_settings(OwnConfig(), {})  # asks it once, and trains nothing
    workload.problem(OwnConfig())
    with pytest.raises(ValueError, match=r"mine:build\(seed=1\) returned a Net with parameters th"):
        workload.problem(OwnConfig(seed=1))
    anew = FunctionWorkload("mine:build", lambda seed: (Bare(), Data()))
    for seed in range(3):
        anew.problem(OwnConfig(seed=seed))
