"""Trainers whose autopilot ends the run sooner: at the end of their own schedule, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import transformers as hf
from torch.utils.data import DataLoader

from sifting import Sifter
from sifting.autopilot.options import Option, PilotDecision
from sifting.integrations.lightning import SiftCallback
from sifting.integrations.trainer import SiftTrainer
from tests.helpers.hf_trainer import Sifted, arguments
from tests.helpers.lightning_runs import Module, data
from tests.helpers.trainer_models import Texts, classifier

pytestmark = [
    pytest.mark.filterwarnings("ignore::sifting.SiftingWarning"),
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
SELECTS = PilotDecision(0, Option("any", 2), "told so", 1.2, worth=1.25)


def selecting(sifter: Sifter) -> Sifter:
    """An autopilot that has made up its mind."""
    assert sifter.pilot is not None
    sifter.pilot.decision = SELECTS
    sifter.pilot._decide = lambda step, size: None  # type: ignore[method-assign]
    return sifter


def make(folder: Path, kind: type[Any] = Sifted, **options: Any) -> Any:
    trainer = kind(
        model=classifier(),
        args=arguments(folder, lr_scheduler_type="linear", num_train_epochs=5, **options),
        train_dataset=Texts(32),
        sift={},
        sooner=True,
    )
    selecting(trainer.sifter)
    return trainer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_ends_sooner_with_its_learning_rate_at_zero(
    tmp_path: Path, accumulate: int
) -> None:
    trainer = make(tmp_path, gradient_accumulation_steps=accumulate)
    trainer.train()
    planned = 20 // accumulate
    assert trainer.state.max_steps == planned
    assert trainer.state.global_step == {1: 16, 2: 8}[accumulate]
    assert trainer.lr_scheduler.last_epoch == planned
    assert set(trainer.lr_scheduler.get_last_lr()) == {0.0}


def test_so_does_one_that_is_resumed(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    whole.train()
    part = make(tmp_path / "part", save_strategy="steps", save_steps=10)
    part.train()
    again = make(tmp_path / "part", save_strategy="steps", save_steps=10)
    again.train(resume_from_checkpoint=str(tmp_path / "part" / "checkpoint-10"))
    assert again.state.global_step == whole.state.global_step == 16
    assert again.losses == whole.losses[10:]


def test_all_steps_are_made_where_that_is_not_asked_for(tmp_path: Path) -> None:
    trainer = SiftTrainer(
        model=classifier(), args=arguments(tmp_path), train_dataset=Texts(32), sift={}
    )
    selecting(trainer.sifter)
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == 8


class Scheduled(Module):
    interval = "step"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=20)
        return [optimizer], [{"scheduler": schedule, "interval": self.interval}]


def fit(module: Any, folder: Path, **options: Any) -> Any:
    sifting = SiftCallback(selecting(Sifter(module.model)), sooner=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 5,
            "callbacks": [sifting],
            "enable_checkpointing": False,
            "default_root_dir": folder,
            **quiet,
            **options,
        }
    )
    trainer.fit(module, sifting.loader(DataLoader(data(), 16, shuffle=True)))
    return trainer


def test_lightning_ends_sooner_with_its_learning_rate_at_zero(tmp_path: Path) -> None:
    trainer = fit(Scheduled(), tmp_path)
    assert trainer.global_step == 16
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 20
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0)


def test_lightning_needs_a_schedule_by_updates(tmp_path: Path) -> None:
    by_epoch = Scheduled()
    by_epoch.interval = "epoch"
    with pytest.raises(ValueError, match="the module has LinearLR by epoch"):
        fit(by_epoch, tmp_path)
    with pytest.raises(ValueError, match="the module has none"):
        fit(Module(), tmp_path)


def test_a_fixed_ratio_ends_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"keep=0\.5 is fixed"):
        SiftTrainer(
            model=classifier(),
            args=hf.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"),
            train_dataset=Texts(8),
            sift={"keep": 0.5},
            sooner=True,
        )
    with pytest.raises(ValueError, match=r"keep=0\.5 is fixed"):
        SiftCallback(Sifter(Module().model, exit=1, keep=0.5), sooner=True)
