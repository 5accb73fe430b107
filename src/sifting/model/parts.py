"""One term of an objective: logits against labels, position by position.

Shapes: B samples of T positions (1 where a sample has one prediction), C classes, H features,
N rows (labelled positions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sifting.model.positions import Places
from sifting.selection import scores
from sifting.selection.tokens import MEAN, MeanOfTokens, Tokens, weighed

CHUNK = 2**23  # logits held at a time: 32 MiB in single precision
ROWS = 256  # rows of them at least: a product of fewer is slower, for the weights that it has to go through
IGNORE = -100  # the label that means none, in torch

PartKind = Literal["classes", "classes_first", "soft", "binary", "squares"]
Score = str | Callable[[Any, Any], Tensor]

_WORDS = {
    "classes": "cross-entropy",
    "classes_first": "cross-entropy",
    "soft": "cross-entropy with probabilities",
    "binary": "binary cross-entropy",
    "squares": "squared error",
}


@dataclass(frozen=True)
class Part:
    """One term of the objective: these logits against those labels.

    Attributes:
        logits: name of the logits in the model's output.
        labels: name of the labels in the batch; None where there are none.
        kind: "classes" (the class is the last dimension), "classes_first" (it is the second, as
            torch has it for images), "soft" (class probabilities), "binary" (one logit for each
            yes or no), "squares" (regression).
        shift: 1 where position t predicts the label at t + 1.
        weight: factor of this term in the sum.
        ignore: the label that marks a position without one.
    """

    logits: str
    labels: str | None
    kind: PartKind
    shift: int = 0
    weight: float = 1.0
    ignore: int = IGNORE

    @property
    def has_classes(self) -> bool:
        """Whether its logits are over classes, so that entropy and margin mean something."""
        return self.kind in ("classes", "classes_first", "soft")

    def labelled(self, labels: Tensor) -> Tensor:
        """Which positions predict a label, one row per sample, from the labels alone.

        >>> Part("logits", "labels", "classes", shift=1).labelled(torch.tensor([[7, -100, 4]]))
        tensor([[False,  True]])
        """
        labels_BT = labels.reshape(len(labels), -1)
        return labels_BT[:, self.shift :] != self.ignore

    def count(self, labels: Tensor) -> int:
        """How many of these labels its mean over a batch is taken over, up to a constant factor.

        >>> Part("logits", "labels", "classes").count(torch.tensor([[7, -100, 4], [2, -100, -100]]))
        3
        """
        hard = self.has_classes and self.kind != "soft"
        return int(self.labelled(labels).sum()) if hard else len(labels)

    def __str__(self) -> str:
        if self.labels is None:
            return f"{self.logits} → no labels"
        details = [
            "class second" if self.kind == "classes_first" else "",
            "shifted by one" if self.shift else "",
            f"{self.ignore} is no label" if self.ignore != IGNORE else "",
            f"times {self.weight:g}" if self.weight != 1 else "",
        ]
        said = ", ".join([_WORDS[self.kind], *filter(None, details)])
        return f"{self.logits} → {self.labels} by {said}"


@dataclass(frozen=True)
class Rows:
    """Predictions to be scored: `head(inputs)` gives logits at the positions in the mask.

    Attributes:
        inputs_BTH: inputs of the head; the logits themselves where there is no head.
        mask_BT: the positions that count.
        labels_BT: the label of each position, or class probabilities of shape BTC.
        documents_BT: where rows hold several samples each, which of them a position belongs to; −1
            for none.
        places: the same positions, where they were looked up already.
    """

    inputs_BTH: Tensor
    mask_BT: Tensor
    labels_BT: Tensor | None
    head: Callable[[Tensor], Tensor] | None = None
    documents_BT: Tensor | None = None
    places: Places | None = None

    def located(self) -> Places:
        """The positions that count; a device is asked for them only where they are not known."""
        if self.places is not None:
            return self.places
        return Places.of(self.mask_BT)

    def among(self, places: Places) -> Rows:
        """The same with these positions."""
        here = places.to(self.mask_BT)
        return replace(self, mask_BT=here.mask_BT, documents_BT=here.documents_BT, places=here)

    def weighed(self, scores_N: Tensor, tokens: Tokens = MEAN) -> Tensor:
        """One score of each sample from those of its positions."""
        layout = None if self.places is None else self.places.layout
        return weighed(scores_N, self.mask_BT, self.documents_BT, tokens, layout=layout)

    def chunks(self, width: int | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Logits and labels of the positions that count, some rows at a time.

        Args:
            width: number of classes, where it cannot be read off the inputs.
        """
        rows = max(ROWS, CHUNK // max(1, width or self.inputs_BTH.shape[-1]))
        places = self.located()
        b_N, t_N = places.b_N, places.t_N
        for start in range(0, len(b_N), rows):
            b, t = b_N[start : start + rows], t_N[start : start + rows]
            piece = self.inputs_BTH[b, t]
            yield (
                piece if self.head is None else self.head(piece),
                None if self.labels_BT is None else self.labels_BT[b, t],
            )


def rows_of(part: Part, inputs: Tensor, labels: Tensor | None) -> Rows:
    """Lay out a part's logits, or the inputs of its head, position by position.

    >>> part = Part("logits", "labels", "classes", shift=1)
    >>> rows_of(part, torch.zeros(2, 4, 9), torch.tensor([[-100, 5, 6, -100]] * 2)).mask_BT
    tensor([[ True,  True, False],
            [ True,  True, False]])
    """
    if part.kind == "classes_first":
        inputs = inputs.movedim(1, -1)
    batch = inputs.shape[0]
    inputs_BTH = inputs.reshape(batch, -1, inputs.shape[-1])
    if labels is None:
        return Rows(inputs_BTH, _all(inputs_BTH), None)
    labels = labels.to(inputs.device)  # a model spread over devices ends on another
    if part.kind == "soft":
        labels_BTC = labels.reshape(batch, -1, labels.shape[-1])
        return Rows(inputs_BTH, _all(labels_BTC), labels_BTC)
    labels_BT = labels.reshape(batch, -1).long()
    if part.shift:
        inputs_BTH, labels_BT = inputs_BTH[:, : -part.shift], labels_BT[:, part.shift :]
    return Rows(inputs_BTH, labels_BT != part.ignore, labels_BT)


def _all(like_BTX: Tensor) -> Tensor:
    return torch.ones(like_BTX.shape[:2], dtype=torch.bool, device=like_BTX.device)


def check_labels(
    part: Part, logits_shape: Sequence[int], labels: Tensor, *, rows: Tensor | None = None
) -> None:
    """Raise where a label is of no class: an index out of range ends a GPU's whole process.

    >>> check_labels(Part("logits", "labels", "classes"), (3, 10), torch.tensor([4, -3, 9]))
    Traceback (most recent call last):
    ValueError: labels[1] is -3, and logits of shape (3, 10) have classes from 0 to 9: ...

    Args:
        part: the term that they belong to.
        logits_shape: with the batch dimension.
        labels: all labels of the batch.
        rows: their rows in the batch, where these are only some of it.
    """
    found = first_wrong(part, logits_shape, labels)
    if found is None:
        return
    place, value, classes = found
    place[0] = place[0] if rows is None else int(rows[place[0]])
    where = f"{part.labels}[{', '.join(map(str, place))}] is {value}"
    if part.kind == "binary":
        raise ValueError(
            f"{where}, and one logit for each label can only tell 0 from 1: give the model a logit for each "
            "class, or pass loss_fn=nn.MSELoss() where it is a number to be met"
        )
    raise ValueError(
        f"{where}, and logits of shape {tuple(logits_shape)} have classes from 0 to {classes - 1}: correct "
        f"that label, or say which number means none with loss_fn=nn.CrossEntropyLoss(ignore_index={value})"
    )


def first_wrong(
    part: Part, logits_shape: Sequence[int], labels: Tensor
) -> tuple[list[int], int, int] | None:
    """Place and value of the first label that is of no class, and how many classes there are.

    >>> first_wrong(Part("logits", "labels", "classes"), (3, 10), torch.tensor([4, -3, 9]))
    ([1], -3, 10)
    """
    if labels.is_floating_point() or part.kind in ("soft", "squares"):
        return None
    binary = part.kind == "binary"
    if binary and labels.dtype == torch.bool:
        return None
    classes = 2 if binary else logits_shape[1 if part.kind == "classes_first" else -1]
    labels = labels.long()
    if not labels.numel():
        return None
    least, most = torch.stack(labels.aminmax()).tolist()  # a device is waited for once
    if least >= 0 and most < classes:
        return None  # nearly always, and several times as fast as to look at each
    wrong = (labels < 0) | (labels >= classes)
    if not binary:
        wrong &= labels != part.ignore
    if part.shift:
        wrong[:, : part.shift] = False  # what nothing predicts
    if not bool(wrong.any()):
        return None
    place = wrong.nonzero()[0].tolist()
    return place, int(labels[tuple(place)]), classes


def score_rows(
    rows: Rows, score: Score, *, width: int | None = None, tokens: Tokens = MEAN
) -> Tensor:
    """One score of each sample's positions, their mean by default, holding few logits at a time.

    >>> rows = rows_of(Part("logits", "labels", "classes"), torch.zeros(2, 3, 4), torch.ones(2, 3))
    >>> score_rows(rows, lambda logits_NC, labels_N: labels_N + 0.5)
    tensor([1.5000, 1.5000])

    Args:
        rows: the positions that count.
        score: a name, or a function of rows `(logits_NC, labels_N) -> scores_N`.
        width: number of classes, where a head makes the logits.
        tokens: how a sample's positions are weighed.
    """
    single = rows.head is None and rows.documents_BT is None and rows.mask_BT.shape[1] == 1
    if (
        isinstance(score, str)
        and single
        and rows.inputs_BTH.numel() <= CHUNK
        and isinstance(tokens, MeanOfTokens)
    ):
        return _one_each(rows, scores.BY_NAME[score])
    return rows.weighed(row_scores(rows, score, width=width), tokens)


def row_scores(rows: Rows, score: Score, *, width: int | None = None) -> Tensor:
    """The score of each position that counts, in row-major order."""
    by_row = scores.BY_NAME[score] if isinstance(score, str) else _checked(score)
    pieces = [by_row(logits, labels) for logits, labels in rows.chunks(width)]
    empty = torch.zeros(0, device=rows.mask_BT.device)
    return torch.cat(pieces) if pieces else empty


def _one_each(rows: Rows, by_row: scores.RowScore) -> Tensor:
    """Scores of samples with one prediction each, without asking which of them have a label.

    Asking would be to wait for the device: what has none is scored by some class, and put to 0.
    """
    mask_B, labels = rows.mask_BT[:, 0], rows.labels_BT
    if labels is not None and not labels.is_floating_point():
        labels = labels.masked_fill(~rows.mask_BT, 0)
    values_B = by_row(rows.inputs_BTH[:, 0], None if labels is None else labels[:, 0])
    return torch.where(mask_B, values_B, 0.0)


def _checked(score: Callable[[Any, Any], Tensor]) -> scores.RowScore:
    def by_row(logits_NC: Tensor, labels_N: Tensor | None) -> Tensor:
        values = score(logits_NC, labels_N)
        if not isinstance(values, Tensor) or values.shape != logits_NC.shape[:1]:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"score= gave {got} for {len(logits_NC)} rows: return a tensor of shape ({len(logits_NC)},)"
            )
        return values.float()

    return by_row


def unpadded(rows: Rows, mask: Tensor | None) -> Rows:
    """Without labels, positions of padding should not count."""
    if rows.labels_BT is not None or mask is None or mask.shape != rows.mask_BT.shape:
        return rows
    return replace(rows, mask_BT=mask.bool())


def of_documents(part: Part, rows: Rows, documents_BT: Tensor | None) -> Rows:
    """Positions of packed rows by the samples that they belong to, those of none left out.

    Args:
        part: the term that they are predictions of.
        rows: the positions.
        documents_BT: the sample of each position; None where rows are samples.
    """
    if documents_BT is None:
        return rows
    documents_BT = documents_BT[:, part.shift :].to(rows.mask_BT.device)
    if documents_BT.shape != rows.mask_BT.shape:
        raise ValueError(
            f"the batch is packed ({int(documents_BT.max()) + 1} documents in {len(documents_BT)} rows), "
            f"and {part} has no prediction for each token, so documents cannot be scored: pass "
            "losses=lambda model, batch: … that returns one loss per document"
        )
    mask_BT = rows.mask_BT & (documents_BT >= 0)
    return replace(rows, mask_BT=mask_BT, documents_BT=documents_BT)


def part_losses(part: Part, logits: Tensor, labels: Tensor) -> Tensor:
    """One value per sample of a part without classes."""
    values = logits.float().reshape(logits.shape[0], -1)
    labels = labels.to(values.device).float().reshape(logits.shape[0], -1)
    if part.kind == "binary":
        return F.binary_cross_entropy_with_logits(values, labels, reduction="none").mean(dim=1)
    return (values - labels).square().mean(dim=1)


def reduced_loss(part: Part, logits: Tensor, labels: Tensor) -> Tensor:
    """A part's loss as models reduce it: the mean over everything labelled in the batch."""
    if not part.has_classes:
        return part_losses(part, logits, labels).mean()
    rows = rows_of(part, logits, labels)
    pieces = [scores.loss(piece, target) for piece, target in rows.chunks()]
    return torch.cat(pieces).mean() if pieces else logits.new_full((), float("nan"))
