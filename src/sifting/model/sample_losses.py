"""The user's own loss function, made to give one value per sample.

Shapes: B samples.
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.parts import IGNORE, Part, check_labels

# Losses of torch that compare outputs and labels entry by entry: broadcasting would mix samples.
_BY_ENTRY = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.KLDivLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.kl_div,
    F.poisson_nll_loss,
    F.soft_margin_loss,
)
_BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss, F.cross_entropy, F.nll_loss)
_MOST_NUMBERS = 16  # that are tried as the label that means none


class PerSampleLoss:
    """A loss function made to give one value per sample.

    >>> PerSampleLoss(nn.MSELoss())(torch.zeros(2, 3), torch.ones(2, 3))
    tensor([1., 1.])

    Modules with a `reduction` are copied with it off; functions that take `reduction` are
    called with "none"; a function that can only reduce is called once a sample. A sample's value
    is the mean over its entries, or their sum where the loss itself sums. Positions with the
    label that the loss ignores (`ignore_index`, else −100) do not count. Outputs (B, 1) against
    labels (B,) are compared sample by sample, never broadcast.

    Args:
        loss_fn: `loss_fn(logits, labels)`.
        shift: 1 where position t predicts the label at t + 1.
    """

    def __init__(self, loss_fn: Callable[..., Tensor], *, shift: int = 0) -> None:
        if not callable(loss_fn):
            raise TypeError(f"loss_fn={loss_fn!r} is not callable: pass loss_fn(logits, labels)")
        self.given, self.shift = loss_fn, shift
        self.loss_fn = loss_fn
        self.options: dict[str, Any] = {}
        self.reduction = _option(loss_fn, "reduction")
        if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction"):
            self.loss_fn = copy.copy(loss_fn)
            self.loss_fn.reduction = "none"  # type: ignore[assignment]
        elif _takes(loss_fn, "reduction"):
            self.options = {"reduction": "none"}
        found = _option(loss_fn, "ignore_index")
        self.ignore = found if isinstance(found, int) else IGNORE
        self.by_entry, self.by_class = _is_one(loss_fn, _BY_ENTRY), _is_one(loss_fn, _BY_CLASS)

    def __str__(self) -> str:
        if isinstance(self.given, nn.Module):
            return type(self.given).__name__
        base = self.given.func if isinstance(self.given, functools.partial) else self.given
        name = getattr(base, "__name__", type(base).__name__)
        return "loss_fn" if name == "<lambda>" else str(name)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        batch = logits.shape[0]
        logits, labels = self._fitted(logits, labels)
        try:
            values = self.loss_fn(logits, labels, **self.options)
        except IndexError as error:  # torch: "Target 77 is out of bounds."
            raise self._named(error, logits, labels) from error
        if not isinstance(values, Tensor):
            raise TypeError(
                f"loss_fn gave a {type(values).__name__}: return a tensor, one value per sample or a scalar"
            )
        if values.ndim == 0:
            return self._one_by_one(logits, labels)
        if values.shape[0] != batch:
            raise ValueError(
                f"loss_fn gave a tensor of shape {tuple(values.shape)} for {batch} samples: return "
                "one value per sample, or a scalar"
            )
        if logits.numel() == labels.numel() == batch != values.numel():
            raise ValueError(
                f"loss_fn compares every sample with every other: outputs {tuple(logits.shape)} and labels "
                f"{tuple(labels.shape)} broadcast to {tuple(values.shape)}. Give both the same shape, with "
                "loss_fn=lambda z, y: … z.squeeze(1) …"
            )
        values = values.float().reshape(batch, -1)
        if self.reduction in ("sum", "batchmean"):
            return values.sum(dim=1)
        counted = self._counted(values, labels)
        if counted is not None:
            return (values * counted).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
        return values.mean(dim=1)

    def check(self, logits: Tensor, labels: Tensor) -> None:
        """Raise where a sample's loss is another among others than alone."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of broadcasting, which is what is looked for
            try:
                among_B = self(logits, labels)
            except (RuntimeError, IndexError, TypeError) as error:
                raise ValueError(
                    f"loss_fn failed on outputs {tuple(logits.shape)} of {logits.dtype} and labels "
                    f"{tuple(labels.shape)} of {labels.dtype}: {error}. Pass loss_fn=lambda z, y: … "
                    "that takes them as they are"
                ) from error
            if len(logits) < 2:
                return
            alone_B = torch.cat(
                [self(logits[i : i + 1], labels[i : i + 1]) for i in range(len(logits))]
            )
        if not torch.allclose(among_B, alone_B, **_tolerance(logits), equal_nan=True):
            row = int((among_B - alone_B).abs().argmax())
            raise ValueError(
                f"loss_fn mixes samples: that of row {row} is {float(alone_B[row]):.4g} alone and "
                f"{float(among_B[row]):.4g} among {len(logits)}, with outputs {tuple(logits.shape)} and "
                f"labels {tuple(labels.shape)}. Compare like with like (z.squeeze(1)), or pass "
                "losses=lambda model, batch: … where samples belong together"
            )

    def reduced(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch as the user's function itself reduces it."""
        logits, labels = self._fitted(logits, labels)
        return self.given(logits, labels).float().mean()

    def _fitted(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and labels in the shapes that torch's own losses want; as they are for others."""
        if self.shift:
            logits, labels = logits[:, : -self.shift], labels[:, self.shift :]
        if self.by_entry:
            if not labels.is_floating_point():
                labels = labels.to(logits.dtype)
            if logits.shape != labels.shape:
                labels = _like(logits, labels, str(self))
        elif self.by_class and not labels.is_floating_point():
            labels = labels.long()
            if labels.ndim > 1 and labels.numel() == len(logits) and logits.ndim == 2:
                labels = labels.reshape(-1)
            class_last = logits.ndim > 2 and logits.shape[:-1] == labels.shape
            if class_last and logits.shape[2:] != labels.shape[1:]:
                logits = logits.movedim(-1, 1)
            if logits.ndim > 1 and logits.shape[1] == 1:
                raise ValueError(
                    f"{self} on outputs {tuple(logits.shape)} has a single class, so every loss is 0: give "
                    "the model a logit for each class, or pass loss_fn=nn.BCEWithLogitsLoss()"
                )
            part = Part("outputs", "labels", "classes_first", ignore=self.ignore)
            check_labels(part, logits.shape, labels)
        return logits, labels

    def _named(self, error: IndexError, logits: Tensor, labels: Tensor) -> Exception:
        """What a label out of range raises, with the row that it is in."""
        for i in range(len(logits)):
            try:
                self.loss_fn(logits[i : i + 1], labels[i : i + 1], **self.options)
            except IndexError:
                return ValueError(
                    f"loss_fn failed on row {i}, whose labels are {labels[i].tolist()}: {error} Correct that "
                    "label, or pass loss_fn= that ignores it (ignore_index)"
                )
        return error

    def _counted(self, values_BX: Tensor, labels: Tensor) -> Tensor | None:
        """Which of the values have a label; None where they cannot be told apart."""
        if labels.is_floating_point():
            return None
        # only the loss itself knows which label means none: −1 may be a class
        batch = len(values_BX)
        if labels.numel() == values_BX.numel():
            return (labels != self.ignore).reshape(batch, -1)
        if labels.ndim == 2 and values_BX.shape[1] == labels.shape[1] - 1:  # shifted inside
            return labels[:, 1:] != self.ignore
        return None

    def _one_by_one(self, logits: Tensor, labels: Tensor) -> Tensor:
        batch = len(logits)
        values_B = torch.stack(
            [self.given(logits[i : i + 1], labels[i : i + 1]).float() for i in range(batch)]
        ).reshape(batch)
        number = self.ignore
        if batch > 1:
            whole = self.given(logits, labels).detach().float().mean()
            number = self._none_among(whole, values_B.detach(), logits, labels)
        if labels.is_floating_point():
            return values_B
        none_B = (labels == number).reshape(batch, -1).all(dim=1)
        return torch.where(none_B, 0.0, values_B)  # a mean over nothing is not a number

    def _none_among(self, whole: Tensor, values_B: Tensor, logits: Tensor, labels: Tensor) -> int:
        """The label that means none, by which the samples' losses make up their batch's.

        Raises where they do not, as mean, sum or largest: class weights are lost in a mean over
        one sample.
        """
        means = [values_B.mean(), values_B.sum(), values_B.max(), values_B.square().mean().sqrt()]
        ways = [(mean, self.ignore) for mean in means]
        if not labels.is_floating_point():
            flat_BX = labels.reshape(len(labels), -1)
            numbers, often = torch.unique(flat_BX, return_counts=True)
            likely = numbers[often.argsort(descending=True)][:_MOST_NUMBERS].tolist()
            # a sample with one label has none to leave out, unless the loss says which
            for number in dict.fromkeys([self.ignore, *(likely if flat_BX.shape[1] > 1 else ())]):
                for kept_BX in (flat_BX, flat_BX[:, 1:]):
                    count_B = (kept_BX != number).sum(dim=1).to(values_B.device)
                    sums_B = torch.where(count_B > 0, values_B * count_B, 0.0)
                    ways.append((sums_B.sum() / count_B.sum().clamp_min(1), number))
        for mean, number in ways:
            if bool(torch.isclose(mean, whole.to(mean.device), **_tolerance(logits))):
                return number
        if not bool(values_B.isfinite().all()):
            return self.ignore  # what is broken is said of the scores
        if logits.numel() == labels.numel() == len(values_B) and logits.shape != labels.shape:
            raise ValueError(
                f"loss_fn gives {float(whole):.4g} for {len(values_B)} samples, but {float(values_B.mean()):.4g} "
                f"on average for them one by one: outputs (B, {', '.join(map(str, logits.shape[1:]))}) and labels "
                f"(B{''.join(f', {n}' for n in labels.shape[1:])}) broadcast, so that every sample is compared "
                "with every other. Give both the same shape in your step too, with loss_fn=lambda z, y: … "
                "z.squeeze(1) …"
            )
        raise ValueError(
            f"loss_fn gives {float(whole):.4g} for {len(values_B)} samples, but {float(values_B.mean()):.4g} "
            "on average for them one by one: it weighs samples against one another (class weights, a "
            "batch's own scale), which a scalar does not show. Return one value per sample, as with "
            "reduction='none', or pass losses=lambda model, batch: …"
        )


def _tolerance(logits: Tensor) -> dict[str, Any]:
    low = logits.dtype in (torch.float16, torch.bfloat16)
    return {"rtol": 3e-2, "atol": 1e-2} if low else {"rtol": 1e-5, "atol": 1e-6}


def _like(logits: Tensor, labels: Tensor, name: str) -> Tensor:
    """Labels in the shape of the outputs, entry by entry."""
    if labels.shape[:1] == logits.shape[:1]:
        if labels.numel() == logits.numel():
            return labels.reshape(logits.shape)
        if labels.ndim == logits.ndim:
            try:
                return labels.expand(logits.shape)
            except RuntimeError:
                pass
    raise ValueError(
        f"{name} compares outputs {tuple(logits.shape)} with labels {tuple(labels.shape)}, which have other "
        "entries: give the model as many outputs as there are labels, or pass loss_fn=lambda z, y: … that "
        "brings them together"
    )


def _is_one(function: Any, known: tuple[Any, ...]) -> bool:
    base = function.func if isinstance(function, functools.partial) else function
    return any(type(base) is one if isinstance(one, type) else base is one for one in known)


def _option(function: Any, name: str) -> Any:
    """A setting of a loss: an attribute, a bound argument, or the default of a parameter."""
    found = getattr(function, name, None)
    if found is None and isinstance(function, functools.partial):
        found = function.keywords.get(name)
    if found is None and _takes(function, name):
        default = inspect.signature(function).parameters[name].default
        found = None if default is inspect.Parameter.empty else default
    return found


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
