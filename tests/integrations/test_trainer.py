"""Hugging Face's Trainer, with real runs of a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch.utils.data import DataLoader

from sifting import Sifter
from sifting.autopilot.looks import LookPlan
from sifting.integrations.trainer import SiftMixin, SiftTrainer, check
from tests.helpers.hf_trainer import PAPER, Sifted, Watched, arguments, run
from tests.helpers.trainer_models import Texts, causal, classifier

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "smoothing": {"label_smoothing_factor": 0.1},
    "grouped": {"train_sampling_strategy": "group_by_length"},
    "workers": {"dataloader_num_workers": 1},
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True},
    "max_steps": {"max_steps": 5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_keeping_all_is_the_plain_trainer_bit_for_bit(tmp_path: Path, name: str) -> None:
    plain = run(tmp_path, Watched, **OPTIONS[name])
    sifted = run(tmp_path, sift={"keep": 1.0}, **OPTIONS[name])
    assert sifted.losses == plain.losses
    assert sifted.seen == plain.seen
    for a, b in zip(plain.model.parameters(), sifted.model.parameters(), strict=True):
        assert torch.equal(a, b)
    want = [entry["loss"] for entry in plain.state.log_history if "loss" in entry]
    assert [entry["loss"] for entry in sifted.state.log_history if "loss" in entry] == want
    assert sifted.state.max_steps == plain.state.max_steps


@pytest.mark.parametrize("name", ["accumulation", "workers"])
def test_so_it_is_before_the_first_selection(tmp_path: Path, name: str) -> None:
    plain = run(tmp_path, Watched, **OPTIONS[name])
    sifted = run(tmp_path, sift={"warmup_steps": 99}, **OPTIONS[name])
    assert (sifted.losses, sifted.seen) == (plain.losses, plain.seen)
    assert sifted.sifter.stats().candidates_seen == sifted.sifter.stats().samples_trained


def plain_loop(folder: Path, sift: dict[str, Any], epochs: int = 2) -> list[list[int]]:
    """The same data order and optimizer, in a loop of one's own."""
    trainer = Watched(
        model=classifier(),
        args=arguments(folder),
        train_dataset=Texts(),
    )
    model, loader = trainer.model, trainer.get_train_dataloader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sifter, seen = Sifter(model, **{**PAPER, **sift}), []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in sifter(loader):
            seen.append(batch["input_ids"][:, 0].tolist())
            model.train()
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return seen


@pytest.mark.parametrize(
    "sift",
    [
        {},
        {"policy": "percentile", "seed": 3},
        {"exit": "tuned", "score": "entropy"},
        {"warmup_steps": 5},
        {"every": 2, "stop_step": 7},
    ],
)
def test_a_seed_gives_the_choices_of_the_plain_loop(tmp_path: Path, sift: dict[str, Any]) -> None:
    want = plain_loop(tmp_path, sift)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = run(
        tmp_path,
        model=model,
        sift=sift,
        extra={"optimizers": (optimizer, None)},
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    assert trainer.seen == want
    assert trainer.state.global_step == trainer.state.max_steps == len(want)


def test_the_batch_size_is_what_is_trained_and_every_count_follows(tmp_path: Path) -> None:
    trainer = run(
        tmp_path,
        data=Texts(72),
        include_num_input_tokens_seen="all",
        lr_scheduler_type="linear",
        sift={"audit_every": 1, "score": "entropy"},
    )
    sizes = [len(ids) for ids in trainer.seen]
    assert sizes == [8] * 18
    assert trainer.state.global_step == trainer.state.max_steps == 18
    assert trainer.state.epoch == 2
    assert trainer.state.train_batch_size == 8
    assert trainer.args.per_device_train_batch_size == 8
    assert trainer.state.num_input_tokens_seen == sum(sizes) * 6
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [round(entry["epoch"] * 9) for entry in steps[:9]] == list(range(1, 10))
    assert steps[-1]["learning_rate"] == pytest.approx(1e-3 / 18)
    assert steps[-1]["sifting/samples_trained"] == 144
    assert steps[-1]["sifting/candidates_seen"] == 288
    assert {"sifting/rho_approx", "sifting/recall", "sifting/scoring_share"} <= steps[-1].keys()
    last = trainer.state.log_history[-1]
    assert last["train_samples_per_second"] * last["train_runtime"] == pytest.approx(144, rel=0.01)


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_steps_epochs_and_learning_rates_are_those_of_the_plain_trainer(
    tmp_path: Path, accumulation: int
) -> None:
    def counts(trainer: Any) -> Any:
        logs = [e for e in trainer.state.log_history if "loss" in e]
        rates = [(entry["epoch"], entry["learning_rate"]) for entry in logs]
        return trainer.state.global_step, trainer.state.max_steps, len(trainer.seen), rates

    options: dict[str, Any] = {"data": Texts(76), "gradient_accumulation_steps": accumulation}
    want = counts(run(tmp_path, Watched, **options))
    assert want[0] == 2 * -(-10 // accumulation)
    sift = {"warmup_steps": 5, "keep": lambda step: 0.5 if step % 2 else 0.3}
    trainer = run(tmp_path, sift=sift, **options)
    assert counts(trainer) == want
    assert [len(ids) for ids in trainer.seen] == ([8] * 9 + [4]) * 2


def test_max_steps_end_the_run_in_the_right_epoch(tmp_path: Path) -> None:
    trainer = run(tmp_path, data=Texts(80), sift={"warmup_steps": 5}, max_steps=15)
    assert trainer.state.global_step == 15
    assert trainer.state.epoch == pytest.approx(1.5)
    part = run(tmp_path, data=Texts(80), num_train_epochs=1.5)
    assert part.state.global_step == 15


def test_accumulation_normalises_by_the_kept_items(tmp_path: Path) -> None:
    ids = Texts(64, labels="tokens")
    trainer = run(
        tmp_path, model=causal(), data=ids, gradient_accumulation_steps=2, num_train_epochs=1
    )
    # next-token labels: older releases of transformers count the first position too
    assert set(trainer.items) <= {2 * 8 * 5, 2 * 8 * 6}
    model = causal()
    reference = Sifter(model, **PAPER)
    first = [
        {key: torch.stack([ids[i][key] for i in rows]) for key in ("input_ids", "labels")}
        for rows in (sorted(trainer.seen[0]), sorted(trainer.seen[1]))
    ]
    assert reference.score(first[0]).shape == (8,)
    want = sum(
        torch.nn.functional.cross_entropy(
            model(b["input_ids"]).logits[:, :-1].flatten(0, 1),
            b["labels"][:, 1:].flatten(),
            reduction="sum",
        )
        for b in first
    )
    assert sum(trainer.losses[:2]) == pytest.approx(want.item() / trainer.items[0], rel=1e-4)


def test_each_micro_batch_is_observed_with_its_own_selection(tmp_path: Path) -> None:
    trainer = run(tmp_path, sift={"explore": 0.5}, gradient_accumulation_steps=2)
    assert trainer.sifter.meter.observed == len(trainer.seen) == 16
    assert trainer.sifter.stats().rho_explored is not None


def test_a_compiled_model_is_not_compiled_again(tmp_path: Path) -> None:
    torch._dynamo.reset()
    stats = torch._dynamo.utils.counters["stats"]
    before, graphs = stats["unique_graphs"], []

    class Counted(Sifted):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            graphs.append(stats["unique_graphs"] - before)
            return loss

    run(
        tmp_path, Counted, sift={"explore": 0.25}, torch_compile=True, torch_compile_backend="eager"
    )
    assert graphs[0] >= 1
    assert set(graphs) == {graphs[0]}
    torch._dynamo.reset()


def test_evaluation_and_a_loss_of_ones_own_in_training(tmp_path: Path) -> None:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return torch.nn.functional.cross_entropy(outputs.logits, labels, label_smoothing=0.2)

    options = {"eval_strategy": "steps", "eval_steps": 2}
    extra = {"eval_dataset": Texts(16), "compute_loss_func": loss}
    plain = run(tmp_path, Watched, extra=extra, **options)
    whole = run(tmp_path, extra=extra, sift={"keep": 1.0}, **options)
    assert whole.losses == plain.losses
    half = run(tmp_path, extra=extra, **options)
    assert {len(ids) for ids in half.seen} == {8}
    evals = [e for e in half.state.log_history if "eval_loss" in e]
    assert len(evals) == 8
    assert not any(key.startswith("sift") for key in evals[0])
    assert half.sifter.step == len(half.seen)


def test_model_init_makes_the_sifter_anew(tmp_path: Path) -> None:
    trainer = SiftTrainer(
        model_init=lambda: classifier(), args=arguments(tmp_path), train_dataset=Texts(), sift=PAPER
    )
    trainer.train()
    assert trainer.sifter.model is trainer.model
    assert trainer.sifter.step == 16


@pytest.mark.parametrize(
    ("sift", "message"),
    [
        ({"policy": "proportional"}, "'proportional' needs its weights"),
        ({"draws": "batch"}, "draws='batch', epoch='steps': the Trainer counts"),
        ({"epoch": "pass"}, "draws='samples', epoch='pass': the Trainer counts"),
    ],
)
def test_misuse_is_told_at_construction(tmp_path: Path, sift: dict[str, Any], message: str) -> None:
    told: Any = {"model": classifier(), "args": arguments(tmp_path), "train_dataset": Texts()}
    with pytest.raises(ValueError, match=message):
        SiftTrainer(**told, sift={**PAPER, **sift})


@pytest.mark.parametrize("kind", ["deepspeed", "fsdp"])
def test_who_divides_a_model_otherwise_is_refused(tmp_path: Path, kind: str) -> None:
    told: Any = {"model": classifier(), "args": arguments(tmp_path), "train_dataset": Texts()}
    trainer: Any = SiftTrainer(**told, sift=PAPER)
    setattr(trainer, f"is_{kind}_enabled", True)
    with pytest.raises(ValueError, match=rf"^{kind}=.*fsdp_config=.'version': 2"):
        check(trainer)


@pytest.mark.parametrize(
    ("options", "sift"),
    [
        ({"per_device_train_batch_size": 7}, {"keep": 0.3}),
        ({"auto_find_batch_size": True}, {}),
        ({"dataloader_drop_last": True, "per_device_train_batch_size": 10}, {}),
        ({"train_sampling_strategy": "batch_rebalance"}, {}),
        ({"dataloader_num_workers": 2, "dataloader_persistent_workers": True}, {"keep": 0.25}),
    ],
    ids=str,
)
def test_what_the_plain_trainer_takes_is_taken(
    tmp_path: Path, options: dict[str, Any], sift: dict[str, Any]
) -> None:
    if options.get("train_sampling_strategy") == "batch_rebalance" and not hasattr(
        hf.trainer_pt_utils, "BatchRebalanceSampler"
    ):
        pytest.skip("this release of transformers has no such sampler")
    plain = run(tmp_path, Watched, **options)
    sifted = run(tmp_path, sift=sift, **options)
    assert list(map(len, sifted.seen)) == list(map(len, plain.seen))
    assert sifted.state.global_step == plain.state.global_step
    assert sifted.sifter.stats().selections == len(plain.seen)
    assert run(tmp_path, sift={"keep": 1.0}, **options).losses == plain.losses


def test_a_batch_size_that_was_too_large_leaves_nothing_behind(tmp_path: Path) -> None:
    class Small(Sifted):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if len(inputs["labels"]) > 4:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(model, inputs, *args, **kwargs)

    options = {"auto_find_batch_size": True, "per_device_train_batch_size": 5, "max_steps": 4}
    found = run(tmp_path, Small, sift={"warmup_steps": 2}, **options)
    assert list(map(len, found.seen)) == [4] * 4
    assert (found.sifter.step, found.sifter.stats().selections) == (4, 2)
    assert not found._steps


def test_a_sifter_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a Sifter of another model"):
        SiftTrainer(
            model=classifier(),
            args=arguments(tmp_path),
            train_dataset=Texts(),
            sift=Sifter(classifier(), **PAPER),
        )


def test_loaders_of_ones_own(tmp_path: Path) -> None:
    class Own(hf.Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(DataLoader(self.train_dataset, 4))

    class Sifts(SiftMixin, Own):
        pass

    class Unsifted(SiftTrainer):
        def get_train_dataloader(self) -> Any:
            return hf.Trainer.get_train_dataloader(self)

    data = [{k: v for k, v in sample.items() if k != "unused"} for sample in Texts()]
    found = run(tmp_path, Sifts, data=data, num_train_epochs=1).sifter.stats()
    assert (found.steps, found.samples_trained, found.candidates_seen) == (16, 64, 128)
    with pytest.raises(TypeError, match=r"Unsifted\.get_train_dataloader gave a DataLoader"):
        run(tmp_path, Unsifted, data=data)


def test_an_autopilot_looks_at_the_evaluation_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sifting.autopilot.pacing.HOPELESS", 100)  # on so small a model it is
    looks = "sifting.autopilot.held_out.plan_looks"  # a real run would be longer
    monkeypatch.setattr(looks, lambda updates, **given: LookPlan((10, 20), given["held_out"]))
    data, held_out = Texts(64), Texts(32)
    options: dict[str, Any] = {"num_train_epochs": 3, "gradient_accumulation_steps": 2}
    plain = run(tmp_path, Watched, data=data, extra={"eval_dataset": held_out}, **options)
    made = Sifted(
        model=classifier(),
        args=arguments(tmp_path, **options),
        train_dataset=data,
        eval_dataset=held_out,
        sift={},
    )
    made.train()
    pilot = made.sifter.pilot
    assert pilot is not None
    assert pilot.pacing.steps == pilot.held_out.trial.updates == 24
    assert made.sifter.stats().held_out_seen == 64
    assert made.state.global_step == plain.state.global_step
    if not pilot.decisions:  # nothing was selected: the plain run, looks and all
        assert made.losses == plain.losses


def test_a_label_of_no_class_is_named_by_row_and_value(tmp_path: Path) -> None:
    data = Texts()
    data.labels[:] = 7
    trainer = SiftTrainer(classifier(), arguments(tmp_path), train_dataset=data, sift={"keep": 1.0})
    with pytest.raises(ValueError, match=r"labels\[0\] is 7, and logits of shape \(8, 3\)"):
        trainer.train()
