"""Sifting under Lightning's `Trainer`: a callback, and the loader that belongs to it.

What the callback does, and where:

setup                          checks, and divides the candidates among processes: Lightning puts
                               its distributed sampler only into loaders that it knows
on_train_batch_start, _end     times the step and listens to the model's forward; logs metrics
on_save_checkpoint, on_load_   the sifter's state and the random streams, in the checkpoint
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.trainer.connectors.data_connector import _resolve_overfit_batches
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from sifting.autopilot.trial import Trial
from sifting.integrations.held_out import tell
from sifting.loader import SiftedLoader
from sifting.rng import RandomState
from sifting.sifter import Sifter
from sifting.step import Step

KEY = "sifter"  # in Lightning's checkpoints


class SiftCallback(pl.Callback):
    """Trains a LightningModule only on the samples worth a backward pass.

    ```python
    sifting = SiftCallback(Sifter(module.model, exit=1, score="loss", keep=0.5))
    trainer = Trainer(callbacks=[sifting])
    trainer.fit(module, sifting.loader(loader))    # the loader you have
    ```

    Args:
        sifter: of the model that the LightningModule trains.
        loss: `loss(model, batch)` of the sifter's model, a scalar: with it an autopilot can make trials.
            A `training_step` would log and count what is only tried.
        sooner: whether an autopilot spends what selection gains on ending the run sooner. The module's
            one learning rate is moved on by as much; it has to be stepped by updates
            (`"interval": "step"`).
    """

    def __init__(
        self,
        sifter: Sifter,
        *,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        sooner: bool = False,
    ) -> None:
        if loss is not None and not callable(loss):
            raise TypeError(f"loss={loss!r}: give a function of the model and a batch")
        if sooner and sifter.pilot is None:
            raise ValueError(
                f"sooner=True lets an autopilot end the run, and keep={sifter.schedule.keep} is fixed: make the "
                "sifter with keep='auto', or plan fewer steps"
            )
        self.sifter, self.loss, self.sooner = sifter, loss, sooner
        self._told: Trial | None = None  # what an autopilot knows of this run
        self.trainer: Any = None
        self.done = 0  # batches of this epoch that were handed out
        self.before = 0  # of those, how many before the run was resumed
        self.saved: Mapping[str, Any] | None = None  # from a checkpoint, until the first batch
        self._loader: LightningLoader | None = None
        self._open = ExitStack()
        self.steps: deque[Step | None] = deque()  # handed out and not yet trained

    def loader(self, loader: Iterable[Any]) -> LightningLoader:
        """The batches to train on, for `Trainer.fit` or `train_dataloader`."""
        if isinstance(loader, SiftedLoader):
            raise TypeError("the loader is sifted already: pass the loader of candidates")
        self._loader = LightningLoader(self, loader)
        if self.trainer is not None:  # asked for by Lightning, from `train_dataloader`
            self._loader.divide(self.trainer)
        return self._loader

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check what can be known before the first batch."""
        if stage != "fit":
            return
        sifter = self.sifter
        if (sifter.draws, sifter.epoch) != ("samples", "steps"):
            raise ValueError(
                f"draws={sifter.draws!r}, epoch={sifter.epoch!r}: Lightning counts steps and epochs by its own "
                "loader: leave them out"
            )
        own = {id(p) for p in pl_module.parameters()}
        if not any(id(p) in own for p in self.sifter.model.parameters()):
            raise ValueError(
                f"the sifter's model ({type(self.sifter.model).__name__}) is not a part of the "
                f"{type(pl_module).__name__} that is trained: make the Sifter from the module's own model"
            )
        self.trainer = trainer
        if self._loader is not None:
            self._loader.divide(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell an autopilot how long the run is, and what it is validated on."""
        steps = trainer.estimated_stepping_batches
        known = isinstance(steps, int) and steps > 0
        loaders = trainer.val_dataloaders
        loaders = loaders if isinstance(loaders, list) else [loaders]
        held_out = loaders[0] if len(loaders) == 1 and isinstance(loaders[0], DataLoader) else None
        updates = steps * trainer.accumulate_grad_batches if known else None
        trial = Trial(held_out=held_out, updates=updates)
        if self.loss is not None and pl_module.automatic_optimization:
            trial = replace(trial, **self._step(trainer))
        if self.sooner:
            accumulate = trainer.accumulate_grad_batches
            trial = replace(trial, accumulate=accumulate, schedule=_schedule(trainer, updates))
        tell(self.sifter, trial, before=self._told)
        self._told = trial

    def _step(self, trainer: Any) -> dict[str, Any]:
        """The step that trials are made of, where one optimizer makes it."""
        by_norm = trainer.gradient_clip_algorithm in (None, "norm")
        one = (
            len(trainer.optimizers) == 1 and trainer.world_size == 1
        )  # no gradients are joined here
        if not one or (trainer.gradient_clip_val and not by_norm):
            return {}
        return {
            "loss": self.loss,
            "optimizer": trainer.optimizers[0],
            "accumulate": trainer.accumulate_grad_batches,
            "clip": trainer.gradient_clip_val or None,
        }

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let go of the model's forward and the trainer."""
        self._open.close()
        self.trainer = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step begins."""
        if not self.steps:
            raise ValueError(
                "a batch that was not sifted: SiftCallback is among the callbacks, and the Trainer trains on a "
                "loader that it did not make. Pass callback.loader(loader), callback being that SiftCallback, to "
                "Trainer.fit, or return it from train_dataloader"
            )
        step = self.steps.popleft()
        training = self.sifter.observer.training(self.sifter.model, step, batch=batch)
        self._open.enter_context(training)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step is done."""
        self._open.close()
        pilot = self.sifter.pilot
        if pilot is not None and pilot.account.over:
            trainer.should_stop = True
        if trainer.loggers and trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            pl_module.log_dict({k: float(v) for k, v in self.sifter.stats().scalars().items()})

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The next epoch has its own length."""
        self.before = 0
        if self._loader is not None:
            self._loader.end_epoch()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let go of the model's forward; a label of no class that it failed on is noted, with its row."""
        found = self.sifter.observer.wrong_label(exception)
        if found is not None:
            exception.add_note(str(found))
        self._open.close()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Put the sifter's state into the checkpoint."""
        over = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        device = self.sifter.device
        own = {
            "sifter": self.sifter.state_dict(epoch_over=over),
            "done": 0 if over else self.done,
            "streams": RandomState.now().to_plain(),
            "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }
        # every process comes here, but only the first one's checkpoint is written
        checkpoint[KEY] = [own] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(checkpoint[KEY], own)

    def on_load_checkpoint(
        self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]
    ) -> None:
        """Continue from the state in a checkpoint."""
        if KEY not in checkpoint:
            raise ValueError(
                "the checkpoint holds no sifter state, so the place in the data cannot be found: it was "
                "saved without SiftCallback. Load its weights into the module instead"
            )
        if len(checkpoint[KEY]) != trainer.world_size:
            raise ValueError(
                f"the checkpoint was saved by {len(checkpoint[KEY])} processes, and this run has "
                f"{trainer.world_size}: resume on as many, or load its weights into the module instead"
            )
        self.saved = saved = checkpoint[KEY][trainer.global_rank]
        self.before = int(saved["done"])
        self.sifter.load_state_dict(saved["sifter"])


def _schedule(trainer: Any, updates: int | None) -> Any:
    """The learning rate that a run can end sooner by; raise where there is none such."""
    found = trainer.lr_scheduler_configs
    if len(found) != 1 or found[0].interval != "step" or found[0].frequency != 1:
        shown = [f"{type(one.scheduler).__name__} by {one.interval}" for one in found] or ["none"]
        raise ValueError(
            f"sooner=True needs one learning-rate schedule that is stepped once an update, and the module has "
            f"{', '.join(shown)}: return {{'scheduler': …, 'interval': 'step'}} from configure_optimizers"
        )
    if updates is None:
        raise ValueError(
            "sooner=True needs the length of the run: give the Trainer max_steps, or max_epochs and a loader "
            "with a length"
        )
    return found[0].scheduler


class LightningLoader(SiftedLoader):
    """Sifted batches, with the length of the whole epoch also where it is resumed."""

    def __init__(self, callback: SiftCallback, loader: Iterable[Any]) -> None:
        super().__init__(callback.sifter, loader)
        self.callback = callback

    def __getattr__(self, name: str) -> Any:
        if name not in ("sampler", "batch_sampler", "dataset", "batch_size") or (
            "loader" not in self.__dict__
        ):
            raise AttributeError(name)
        if name == "sampler" and isinstance(getattr(self.loader, "dataset", None), IterableDataset):
            raise AttributeError(name)  # a stream's says nothing of an order
        return getattr(self.loader, name)  # Lightning tells the samplers the epoch

    @property
    def worker_init_fn(self) -> Any:
        """The loader's: Lightning sets one after `seed_everything(…, workers=True)`."""
        return self.loader.worker_init_fn  # type: ignore[attr-defined]

    @worker_init_fn.setter
    def worker_init_fn(self, function: Any) -> None:
        self.loader.worker_init_fn = function  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return self.callback.before + super().__len__()

    def __iter__(self) -> Iterator[Any]:
        callback = self.callback
        if callback.trainer is None:
            raise RuntimeError(
                "the SiftCallback that made this loader is not among the Trainer's callbacks: pass "
                "Trainer(callbacks=[sifting])"
            )
        if sys._getframe(1).f_code.co_name == "_check_dataloader_iterable":
            return iter(())  # only tried, as Lightning does with loaders that are not torch's
        if callback.saved is not None:
            return self._resumed(callback.saved)
        callback.before = 0
        return self._counted(super().__iter__())

    def _resumed(self, saved: Mapping[str, Any]) -> Iterator[Any]:
        """The rest of an epoch, begun with its first batch: hooks may draw numbers before it."""
        RandomState.from_plain(saved["streams"]).restore()
        if saved["cuda"] is not None:
            torch.cuda.set_rng_state(saved["cuda"].cpu(), self.sifter.device)
        self.callback.saved = None
        yield from self._counted(super().__iter__())

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        callback = self.callback
        callback.done = callback.before
        callback.steps.clear()
        for batch in batches:
            callback.done += 1
            callback.steps.append(self.sifter.observer.current)
            yield batch

    def end_epoch(self) -> None:
        """Forget the length of the epoch that is over."""
        self._length = None

    def divide(self, trainer: Any) -> None:
        """Do to the loader what Lightning does to one that it knows: its order, its process's part."""
        if isinstance(self.loader, DataLoader):
            if trainer.overfit_batches > 0:
                alone = CombinedLoader(self.loader)
                _resolve_overfit_batches(alone, mode=RunningStage.TRAINING)
                self.loader = alone.flattened[0]
            self.loader = trainer._data_connector._prepare_dataloader(
                self.loader, shuffle=True, mode=RunningStage.TRAINING
            )
            self._source = self._make_source()

    def state_dict(self) -> dict[str, Any]:
        """Tells Lightning that the loader can be resumed; the callback keeps its state."""
        return {"done": self.callback.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `SiftCallback.on_load_checkpoint`."""

    def _step(self, batch: Any) -> AbstractContextManager[None]:
        return nullcontext()  # the callback knows when a step runs
