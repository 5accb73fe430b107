"""Sifting in Hugging Face's `Trainer`.

The Trainer's own loop runs, untouched. What is put into it, and why there:

get_train_dataloader           hands out the kept: `num_items_in_batch`, tokens, samples and FLOPs
                               are then counted on what is trained
_run_epoch                     the place in the data on resuming is the sifter's to find
get_batch_samples,             the Trainer fetches all batches of an update before it trains the
training_step                  first: each is trained with its own selection in place
_save_/_load_optimizer_and_scheduler
                               the sifter's state beside the optimizer's, on every rank
_load_rng_state                streams are put back before the first batch is fetched, not after
log                            what sifting cost and how well it chose
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback

from sifting.autopilot.trial import Trial, say_if_trained
from sifting.integrations.files import read_state, write_state
from sifting.integrations.held_out import EvaluationBatches, tell, untouched
from sifting.integrations.trainer_loader import ResumedLoader, TrainLoader
from sifting.model.trainer_loss import trainer_losses
from sifting.selection.policies import weighted
from sifting.sifter import Sifter
from sifting.step import Step

_Base: Any = Trainer if TYPE_CHECKING else object


class SiftMixin(_Base):  # type: ignore[misc]
    """Makes a Trainer of your own train on the kept samples: `class Mine(SiftMixin, MyTrainer)`.

    `per_device_train_batch_size` is what is trained; 1/keep times as many candidates are drawn.

    Args:
        sift: arguments of the `Sifter`, as a dict, or a `Sifter` of the same model. None, the
            default, takes the sifter's own defaults.
        sooner: whether an autopilot spends what selection gains on ending the run sooner, its learning
            rate decayed by then; else all steps are made, and the result is the better for it.
    """

    sifts_of_trl: tuple[str, ...] = ("SFTTrainer", "PRMTrainer")  # which of TRL's trainers

    def __init__(
        self,
        *args: Any,
        sift: Mapping[str, Any] | Sifter | None = None,
        sooner: bool = False,
        **kwargs: Any,
    ) -> None:
        check_kind(self)
        super().__init__(*args, **kwargs)
        self._sooner = sooner
        self._sift: Mapping[str, Any] | Sifter = {} if sift is None else sift
        self._steps: deque[Step | None] = deque()
        self._streams_are_back = False
        self._before: Mapping[str, Any] | None = None  # the sifter's state when training began
        self._told: Trial | None = None  # what the autopilot knows of this run
        self.sifter = self._make_sifter()
        check(self)
        if sooner:
            self.add_callback(_EndsSooner(self))

    def _make_sifter(self) -> Sifter:
        if not isinstance(self._sift, Sifter):
            options = dict(self._sift)
            losses = trainer_losses(self)  # what the Trainer itself makes of the model's output
            if losses is not None and not {"loss_fn", "losses"} & options.keys():
                options["losses"] = losses
            return Sifter(self.model, **options)
        if self._sift.model is not self.model:
            raise ValueError(
                f"sift= is a Sifter of another model ({type(self._sift.model).__name__}) than the one "
                "trained: make it from the model you pass, or pass its arguments as a dict"
            )
        return self._sift

    def get_train_dataloader(self) -> TrainLoader:
        """The batches to train on, sifted from the Trainer's own loader."""
        if self.sifter.model is not self.model:  # model_init made another
            self.sifter = self._make_sifter()
        if self.args.auto_find_batch_size:
            self._begin_anew()
        return TrainLoader(self.sifter, super().get_train_dataloader())

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own."""
        self._before = None
        return super().train(*args, **kwargs)

    def _begin_anew(self) -> None:
        """Take back the steps of a batch size that was too large (`auto_find_batch_size`)."""
        self._steps.clear()
        if self._before is None:
            self._before = self.sifter.state_dict()
        else:  # what was found out of the model, and what an exit has learned, stays
            now = {"settings": self.sifter.settings(), "exit": self.sifter.exit.state_dict()}
            self.sifter.load_state_dict({**self._before, **now})

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """The Trainer's own, once it is sure that what it trains on is sifted."""
        if not isinstance(dataloader, TrainLoader):
            raise TypeError(
                f"{type(self).__name__}.get_train_dataloader gave a {type(dataloader).__name__} that is "
                "not sifted: name SiftMixin first among the bases, or return what super() gives"
            )
        found: tuple[Any, ...] = super().set_initial_training_values(args, dataloader)
        if self.sifter.pilot is not None and not self.sifter.step:
            say_if_trained(self.eval_dataset, self.train_dataset)
        batches = int(found[-1]) * args.gradient_accumulation_steps
        self._tell(Trial(held_out=EvaluationBatches.of(self), updates=batches))
        return found

    def _tell(self, trial: Trial) -> None:
        tell(self.sifter, trial, before=self._told)
        self._told = trial

    def _tell_step(self) -> None:
        """The optimizer is there now, and with it the step that a trial can be made of."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # Accelerate's wrapper
        if self._told is None or not isinstance(optimizer, Optimizer):
            return
        self._tell(
            replace(
                self._told,
                loss=self._trial_loss,
                optimizer=optimizer,
                accumulate=self.args.gradient_accumulation_steps,
                clip=self.args.max_grad_norm or None,
                schedule=self._schedule() if self._sooner else None,
            )
        )

    def _schedule(self) -> Any:
        return getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # Accelerate's wrapper

    def _trial_loss(self, model: nn.Module, batch: Any) -> Any:
        """The Trainer's own loss of a batch, without a trace in the Trainer's figures."""
        with untouched(self), self.compute_loss_context_manager():
            return self.compute_loss(model, self._prepare_inputs(batch))

    def _run_epoch(self, **kwargs: Any) -> None:
        self.sifter.trained_in(kwargs["model"])
        self._tell_step()
        loader, epoch = kwargs["train_dataloader"], kwargs["epoch"]
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
        batch = args[0] if args else kwargs.get("inputs")
        with self.sifter.observer.training(model, step, batch=batch):
            return super().training_step(model, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add what sifting cost and chose to what is logged in training and at its end."""
        if "loss" in logs or "train_loss" in logs:
            logs.update(self.sifter.stats().scalars())
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
        self.sifter.trained_in(self.model_wrapped)  # ranks that share a memory take up all of it
        path = self._state_file(checkpoint)
        if os.path.isfile(path):
            self.sifter.load_state_dict(read_state(path))
        elif not self.args.ignore_data_skip:
            raise ValueError(
                f"{checkpoint!r} holds no {os.path.basename(path)}, so the place in the data cannot be "
                "found: it was saved without sifting, or on another number of processes. Load its "
                "weights into the model instead, or set ignore_data_skip=True to start a new epoch"
            )


class _EndsSooner(TrainerCallback):
    """Stops a Trainer whose autopilot has made the progress that was planned."""

    def __init__(self, trainer: SiftMixin) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After an update."""
        pilot = self.trainer.sifter.pilot
        if pilot is not None and pilot.account.over:
            control.should_training_stop = True


class SiftTrainer(SiftMixin, Trainer):  # type: ignore[misc]
    """A `Trainer` that trains only on the samples worth a backward pass.

    ```python
    trainer = SiftTrainer(
        model=model,
        args=TrainingArguments("out", per_device_train_batch_size=32),
        train_dataset=dataset,
        sift={"exit": 1, "score": "loss", "keep": 0.5},   # draws 64, trains 32
    )
    ```

    Takes what a `Trainer` takes, and `sift`.

    Args:
        sift: arguments of the `Sifter`; see `SiftMixin`.
        sooner: whether an autopilot may end the run sooner; see `SiftMixin`.
    """


def check_kind(trainer: Any) -> None:
    """Raise where the samples of a batch cannot be told from one another: most of TRL's trainers."""
    for base in type(trainer).__mro__:
        of_trl = base.__module__.split(".")[0] == "trl"
        if of_trl and base.__name__ in trainer.sifts_of_trl:
            return
        if of_trl and base.__name__ in ("DPOTrainer", "RewardTrainer"):
            raise ValueError(
                f"{type(trainer).__name__} is a {base.__name__} of TRL, whose batches are pairs: name "
                "SiftPairsMixin of sifting.integrations.trl_pairs among its bases"
            )
        if of_trl and base.__name__.endswith("Trainer"):
            raise ValueError(
                f"{type(trainer).__name__} is a {base.__name__} of TRL, whose batches are not single samples with "
                "a loss each (groups, completions made on the way), so that choosing among their rows would "
                "separate what belongs together: sift supervised fine-tuning with sifting.integrations.trl, "
                "or pairs with sifting.integrations.trl_pairs"
            )


def check(trainer: Any) -> None:
    """Raise where the Trainer's arguments and sifting contradict each other."""
    args, sifter = trainer.args, trainer.sifter
    if (sifter.draws, sifter.epoch) != ("samples", "steps"):
        raise ValueError(
            f"draws={sifter.draws!r}, epoch={sifter.epoch!r}: the Trainer counts steps, epochs and the learning "
            "rate by its own loader: leave them out"
        )
    if trainer._sooner and sifter.pilot is None:
        raise ValueError(
            f"sooner=True lets an autopilot end the run, and keep={sifter.schedule.keep} is fixed: give "
            "sift={'keep': 'auto'}, or plan fewer steps"
        )
    if weighted(sifter.rule.policy):
        raise ValueError(
            f"policy={sifter.rule.policy.name!r} needs its weights in the loss, and the Trainer takes plain "
            "means: choose policy='percentile' or 'top', or train in a loop of your own"
        )
    if trainer.is_deepspeed_enabled:
        raise ValueError(
            f"deepspeed={args.deepspeed!r}: the Trainer's model is taken apart by DeepSpeed after the sifter has "
            "looked at it, and on the CPU, where this library is tested, Accelerate gives all its processes the "
            "same data: train with FSDP2 (fsdp_config={'version': 2}) or DDP"
        )
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) != 2:
        raise ValueError(
            f"fsdp={args.fsdp!r} with version {getattr(plugin, 'fsdp_version', 1)}: the flat parameters of the "
            "older FSDP cannot be gathered a block at a time by scoring: set fsdp_config={'version': 2}, or "
            "train with DDP"
        )
