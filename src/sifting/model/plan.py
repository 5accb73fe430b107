"""How one model is scored, found on its first batch: its objective, its heads, its calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data import batch as batches
from sifting.model.call import Call, logits_of, loss_of, mask_of
from sifting.model.head import Head, find_head
from sifting.model.objective import (
    Part,
    PerSampleLoss,
    Rows,
    Score,
    part_losses,
    resolve,
    rows_of,
    score_rows,
)
from sifting.selection import scores

PROBE_ROWS = 2  # samples of the first batch that the objective and the heads are found with

# Takes one part's predictions: rows of class logits, or its logits whole.
Consume = Callable[[Part, Rows | Tensor, Tensor | None], None]


@dataclass(frozen=True, eq=False)
class Plan:
    """How one model is scored, found on its first batch.

    Attributes:
        call: how the model is called.
        parts: the terms of its objective.
        heads: by name of the logits, the head that can run on single positions.
        shapes: by name of the logits, the shape of one sample's.
        loss_fn: the user's loss, made per sample; in place of the parts' own.
        explained: whether the parts' losses add up to what is trained; otherwise the loss is
            taken from the model, one sample at a time.
    """

    call: Call
    parts: tuple[Part, ...]
    heads: dict[str, Head] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    loss_fn: PerSampleLoss | None = None
    explained: bool = True

    @classmethod
    def resolve(
        cls, call: Call, model: nn.Module, batch: Any, loss_fn: PerSampleLoss | None
    ) -> Plan:
        """Find out on some samples; the model is in eval mode, without gradients."""
        found = resolve(call, model, batch, custom=loss_fn is not None)
        call = found.call
        if loss_fn is not None and (len(found.logits) != 1 or len(call.labels_of(batch)) != 1):
            raise ValueError(
                f"loss_fn needs one output and one set of labels; the model gives {sorted(found.logits)} "
                f"and the batch {sorted(call.labels_of(batch))}: pass forward= and labels= that return "
                "one each"
            )
        heads: dict[str, Head] = {}
        # a model that must have labels works on its logits, so it must get real ones
        for part in () if call.always_labels or loss_fn is not None else found.parts:
            shape = found.logits[part.logits].shape
            if part.kind == "classes" and len(shape) == 3:
                head = find_head(
                    model, lambda: logits_of(call.run(model, batch)), part.logits, shape
                )
                if head is not None:
                    heads[part.logits] = head
        shapes = {name: tuple(value.shape[1:]) for name, value in found.logits.items()}
        return cls(call, found.parts, heads, shapes, loss_fn, found.explained)

    def __str__(self) -> str:
        terms = "; ".join(map(str, self.parts)) or "no logits that fit the labels"
        loss = "" if self.loss_fn is None else ", loss by loss_fn"
        if not self.explained and self.loss_fn is None:
            loss = ", loss from the model one sample at a time"
        places = ", ".join(f"{head.path} only where labels are" for head in self.heads.values())
        return f"{terms}{loss}{', ' if places else ''}{places}"

    def check_score(self, score: Score) -> None:
        """Raise where a score cannot be had from this model."""
        if score == "loss" and (self.loss_fn is not None or not self.explained):
            return
        if not self.parts:
            raise ValueError(
                f"score={score!r} needs logits that fit the labels, and the model returns none, or only "
                "a reduced loss: use score='loss', or pass forward= that returns the logits"
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

    def labels_for(self, part: Part, batch: Any) -> Tensor | None:
        """The labels of a part in a batch."""
        if part.labels is None:
            return None
        labels = self.call.labels_of(batch)
        if part.labels not in labels:
            raise ValueError(
                f"a batch without {part.labels!r}, which the first batch had: its keys are {sorted(labels)}"
            )
        return labels[part.labels]

    def each_part(self, model: nn.Module, batch: Any, consume: Consume) -> None:
        """Run the model and hand over each part's predictions, with heads only where labels are."""
        with ExitStack() as open_heads:
            for name, head in self.heads.items():

                def intercept(
                    inputs: Tensor, forward: Callable[[Tensor], Tensor], name: str = name
                ) -> None:
                    for part in (part for part in self.parts if part.logits == name):
                        labels = self.labels_for(part, batch)
                        rows = _unpadded(rows_of(part, inputs, labels), batch)
                        consume(part, replace(rows, head=forward), labels)

                open_heads.enter_context(head.intercepted(intercept))
            output = logits_of(self.call.run(model, batch))
        for part in self.parts:
            if part.logits not in self.heads:
                labels = self.labels_for(part, batch)
                consume(part, self.laid_out(part, output[part.logits], labels, batch), labels)

    def laid_out(
        self, part: Part, logits: Tensor, labels: Tensor | None, batch: Any
    ) -> Rows | Tensor:
        """A part's logits as rows of classes, or as they are where there are none."""
        if not part.has_classes:
            return logits
        return _unpadded(rows_of(part, logits, labels), batch)

    def score(self, part: Part, found: Rows | Tensor, labels: Tensor | None, score: str) -> Tensor:
        """One part's score of each sample, times its weight in the sum."""
        if isinstance(found, Rows):
            head = self.heads.get(part.logits)
            width = head.width if head is not None and found.head is not None else None
            values = score_rows(found, score, width=width)
        else:
            assert labels is not None
            values = part_losses(part, found, labels)
        return values * part.weight

    def losses(self, output: Any, batch: Any) -> Tensor | None:
        """Each sample's loss from an output that the model has already made for a batch.

        None where it does not fit: the user may have trained in smaller pieces.
        """
        logits, labels = logits_of(output), self.call.labels_of(batch)
        if self.loss_fn is not None:
            fits = len(next(iter(logits.values()), ())) == len(next(iter(labels.values()), ()))
            return custom_losses(self, logits, batch) if fits and len(logits) == 1 else None
        if not self.explained:
            return None
        total: list[Tensor] = []
        for part in self.parts:
            found, wanted = logits.get(part.logits), labels.get(str(part.labels))
            if found is None or wanted is None or len(found) != len(wanted):
                return None
            total.append(
                self.score(part, self.laid_out(part, found, wanted, batch), wanted, "loss")
            )
        return torch.stack(total).sum(dim=0)


def probe_rows(call: Call, batch: Any) -> Tensor | None:
    """Samples to find a plan with: some that have each of the labels; None where one has none.

    Among float labels that are not all distributions, one that is not is among them.
    """
    size = batches.batch_size(batch)
    chosen: set[int] = set()
    for labels in call.labels_of(batch).values():
        if len(labels) != size:
            continue
        flat_BX = labels.reshape(size, -1)
        if labels.is_floating_point():
            odd_B = (flat_BX < 0).any(dim=1) | ((flat_BX.sum(dim=1) - 1).abs() > 1e-3)
            chosen |= set(odd_B.nonzero().squeeze(1)[:1].tolist())
            continue
        labelled_B = (flat_BX >= 0).any(dim=1)
        if not bool(labelled_B.any()):
            labelled_B = (flat_BX != -100).any(dim=1)  # classes may be numbered −1 and 1
        rows = labelled_B.nonzero().squeeze(1)[:PROBE_ROWS].tolist()
        if not rows:
            return None
        chosen |= set(rows)
    chosen |= set(range(min(size, PROBE_ROWS - len(chosen))))
    return torch.tensor(sorted(chosen))


def signature(call: Call, batch: Any) -> tuple[Any, ...]:
    """What of a batch's labels a plan depends on: their names, kinds and dimensions."""
    labels = call.labels_of(batch)
    return tuple((n, v.is_floating_point(), v.ndim) for n, v in sorted(labels.items()))


def _unpadded(rows: Rows, batch: Any) -> Rows:
    """Without labels, positions of padding should not count."""
    mask = mask_of(batch) if rows.labels_BT is None else None
    if mask is None or mask.shape != rows.mask_BT.shape:
        return rows
    return replace(rows, mask_BT=mask.bool())


def custom_losses(plan: Plan, logits: dict[str, Tensor], batch: Any) -> Tensor:
    """Each sample's loss by the user's own function."""
    assert plan.loss_fn is not None
    (values,), (labels,) = logits.values(), plan.call.labels_of(batch).values()
    return plan.loss_fn(values, labels.to(values.device))


def reduced_losses(call: Call, model: nn.Module, batch: Any) -> Tensor:
    """Each sample's loss from a model that only gives a batch's: one sample at a time."""
    size = batches.batch_size(batch)
    losses = []
    for i in range(size):
        sample = batches.take(batch, torch.tensor([i]), size=size)
        labels = call.labels_of(sample).values()
        if labels and all(not v.is_floating_point() and bool((v == -100).all()) for v in labels):
            losses.append(torch.zeros(()))  # no label, nothing to learn: the lowest score
            continue
        loss = loss_of(call.run(model, sample, with_labels=True))
        if loss is None:
            raise ValueError(
                "the model returned neither logits nor a loss that can be read: return a scalar loss, an "
                "output with .loss or .logits, or pass forward= that returns the logits"
            )
        losses.append(loss.float().reshape(()))
    device = losses[-1].device
    return torch.stack([loss.to(device) for loss in losses])


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
