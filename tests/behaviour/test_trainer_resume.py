"""Hugging Face's Trainer continues from a checkpoint as if it had never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch.utils.data import IterableDataset

from sifting import SiftingWarning
from sifting.integrations.files import read_state
from tests.helpers.hf_trainer import Watched, run
from tests.helpers.trainer_models import SMALL, Texts, classifier

RESUMED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "random picks": ({"policy": "percentile", "explore": 0.25}, {}),
    "tuned": ({"exit": "tuned", "score": "entropy"}, {}),
    "warm-up": ({"warmup_steps": 5}, {"gradient_accumulation_steps": 2}),
    "grouped": ({}, {"train_sampling_strategy": "group_by_length"}),
    "workers": ({}, {"dataloader_num_workers": 1}),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_resumes_identically(tmp_path: Path, name: str) -> None:
    sift, options = RESUMED[name]
    warm = name == "warm-up"
    options = {"save_strategy": "steps", "save_steps": 1 if warm else 2, **options}
    whole = run(tmp_path, sift=sift, **options)
    # updates and the batches trained until then: early in an epoch, after the candidates' first
    # pass, at its end, in the next
    places = {1: 2, 4: 8, 5: 10} if warm else {2: 2, 6: 6, 8: 8, 10: 10}
    for step, done in places.items():
        checkpoint = str(tmp_path / f"checkpoint-{step}")
        again = run(tmp_path, sift=sift, resume=checkpoint, **{**options, "save_strategy": "no"})
        assert again.seen == whole.seen[done:]
        assert again.losses == whole.losses[done:]
        assert again.state.global_step == whole.state.global_step
        assert again.state.epoch == whole.state.epoch
        assert again.sifter.meter.counts == whole.sifter.meter.counts
        for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"keep": 0.25}, r"keep=0.5 → 0.25"),
        ({"exit": 2}, r"exit='BlockExit\(1 of .*→ 'BlockExit\(2"),
    ],
)
def test_other_settings_than_those_of_the_checkpoint_are_said(
    tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    run(tmp_path, sift={"keep": 0.5, "exit": 1}, save_strategy="steps", save_steps=2, max_steps=2)
    checkpoint = str(tmp_path / "checkpoint-2")
    sift = {"keep": 0.5, "exit": 1, **other}
    with pytest.warns(SiftingWarning, match=rf"a state that was saved with other settings: {said}"):
        run(tmp_path, sift=sift, resume=checkpoint, save_strategy="no", max_steps=3)


@pytest.mark.parametrize("samples", [48, 80])
def test_other_data_in_the_middle_of_an_epoch_is_refused(tmp_path: Path, samples: int) -> None:
    run(tmp_path, save_strategy="steps", save_steps=2, max_steps=2)
    checkpoint = str(tmp_path / "checkpoint-2")
    with pytest.raises(
        ValueError,
        match=rf"cannot resume: .*an epoch of 64 samples, and the data set has {samples}",
    ):
        run(tmp_path, data=Texts(samples), resume=checkpoint, save_strategy="no", max_steps=3)
    again = run(
        tmp_path, data=Texts(samples), resume=checkpoint, max_steps=3, ignore_data_skip=True
    )
    assert again.state.global_step == 3


def test_random_masking_in_the_collator_resumes_identically_too(tmp_path: Path) -> None:
    def masked(samples: list[Any]) -> dict[str, torch.Tensor]:
        ids = torch.stack([sample["input_ids"] for sample in samples])
        chosen = torch.rand(ids.shape) < 0.5
        chosen[:, 1] = True
        labels = torch.where(chosen, ids, -100)
        return {"input_ids": torch.where(chosen, 149, ids), "labels": labels}

    def once(resume: str | None = None) -> Any:
        torch.manual_seed(1)
        model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
        return run(
            tmp_path,
            model=model,
            resume=resume,
            extra={"data_collator": masked},
            save_strategy="steps",
            save_steps=2,
            remove_unused_columns=False,
        )

    whole = once()
    for step in (2, 6):
        again = once(str(tmp_path / f"checkpoint-{step}"))
        assert again.losses == whole.losses[step:]


def test_the_checkpoint_holds_the_sifter_and_reading_it_runs_no_code(tmp_path: Path) -> None:
    trainer = run(tmp_path, save_strategy="steps", save_steps=3)
    folder = tmp_path / "checkpoint-3"
    state = read_state(folder / "sifter.pt")
    assert state["meter"]["counts"]["steps"] == 3
    assert not [p.name for p in folder.iterdir() if p.name.startswith(".")]
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 3
    (folder / "sifter.pt").unlink()
    with pytest.raises(ValueError, match=r"holds no sifter\.pt.*ignore_data_skip=True"):
        run(tmp_path, resume=str(folder))
    trainer = run(tmp_path, resume=str(folder), ignore_data_skip=True)
    assert trainer.state.global_step == 16


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from (Texts()[i] for i in range(64))


def test_a_stream_needs_max_steps_and_resumes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_steps has to be specified"):
        run(tmp_path, data=Stream())
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "logging_steps": 6}
    whole = run(tmp_path, data=Stream(), **options)
    assert whole.state.global_step == len(whole.seen) == 6
    assert {len(ids) for ids in whole.seen} == {8}
    again = run(tmp_path, data=Stream(), resume=str(tmp_path / "checkpoint-2"), **options)
    assert again.losses == whole.losses[2:]


@pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning")
def test_lora_under_the_trainer(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        config = peft.LoraConfig("SEQ_CLS", r=2, target_modules=["query", "value"])
        return peft.get_peft_model(classifier(), config)

    options = {"save_strategy": "steps", "save_steps": 3}
    plain = run(tmp_path, Watched, model=adapted())
    assert run(tmp_path, model=adapted(), sift={"keep": 1.0}).losses == plain.losses
    whole = run(tmp_path, model=adapted(), **options)
    again = run(tmp_path, model=adapted(), resume=str(tmp_path / "checkpoint-3"), **options)
    assert again.losses == whole.losses[3:]
