"""What is trained, sample by sample: which logits belong to which labels, by which loss.

A model's own reduced loss is the reference. Each way in which logits and labels could fit is
tried on two samples, and the one that reproduces the model's loss best is used, so that what is
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

from sifting.model.call import Call, logits_of, loss_of
from sifting.selection import scores

CHUNK = 2**23  # logits held at a time: 32 MiB in single precision

Kind = Literal["classes", "classes_first", "soft", "binary", "squares"]
Score = str | Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Part:
    """One term of the objective: these logits against those labels.

    Attributes:
        logits: name of the logits in the model's output.
        labels: name of the labels in the batch; None where there are none.
        kind: "classes" (the class is the last dimension), "classes_first" (it is the second, as
            torch has it for images), "soft" (class probabilities), "binary" (multi-label),
            "squares" (regression).
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

    def __str__(self) -> str:
        shift = ", shifted" if self.shift else ""
        return f"{self.logits} → {self.labels or 'no labels'} ({self.kind}{shift})"


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
        rows = max(1, CHUNK // max(1, width or self.inputs_BTH.shape[-1]))
        b_N, t_N = self.mask_BT.nonzero(as_tuple=True)
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

    A negative label marks a position without one: −100 in torch, −1 elsewhere.
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
    labels_BT = labels.reshape(batch, -1)
    if part.shift:
        inputs_BTH, labels_BT = inputs_BTH[:, : -part.shift], labels_BT[:, part.shift :]
    return Rows(inputs_BTH, labels_BT >= 0, labels_BT)


def _all(like_BTX: Tensor) -> Tensor:
    return torch.ones(like_BTX.shape[:2], dtype=torch.bool, device=like_BTX.device)


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
    called with "none"; a function that can only reduce is called once a sample. Positions with the
    label that the loss ignores (−100) do not count.
    """

    def __init__(self, loss_fn: Callable[..., Tensor]) -> None:
        if not callable(loss_fn):
            raise TypeError(f"loss_fn={loss_fn!r} is not callable: pass loss_fn(logits, labels)")
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
        values = values.float().reshape(batch, -1)
        if not labels.is_floating_point() and labels.numel() == values.numel():
            # only the loss itself knows which label means none: −1 may be a class
            counted = (labels != getattr(self.loss_fn, "ignore_index", -100)).reshape(batch, -1)
            return (values * counted).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
        return values.mean(dim=1)


def part_losses(part: Part, logits: Tensor, labels: Tensor) -> Tensor:
    """One value a sample of a part without classes."""
    values = logits.float().reshape(logits.shape[0], -1)
    labels = labels.to(values.device).float().reshape(logits.shape[0], -1)
    if part.kind == "binary":
        return F.binary_cross_entropy_with_logits(values, labels, reduction="none").mean(dim=1)
    return (values - labels).square().mean(dim=1)


def match_parts(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> list[list[Part]]:
    """For each of the labels, the ways in which it could fit some of the logits.

    >>> match_parts({"logits": torch.zeros(2, 3)}, {"labels": torch.zeros(2, dtype=torch.long)})
    [[Part(logits='logits', labels='labels', kind='classes', shift=0, weight=1.0)]]
    """
    found: list[list[Part]] = []
    for name, values in labels.items():
        options = [
            Part(key, name, kind, shift)
            for key, outputs in logits.items()
            for kind, shift in _fits(outputs, values)
        ]
        # start_positions belong to start_logits though end_logits have the same shape
        named = [part for part in options if part.logits.startswith(f"{name.split('_')[0]}_")]
        if options:
            found.append(named or options)
    return found


def _fits(logits: Tensor, labels: Tensor) -> list[tuple[Kind, int]]:
    if logits.shape[0] != labels.shape[0]:
        return []
    if labels.is_floating_point():
        if logits.shape != labels.shape:
            return [("squares", 0)] if logits.numel() == labels.numel() else []
        distributions = (
            labels.ndim == 2
            and labels.shape[1] > 1
            and bool((labels >= 0).all())
            and torch.allclose(
                labels.sum(dim=1).float(), torch.ones(()).to(labels.device), atol=1e-3
            )
        )
        known: list[tuple[Kind, int]] = [("soft", 0), ("binary", 0), ("squares", 0)]
        return known if distributions else known[1:]
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


@dataclass(frozen=True)
class Objective:
    """What was found out about a model's loss.

    Attributes:
        call: how the model is to be called from now on.
        parts: the terms; none where no logits fit the labels.
        logits: the logits of the samples it was found with.
        explained: whether the parts add up to what is trained. Where they do not, the loss is
            taken from the model, one sample at a time.
    """

    call: Call
    parts: tuple[Part, ...]
    logits: dict[str, Tensor]
    explained: bool


def resolve(call: Call, model: nn.Module, batch: Any, *, custom: bool = False) -> Objective:
    """Find the terms of a model's objective on some samples.

    Args:
        custom: whether the user gave the loss, so that the parts need not explain it.
    """
    labels = call.labels_of(batch)
    reference: Tensor | None = None
    given: dict[str, Tensor] | None = None
    if call.takes_labels(model, batch):
        output = call.run(model, batch, with_labels=True)
        reference, given = loss_of(output), logits_of(output)
        call = replace(call, always_labels=_needs_labels(call, model, batch, given))
    if given is None or not call.always_labels:
        output = call.run(model, batch)
        given = logits_of(output)
        reference = loss_of(output) if reference is None and not given else reference
    options = match_parts(given, labels)
    if not options:
        if labels and reference is None and not custom:
            raise ValueError(
                f"{_described(labels)} fit none of the model's outputs: {_described(given) or 'none'}. "
                "Pass loss_fn=, or forward= that returns the logits"
            )
        bare = () if labels or reference is not None else given
        return Objective(call, tuple(Part(n, None, "classes") for n in bare), given, not labels)
    if reference is not None and not custom:
        parts = _reproducing(reference, options, given, labels, model)
        if parts:
            return Objective(call, parts, given, explained=True)
    usual = [_usual(ways) for ways in options]
    parts = tuple(part for part in usual if part is not None)
    if reference is None and not custom and len(parts) < len(options):
        name = str(options[usual.index(None)][0].labels)
        raise ValueError(
            f"{_described({name: labels[name]})}: these are not classes, so cross-entropy does not "
            "apply: pass loss_fn=nn.MSELoss(), nn.BCEWithLogitsLoss() or your own"
        )
    return Objective(call, parts, given, explained=reference is None and not custom)


def _needs_labels(call: Call, model: nn.Module, batch: Any, given: dict[str, Tensor]) -> bool:
    """Whether the logits are others, or cannot be had, without the labels."""
    try:
        bare = logits_of(replace(call, always_labels=False).run(model, batch))
    except Exception:  # whatever a model raises when it misses its labels
        return True
    return bare.keys() != given.keys() or any(
        bare[name].shape != value.shape
        or float((bare[name] - value).abs().max()) > 1e-3 * float(value.abs().max())
        for name, value in given.items()
        if value.is_floating_point()
    )


def _usual(ways: Sequence[Part]) -> Part | None:
    """Without a loss to compare with: cross-entropy, as documented for pairs."""
    for kind in ("classes", "classes_first", "soft"):
        for part in ways:
            if part.kind == kind:
                return part
    return None


def _reproducing(
    reference: Tensor,
    options: list[list[Part]],
    logits: dict[str, Tensor],
    labels: dict[str, Tensor],
    model: nn.Module,
) -> tuple[Part, ...]:
    """The combination of parts that comes closest to the model's own loss; none if none does.

    The closest, since an untrained model's loss is nearly the same for any labels. Among those
    that differ by no more than rounding, the one that suits the model's kind.
    """
    half = (torch.float16, torch.bfloat16)
    low = reference.dtype in half or any(p.dtype in half for p in model.parameters())
    value = float(reference)
    rounding, tolerance = (
        x * max(1.0, abs(value)) for x in ((2**-8, 2e-2) if low else (1e-6, 1e-4))
    )
    causal = int(any("CausalLM" in str(n) or "LMHead" in str(n) for n in _kinds(model)))
    best: tuple[tuple[float, int], tuple[Part, ...]] = ((tolerance, 0), ())
    for parts in itertools.product(*options):
        terms = [
            float(_reduced(part, logits[part.logits], labels[str(part.labels)])) for part in parts
        ]
        unlike = sum(part.shift != causal for part in parts)
        for weight in dict.fromkeys((1.0, 1.0 / len(terms))):
            error = abs(weight * sum(terms) - value)
            rank = (error if error > rounding else 0.0, unlike)
            if rank < best[0]:
                best = (rank, tuple(replace(part, weight=weight) for part in parts))
    return best[1]


def _kinds(model: nn.Module) -> list[Any]:
    """What a model calls itself, and what it says its loss is."""
    inner = getattr(model, "get_base_model", None)
    model = inner() if callable(inner) else model
    return [type(model).__name__, getattr(model, "loss_type", None)]


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
