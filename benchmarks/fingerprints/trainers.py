"""Hugging Face's Trainer, Accelerate and Lightning, on one process."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import transformers as hf
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fingerprints.digest import Result, digest, of_leaves, of_model, of_state
from fingerprints.loops import P, make_sifter, tuned
from fingerprints.models import Samples, loss_of, make_model, samples, seed_all
from fingerprints.names import public
from fingerprints.record import Record
from sifting.selection import Percentile

TEXT = "bert-classifier"
for chatty in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(chatty).setLevel(logging.ERROR)


def forget() -> None:
    """Accelerate, and the Trainer with it, keeps its settings in singletons."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def of_run(
    model: nn.Module, sifter: Any, trained: list[Any], losses: list[float], **more: Any
) -> Result:
    return {
        "parts": {
            "trained": digest(trained),
            "losses": digest(losses),
            "model": of_model(model),
            "stats": of_leaves(dict(sifter.stats())),
            **of_state(sifter.state_dict()),
        },
        "numbers": {"last loss": losses[-1], "steps": len(losses), **more},
    }


def text_data() -> list[dict[str, Any]]:
    rows = samples(TEXT)
    rows.pop("index")
    return [{name: value[i] for name, value in rows.items()} for i in range(len(rows["labels"]))]


def trainer(sift: dict[str, Any], *, resume: int | None = None, **options: Any) -> Result:
    """`SiftTrainer`, uncut or from a checkpoint of its own."""

    class Watched(public("SiftTrainer")):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            trained.append(dict(inputs))
            loss = super().training_step(model, inputs, *args, **kwargs)
            losses.append(loss.item())
            return loss

    def go(folder: str, checkpoint: str | None) -> Any:
        forget()
        args = hf.TrainingArguments(
            **{
                "output_dir": folder,
                "per_device_train_batch_size": 8,
                "num_train_epochs": 2,
                "learning_rate": 5e-3,
                "use_cpu": True,
                "report_to": "none",
                "disable_tqdm": True,
                "logging_steps": 1,
                "save_strategy": "no" if resume is None else "steps",
                "save_steps": resume or 500,
                "dataloader_pin_memory": False,
                **options,
            }
        )
        model = make_model(TEXT)
        given = {"audit_every": 3, **sift}
        if callable(given.get("exit")):
            given["exit"] = given["exit"](model)
        made = Watched(model=model, args=args, train_dataset=text_data(), sift=given)
        made.remove_callback(hf.PrinterCallback)
        made.train(resume_from_checkpoint=checkpoint)
        return made

    trained: list[Any] = []
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        made = go(folder, None)
        uncut = list(losses)
        if resume is not None:
            trained.clear()
            losses.clear()
            made = go(folder, f"{folder}/checkpoint-{resume}")
        updates = made.state.global_step
    result = of_run(made.model, made.sifter, trained, losses, updates=updates)
    result["parts"]["logged"] = digest([x["loss"] for x in made.state.log_history if "loss" in x])
    if resume is not None:
        result["numbers"]["as if uncut"] = int(losses == uncut[-len(losses) :])
    return result


def accelerated(
    sift: dict[str, Any], *, stop: int | None = None, accumulate: int = 1, precision: str = "no"
) -> Result:
    """A plain loop under Accelerate, uncut or saved and resumed after some steps."""

    def begin() -> tuple[Any, ...]:
        forget()
        accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision
        )
        model = make_model(TEXT)
        seed_all(5)
        loader: Any = DataLoader(text_data(), batch_size=16, shuffle=True)  # type: ignore[arg-type]
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=5e-3)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        sifter = make_sifter(model, sift)
        accelerator.register_for_checkpointing(sifter)
        return accelerator, model, optimizer, loader, sifter

    def go(parts: tuple[Any, ...], record: Record, until: int | None = None) -> None:
        accelerator, model, optimizer, loader, sifter = parts
        for batch in sifter(loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            record.trained.append(batch)
            record.losses.append(loss.item())
            if len(record.losses) == until:
                return

    record, parts = Record(), begin()
    with tempfile.TemporaryDirectory() as folder:
        go(parts, record, stop)
        if stop is not None:
            parts[0].save_state(folder)
            parts = begin()
            parts[0].load_state(folder)
            go(parts, record)
    return of_run(parts[1], parts[4], record.trained, record.losses)


class Module(pl.LightningModule):
    """A net that writes down what it trains."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.model = make_model(kind)
        self.kind = kind
        self.trained: list[Any] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = loss_of(self.kind, self.model, batch, None)
        self.trained.append(batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def lightning(
    sift: dict[str, Any],
    *,
    resume: int | None = None,
    kind: str = "net",
    folder: Path | None = None,
    **options: Any,
) -> Result:
    """Lightning with its callback, uncut or from a checkpoint of its own.

    Args:
        folder: for checkpoints, where several ranks have to see them.
    """
    make_callback = public("SiftCallback")

    def go(where: Path, checkpoint: Path | None) -> Any:
        module = Module(kind)
        data = Samples(kind).rows
        pairs = TensorDataset(data["x"], data["labels"])
        sifting = make_callback(make_sifter(module.model, {"draws": "samples", **sift}))
        callbacks: list[Any] = [sifting]
        if resume is not None:
            every = ModelCheckpoint(where, "{step}", every_n_train_steps=1, save_top_k=-1)
            callbacks.append(every)
        trainer = pl.Trainer(
            **{
                "accelerator": "cpu",
                "max_epochs": 2,
                "callbacks": callbacks,
                "logger": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "enable_checkpointing": resume is not None,
                "default_root_dir": where,
                **options,
            }
        )
        seed_all(5 + int(os.environ.get("RANK", "0")))
        loader: Any = DataLoader(pairs, batch_size=16, shuffle=True)
        trainer.fit(module, sifting.loader(loader), ckpt_path=checkpoint)
        return module, sifting.sifter, trainer

    with tempfile.TemporaryDirectory() as name:
        where = Path(name) if folder is None else folder
        module, sifter, trainer = go(where, None)
        uncut = module.losses
        if resume is not None:
            module, sifter, trainer = go(where, where / f"step={resume}.ckpt")
    found = of_run(module.model, sifter, module.trained, module.losses, updates=trainer.global_step)
    if resume is not None:
        found["numbers"]["as if uncut"] = int(module.losses == uncut[-len(module.losses) :])
    return found


def settings() -> Iterable[tuple[str, Callable[[], Result]]]:
    """Each setting's name and how it is run."""
    yield "trainer/exit=1 loss", lambda: trainer(P)
    yield "trainer/defaults", lambda: trainer({})
    yield (
        "trainer/warm-up, two batches an update, explore",
        lambda: trainer({**P, "warmup_steps": 5, "explore": 0.25}, gradient_accumulation_steps=2),
    )
    yield (
        "trainer/percentile every",
        lambda: trainer({**P, "policy": Percentile(beta=2.0), "every": 2}),
    )
    yield (
        "trainer/TunedExit(2), resumed",
        lambda: trainer({"exit": tuned(2), "score": "loss"}, resume=4),
    )
    yield "trainer/warm-up, resumed", lambda: trainer({**P, "warmup_steps": 3}, resume=2)
    yield "accelerate/exit=1 loss", lambda: accelerated(P)
    yield (
        "accelerate/explore, three batches an update",
        lambda: accelerated({**P, "explore": 0.25}, accumulate=3),
    )
    yield "accelerate/defaults bf16", lambda: accelerated({}, precision="bf16")
    yield "accelerate/defaults, resumed", lambda: accelerated({}, stop=3)
    yield "lightning/exit=1 loss", lambda: lightning(P)
    yield (
        "lightning/defaults, two batches an update",
        lambda: lightning({}, accumulate_grad_batches=2),
    )
    yield (
        "lightning/percentile, resumed",
        lambda: lightning({**P, "policy": "percentile"}, resume=3),
    )
    yield "lightning/defaults, resumed", lambda: lightning({}, resume=2)
