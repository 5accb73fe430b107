"""Comparisons of what people have: a Trainer, TRL's, or a LightningModule in place of a Problem."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
import transformers
from rich.console import Console
from torch.utils.data import DataLoader

from sifting import Sifter
from sifting.compare import calibration
from sifting.compare.adopting import adopted, planned
from sifting.compare.harness import Comparison, arm_configs, compare
from sifting.compare.workload import FunctionWorkload, OwnConfig
from sifting.integrations.trainer import SiftTrainer
from sifting.integrations.trl import dft_losses
from sifting.training.config import RunConfig
from sifting.training.run_folder import read_run
from tests.helpers import hf_trainer, trl_pairs, trl_sft
from tests.helpers.lightning_runs import data
from tests.helpers.models import Net
from tests.helpers.trainer_models import Texts, classifier

QUIET = Console(quiet=True)


def make_trainer(seed: int, kind: Any = hf_trainer.Watched, **more: Any) -> Any:
    torch.manual_seed(seed)
    args = hf_trainer.arguments(
        Path("unused"), gradient_accumulation_steps=2, max_grad_norm=0.5, save_strategy="no"
    )
    given = {"train_dataset": Texts(), "eval_dataset": Texts(16), **more}
    return kind(model=classifier(), args=args, **given)


def make_sft(seed: int, **options: Any) -> Any:
    rows = trl_sft.data(32)
    extra = {"eval_dataset": rows}
    return trl_sft.make(Path("unused"), trl_sft.Watched, rows=rows, extra=extra, **options)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.net(batch[0])
        self.log("hits", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        return {"optimizer": torch.optim.SGD(self.parameters(), lr=0.1), "monitor": "hits"}

    def train_dataloader(self) -> Any:
        return DataLoader(data(), 16, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(data(32), 16)


def make_module(seed: int) -> Any:
    torch.manual_seed(seed)
    return Module()


@pytest.mark.parametrize(
    ("build", "metric", "lower"),
    [
        (make_trainer, "eval_loss", True),
        (make_sft, "eval_loss", True),
        (make_module, "hits", False),
    ],
)
def test_a_trainer_is_compared_by_its_own_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, metric: str, lower: bool
) -> None:
    for name in ("FIRST", "FEWEST", "MOST"):
        monkeypatch.setattr(calibration, name, 2)
    workload = FunctionWorkload("mine:build", build)
    config = OwnConfig(evaluations=2)
    configs = arm_configs(workload, config, ["sift"], (), control=False)
    if build is make_trainer:
        assert (configs["sift"].accumulate, configs["sift"].clip) == (2, 0.5)
    plan = Comparison(workload, tmp_path, configs, (0,), "4u")
    stopped, verdict = compare(plan, QUIET)
    assert stopped is None
    assert verdict is not None
    for arm in ("baseline", "sift"):
        run = read_run(tmp_path / arm / "seed-0")
        assert (run.status, run.config["metric"]) == ("finished", metric)
        assert run.config["lower_is_better"] is lower
        assert [r["step"] for r in run.metrics if r["kind"] == "eval"] == [2, 4]
        assert isinstance(run.summary["final"][metric], float)  # type: ignore[index]
    assert run.summary["sifting"]["selections"] > 0  # type: ignore[index]


def problem_of(build: Any) -> Any:
    return FunctionWorkload("mine:build", build).problem(OwnConfig())


def test_a_sifted_trainer_says_how_its_batches_are_and_the_arm_the_rest() -> None:
    def build(seed: int) -> Any:
        return make_trainer(seed, SiftTrainer, sift={"keep": 0.3, "batch_size": "labels"})

    problem = problem_of(build)
    assert problem.sifter == {"batch_size": "labels"}
    assert {len(batch["labels"]) for batch in problem.batches()} == {8}


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"mine:build\(seed=0\) returned a Watched without eval_dat"
    ):
        problem_of(lambda seed: make_trainer(seed, eval_dataset=None))
    with pytest.raises(
        ValueError, match=r"returned a dict, not a sifting Problem, nor a Trainer of"
    ):
        problem_of(lambda seed: {})

    class Scheduled(Module):
        def configure_optimizers(self) -> Any:
            return {**super().configure_optimizers(), "lr_scheduler": object()}

    with pytest.raises(ValueError, match=r"an lr_scheduler, which is planned .*lr_schedule\("):
        problem_of(lambda seed: Scheduled())

    class Silent(Module):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("other", 1.0)

    problem = problem_of(lambda seed: Silent())
    with pytest.raises(ValueError, match="'hits' is monitored, and validation_step logs other"):
        problem.evaluate(problem.model)


@pytest.mark.parametrize("kind", [trl_pairs.WatchedDPO, trl_pairs.SiftedReward])
def test_a_trainer_whose_rows_are_no_samples_is_refused(kind: Any) -> None:
    def build(seed: int) -> Any:
        return trl_pairs.make(Path("unused"), kind, extra={"eval_dataset": trl_pairs.pairs(8)})

    with pytest.raises(
        ValueError, match=rf"returned a {kind.__name__}, a \w+ of TRL, whose batches"
    ):
        problem_of(build)


def test_what_trl_does_to_a_loss_is_done_in_a_comparison() -> None:
    problem = problem_of(lambda seed: make_sft(seed, neftune_noise_alpha=50.0))
    batch = next(iter(problem.batches()))
    problem.model.train()
    losses = [float(problem.loss(problem.model, batch).detach()) for _ in range(2)]
    assert losses[0] != losses[1]  # noise is drawn anew in training
    sifter = Sifter(problem.model, exit=1, score="loss", keep=0.5)
    assert torch.equal(sifter.score(batch), sifter.score(batch))  # and is not in the scores
    problem = problem_of(lambda seed: make_sft(seed, loss_type="dft"))
    assert problem.sifter == {"losses": dft_losses}


def test_what_is_neither_a_trainer_nor_a_module_is_not_adopted() -> None:
    for made in (3, "text", object(), torch.nn.Linear(2, 2)):
        assert adopted(made, "build()") is None


@pytest.mark.parametrize("epochs", [1, 1.5, 3])
def test_a_trainer_says_how_long_it_trains(epochs: float) -> None:
    def build(seed: int, **more: Any) -> Any:
        trainer = make_trainer(seed, transformers.Trainer, train_dataset=Texts(44), **more)
        trainer.args.max_steps, trainer.args.num_train_epochs = -1, epochs
        return trainer

    workload = FunctionWorkload("mine:build", build)
    config = workload.with_settings(workload.presets[""], {})
    assert config.updates is None, "a comparison has its budget"
    trainer = build(0)
    trainer.train()
    assert workload.planned(config) == trainer.state.global_step
    assert workload.planned(replace(config, updates=7)) == 7


def test_a_stream_does_not_say_how_long_it_trains() -> None:
    assert planned(SimpleNamespace(max_steps=30), object()) == 30
    assert planned(SimpleNamespace(max_steps=-1), object()) is None
    assert FunctionWorkload("mine:module", make_module).planned(RunConfig()) is None
