"""Sifting in Hugging Face's `Trainer`.

The Trainer's own loop runs, untouched. What is put into it, and why there:

get_train_dataloader           draws candidates, and hands out the kept: `num_items_in_batch`,
                               tokens, samples and FLOPs are then counted on what is trained
set_initial_training_values,   number of steps and epochs, and the place in them on resuming:
_init_training_state,          the Trainer takes all epochs to be as long as the first, which
_run_epoch                     warm-up, `every` and `stop_step` make wrong
get_batch_samples,             the Trainer fetches all batches of an update before it trains the
training_step                  first: each is trained with its own selection in place
_save_/_load_optimizer_and_scheduler
                               the sifter's state beside the optimizer's, on every rank
_load_rng_state                streams are put back before the first batch is fetched, not after
log                            the sifter's figures
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer

from sifting.chooser import Step
from sifting.integrations.counts import Epochs, candidate_count, loggable
from sifting.integrations.files import read_state, write_state
from sifting.integrations.trainer_loader import ResumedLoader, TrainLoader
from sifting.select.policies import Proportional
from sifting.sifter import Sifter

_Base: Any = Trainer if TYPE_CHECKING else object


class SiftMixin(_Base):  # type: ignore[misc]
    """Makes a Trainer of your own train on the kept samples: `class Mine(SiftMixin, MyTrainer)`.

    `per_device_train_batch_size` is what is trained; 1/keep times as many candidates are drawn.

    Args:
        sift: arguments of the `Sifter`, as a dict, or a `Sifter` of the same model. None, the
            default, takes the sifter's own defaults.
    """

    _train_batch_size: int

    def __init__(
        self, *args: Any, sift: Mapping[str, Any] | Sifter | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sift: Mapping[str, Any] | Sifter = {} if sift is None else sift
        self._steps: deque[Step | None] = deque()
        self._epochs: Epochs | None = None
        self._resumes = False
        self._streams_are_back = False
        self.sifter = self._make_sifter()
        check(self)

    def _make_sifter(self) -> Sifter:
        if not isinstance(self._sift, Sifter):
            return Sifter(self.model, **self._sift)
        if self._sift.model is not self.model:
            raise ValueError(
                f"sift= is a Sifter of another model ({type(self._sift.model).__name__}) than the one "
                "trained: make it from the model you pass, or pass its arguments as a dict"
            )
        return self._sift

    def train(self, resume_from_checkpoint: str | bool | None = None, *a: Any, **k: Any) -> Any:
        """Train, as the Trainer does."""
        self._resumes = bool(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *a, **k)

    def get_train_dataloader(self) -> TrainLoader:
        """The batches to train on, sifted from a loader of candidates."""
        if self.sifter.model is not self.model:  # model_init made another
            self.sifter = self._make_sifter()
        trained, asked = self._train_batch_size, self.args.per_device_train_batch_size
        keep = self.sifter.schedule.keep
        drawn = candidate_count(trained, keep, name="per_device_train_batch_size")
        # Both, while the loader is made: samplers and people's own loaders read the arguments.
        self._train_batch_size = drawn
        self.args.per_device_train_batch_size = candidate_count(asked, keep, name="batch size")
        try:
            loader = super().get_train_dataloader()
        finally:
            self._train_batch_size, self.args.per_device_train_batch_size = trained, asked
        sampler = getattr(loader, "batch_sampler", None)
        found = getattr(sampler, "batch_size", None)
        if found is not None and found != drawn:
            raise ValueError(
                f"{type(self).__name__}.get_train_dataloader draws batches of {found}, and {drawn} "
                f"candidates are needed to train {trained}: let it use self._train_batch_size"
            )
        return TrainLoader(self.sifter, loader, drawn, world_size=self.args.world_size)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """Steps and epochs by each epoch's own length; samples as they are trained."""
        if not isinstance(dataloader, TrainLoader):
            raise TypeError(
                f"{type(self).__name__}.get_train_dataloader gave a {type(dataloader).__name__} that is "
                "not sifted: name SiftMixin first among the bases, or return what super() gives"
            )
        values = list(super().set_initial_training_values(args, dataloader))
        self._epochs = None
        if values[0] and dataloader.sized:
            epochs = self._epochs = dataloader.epochs(
                args.gradient_accumulation_steps, afresh=self._resumes
            )
            if args.max_steps > 0:
                values[0] = epochs.locate(args.max_steps - 1)[0] + 1
            else:
                values[6] = epochs.total(args.num_train_epochs)
                values[3] = epochs.samples(args.num_train_epochs) * args.world_size
        return tuple(values)

    def _init_training_state(
        self, max_steps: int, per_epoch: int, epochs: int, checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        found: tuple[int, int] = super()._init_training_state(
            max_steps, per_epoch, epochs, checkpoint, trial
        )
        if checkpoint is None or self._epochs is None:
            return found
        epoch, updates = self._epochs.locate(self.state.global_step)
        skip = not self.args.ignore_data_skip
        return epoch, updates * self.args.gradient_accumulation_steps * skip

    def _run_epoch(self, **kwargs: Any) -> None:
        loader, epoch = kwargs["train_dataloader"], kwargs["epoch"]
        if self._epochs is not None:
            kwargs["steps_in_epoch"] = self._epochs[epoch].steps
            kwargs["num_update_steps_per_epoch"] = self._epochs.updates(epoch)
        checkpoint, done = kwargs["resume_from_checkpoint"], 0
        if checkpoint is not None and epoch == kwargs["epochs_trained"]:
            done = kwargs["steps_trained_in_current_epoch"]
        if done and not self.args.ignore_data_skip:
            loader.set_epoch(epoch)
            kwargs["train_dataloader"] = ResumedLoader(
                loader, done, first=lambda: self._put_streams_back(checkpoint)
            )
        else:
            self.sifter.cursor.restart()
        super()._run_epoch(**kwargs)

    def _put_streams_back(self, checkpoint: str) -> None:
        self._load_rng_state(checkpoint)
        self._streams_are_back = True

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if not self._streams_are_back:
            super()._load_rng_state(checkpoint)
        self._streams_are_back = False

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """Fetch the batches of an update, and keep the selection that each came from."""
        self._steps.clear()

        def remember(batch: Any) -> Any:
            self._steps.append(self.sifter.observer.current)
            return batch

        found: tuple[list[Any], Any] = super().get_batch_samples(
            map(remember, epoch_iterator), num_batches, device
        )
        return found

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's step, timed, with the batch's own selection in place."""
        step = self._steps.popleft() if self._steps else None
        with self.sifter.observer.training(model, step):
            return super().training_step(model, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the sifter's figures to what is logged in training and at its end."""
        if "loss" in logs or "train_loss" in logs:
            logs.update(loggable(self.sifter.stats()))
        super().log(logs, *args, **kwargs)

    def _state_file(self, folder: str) -> str:
        rank = f"_{self.args.process_index}" if self.args.world_size > 1 else ""
        return os.path.join(folder, f"sifter{rank}.pt")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        write_state(self.sifter.state_dict(), self._state_file(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = self._state_file(checkpoint)
        if os.path.isfile(path):
            self.sifter.load_state_dict(read_state(path))
        elif not self.args.ignore_data_skip:
            raise ValueError(
                f"{checkpoint!r} holds no {os.path.basename(path)}, so the place in the data cannot be "
                "found: it was saved without sifting, or on another number of processes. Load its "
                "weights into the model instead, or set ignore_data_skip=True to start an epoch anew"
            )


class SiftTrainer(SiftMixin, Trainer):  # type: ignore[misc]
    """A `Trainer` that trains only on the samples worth a backward pass.

    trainer = SiftTrainer(
        model=model,
        args=TrainingArguments("out", per_device_train_batch_size=32),
        train_dataset=dataset,
        sift={"exit": 1, "score": "loss", "keep": 0.5},   # draws 64, trains 32
    )

    Takes what a `Trainer` takes, and `sift`; see `SiftMixin`.
    """


def check(trainer: Any) -> None:
    """Raise where the Trainer's arguments and sifting contradict each other."""
    args, sifter = trainer.args, trainer.sifter
    drawn = candidate_count(
        args.per_device_train_batch_size,
        sifter.schedule.keep,
        name="per_device_train_batch_size",
    )
    if isinstance(sifter.rule.policy, Proportional):
        raise ValueError(
            "policy='proportional' needs its weights in the loss, and the Trainer takes plain means: "
            "choose policy='percentile' or 'top', or train in a loop of your own"
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size=True changes per_device_train_batch_size during the run, and 1/keep "
            "times as many candidates may then not be whole: find the batch size first, then set it"
        )
    if getattr(args, "train_sampling_strategy", None) == "batch_rebalance":
        raise ValueError(
            "train_sampling_strategy='batch_rebalance' makes batches of differing sizes, so the kept "
            "would differ too: choose 'group_by_length' or 'random'"
        )
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            f"fsdp={args.fsdp!r}, deepspeed={args.deepspeed!r}: the model is taken apart after the sifter "
            "has looked at it, which is not supported in the Trainer: train with DDP (torchrun alone)"
        )
    check_nothing_dropped(trainer, drawn)


def check_nothing_dropped(trainer: Any, drawn: int) -> None:
    """Raise where the Trainer would drop samples before they were scored."""
    dataset, args = trainer.train_dataset, trainer.args
    if not args.dataloader_drop_last or dataset is None or isinstance(dataset, IterableDataset):
        return
    at_once = drawn * max(1, args.n_gpu) * args.world_size
    left = len(dataset) % at_once
    if left and drawn != args.per_device_train_batch_size:
        raise ValueError(
            f"dataloader_drop_last=True would drop {left} of {len(dataset)} samples an epoch before they "
            f"are scored, since candidates are drawn {at_once} at a time: set it to False, or pass "
            f"{len(dataset) - left} samples"
        )
