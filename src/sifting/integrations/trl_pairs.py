"""Sifting in TRL's preference trainers: a candidate is a pair, its score the pair's own loss.

TRL lays B pairs out as 2B rows, the preferred ones first. A sifter divides a batch by samples, so
it is given both rows of a pair as one entry, and TRL its own layout where it computes a loss:

get_train_dataloader   batches of pairs (`fold`)
compute_loss           TRL's rows again (`unfold`); each pair's loss is told to whoever wants it
_pair_losses           TRL's own loss function, called once for each pair, on one forward of all

Shapes: B pairs, T tokens in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.reward_trainer import RewardTrainer

from sifting.integrations.held_out import untouched
from sifting.integrations.pairs import Known, fold, recorded, some_rows, unfold
from sifting.integrations.trainer import SiftMixin
from sifting.integrations.trainer_loader import TrainLoader
from sifting.model.find import find_stack
from sifting.model.stack import Stack
from sifting.sifter import Sifter

_Base: Any = DPOTrainer if TYPE_CHECKING else object

AMONG = ("aot", "aot_unpaired")  # losses that sort the pairs of a batch
DEFAULTS = {"exit": "last", "score": "loss"}
CLOSE = 1e-3  # relative difference of a batch's loss and the mean of its pairs'


class SiftPairsMixin(SiftMixin, _Base):  # type: ignore[misc]
    """Makes a `DPOTrainer` or `RewardTrainer` of your own train on the kept pairs.

    `class Mine(SiftPairsMixin, MyDPOTrainer)`.

    Args:
        sift: arguments of the `Sifter`, as a dict. `keep` has to be a number; the exit is "last" by
            default, or a block's number, or a `MemoryExit`; the score is the pair's loss.
    """

    sifts_of_trl = ("DPOTrainer", "RewardTrainer")
    data_collator: Any
    ref_model: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, DPOTrainer | RewardTrainer):
            raise TypeError(
                f"{type(self).__name__} has SiftPairsMixin but is neither a trl.DPOTrainer nor a "
                "trl.RewardTrainer: name one among its bases"
            )
        super().__init__(*args, **kwargs)

    def _make_sifter(self) -> Sifter:
        if isinstance(self._sift, Sifter):
            raise TypeError(
                "sift= is a Sifter, which knows nothing of pairs: pass its arguments as a dict"
            )
        check_pairs(self, self._sift)
        told = {"forward": _forward, "losses": self._pair_losses}
        self._sift = {**DEFAULTS, **self._sift, **told}
        made = super()._make_sifter()
        self._reference_stack = check_exit(self, made)
        return made

    def get_train_dataloader(self) -> TrainLoader:
        """The pairs to train on, sifted from the Trainer's own loader."""
        rows = self.data_collator
        self.data_collator = partial(_folded, rows)
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = rows

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's own loss, from whose forward the sifter learns what each pair's was."""
        rows = unfold(inputs)
        if not self.model.training or self.sifter.scoring or not self.sifter.observer.wanted:
            return super().compute_loss(model, rows, *args, **kwargs)
        with recorded(self.model, self._reference) as outputs:
            loss = super().compute_loss(model, dict(rows), *args, **kwargs)
        step = self.sifter.observer.current
        if step is not None and len(rows["input_ids"]) == 2 * step.size:
            with torch.no_grad(), undisturbed(self):
                self.sifter.observe(self._each(outputs, rows))
        return loss

    @property
    def _reference(self) -> nn.Module | None:
        found = getattr(self, "ref_model", None)
        return found if isinstance(found, nn.Module) else None

    def _pair_losses(self, model: nn.Module, batch: Any) -> Tensor:
        """Each pair's loss by TRL's own function; where the model is cut short, its reference is too."""
        rows = unfold(batch)
        stack, exit = self._reference_stack, self.sifter.exit
        cut = None if stack is None or exit.block is None else exit.block[0].cut
        with (
            undisturbed(self),
            recorded(model, self._reference) as outputs,
            nullcontext() if stack is None or cut is None else stack.truncated(cut),
        ):
            whole = super().compute_loss(model, dict(rows))
        with undisturbed(self):
            losses_B = self._each(outputs, rows)
        if "sft" not in getattr(self, "loss_types", ()):  # that one is a mean over a batch's tokens
            check_mean(float(whole), losses_B)
        return losses_B

    def _each(self, outputs: list[Any], rows: Mapping[str, Any]) -> Tensor:
        """TRL's loss of each pair alone, from what the model made of all of them."""
        size = len(rows["input_ids"]) // 2
        losses = []
        held = getattr(self, "ref_model", None)
        for i in range(size):
            part = partial(some_rows, rows_R=torch.tensor([i, size + i]), size=size)
            known = [Known(part(output)) for output in outputs]
            if len(known) > 1:
                self.ref_model = known[-1]
            try:
                loss = super().compute_loss(known[0], dict(part(rows)))
            finally:
                if len(known) > 1:
                    self.ref_model = held
            losses.append(loss.detach().float().reshape(()))
        return torch.stack(losses)


class SiftDPOTrainer(SiftPairsMixin, DPOTrainer):  # type: ignore[misc]
    """A `DPOTrainer` that trains only on the pairs worth a backward pass.

    ```python
    trainer = SiftDPOTrainer(
        model=model,
        args=DPOConfig("out", per_device_train_batch_size=8),
        train_dataset=dataset,
        processing_class=tokenizer,
        sift={"exit": 4, "keep": 0.5},   # draws 16 pairs, trains 8
    )
    ```

    Takes what a `DPOTrainer` takes, and `sift`.

    Args:
        sift: arguments of the `Sifter`; see `SiftPairsMixin`.
    """


class SiftRewardTrainer(SiftPairsMixin, RewardTrainer):  # type: ignore[misc]
    """A `RewardTrainer` that trains only on the pairs worth a backward pass.

    Takes what a `RewardTrainer` takes, and `sift`.

    Args:
        sift: arguments of the `Sifter`; see `SiftPairsMixin`.
    """


class _Alone:
    """An accelerator whose process asks no other for its figures."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, value: Any) -> Any:
        return value

    gather_for_metrics = gather


@contextmanager
def undisturbed(trainer: Any) -> Iterator[None]:
    """While open, a trainer computes losses of which nothing stays in its figures."""
    accelerator = trainer.accelerator
    trainer.accelerator = _Alone(accelerator)
    try:
        with untouched(trainer):
            yield
    finally:
        trainer.accelerator = accelerator


def check_pairs(trainer: Any, sift: Mapping[str, Any]) -> None:
    """Raise where what TRL or the sifter is asked for has no meaning for pairs."""
    if getattr(trainer, "_is_vision_dataset", False):
        raise ValueError(
            "the data has images, whose patches are in a batch without saying which pair they belong to, so that "
            "it cannot be divided: sift pairs of text"
        )
    together = [kind for kind in getattr(trainer, "loss_types", ()) if kind in AMONG]
    if together:
        raise ValueError(
            f"loss_type={together[0]!r} compares the pairs of a batch with one another, so that none has "
            "a loss of its own: choose another, such as 'sigmoid'"
        )
    if getattr(trainer, "use_liger_kernel", False):
        raise ValueError(
            "use_liger_kernel=True: its loss is computed inside a kernel, and not available pair by pair: "
            "leave it out"
        )
    score = sift.get("score", "loss")
    if score != "loss":
        raise ValueError(f"score={score!r}: pairs are scored by their loss alone: leave it out")
    if sift.get("keep", "auto") == "auto":
        raise ValueError(
            "keep='auto': the autopilot knows samples with a loss of their own logits, not pairs: pass a "
            "number, such as keep=0.5"
        )
    if sift.get("ahead") or sift.get("reuse"):
        raise ValueError("ahead= and reuse= do not go with pairs: leave them out")


def check_exit(trainer: Any, sifter: Sifter) -> Stack | None:
    """Raise where an exit cannot score pairs; the blocks of the reference, which are cut where the model's are.

    None where the reference has no blocks of its own: adapters switched off, log-probabilities computed
    before, or a reward model, which has no reference.
    """
    exit = sifter.exit
    if exit.needs_labels:
        raise ValueError(
            f"exit={exit!r} scores by logits and labels, which a pair has none of: choose 'last', a block's "
            "number or MemoryExit()"
        )
    if exit.block is None:
        return None
    at = exit.block[1]
    if getattr(trainer, "precompute_ref_logps", False):
        raise ValueError(
            f"exit={at} with precompute_ref_log_probs=True would hold log-probabilities of an early exit against "
            "those of the whole reference: leave one of them out, or choose exit='last' or MemoryExit()"
        )
    reference = trainer._reference
    if reference is None:
        return None
    stack = find_stack(reference)
    if len(stack) < at:
        raise ValueError(
            f"exit={at}, and the reference has {len(stack)} blocks: choose 1 to {len(stack)}, or 'last'"
        )
    return stack


def check_mean(whole: float, losses_B: Tensor) -> None:
    """Raise where a batch's loss is not the mean of its pairs'."""
    mean = float(losses_B.mean())
    if not math.isfinite(whole) or math.isclose(whole, mean, rel_tol=CLOSE, abs_tol=1e-4):
        return
    raise ValueError(
        f"TRL's loss of {len(losses_B)} pairs is {whole:.4g}, and {mean:.4g} on average for them one by one: it "
        "compares them with one another, so that none has a loss of its own"
    )


def _folded(collate: Callable[[Any], Mapping[str, Any]], examples: Any) -> dict[str, Any]:
    return fold(collate(examples))


def _forward(model: nn.Module, batch: Any) -> Any:
    rows = unfold(batch)
    return model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"])
