"""What is trained, sample by sample: which logits belong to which labels, by which loss.

A model's own reduced loss is the reference. Each way in which logits and labels could fit is
tried on two samples, and the one that reproduces the model's loss is used, so that what is
scored is what is trained: sums of parts (MLM + NSP), shifted labels (causal models), multi-label
and regression losses alike.

Shapes: B samples of T positions (1 where a sample has one prediction), C classes, H features.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import scores
from sifting.calls import Call, logits_of, loss_of

IGNORE = -100  # the label that marks a position without one, here and in torch
CHUNK = 2**23  # logits held at a time: 32 MiB in single precision

Kind = Literal["classes", "classes_first", "soft", "binary", "squares", "custom"]
Score = str | Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Part:
    """One term of the objective: these logits against those labels.

    Attributes:
        logits: name of the logits in the model's output.
        labels: name of the labels in the batch; None where there are none.
        kind: "classes" (the class is the last dimension), "classes_first" (it is the second, as
            torch has it for images), "soft" (class probabilities), "binary" (multi-label),
            "squares" (regression), "custom" (the user's `loss_fn`).
        shift: 1 where position t predicts the label at t + 1.
        weight: factor of this term in the sum.
    """

    logits: str
    labels: str | None
    kind: Kind
    shift: int = 0
    weight: float = 1.0

    @property
    def has_classes(self) -> bool:
        """Whether its logits are over classes, so that entropy and margin mean something."""
        return self.kind in ("classes", "classes_first", "soft")


@dataclass(frozen=True)
class Rows:
    """Predictions to be scored: `head(inputs)` gives logits at the positions in the mask.

    Attributes:
        inputs_BTH: inputs of the head; the logits themselves where there is no head.
        mask_BT: the positions that count.
        labels_BT: the label of each position, or class probabilities of shape BTC.
    """

    inputs_BTH: Tensor
    mask_BT: Tensor
    labels_BT: Tensor | None
    head: Callable[[Tensor], Tensor] | None = None

    def chunks(self, width: int | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Logits and labels of the positions that count, some rows at a time.

        Args:
            width: number of classes, where it cannot be read off the inputs.
        """
        inputs_NH = self.inputs_BTH[self.mask_BT]
        labels_N = None if self.labels_BT is None else self.labels_BT[self.mask_BT]
        rows = max(1, CHUNK // max(1, width or inputs_NH.shape[-1]))
        for start in range(0, inputs_NH.shape[0], rows):
            piece = inputs_NH[start : start + rows]
            yield (
                piece if self.head is None else self.head(piece),
                None if labels_N is None else labels_N[start : start + rows],
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
        mask_BT = torch.ones(inputs_BTH.shape[:2], dtype=torch.bool, device=inputs.device)
        return Rows(inputs_BTH, mask_BT, None)
    if part.kind == "soft":
        labels_BTC = labels.reshape(batch, -1, labels.shape[-1])
        mask_BT = torch.ones(labels_BTC.shape[:2], dtype=torch.bool, device=inputs.device)
        return Rows(inputs_BTH, mask_BT, labels_BTC)
    labels_BT = labels.reshape(batch, -1)
    if part.shift:
        inputs_BTH, labels_BT = inputs_BTH[:, : -part.shift], labels_BT[:, part.shift :]
    return Rows(inputs_BTH, labels_BT != IGNORE, labels_BT)


def score_rows(rows: Rows, score: str, *, width: int | None = None) -> Tensor:
    """Mean score of each sample's positions, holding few logits at a time."""
    by_row = scores.BY_NAME[score]
    pieces = [by_row(logits, labels) for logits, labels in rows.chunks(width)]
    empty = torch.zeros(0, device=rows.mask_BT.device)
    return scores.mean_where(torch.cat(pieces) if pieces else empty, rows.mask_BT)


class PerSampleLoss:
    """A loss function made to give one value a sample.

    >>> PerSampleLoss(nn.MSELoss())(torch.zeros(2, 3), torch.ones(2, 3))
    tensor([1., 1.])

    Modules with a `reduction` are copied with it off; functions that take `reduction` are
    called with "none"; a function that can only reduce is called once a sample.
    """

    def __init__(self, loss_fn: Callable[..., Tensor]) -> None:
        if not callable(loss_fn):
            raise TypeError(f"loss_fn={loss_fn!r} is not callable: pass loss_fn(logits, labels)")
        self.reduced = loss_fn
        self.loss_fn = loss_fn
        self.options: dict[str, Any] = {}
        if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction"):
            self.loss_fn = copy.copy(loss_fn)
            self.loss_fn.reduction = "none"  # type: ignore[assignment]
        elif _takes_reduction(loss_fn):
            self.options = {"reduction": "none"}

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        batch = logits.shape[0]
        values = self.loss_fn(logits, labels, **self.options)
        if values.ndim == 0:
            values = torch.stack(
                [self.loss_fn(logits[i : i + 1], labels[i : i + 1]) for i in range(batch)]
            )
        if values.shape[0] != batch:
            raise ValueError(
                f"loss_fn gave a tensor of shape {tuple(values.shape)} for {batch} samples: return "
                "one value a sample, or a scalar"
            )
        return values.reshape(batch, -1).mean(dim=1)


def part_losses(
    part: Part, logits: Tensor, labels: Tensor, loss_fn: PerSampleLoss | None = None
) -> Tensor:
    """One value a sample of a part that has no class rows, or only a loss of its own."""
    if part.kind == "custom":
        assert loss_fn is not None
        return loss_fn(logits, labels).float()
    values = logits.float().reshape(logits.shape[0], -1)
    labels = labels.float().reshape(logits.shape[0], -1)
    if part.kind == "binary":
        return F.binary_cross_entropy_with_logits(values, labels, reduction="none").mean(dim=1)
    return (values - labels).square().mean(dim=1)


def match_parts(
    logits: dict[str, Tensor], labels: dict[str, Tensor], *, custom: bool = False
) -> list[list[Part]]:
    """For each of the labels, the ways in which it could fit some of the logits.

    >>> match_parts({"logits": torch.zeros(2, 3)}, {"labels": torch.zeros(2, dtype=torch.long)})
    [[Part(logits='logits', labels='labels', kind='classes', shift=0, weight=1.0)]]
    """
    if custom:
        if len(logits) != 1 or len(labels) != 1:
            raise ValueError(
                f"loss_fn needs one output and one set of labels; the model gives {sorted(logits)} and "
                f"the batch {sorted(labels)}: pass forward= and labels= that return one each"
            )
        return [[Part(next(iter(logits)), next(iter(labels)), "custom")]]
    found: list[list[Part]] = []
    for name, values in labels.items():
        options = [
            Part(key, name, kind, shift)
            for key, outputs in logits.items()
            for kind, shift in _fits(outputs, values)
        ]
        # start_positions belong to start_logits though end_logits have the same shape
        stem = name.split("_")[0]
        named = [part for part in options if part.logits.startswith(f"{stem}_")]
        if options:
            found.append(named or options)
    return found


def _fits(logits: Tensor, labels: Tensor) -> list[tuple[Kind, int]]:
    if logits.shape[0] != labels.shape[0]:
        return []
    if labels.is_floating_point():
        if logits.shape == labels.shape:
            return [("binary", 0), ("squares", 0), ("soft", 0)]
        return [("squares", 0)] if logits.numel() == labels.numel() else []
    if labels.dtype == torch.bool or logits.ndim < 2:
        return []
    if logits.shape[:-1] == labels.shape:
        token_level = labels.ndim == 2 and labels.shape[1] > 1
        return [("classes", 0), ("classes", 1)] if token_level else [("classes", 0)]
    if logits.ndim == labels.ndim + 1 and logits.shape[2:] == labels.shape[1:]:
        return [("classes_first", 0)]
    if labels.numel() == labels.shape[0] and logits.ndim == 2:
        return [("classes", 0)]
    return []


def resolve(
    call: Call, model: nn.Module, batch: Any, *, loss_fn: PerSampleLoss | None = None
) -> tuple[tuple[Part, ...], dict[str, Tensor]]:
    """The parts of the objective, and the logits they were found with.

    Returns no parts where the model gives only a reduced loss, or one that no sum of known
    losses reproduces: it is then scored one sample at a time.
    """
    labels = call.labels_of(batch)
    output = call.run(model, batch)
    logits = logits_of(output)
    if not logits:
        return (), {}
    options = match_parts(logits, labels, custom=loss_fn is not None)
    if loss_fn is not None:
        return (options[0][0],), logits
    if not options:
        if labels:
            raise ValueError(
                f"{_described(labels)} fit none of the model's outputs: {_described(logits)}. Pass "
                "loss_fn=, or forward= that returns the logits"
            )
        return tuple(Part(name, None, "classes") for name in logits), logits
    reference = None
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        reference = (
            loss_of(call.run(model, batch, with_labels=True)) if call.forward is None else None
        )
    if reference is None:
        return tuple(_default(ways, labels) for ways in options), logits
    return _reproducing(reference, options, logits, labels), logits


def _default(ways: Sequence[Part], labels: dict[str, Tensor]) -> Part:
    """Without a loss to compare with: cross-entropy, as documented for pairs."""
    for kind in ("classes", "classes_first", "soft"):
        for part in ways:
            if part.kind == kind:
                return part
    name = ways[0].labels
    assert name is not None
    raise ValueError(
        f"{name} are {labels[name].dtype} of shape {tuple(labels[name].shape)}, so cross-entropy does "
        "not apply: pass loss_fn=nn.MSELoss(), nn.BCEWithLogitsLoss() or your own"
    )


def _reproducing(
    reference: Tensor,
    options: list[list[Part]],
    logits: dict[str, Tensor],
    labels: dict[str, Tensor],
) -> tuple[Part, ...]:
    """The combination of parts that gives the model's own loss; none if none does."""
    exact = reference.dtype in (torch.float32, torch.float64) and not any(
        value.dtype in (torch.float16, torch.bfloat16) for value in logits.values()
    )
    tolerance = 1e-3 if exact else 3e-2
    value = float(reference)
    for parts in itertools.product(*options):
        terms = [
            float(_reduced(part, logits[part.logits], labels[str(part.labels)])) for part in parts
        ]
        for weight in (1.0, 1.0 / len(terms)):
            if abs(weight * sum(terms) - value) <= tolerance * max(1.0, abs(value)):
                return tuple(replace(part, weight=weight) for part in parts)
    return ()


def _reduced(part: Part, logits: Tensor, labels: Tensor) -> Tensor:
    """A part's loss as models reduce it: the mean over everything labelled in the batch."""
    if not part.has_classes:
        return part_losses(part, logits, labels).mean()
    rows = rows_of(part, logits, labels)
    pieces = [scores.loss(piece, target) for piece, target in rows.chunks()]
    return torch.cat(pieces).mean() if pieces else logits.new_full((), float("nan"))


def _described(tensors: dict[str, Tensor]) -> str:
    """Names, shapes of a sample's part and types, as in `labels (B, 7) of int64`."""
    return ", ".join(
        f"{name} ({', '.join(['B', *map(str, value.shape[1:])])}) of {str(value.dtype)[6:]}"
        for name, value in tensors.items()
    )


def _takes_reduction(function: Callable[..., Any]) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
