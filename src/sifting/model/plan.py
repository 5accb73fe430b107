"""How one model is scored: its objective, its heads, its calls; `model/resolving.py` finds it out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sifting.model.by_sample import Losses, given_losses, reduced_losses
from sifting.model.call import Call, logits_of, mask_of
from sifting.model.head import Head
from sifting.model.parts import (
    Part,
    Rows,
    Score,
    check_labels,
    of_documents,
    part_losses,
    rows_of,
    score_rows,
    unpadded,
)
from sifting.model.positions import Places
from sifting.model.sample_losses import PerSampleLoss
from sifting.model.score_functions import (
    check_score,
    check_tokens,
    custom_losses,
    takes_rows,
)
from sifting.selection import scores
from sifting.selection.tokens import MEAN, Tokens

POSITIONS = ("start_positions", "end_positions")  # of as many classes as a batch is long

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
        losses_fn: the user's `losses(model, batch)`; in place of all of these.
        origin: how the objective is known, for people.
        by_rows: whether the user's score function is one of rows.
        tokens: how a sample's positions make its score, and its loss.
        rows: how many labelled positions of a sample are scored; None for what is usual.
        chosen: in one batch, the positions of each part that are.
        places: in one batch, the positions of each part that count, where they were looked up.
        trusts: whether labels were checked already, on the host, where nothing has to be waited for.
    """

    call: Call
    parts: tuple[Part, ...]
    heads: dict[str, Head] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    loss_fn: PerSampleLoss | None = None
    explained: bool = True
    losses_fn: Losses | None = None
    origin: str = ""
    by_rows: bool = False
    tokens: Tokens = MEAN
    rows: int | str | None = None
    chosen: dict[Part, Tensor] = field(default_factory=dict)
    places: dict[Part, Places] = field(default_factory=dict)
    trusts: bool = False

    @property
    def labelled(self) -> bool:
        """Whether every term has labels, so that there are exact losses."""
        return all(part.labels is not None for part in self.parts)

    @property
    def kind(self) -> Literal["losses", "loss_fn", "parts", "model"]:
        """Where a sample's loss comes from: the user's functions, the parts, or the model itself."""
        if self.losses_fn is not None:
            return "losses"
        if self.loss_fn is not None:
            return "loss_fn"
        return "parts" if self.explained else "model"

    def beside(self, twin: Callable[[nn.Module], nn.Module]) -> Plan:
        """The same for a copy of the model."""
        heads = {name: replace(head, module=twin(head.module)) for name, head in self.heads.items()}
        return replace(self, heads=heads)

    def describe(self) -> str:
        """The objective that is assumed, in one line."""
        terms = "; ".join(map(str, self.parts))
        if self.kind == "losses":
            return f"losses=, one value per sample{f'; logits: {terms}' if terms else ''}"
        if self.kind == "loss_fn":
            shift = ", shifted by one" if self.loss_fn is not None and self.loss_fn.shift else ""
            names = ", ".join(self.shapes) or "logits"
            return f"{names} → labels by {self.loss_fn}{shift}; {self.origin}"
        if self.kind == "model":
            return self.origin if not terms else f"{terms}; {self.origin}"
        many = any(len(self.shapes.get(part.logits, ())) > 1 for part in self.parts if part.labels)
        return f"{terms}{', mean over labelled positions' if many else ''}; {self.origin}"

    def __str__(self) -> str:
        places = ", ".join(f"{head.path} only where labels are" for head in self.heads.values())
        return f"{self.describe()}{', ' if places else ''}{places}"

    def default_score(self) -> str:
        """The score that suits the objective: "entropy" where there are classes, else "loss".

        "loss" for regression, yes or no, and `losses=`, in which no class is predicted.
        """
        classes = self.kind != "losses" and self.parts and all(p.has_classes for p in self.parts)
        return "entropy" if classes else "loss"

    def check_score(self, score: Score) -> None:
        """Raise where a score cannot be had from this model."""
        check_score(score, self.parts, from_parts=self.kind == "parts")

    def for_score(self, score: Score, model: nn.Module, probe: Any) -> Plan:
        """The plan for one score, checked; it knows whether a function is one of rows."""
        self.check_score(score)
        if not callable(score):
            check_tokens(self, score)
            return self
        labels = self.call.labels_of(probe)
        by_rows = takes_rows(score, self.parts, logits_of(self.call.run(model, probe)), labels)
        found = replace(self, by_rows=by_rows)
        check_tokens(found, score)
        return found

    def check_batch(self, batch: Any, *, rows: Tensor | None = None) -> None:
        """Raise where a label of a batch is of no class, with its row and value.

        Args:
            rows: the rows of these samples in a batch, where they are only some of it.
        """
        if self.trusts or (self.loss_fn is not None and not self.loss_fn.by_class):
            return  # only the loss itself knows what its labels mean
        for part in self.parts:
            labels = self.labels_for(part, batch)
            shape = self.shapes.get(part.logits)
            # positions in a text are as many classes as the batch at hand is long
            if labels is None or shape is None or part.labels in POSITIONS:
                continue
            check_labels(part, (len(labels), *shape), labels, rows=rows)

    def trusting(self, batch: Any) -> Plan:
        """The plan for a batch, its labels checked where they are: best before it is on a device."""
        self.check_batch(batch)
        return replace(self, trusts=True)

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
        self.check_batch(batch)
        with ExitStack() as open_heads:
            for name, head in self.heads.items():

                def intercept(
                    inputs: Tensor, forward: Callable[[Tensor], Tensor], name: str = name
                ) -> None:
                    for part in (part for part in self.parts if part.logits == name):
                        labels = self.labels_for(part, batch)
                        rows = self.of_samples(part, rows_of(part, inputs, labels), batch)
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
        checked = self.trusts and part.labels not in POSITIONS
        by_class = self.loss_fn is None or self.loss_fn.by_class
        if labels is not None and by_class and not checked:
            check_labels(part, logits.shape, labels)
        if not part.has_classes:
            return logits
        return self.of_samples(part, rows_of(part, logits, labels), batch)

    def of_samples(self, part: Part, rows: Rows, batch: Any) -> Rows:
        """Positions by the samples that they belong to, those of padding left out."""
        known = self.places.get(part)
        if known is not None and known.mask_BT.shape == rows.mask_BT.shape:
            return rows.among(known)
        rows = of_documents(
            part, unpadded(rows, mask_of(batch)), self.call.samples.documents(batch)
        )
        chosen_BT = self.chosen.get(part)
        if chosen_BT is None:
            return rows
        return replace(rows, mask_BT=rows.mask_BT & chosen_BT.to(rows.mask_BT.device))

    def score(
        self, part: Part, found: Rows | Tensor, labels: Tensor | None, score: Score
    ) -> Tensor:
        """One part's score of each sample, times its weight in the sum."""
        if isinstance(found, Rows):
            values = score_rows(found, score, width=self.width(part, found), tokens=self.tokens)
        else:
            assert labels is not None
            values = part_losses(part, found, labels)
        return values * part.weight

    def width(self, part: Part, rows: Rows) -> int | None:
        """How many classes a head makes, where it has yet to run."""
        head = self.heads.get(part.logits)
        return head.width if head is not None and rows.head is not None else None

    def exact_losses(self, model: nn.Module, batch: Any) -> Tensor | None:
        """Each sample's loss where no part gives it: the user's function, or the model's own.

        None where it is to be had from the parts (`each_part`, then `score`). Call it in eval mode
        without gradients; the model may be truncated.
        """
        if self.losses_fn is not None:
            return given_losses(self.losses_fn, self.call, model, batch)
        if self.loss_fn is not None:
            return custom_losses(self, logits_of(self.call.run(model, batch)), batch)
        return None if self.explained else reduced_losses(self.call, model, batch)

    @cached_property
    def _single(self) -> Part | None:
        """The one term of a model that predicts one class for each sample; None where it is another case."""
        if self.kind != "parts" or len(self.parts) != 1 or self.heads:
            return None
        part = self.parts[0]
        fits = part.kind == "classes" and not part.shift and part.ignore < 0
        return part if fits and len(self.shapes.get(part.logits, ())) == 1 else None

    def quick_losses(self, output: Any, batch: Any) -> Tensor | None:
        """What `losses` gives where each sample has one class, for hardly more than the cross-entropy.

        None where `losses` has to be asked; it also says which label is of no class.
        """
        part = self._single
        if part is None:
            return None
        logits = logits_of(output).get(part.logits)
        labels = self.call.labels_of(batch).get(str(part.labels))
        if logits is None or labels is None or (logits.ndim, labels.ndim) != (2, 1):
            return None
        if labels.dtype != torch.long or not 0 < len(labels) == len(logits):
            return None
        least, most = torch.stack(labels.aminmax()).tolist()  # a device is waited for once
        if least < 0 or most >= logits.shape[1]:
            return None
        return scores.loss(logits, labels.to(logits.device)) * part.weight

    def losses(self, output: Any, batch: Any) -> Tensor | None:
        """Each sample's loss from an output that the model has already made for a batch.

        None where it does not fit: the user may have trained in smaller pieces.
        """
        logits, labels = logits_of(output), self.call.labels_of(batch)
        if self.kind == "loss_fn":
            fits = len(next(iter(logits.values()), ())) == len(next(iter(labels.values()), ()))
            return custom_losses(self, logits, batch) if fits and len(logits) == 1 else None
        if self.kind != "parts":
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
