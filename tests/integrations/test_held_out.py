"""Trainers tell an autopilot their own step: trials are made of it, and leave no trace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch.utils.data import DataLoader

from sifting import Sifter, Trial
from sifting.autopilot.options import Option
from sifting.autopilot.trials import Trials
from sifting.integrations.held_out import EvaluationBatches, untouched
from sifting.integrations.lightning import SiftCallback
from sifting.integrations.trainer import SiftMixin
from sifting.rng import RandomState
from tests.helpers import hf_trainer, trl_sft
from tests.helpers.lightning_runs import Module, data
from tests.helpers.trainer_models import Texts, classifier

pytestmark = [
    pytest.mark.filterwarnings("ignore::sifting.SiftingWarning"),
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
UPDATES = 3  # of a piece


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trials, "_length", lambda self, step, size: UPDATES)
    monkeypatch.setattr(Trials, "_left", lambda self, step, size: (0.0, 1.0))


def try_now(sifter: Sifter, size: int) -> dict[str, Any] | None:
    """A trial, in the middle of a run; what it found, or None where none could be made."""
    pilot = sifter.pilot
    assert pilot is not None
    assert pilot.trials is not None
    held, trials = pilot.held_out, pilot.trials
    if trials.pieces.unable(size) is not None:
        return None
    assert held.trial.held_out is not None
    before = RandomState.now()
    held._batches = [sifter._scorer.moved(batch) for batch in held.trial.held_out]
    before.restore()  # what a loader draws when it begins
    trials._able = lambda size: True  # type: ignore[method-assign]
    trials.harms(Option(str(pilot.exit.looks), 2), 0.0, step=1, size=size)
    assert before.same_as(RandomState.now())
    found = trials.take_records()
    pilot.meter.counts["held_out_seen"] = pilot.meter.counts["trial_updates"] = 0
    assert len(found) == 1
    return found[0]


class Tries(hf.TrainerCallback):
    """Makes a trial after the second update."""

    def __init__(self, size: int) -> None:
        self.size, self.found, self.trainer = size, [], None  # type: ignore[var-annotated]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            assert self.trainer is not None
            self.found.append(try_now(self.trainer.sifter, self.size))


def figures(trainer: Any) -> list[Any]:
    """What was logged but times."""
    timed = ("runtime", "per_second", "seconds", "speedup", "overhead", "cost", "sifting/")
    return [
        {k: v for k, v in entry.items() if not any(word in k for word in timed)}
        for entry in trainer.state.log_history
    ]


def state_of(trainer: Any) -> list[Any]:
    moments = trainer.optimizer.state_dict()["state"]
    return [
        *(p.tolist() for p in trainer.model.state_dict().values()),
        *(float(v) for slots in moments.values() for v in (slots["step"], slots["exp_avg"].sum())),
        trainer.lr_scheduler.get_last_lr(),
    ]


def run_trainer(folder: Path, *, tries: bool, **options: Any) -> tuple[Any, Tries]:
    callback = Tries(8)
    trainer = hf_trainer.Sifted(
        model=classifier(),
        args=hf_trainer.arguments(folder, num_train_epochs=1, **options),
        train_dataset=Texts(48),
        eval_dataset=Texts(24),
        callbacks=[callback] if tries else [],
        sift={"audit_every": 0},
    )
    callback.trainer = trainer
    trainer.train()
    return trainer, callback


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 2, "bf16": True, "neftune_noise_alpha": 5.0}],
    ids=str,
)
def test_a_trainer_s_trial_leaves_the_run_as_it_was(tmp_path: Path, options: Any) -> None:
    plain, _ = run_trainer(tmp_path, tries=False, **options)
    tried, callback = run_trainer(tmp_path, tries=True, **options)
    (found,) = callback.found
    assert found["updates"] == UPDATES
    assert found["loss"] > 0
    assert (tried.seen, tried.losses) == (plain.seen, plain.losses)
    assert state_of(tried) == state_of(plain)
    assert figures(tried) == figures(plain)


def test_pieces_train_by_the_trainer_s_own_loss(tmp_path: Path) -> None:
    class Counting(SiftMixin, hf.Trainer):  # type: ignore[misc]
        calls = 0

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            type(self).calls += self.sifter.scoring  # a trial's, not a step's
            return super().compute_loss(model, inputs, *args, **kwargs)

    callback = Tries(8)
    trainer = Counting(
        model=classifier(),
        args=hf_trainer.arguments(tmp_path, num_train_epochs=1),
        train_dataset=Texts(48),
        eval_dataset=Texts(24),
        callbacks=[callback],
        sift={"audit_every": 0},
    )
    callback.trainer = trainer
    trainer.train()
    assert Counting.calls == 2 * 2 * UPDATES  # two draws of two pieces


def test_trl_s_figures_are_those_of_what_was_trained(tmp_path: Path) -> None:
    found = []
    for tries in (False, True):
        callback = Tries(4)
        trainer = trl_sft.make(
            tmp_path,
            sift=None,
            rows=trl_sft.data(40),
            extra={
                "eval_dataset": trl_sft.data(16),
                "callbacks": [callback] if tries else [],
            },
            max_steps=4,
        )
        trainer.sifter = Sifter(trainer.model, audit_every=0)
        callback.trainer = trainer
        trainer.train()
        found.append((trainer.losses, trainer.seen, figures(trainer), state_of(trainer)))
        assert [record is not None for record in callback.found] == [True] * tries
    assert found[0] == found[1]
    assert any("num_tokens" in entry for entry in found[0][2])


def test_rows_of_several_documents_are_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sifting.autopilot.pacing.HOPELESS", 100)  # on so small a model it is
    trainer = trl_sft.make(
        tmp_path, rows=trl_sft.data(60), extra={"eval_dataset": trl_sft.data(16)}, packing=True
    )
    trainer.sifter = Sifter(trainer.model, audit_every=0)
    trainer.train()
    assert trainer.sifter.pilot.trials.pieces.unable(2) == (
        "an index of its data set is not one sample (rows of several documents)"
    )


def test_a_trial_of_the_user_s_own_goes_before(tmp_path: Path) -> None:
    own = Trial(updates=7)
    trainer = hf_trainer.Sifted(
        model=classifier(),
        args=hf_trainer.arguments(tmp_path, num_train_epochs=1),
        train_dataset=Texts(32),
        eval_dataset=Texts(24),
        sift={"trial": own},
    )
    trainer.train()
    assert trainer.sifter.pilot.held_out.trial is own


class Fitted(Module):
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return None


def loss_of(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1])


class TriesToo(pl.Callback):
    def __init__(self, sifter: Sifter) -> None:
        self.sifter, self.found = sifter, []  # type: ignore[var-annotated]

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == 2:
            self.found.append(try_now(self.sifter, 8))


@pytest.mark.parametrize("loss", [None, loss_of], ids=["untold", "told"])
def test_lightning_s_trials_need_a_loss_that_logs_nothing(tmp_path: Path, loss: Any) -> None:
    found = []
    for tries in (False, True):
        module = Fitted()
        sifting = SiftCallback(Sifter(module.model, audit_every=0), loss=loss)
        callbacks: list[Any] = [sifting]
        if tries:
            callbacks.append(TriesToo(sifting.sifter))
        trainer = pl.Trainer(
            callbacks=callbacks,
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            gradient_clip_val=1.0,
        )
        torch.manual_seed(0)
        loader = DataLoader(data(), 8, shuffle=True)
        trainer.fit(module, sifting.loader(loader), DataLoader(data(24), 8))
        found.append((module.losses, module.seen))
        if tries:
            (record,) = callbacks[1].found
            assert (record is None) is (loss is None)
    assert found[0] == found[1]


def test_counts_and_lists_of_them_are_put_back_also_after_an_error() -> None:
    owner = SimpleNamespace(tokens=5, losses={"train": [0.5]}, model=object(), names=("a",))
    model = owner.model
    with pytest.raises(KeyError), untouched(owner):
        owner.tokens += 1
        owner.losses["train"].append(0.7)
        raise KeyError
    assert (owner.tokens, owner.losses, owner.names) == (5, {"train": [0.5]}, ("a",))
    assert owner.model is model, "what is no plain value is not looked into"


def test_only_evaluation_data_of_samples_is_looked_at() -> None:
    for other in (None, {"a": [1]}, "auto", iter([1])):
        assert EvaluationBatches.of(SimpleNamespace(eval_dataset=other)) is None
    assert EvaluationBatches.of(SimpleNamespace(eval_dataset=[1, 2])) is not None
