"""Exits: where a scoring pass leaves the model, and what it makes of what it finds there.

`Plan` is what the first batch tells about a model: its objective and its heads. An `Exit` uses
it to score candidates. This file has the exit of the paper's BERT: the model's own head on the
k-th block's output. Exits with weights of their own are in `tuned.py` and `additive.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting import batch as batches
from sifting import scores
from sifting.calls import Call, logits_of, loss_of
from sifting.heads import Head, find_head
from sifting.objective import (
    Part,
    PerSampleLoss,
    Rows,
    Score,
    part_losses,
    resolve,
    rows_of,
    score_rows,
)
from sifting.stack import Stack, exit_in_stack, find_stack

PROBE_ROWS = 2  # samples of the first batch that the objective and the heads are found with

# Takes one part's predictions: rows of class logits, or its logits whole.
Consume = Callable[[Part, Rows | Tensor, Tensor | None], None]


@dataclass(frozen=True, eq=False)
class Plan:
    """How one model is scored, found on its first batch.

    Attributes:
        call: how the model is called.
        parts: the terms of its objective; none where only a reduced loss can be had.
        heads: by name of the logits, the head that can run on single positions.
        loss_fn: the user's loss, made per sample.
        shapes: by name of the logits, the shape of one sample's.
    """

    call: Call
    parts: tuple[Part, ...]
    heads: dict[str, Head] = field(default_factory=dict)
    loss_fn: PerSampleLoss | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def resolve(
        cls, call: Call, model: nn.Module, batch: Any, loss_fn: PerSampleLoss | None
    ) -> Plan:
        """Find out on some samples of a batch; the model is in eval mode, without gradients."""
        size = batches.batch_size(batch)
        probe = batches.take(batch, torch.arange(min(PROBE_ROWS, size)), size=size)
        parts, logits = resolve(call, model, probe, loss_fn=loss_fn)
        heads: dict[str, Head] = {}
        for part in parts:
            if part.kind == "classes" and logits[part.logits].ndim == 3:
                head = find_head(
                    model,
                    lambda: logits_of(call.run(model, probe)),
                    part.logits,
                    shape=logits[part.logits].shape,
                )
                if head is not None:
                    heads[part.logits] = head
        shapes = {name: tuple(value.shape[1:]) for name, value in logits.items()}
        return cls(call, parts, heads, loss_fn, shapes)

    def check_score(self, score: Score) -> None:
        """Raise where a score cannot be had from this model."""
        if not self.parts and score != "loss":
            raise ValueError(
                f"score={score!r} needs logits, but the model returns only a reduced loss, or one that "
                "its logits do not reproduce: use score='loss', or pass forward= that returns logits "
                "and loss_fn="
            )
        if callable(score):
            return
        if score in scores.NEEDS_LABELS and any(part.labels is None for part in self.parts):
            raise ValueError(
                f"score={score!r} needs labels, and the batch has none: yield (inputs, labels) or a dict "
                "with a 'labels' key, pass labels=lambda batch: …, or use score='entropy'"
            )
        bare = [part for part in self.parts if not part.has_classes]
        if score != "loss" and bare:
            raise ValueError(
                f"score={score!r} needs class logits, but the objective has a part of kind "
                f"{bare[0].kind!r}: use score='loss'"
            )

    def each_part(self, model: nn.Module, batch: Any, consume: Consume) -> None:
        """Run the model and hand over each part's predictions, with heads only where labels are."""
        labels = self.call.labels_of(batch)

        def target(part: Part) -> Tensor | None:
            return labels[part.labels] if part.labels is not None else None

        with ExitStack() as open_heads:
            for part in self.parts:
                head = self.heads.get(part.logits)
                if head is None:
                    continue

                def intercept(
                    inputs: Tensor, forward: Callable[[Tensor], Tensor], part: Part = part
                ) -> None:
                    rows = rows_of(part, inputs, target(part))
                    consume(part, replace(_unpadded(rows, batch), head=forward), target(part))

                open_heads.enter_context(head.intercepted(intercept))
            output = logits_of(self.call.run(model, batch))
        for part in self.parts:
            if part.logits in self.heads:
                continue
            logits, wanted = output[part.logits], target(part)
            if part.has_classes:
                consume(part, _unpadded(rows_of(part, logits, wanted), batch), wanted)
            else:
                consume(part, logits, wanted)

    def losses(self, output: Any, batch: Any) -> Tensor | None:
        """Each sample's loss from an output that the model has already made for a batch.

        None where it does not fit: the user may have trained in smaller pieces.
        """
        logits, labels = logits_of(output), self.call.labels_of(batch)
        total: Tensor | None = None
        for part in self.parts:
            found, wanted = logits.get(part.logits), labels.get(str(part.labels))
            if found is None or wanted is None or len(found) != len(wanted):
                return None
            if tuple(found.shape[1:-1]) != self.shapes[part.logits][:-1]:
                return None
            rows = rows_of(part, found, wanted) if part.has_classes else found
            value = self.score(part, rows, wanted, "loss")
            total = value if total is None else total + value
        return total

    def score(self, part: Part, found: Rows | Tensor, labels: Tensor | None, score: str) -> Tensor:
        """One part's score of each sample, times its weight in the sum."""
        if isinstance(found, Rows):
            head = self.heads.get(part.logits)
            width = head.width if head is not None and found.head is not None else None
            values = score_rows(found, score, width=width)
        else:
            assert labels is not None
            values = part_losses(part, found, labels, self.loss_fn)
        return values * part.weight


def _unpadded(rows: Rows, batch: Any) -> Rows:
    """Without labels, positions of padding should not count."""
    if rows.labels_BT is not None or not isinstance(batch, Mapping):
        return rows
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != rows.mask_BT.shape:
        return rows
    return replace(rows, mask_BT=mask.bool())


class Exit(ABC):
    """Scores candidates at some depth of a model."""

    def bind(self, model: nn.Module, stack: str | None) -> None:
        """Check at construction that the model has this exit."""

    def prepare(self, plan: Plan, model: nn.Module, batch: Any) -> None:
        """Check, on the first batch, that this exit fits the model's objective."""

    @abstractmethod
    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        """One score a sample; called in eval mode, without gradients.

        Args:
            learn: whether an exit with weights of its own may train them on these samples.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the exit has learned, as plain tensors and numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""


class BlockExit(Exit):
    """The model's own head applied to the k-th block's output; the whole model for "last".

    >>> model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 2))
    >>> exit = BlockExit(1)
    >>> exit.bind(model, stack=None)
    >>> exit.stack.path, exit.k
    ('0', 1)

    Args:
        at: block number from 1, "last", or the dotted path of a block.
    """

    def __init__(self, at: int | str) -> None:
        if isinstance(at, bool) or not isinstance(at, int | str):
            raise TypeError(f"exit={at!r}: give a block number from 1, 'last', or a module's path")
        self.at = at
        self.k: int | None = None
        self.stack: Stack | None = None

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if self.at == "last":
            return
        if isinstance(self.at, str):
            self.stack, self.k = exit_in_stack(model, self.at)
        else:
            self.stack, self.k = find_stack(model, stack), self.at
        self.stack.check_exit(self.k)

    @contextmanager
    def _truncated(self) -> Iterator[None]:
        if self.stack is None or self.k is None:
            yield
            return
        with self.stack.truncated(self.k) as way:
            yield
        _ = way.hidden  # raises where the block did not run

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        with self._truncated():
            if not plan.parts:
                return reduced_losses(plan.call, model, batch)
            if callable(score):
                return custom_scores(plan, score, logits_of(plan.call.run(model, batch)), batch)
            values: list[Tensor] = []
            plan.each_part(
                model,
                batch,
                lambda part, found, y: values.append(plan.score(part, found, y, score)),
            )
        return torch.stack(values).sum(dim=0)

    def examine(self, plan: Plan, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Exact loss of each sample, and whether it is misclassified where that has a meaning."""
        if not plan.parts:
            return reduced_losses(plan.call, model, batch), None
        losses: list[Tensor] = []
        wrong: list[Tensor] = []

        def consume(part: Part, found: Rows | Tensor, labels: Tensor | None) -> None:
            losses.append(plan.score(part, found, labels, "loss"))
            single = isinstance(found, Rows) and found.mask_BT.shape[1] == 1
            if single and part.kind == "classes" and labels is not None:
                assert isinstance(found, Rows)
                wrong.append(found.inputs_BTH[:, 0].argmax(dim=-1) != labels.reshape(-1))

        plan.each_part(model, batch, consume)
        return torch.stack(losses).sum(dim=0), wrong[0] if wrong else None


def reduced_losses(call: Call, model: nn.Module, batch: Any) -> Tensor:
    """Each sample's loss from a model that only gives a batch's: one sample at a time."""
    size = batches.batch_size(batch)
    losses = []
    for i in range(size):
        sample = batches.take(batch, torch.tensor([i]), size=size)
        loss = loss_of(call.run(model, sample, with_labels=True))
        if loss is None:
            raise ValueError(
                "the model returned neither logits nor a loss that can be read: return a scalar loss, an "
                "output with .loss or .logits, or pass forward= that returns the logits"
            )
        losses.append(loss.float().reshape(()))
    return torch.stack(losses)


def custom_scores(
    plan: Plan, score: Callable[[Any, Any], Tensor], logits: dict[str, Tensor], batch: Any
) -> Tensor:
    """Scores from the user's own function, checked to be one a sample."""
    labels = plan.call.labels_of(batch)
    size = batches.batch_size(batch)
    if len(plan.parts) == 1:
        part = plan.parts[0]
        values = score(logits[part.logits], labels[part.labels] if part.labels else None)
    else:
        values = score(logits, labels)
    if not isinstance(values, Tensor) or values.shape != (size,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"score= gave {got} for {size} samples: return a tensor of shape ({size},)"
        )
    return values.float()
