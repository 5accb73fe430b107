"""Lightning's Trainer, with real runs of a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from sifting import Sifter
from sifting.integrations.lightning import SiftCallback
from tests.helpers.lightning_runs import PAPER, Module, data, fit
from tests.helpers.models import Net

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning"),
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_grad_batches": 3},
        {"limit_train_batches": 2},
        {"precision": "bf16-mixed"},
        {"noisy": True, "size": 12},
        {"noisy": True, "workers": 1, "seed_workers": True},
        {"noisy": True, "reload_dataloaders_every_n_epochs": 1},
        {"overfit_batches": 2},
        {"overfit_batches": 2, "stream": True},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled:UserWarning")
def test_keeping_all_is_plain_lightning_bit_for_bit(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    plain, trainer, _ = fit(tmp_path, **options)
    for setting in ({"keep": 1.0}, {"warmup_steps": 99}):
        sifted, other, _ = fit(tmp_path, sift=setting, **options)
        assert sifted.losses == plain.losses
        assert sifted.seen == plain.seen
        assert other.global_step == trainer.global_step
        for a, b in zip(plain.parameters(), sifted.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("sift", "options"),
    [
        ({}, {}),
        ({"policy": "percentile", "seed": 4}, {}),
        ({"exit": "tuned", "score": "entropy"}, {}),
        ({"warmup_steps": 5}, {}),
        ({"stop_step": 2}, {}),
        ({"keep": lambda step: 0.5 if step % 2 else 0.3}, {}),
    ],
)
def test_a_seed_gives_the_choices_of_the_plain_loop(
    tmp_path: Path, sift: dict[str, Any], options: dict[str, Any]
) -> None:
    module, trainer, _ = fit(tmp_path, sift=sift, **options)
    reference = Module()
    torch.manual_seed(5)
    loader = DataLoader(data(), batch_size=16, shuffle=True)
    optimizer = reference.configure_optimizers()
    sifter = Sifter(reference.model, **{**PAPER, **sift})
    for _ in range(2):
        for batch in sifter(loader):
            reference.training_step(batch, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert module.seen == reference.seen
    assert module.losses == reference.losses
    assert trainer.global_step == len(reference.seen)


def test_limits_and_accumulation_count_trained_batches(tmp_path: Path) -> None:
    module, trainer, sifting = fit(
        tmp_path, sift={}, limit_train_batches=3, accumulate_grad_batches=2
    )
    assert [len(ids) for ids in module.seen] == [16] * 6
    assert trainer.global_step == 4  # the last batch of an epoch is stepped on its own
    assert trainer.num_training_batches == 3
    assert sifting.sifter.step == 6
    assert not module.model._forward_hooks


@pytest.mark.parametrize(
    ("sift", "options"),
    [
        ({"policy": "percentile", "explore": 0.25}, {}),
        ({"exit": "tuned", "score": "entropy"}, {"limit_train_batches": 3}),
        ({"warmup_steps": 3}, {}),
    ],
)
def test_a_run_resumes_identically(
    tmp_path: Path, sift: dict[str, Any], options: dict[str, Any]
) -> None:
    whole, trainer, first = fit(tmp_path, sift=sift, save=True, **options)
    for step in (1, 2, 3, 4, 6):
        if step >= trainer.global_step:
            continue
        again, resumed, second = fit(
            tmp_path, sift=sift, resume=tmp_path / f"step={step}.ckpt", **options
        )
        assert again.seen == whole.seen[step:], step
        assert again.losses == whole.losses[step:], step
        assert resumed.global_step == trainer.global_step
        assert second.sifter.meter.counts == first.sifter.meter.counts


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_figures_go_to_the_logger(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(
        tmp_path,
        sift={"audit_every": 1, "score": "entropy"},
        logger=logger,
        log_every_n_steps=2,
    )
    header, *rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert {"sifting/rho_approx", "sifting/recall", "sifting/scoring_share"} <= set(
        header.split(",")
    )
    assert len(rows) == 4


def test_a_stream_without_a_length_is_sifted(tmp_path: Path) -> None:
    plain, trainer, _ = fit(tmp_path, stream=True)
    for sift in ({}, {"keep": 1.0}):
        module, other, sifting = fit(tmp_path, sift=sift, stream=True)
        assert other.global_step == trainer.global_step == 8
        assert [len(ids) for ids in module.seen] == [16] * 8
        assert sifting.sifter.stats().candidates_seen == 128 / sift.get("keep", 0.5)
    assert module.losses == plain.losses


def test_misuse_is_told(tmp_path: Path) -> None:
    module = Module()
    sifting = SiftCallback(Sifter(module.model, **PAPER))
    with pytest.raises(TypeError, match="sifted already"):
        sifting.loader(sifting.loader(DataLoader(data(), batch_size=8)))
    for setting in ({"draws": "batch"}, {"epoch": "pass"}):
        with pytest.raises(ValueError, match=r"Lightning counts steps and epochs by its own"):
            fit(tmp_path, sift=setting)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    with pytest.raises(RuntimeError, match=r"not among the Trainer's callbacks"):
        pl.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(
            module, sifting.loader(DataLoader(data(), batch_size=8))
        )
    with pytest.raises(ValueError, match=r"a batch that was not sifted.*callback.loader\(loader\)"):
        pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[sifting], **quiet).fit(
            module, DataLoader(data(), batch_size=8)
        )
    other = SiftCallback(Sifter(Net(), **PAPER))
    with pytest.raises(ValueError, match="is not a part of the Module"):
        pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[other], **quiet).fit(
            module, other.loader(DataLoader(data(), batch_size=8))
        )


def test_a_checkpoint_without_a_sifter_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, save=True)
    with pytest.raises(ValueError, match=r"holds no sifter state.*Load its weights"):
        fit(tmp_path, sift={}, resume=tmp_path / "step=2.ckpt")


def test_a_label_of_no_class_is_noted_by_row_and_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = data()
    spoilt.tensors[1][:] = -3
    monkeypatch.setattr("tests.helpers.lightning_runs.data", lambda: spoilt)
    with pytest.raises(IndexError, match="Target -3") as caught:
        fit(tmp_path, sift={"keep": 1.0})
    assert "labels[0] is -3, and logits of shape (16, 5)" in caught.value.__notes__[-1]
