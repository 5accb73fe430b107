"""Losses of all kinds: each sample's score must be its own loss, worked out one entry at a time."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor, nn

from sifting import Sifter
from tests.fuzz import Fuzz, refusal, register

CLASS_LOSSES = ("cross-entropy", "nll")
BATCHES = 4  # of each case
ENTRY_LOSSES = ("squares", "absolute", "smooth", "huber", "binary", "kl")


@dataclasses.dataclass(frozen=True)
class Case:
    """One model, batch and loss.

    Args:
        layout: of the outputs: classes, tokens, images, flat, column or vector.
        loss: what is trained.
        way: how the library is told: not at all ("pair"), by the model's own loss ("own"), or as a
            "module", "partial", reducing "lambda" or "unreduced" lambda.
        label_shape: "like" the outputs need it, or with a column of its own.
        stray: a label that is of no class, if any.
    """

    seed: int
    batch: int
    classes: int
    sides: tuple[int, int]
    layout: str
    loss: str
    way: str
    reduction: str
    weighted: bool
    smoothing: float
    ignore: int
    masked: bool
    shift: int
    column: bool
    stray: int | None
    dtype: torch.dtype
    label_dtype: torch.dtype

    @property
    def by_class(self) -> bool:
        return self.loss in CLASS_LOSSES


@st.composite
def cases(draw: st.DrawFn) -> Case:
    loss = draw(st.sampled_from((*CLASS_LOSSES, *CLASS_LOSSES, *ENTRY_LOSSES)))
    by_class = loss in CLASS_LOSSES
    layouts = ("classes", "tokens", "images") if by_class else ("flat", "column", "vector")
    way = draw(st.sampled_from(("pair", "own", "module", "partial", "lambda", "unreduced")))
    if way == "pair":
        loss, by_class = ("cross-entropy", True) if by_class else ("binary", False)
    layout = draw(st.sampled_from(layouts))
    plain = way == "pair"
    reductions = ["mean", "sum"] if way != "own" else ["mean"]
    if loss == "kl":
        reductions = ["batchmean", *reductions] if layout == "vector" else reductions
    masked = by_class and layout != "classes" and draw(st.booleans())
    return Case(
        seed=draw(st.integers(0, 2**32 - 1)),
        batch=draw(st.integers(2, 5)),
        classes=draw(st.integers(2, 5)),
        sides=(draw(st.integers(2, 4)), draw(st.integers(1, 3))),
        layout=layout,
        loss=loss,
        way=way,
        reduction="mean" if plain else draw(st.sampled_from(reductions)),
        weighted=not plain and by_class and draw(st.booleans()),
        smoothing=0.2 if loss == "cross-entropy" and not plain and draw(st.booleans()) else 0.0,
        ignore=-100 if plain else draw(st.sampled_from((-100, -1, 0, 255))),
        masked=masked,
        shift=int(
            layout == "tokens" and way in ("own", "lambda", "unreduced") and draw(st.booleans())
        ),
        column=layout in ("classes", "flat", "column") and draw(st.booleans()),
        stray=draw(st.sampled_from((-3, 77)))
        if by_class and draw(st.integers(0, 9)) == 0
        else None,
        dtype=draw(st.sampled_from((torch.float32, torch.float64)))
        if way in ("own", "lambda")
        else draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16))),
        label_dtype=draw(st.sampled_from((torch.long, torch.int32)))
        if way in ("pair", "module", "partial")
        else torch.long,
    )


def data(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, labels and class weights."""
    g = torch.Generator().manual_seed(case.seed)
    b, c, (h, w) = case.batch, case.classes, case.sides
    shape = {
        "classes": (b, c),
        "tokens": (b, h, c),
        "images": (b, c, h, w),
        "flat": (b,),
        "column": (b, 1),
        "vector": (b, c),
    }[case.layout]
    z = (2 * torch.randn(shape, generator=g)).to(case.dtype)
    weight = torch.tensor([0.3137, 1.0719, 2.5373, 0.7193, 4.1931])[:c].to(case.dtype)
    if not case.by_class:
        y = torch.rand(shape, generator=g)
        if case.loss == "binary":
            y = (y > 0.5).float()
        if case.loss == "kl":
            z, y = z.float().log_softmax(-1).to(case.dtype), y.softmax(-1)
        y = y.to(case.dtype)
        if case.column:
            y = y.reshape(b, 1) if case.layout == "flat" else y.reshape(b)
        if case.way == "pair" and case.layout != "vector":
            y = y.long()
        return z, y, weight
    if case.loss == "nll":
        z = z.float().log_softmax(1 if case.layout == "images" else -1).to(case.dtype)
    places = {"classes": (b,), "tokens": (b, h), "images": (b, h, w)}[case.layout]
    y = torch.randint(0, c, places, generator=g)
    if case.masked:
        y[torch.rand(places, generator=g) < 0.3] = case.ignore
    if case.stray is not None:
        y.view(-1)[int(torch.randint(0, y.numel(), (), generator=g))] = case.stray
    return z, (y.unsqueeze(1) if case.column else y).to(case.label_dtype), weight


def function(case: Case, weight: Tensor) -> Callable[..., Any]:
    """The loss as a user writes it; takes the class second, as torch does."""
    options: dict[str, Any] = {}
    if case.by_class:
        options["ignore_index"] = case.ignore
        if case.weighted:
            options["weight"] = weight
        if case.smoothing:
            options["label_smoothing"] = case.smoothing
    module, plain = {
        "cross-entropy": (nn.CrossEntropyLoss, F.cross_entropy),
        "nll": (nn.NLLLoss, F.nll_loss),
        "squares": (nn.MSELoss, F.mse_loss),
        "absolute": (nn.L1Loss, F.l1_loss),
        "smooth": (nn.SmoothL1Loss, F.smooth_l1_loss),
        "huber": (nn.HuberLoss, F.huber_loss),
        "binary": (nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits),
        "kl": (nn.KLDivLoss, F.kl_div),
    }[case.loss]
    if case.way == "module":
        return module(reduction=case.reduction, **options)
    if case.way == "partial":
        return functools.partial(plain, reduction=case.reduction, **options)
    reduction = "none" if case.way == "unreduced" else case.reduction

    def written(z: Tensor, y: Tensor) -> Tensor:
        if case.layout == "tokens":
            z = z.transpose(1, 2)
            if case.shift:
                z, y = z[:, :, :-1], y[:, 1:]
        if case.by_class and case.column:
            y = y.squeeze(1)
        if not case.by_class and y.shape != z.shape:
            y = y.reshape(z.shape)
        return plain(z, y, reduction=reduction, **options)  # type: ignore[no-any-return]

    return written


class Given(nn.Module):
    """Puts out what it is given; with a loss of its own where there is one."""

    def __init__(self, loss: Callable[..., Tensor] | None) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        if self.loss is None:
            return x
        return {"logits": x} | ({} if labels is None else {"loss": self.loss(x, labels)})


def entry(case: Case, z: list[float], y: float, weight: list[float]) -> float:
    """The loss of one entry: a row of class scores, or one number, against one label."""
    if case.by_class:
        top = max(z)
        total = math.log(sum(math.exp(v - top) for v in z)) + top
        nll = [total - v for v in z] if case.loss == "cross-entropy" else [-v for v in z]
        weights = weight if case.weighted else [1.0] * len(z)
        hard = weights[int(y)] * nll[int(y)]
        soft = sum(w * v for w, v in zip(weights, nll, strict=True)) / len(z)
        return (1 - case.smoothing) * hard + case.smoothing * soft
    (v,) = z
    error = abs(v - y)
    if case.loss == "binary":
        return max(v, 0) - v * y + math.log1p(math.exp(-abs(v)))
    if case.loss == "kl":
        return y * (math.log(y) - v) if y > 0 else 0.0
    small = 0.5 * error * error
    smooth = small if error < 1 else error - 0.5
    return {"squares": error * error, "absolute": error}.get(case.loss, smooth)


def reference(case: Case, z: Tensor, y: Tensor, weight: Tensor) -> list[float] | None:
    """Each sample's loss, entry by entry; None where a label is of no class."""
    found = []
    weights = weight.double().tolist()
    # torch's own losses have the class second, also where it could be last as well
    square = case.layout == "tokens" and case.sides[0] == case.classes
    second = case.layout == "images" or (square and case.way in ("module", "partial"))
    for zi, yi in zip(z.double(), y.double(), strict=True):
        if case.by_class:
            rows = zi.movedim(0, -1) if second else zi
            rows, labels = rows.reshape(-1, case.classes), yi.reshape(-1)
            if case.shift:
                rows, labels = rows[:-1], labels[1:]
            pairs = list(zip(rows.tolist(), labels.tolist(), strict=True))
            if any(not 0 <= label < case.classes for _, label in pairs if label != case.ignore):
                return None
            # a function that gives a value for each position has zeros where it ignores a label;
            # they count, but for torch's own −100
            counted = sum(label != -100 for _, label in pairs)
            pairs = [(row, label) for row, label in pairs if label != case.ignore]
        else:
            numbers = zip(zi.reshape(-1).tolist(), yi.reshape(-1).tolist(), strict=True)
            pairs = [([v], label) for v, label in numbers]
        values = [entry(case, row, label, weights) for row, label in pairs]
        summed = case.reduction != "mean" and case.way != "unreduced"
        count = counted if case.by_class and case.way == "unreduced" else len(values)
        found.append(sum(values) / (1 if summed else max(1, count)))
    return found


def right(case: Case, got: Tensor, want: list[float]) -> bool:
    low = case.dtype == torch.bfloat16
    wanted = torch.tensor(want, dtype=torch.float64)
    if case.weighted and case.way in ("lambda", "own"):
        # a mean over one class alone: its weight is a factor of all, and cancels
        wanted = wanted * (float(got.double().sum()) / max(1e-12, float(wanted.sum())))
    tolerance = {"rtol": 6e-2, "atol": 3e-2} if low else {"rtol": 2e-3, "atol": 2e-4}
    return torch.allclose(got.double(), wanted, **tolerance)


def check(case: Case) -> list[str]:
    """Score batches whose losses are known, all with the one sifter that met the first."""
    z, y, weight = data(case)
    loss = None if case.way == "pair" else function(case, weight)
    model = Given(loss if case.way == "own" else None)
    options = {} if case.way in ("pair", "own") else {"loss_fn": loss}
    sifter = Sifter(model, exit="last", score="loss", **options)
    outcomes: list[str] = []
    for number in range(BATCHES):
        if number:
            z, y, _ = data(dataclasses.replace(case, seed=case.seed + number))
        if case.way == "pair" and y.is_floating_point() and bool((y.sum(-1) == 1).all()):
            break  # probabilities of classes as much as bits
        outcome = scored(case, sifter, loss, z, y, weight)
        if outcome is None:
            break
        outcomes.append(outcome)
        if outcome == "refused":
            break  # training ends here
    if not outcomes:
        reject()
    return outcomes


def scored(
    case: Case, sifter: Sifter, loss: Any, z: Tensor, y: Tensor, weight: Tensor
) -> str | None:
    """What becomes of one batch; None where no one could tell what its losses are."""
    want = reference(case, z, y, weight)
    batch: Any = {"x": z, "labels": y} if case.way == "own" else (z, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = sifter.score(batch)
        except ValueError as error:
            return refusal(error)
    if not bool(got.isfinite().all()):
        return "refused"  # by select, with the rows that are not finite
    assert want is not None, f"scored {got} a label of no class"
    by_chance = case.weighted and case.way in ("lambda", "own") and not right(case, got, want)
    if by_chance and math.isclose(float(loss(z, y)), float(got.mean()), rel_tol=1e-4):
        return None  # weights that make no difference to this mean
    assert right(case, got, want), f"{got.tolist()} for {want}"
    return "right"


FUZZ = register("losses", Fuzz(cases(), check))
STRATEGY = FUZZ.cases
