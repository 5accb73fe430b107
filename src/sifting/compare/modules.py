"""A `Problem` from a `LightningModule` and its loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sifting.compare.directions import less_is_better, say_direction
from sifting.training.problem import Problem


def of_module(module: Any, called: str, *, data: Any = None) -> Problem:
    """From a `LightningModule` and its loaders: what it monitors counts, else val_loss.

    Args:
        module: with loaders of its own, where there is no `data`.
        called: what gave it, for messages.
        data: a `LightningDataModule`.
    """
    loader, judged = _loaders(module if data is None else data, called)
    if data is not None:
        module.prepare_data()
        module.setup("fit")
    made = module.configure_optimizers()
    monitor, schedules = "val_loss", None
    if isinstance(made, dict):
        schedules = made.get("lr_scheduler")
        if isinstance(schedules, dict):
            monitor = schedules.get("monitor", monitor)
        monitor, made = made.get("monitor", monitor), made["optimizer"]
    planned = getattr(module, "lr_schedule", None)
    if schedules is not None and planned is None:
        raise ValueError(
            f"{called}: configure_optimizers gives an lr_scheduler, which is planned for a fixed length, but "
            "the budget decides how long each arm trains: also give the module lr_schedule(optimizer, updates)"
        )
    if not isinstance(made, torch.optim.Optimizer) or not module.automatic_optimization:
        raise ValueError(
            f"{called}: configure_optimizers gives {type(made).__name__}, and arms are trained with one optimizer "
            "by automatic optimization: give a Problem of your own instead"
        )
    size = getattr(loader, "batch_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"{called}: train_dataloader gives a {type(loader).__name__} without a batch_size, which is "
            "needed to make arms train alike: give a DataLoader"
        )
    less = less_is_better(monitor)
    say_direction(monitor, greater=not less, how="name it val_error, or such")

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with _logged(module), _alone(called):
            found = module.training_step(batch, 0)
        return found["loss"] if isinstance(found, dict) else found  # type: ignore[no-any-return]

    def evaluate(model: nn.Module) -> dict[str, float]:
        module.eval()
        with torch.no_grad(), _logged(module) as logged, _alone(called):
            module.on_validation_epoch_start()
            for number, batch in enumerate(judged):
                module.validation_step(batch, number)
            module.on_validation_epoch_end()
        metrics = {name: _value(values) for name, values in logged.items()}
        if monitor not in metrics:
            raise ValueError(
                f"{called}: {monitor!r} is monitored, and validation_step logs "
                f"{', '.join(metrics) or 'nothing'}: log it there, or name another as 'monitor' in "
                "configure_optimizers"
            )
        return metrics

    return Problem(
        model=_called_in(module),
        batches=lambda: loader,
        loss=loss,
        evaluate=evaluate,
        optimizer=made,
        batch=size,
        schedule=planned,
        metric=monitor,
        lower_is_better=less,
        held_out=lambda: judged,
    )


def _called_in(module: Any) -> nn.Module:
    """The model that a module's steps call: itself where it has a forward, else its largest child."""
    owner = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    children = list(module.children())
    if (
        not owner.__module__.startswith(("lightning.", "pytorch_lightning.", "torch."))
        or not children
    ):
        return module  # type: ignore[no-any-return]
    found: nn.Module = max(children, key=lambda child: sum(p.numel() for p in child.parameters()))
    return found


@contextmanager
def _logged(module: Any) -> Iterator[dict[str, list[Any]]]:
    """What a module logs in its steps, while open; it has no trainer to log to."""
    found: dict[str, list[Any]] = {}

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        found.setdefault(name, []).append(value.detach() if isinstance(value, Tensor) else value)

    def log_dict(values: Any, *args: Any, **kwargs: Any) -> None:
        for name, value in values.items():
            log(name, value)

    own: dict[str, Callable[..., None]] = {"log": log, "log_dict": log_dict}
    vars(module).update(own)
    try:
        yield found
    finally:
        for name in own:
            del vars(module)[name]


def _value(logged: list[Any]) -> float:
    """What was logged under one name: the mean over batches, or what a metric of torchmetrics has gathered."""
    last = logged[-1]
    if not callable(getattr(last, "compute", None)):
        return sum(map(float, logged)) / len(logged)
    found = float(last.compute())
    last.reset()
    return found


def _loaders(owner: Any, called: str) -> tuple[Any, Any]:
    """The loaders of a module or data module, made ready as Lightning does."""
    owner.prepare_data()
    owner.setup("fit")
    name = type(owner).__name__
    found = []
    for which in ("train_dataloader", "val_dataloader"):
        try:
            loader = getattr(owner, which)()
        except Exception as error:
            if type(error).__name__ != "MisconfigurationException":
                raise
            loader = None
        if loader is None or isinstance(loader, list | tuple | dict):
            what = "none" if loader is None else f"a {type(loader).__name__} of several"
            raise ValueError(
                f"{called}: {which} of the {name} gives {what}, and arms are trained on one loader and judged by "
                "another: give each one, or return the module with its LightningDataModule, as a tuple"
            )
        found.append(loader)
    return found[0], found[1]


@contextmanager
def _alone(called: str) -> Iterator[None]:
    """While open, a step that asks for its trainer is told that there is none."""
    try:
        yield
    except RuntimeError as error:
        if "not attached to a" not in str(error):
            raise
        raise ValueError(
            f"{called}: a step asks for self.trainer, and arms run in the library's own loop, which has none: "
            "leave it out of the steps where self._trainer is None, or give a Problem of your own"
        ) from error
