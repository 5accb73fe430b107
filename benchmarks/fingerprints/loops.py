"""Plain loops: exits × scores × policies × models, `select`, and resuming in the middle of an epoch."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fingerprints.digest import Result, digest, lines_of, of_leaves, of_model, of_state
from fingerprints.models import Samples, batches, loss_of, make_model, seed_all
from fingerprints.record import Record
from sifting import AdditiveExit, MemoryExit, Sifter, TunedExit
from sifting.selection import Percentile


def step(
    kind: str, model: nn.Module, optimizer: Any, sifter: Sifter, batch: Any, record: Record
) -> None:
    """One update, written down."""
    weights = sifter.weights.clone()
    record.trained.append(batch)
    record.weights.append(weights)
    loss = loss_of(kind, model, batch, weights)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    record.losses.append(loss.item())


def make_sifter(model: nn.Module, settings: dict[str, Any]) -> Sifter:
    """A sifter whose audits do not depend on the clock; `exit` may be made from the model.

    What is left out is what it was before the autopilot became the default.
    """
    settings = {"exit": "tuned", "audit_every": 3, "draws": "batch", **settings}
    if callable(settings.get("exit")):
        settings["exit"] = settings["exit"](model)
    return Sifter(model, **settings)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=5e-3)


def run(kind: str, settings: dict[str, Any], *, epochs: int = 2) -> Result:
    """Train over a list of batches."""
    settings, autocast = dict(settings), settings.get("autocast", False)
    settings.pop("autocast", None)
    model = make_model(kind)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "audits.jsonl" if settings.pop("log", False) else None
        sifter = make_sifter(model, {**settings, "audit_log": log})
        optimizer = optimizer_of(model)
        data = batches(kind, ids="ids" in settings)
        if settings.get("nonfinite") == "drop":
            data[2][0][5] = float("nan")
            data[4][0][:6] = float("inf")
        record, scores, lengths = Record(), [sifter.score(data[0])], []
        seed_all(2)
        for _ in range(epochs):
            lengths.append(len(sifter(data)))
            for batch in sifter(data):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    step(kind, model, optimizer, sifter, batch, record)
            scores.append(sifter.score(data[1]))
        lines = [] if log is None else [of_leaves(line) for line in lines_of(log)]
        found = record.result(model, sifter, scores=scores, lengths=lengths)
        if lines:
            found["parts"]["audits"] = digest([int(line, 16) for line in lines])
        found["numbers"]["score"] = scores[-1].mean().item()
        return found


def select(kind: str, settings: dict[str, Any]) -> Result:
    """A loop of one's own over `sifter.select`, which reports its losses."""
    model = make_model(kind)
    sifter, optimizer = make_sifter(model, settings), optimizer_of(model)
    record, chosen = Record(), []
    seed_all(2)
    for candidates in batches(kind, ids="ids" in settings) * 2:
        found = sifter.select(candidates)
        chosen.append([found.indices, found.weights, found.scores, found.explored])
        step(kind, model, optimizer, sifter, found.batch, record)
        x, y = found.batch[:2]
        with torch.no_grad():
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        sifter.observe(losses)
    return record.result(model, sifter, chosen=chosen)


def resume(kind: str, settings: dict[str, Any], *, workers: int, stop: int) -> Result:
    """Cut a run off after some steps, continue from what a file held, and end where it would have."""

    def begin() -> tuple[nn.Module, Sifter, Any, Any]:
        model = make_model(kind)
        sifter, optimizer = make_sifter(model, settings), optimizer_of(model)
        data: Any = Samples(kind)
        order = torch.Generator().manual_seed(4)
        loader = torch.utils.data.DataLoader(
            data, batch_size=16, shuffle=True, generator=order, num_workers=workers
        )
        seed_all(2)
        return model, sifter, optimizer, loader

    def go(parts: Any, record: Record, *, done: int = 0, until: int | None = None) -> Any:
        """Two epochs, of which some batches may be done; gives what is saved, if it stops."""
        model, sifter, optimizer, loader = parts
        first = 0 if done < lengths[0] else 1
        for _ in range(first, 2):
            for batch in sifter(loader):
                step(kind, model, optimizer, sifter, batch, record)
                done += 1
                if done == until:
                    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    saved |= {"sifter": sifter.state_dict(), "torch": torch.get_rng_state()}
                    file = io.BytesIO()
                    torch.save(saved, file)
                    file.seek(0)
                    return file
        return None

    lengths = [len(begin()[1](begin()[3]))]
    whole, parts = Record(), begin()
    go(parts, whole)
    uncut = of_model(parts[0])
    before = Record()
    file = go(begin(), before, until=stop)
    model, sifter, optimizer, _ = parts = begin()
    saved = torch.load(file, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sifter.load_state_dict(saved["sifter"])
    torch.set_rng_state(saved["torch"])
    after = Record()
    go(parts, after, done=stop)
    found = after.result(model, sifter, before=before.losses)
    found["parts"] |= of_state(saved["sifter"], "saved")
    found["numbers"]["as if uncut"] = int(
        of_model(model) == uncut and before.losses + after.losses == whole.losses
    )
    return found


def hardness(logits: Tensor, labels: Tensor) -> Tensor:
    """A user's own score: how far the label is from the best logit."""
    return logits.max(dim=-1).values - logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def masked_hardness(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of a masked language model: its mean over labelled positions."""
    labelled = labels >= 0
    rows = hardness(logits, labels.clamp_min(0)) * labelled
    return rows.sum(dim=1) / labelled.sum(dim=1)


def numbers(batch: Any) -> Tensor:
    found: Tensor = batch[2]
    return found


def dwindling(step: int) -> float:
    return 0.75 if step < 4 else 0.5 if step < 8 else 0.25


def stage_exit(**options: Any) -> Callable[[nn.Module], Any]:
    return lambda model: AdditiveExit(model, **options)


def tuned(*arguments: Any, **options: Any) -> Callable[[nn.Module], Any]:
    return lambda model: TunedExit(*arguments, **options)


def memory(**options: Any) -> Callable[[nn.Module], Any]:
    return lambda model: MemoryExit(96, **options)


P = {"exit": 1, "score": "loss"}  # the paper's

PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    # exits
    "net exit=1 loss": ("net", P),
    "net exit=last loss": ("net", {"exit": "last", "score": "loss"}),
    "net exit=path entropy": ("net", {"exit": "blocks.1", "score": "entropy"}),
    "net defaults": ("net", {}),
    "net TunedExit(2) loss": ("net", {"exit": tuned(2, lr=0.05), "score": "loss"}),
    "net TunedExit(path) grad_norm": ("net", {"exit": tuned("blocks.2"), "score": "grad_norm"}),
    "net TunedExit(embed) callable": ("net", {"exit": tuned("embed"), "score": hardness}),
    "net MemoryExit ids=2": ("net", {"exit": memory(), "score": "loss", "ids": 2}),
    "net MemoryExit ids=function revisit explore warmup": (
        "net",
        {"exit": memory(revisit=0.5), "score": "loss", "explore": 0.25, "warmup_steps": 3}
        | {"ids": numbers, "forward": lambda m, b: m(b[0]), "labels": lambda b: b[1]},
    ),
    "net stack= exit=2": ("net", {"exit": 2, "score": "loss", "stack": "blocks"}),
    # scores
    "net exit=2 entropy": ("net", {"exit": 2, "score": "entropy"}),
    "net exit=2 margin": ("net", {"exit": 2, "score": "margin"}),
    "net exit=2 grad_norm": ("net", {"exit": 2, "score": "grad_norm"}),
    "net exit=2 callable": ("net", {"exit": 2, "score": hardness}),
    "net tuned margin": ("net", {"exit": "tuned", "score": "margin"}),
    "regression exit=1 loss_fn": ("regression", {**P, "loss_fn": nn.MSELoss()}),
    "regression tuned loss_fn": (
        "regression",
        {"exit": "tuned", "score": "loss", "loss_fn": nn.functional.smooth_l1_loss},
    ),
    "net forward= labels=": (
        "net",
        {**P, "forward": lambda m, b: m(b[0]) * 2, "labels": lambda b: b[1]},
    ),
    # policies
    "net random": ("net", {"exit": "last", "policy": "random"}),
    "net percentile": ("net", {**P, "policy": "percentile"}),
    "net percentile beta=3": ("net", {**P, "policy": Percentile(beta=3.0)}),
    "net percentile trim explore": (
        "net",
        {**P, "policy": "percentile", "trim": 0.1, "explore": 0.3, "seed": 5},
    ),
    "net proportional": ("net", {**P, "policy": "proportional"}),
    "net proportional explore keep=0.25": (
        "net",
        {**P, "policy": "proportional", "explore": 0.5, "keep": 0.25},
    ),
    "net proportional tuned": ("net", {"exit": "tuned", "score": "loss", "policy": "proportional"}),
    "net explore": ("net", {**P, "explore": 0.25}),
    "net trim": ("net", {**P, "trim": 0.2}),
    "net explore trim keep=0.3": ("net", {**P, "explore": 0.4, "trim": 0.1, "keep": 0.3}),
    # schedules
    "net warmup_steps": ("net", {**P, "warmup_steps": 5}),
    "net stop_step": ("net", {**P, "stop_step": 5}),
    "net every": ("net", {**P, "every": 3}),
    "net warmup_steps every stop_step tuned": (
        "net",
        {"warmup_steps": 3, "every": 2, "stop_step": 12},
    ),
    "net keep=function": ("net", {**P, "keep": dwindling}),
    "net keep=1": ("net", {"keep": 1.0}),
    "net score_batch_size": ("net", {**P, "score_batch_size": 5}),
    "net score_batch_size tuned": ("net", {"score_batch_size": 7}),
    "net nonfinite=drop": ("net", {**P, "nonfinite": "drop"}),
    "net autocast explore": ("net", {**P, "explore": 0.25, "autocast": True}),
    "net audit_log entropy": (
        "net",
        {"exit": 2, "score": "entropy", "audit_every": 2, "log": True},
    ),
    "net audit_log loss explore": ("net", {**P, "explore": 0.25, "audit_every": 1, "log": True}),
    # models
    "sequential exit=1 loss": ("sequential", P),
    "sequential tuned": ("sequential", {}),
    "cnn AdditiveExit loss": ("cnn", {"exit": stage_exit(), "score": "loss"}),
    "cnn AdditiveExit(path) entropy": (
        "cnn",
        {"exit": stage_exit(at="stages.0"), "score": "entropy", "explore": 0.5},
    ),
    "cnn tuned": ("cnn", {}),
    "cnn TunedExit(path) loss": ("cnn", {"exit": tuned("stages.0"), "score": "loss"}),
    "cnn exit=last grad_norm": ("cnn", {"exit": "last", "score": "grad_norm"}),
    "vit exit=1 loss": ("vit", P),
    "vit tuned": ("vit", {}),
    "bert-mlm exit=1 loss": ("bert-mlm", P),
    "bert-mlm exit=2 entropy score_batch_size": (
        "bert-mlm",
        {"exit": 2, "score": "entropy", "score_batch_size": 5},
    ),
    "bert-mlm exit=path margin": ("bert-mlm", {"exit": "bert.encoder.layer.1", "score": "margin"}),
    "bert-mlm exit=1 callable": ("bert-mlm", {"exit": 1, "score": masked_hardness}),
    "bert-mlm tuned": ("bert-mlm", {}),
    "bert-pretraining exit=1 loss": ("bert-pretraining", P),
    "bert-pretraining TunedExit(2) loss": (
        "bert-pretraining",
        {"exit": tuned(2, rows=20), "score": "loss"},
    ),
    "bert-classifier exit=last entropy percentile": (
        "bert-classifier",
        {"exit": "last", "score": "entropy", "policy": Percentile(beta=2.0)},
    ),
    "gpt2 exit=1 loss": ("gpt2", P),
    "gpt2 exit=2 grad_norm": ("gpt2", {"exit": 2, "score": "grad_norm"}),
    "gpt2 tuned": ("gpt2", {}),
    "gpt2 MemoryExit ids=key": ("gpt2", {"exit": memory(), "score": "loss", "ids": "index"}),
    "llama exit=1 entropy": ("llama", {"exit": 1, "score": "entropy"}),
}

SELECT: dict[str, tuple[str, dict[str, Any]]] = {
    "net exit=1 loss": ("net", P),
    "net tuned": ("net", {}),
    "net proportional": ("net", {**P, "policy": "proportional", "explore": 0.25}),
    "net MemoryExit": ("net", {"exit": memory(), "score": "loss", "ids": 2}),
}

RESUME: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "net explore, no workers": ("net", {**P, "explore": 0.25, "ids": 2}, 0, 4),
    "net tuned, no workers": ("net", {"ids": 2}, 0, 3),
    "net percentile, next epoch": ("net", {**P, "policy": "percentile", "ids": 2}, 0, 8),
    "net in warm-up": ("net", {**P, "warmup_steps": 6, "every": 2, "ids": 2}, 0, 3),
    "net MemoryExit": ("net", {"exit": memory(), "score": "loss", "ids": 2}, 0, 4),
    "gpt2 tuned": ("gpt2", {"ids": "index"}, 0, 4),
    "net tuned, two workers": ("net", {"ids": 2}, 2, 3),
    "net in warm-up, two workers": ("net", {**P, "warmup_steps": 6, "ids": 2}, 2, 3),
}


def settings() -> Iterable[tuple[str, Callable[[], Result]]]:
    """Each setting's name and how it is run."""
    for name, (kind, given) in PLAIN.items():
        yield f"plain/{name}", lambda kind=kind, given=given: run(kind, given)
    for name, (kind, given) in SELECT.items():
        yield f"select/{name}", lambda kind=kind, given=given: select(kind, given)
    for name, (kind, given, workers, stop) in RESUME.items():
        yield (
            f"resume/{name}",
            lambda k=kind, g=given, w=workers, s=stop: resume(k, g, workers=w, stop=s),
        )
