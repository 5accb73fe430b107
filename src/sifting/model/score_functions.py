"""Which scores an objective can give, and of what a user's score function is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sifting.data.tree import describe
from sifting.model.parts import Part, Score, rows_of
from sifting.selection import scores
from sifting.selection.tokens import MeanOfTokens

if TYPE_CHECKING:
    from sifting.model.plan import Plan


def check_score(score: Score, parts: Sequence[Part], *, from_parts: bool) -> None:
    """Raise where a score cannot be had from an objective.

    >>> check_score("entropy", [Part("logits", "labels", "squares")], from_parts=True)
    Traceback (most recent call last):
    ValueError: score='entropy' needs class logits, but the objective is logits → labels by squared...

    Args:
        from_parts: whether losses come from the parts, rather than from the user or the model.
    """
    if score == "loss" and not from_parts:
        return
    if not parts:
        raise ValueError(
            f"score={score!r} needs logits that fit the labels, and the model returns none, or only "
            "a reduced loss: use score='loss', or pass forward= that returns the logits"
        )
    if callable(score):
        return
    if score in scores.NEEDS_LABELS and any(part.labels is None for part in parts):
        raise ValueError(
            f"score={score!r} needs labels in a tensor, and the batch has none: yield (inputs, labels) or a "
            "dict with a 'labels' key, pass labels=lambda batch: torch.as_tensor(…), or use score='entropy'"
        )
    bare = [part for part in parts if not part.has_classes]
    if score != "loss" and bare:
        raise ValueError(
            f"score={score!r} needs class logits, but the objective is {bare[0]}: use score='loss'"
        )


def check_labelled(plan: Plan, batch: Any) -> None:
    """Raise where a score that nobody named would be the entropy of outputs that nobody explained.

    A batch without labels may be one whose labels are not found, or of a model without classes: the
    entropy of a reconstruction is a number, and means nothing.
    """
    if plan.kind == "parts" and plan.parts and all(part.labels is None for part in plan.parts):
        raise ValueError(
            f"no labels are found in the batch ({describe(batch)}), and the model gives no loss, so nothing says "
            "what is trained: pass labels=lambda batch: … where they are in it, losses=lambda model, batch: … "
            "that returns one loss per sample, or score='entropy' where the outputs are logits of classes"
        )


def check_tokens(plan: Plan, score: Score) -> None:
    """Raise where there are no tokens' scores to be weighed by `tokens=`."""
    if isinstance(plan.tokens, MeanOfTokens):
        return
    given = f"tokens={plan.tokens.name!r}"
    if (score == "loss" and plan.kind != "parts") or (callable(score) and not plan.by_rows):
        what = {
            "losses": "losses=",
            "loss_fn": "the loss function",
            "model": "the model's own loss",
        }
        who = "the score function" if callable(score) else what[plan.kind]
        raise ValueError(
            f"{given} weighs the scores of tokens, and {who} gives one value per sample: weigh them there, and "
            "leave tokens= out"
        )
    if not any(part.has_classes and len(plan.shapes[part.logits]) > 1 for part in plan.parts):
        raise ValueError(
            f"{given} weighs the scores of tokens, and this model has one prediction per sample: leave tokens= out"
        )


def takes_rows(
    score: Callable[[Any, Any], Tensor],
    parts: Sequence[Part],
    logits: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
) -> bool:
    """Whether a score function is one of rows, `(logits_NC, labels_N) -> scores_N`.

    >>> part, z = Part("logits", "labels", "classes"), torch.zeros(2, 5, 3)
    >>> y = {"labels": torch.zeros(2, 5, dtype=torch.long)}
    >>> takes_rows(lambda z, y: 1 - z.softmax(-1).amax(-1), [part], {"logits": z}, y)
    True
    >>> takes_rows(lambda z, y: z.amax(dim=(1, 2)), [part], {"logits": z}, y)
    False

    `score.of_rows = True` (or False) says so. Else it is tried: a function that gives a value a
    sample for logits as they are is taken by its word; one that does not, on more rows than there
    are samples. The two are the same where a sample has one prediction.

    Args:
        score: the function.
        parts: the objective.
        logits: of some samples, at least two.
        labels: of the same.
    """
    said = getattr(score, "of_rows", None)
    if said is not None:
        return bool(said)
    with torch.no_grad():
        size = len(logits[parts[0].logits])
        if len(parts) == 1:
            part = parts[0]
            whole = _tried(score, logits[part.logits], labels[part.labels] if part.labels else None)
        else:
            whole = _tried(score, logits, labels)
        if whole == (size,) or not all(part.has_classes for part in parts):
            return False
        for part in parts:
            rows = rows_of(part, logits[part.logits], labels[part.labels] if part.labels else None)
            for logits_NC, labels_N in rows.chunks():
                if len(logits_NC) == logits_NC.shape[1]:  # a row of logits is no column of scores
                    logits_NC = logits_NC[1:]
                    labels_N = None if labels_N is None else labels_N[1:]
                if _tried(score, logits_NC, labels_N) != (len(logits_NC),):
                    return False
    return True


def _tried(score: Callable[[Any, Any], Tensor], logits: Any, labels: Any) -> tuple[int, ...] | None:
    """The shape of what a function gives; None where it fails."""
    try:
        return tuple(score(logits, labels).shape)
    except Exception:  # whatever a function raises on what it is not made for
        return None


def custom_losses(plan: Plan, logits: dict[str, Tensor], batch: Any) -> Tensor:
    """Each sample's loss by the user's own function."""
    assert plan.loss_fn is not None
    (values,), (labels,) = logits.values(), plan.call.labels_of(batch).values()
    return plan.loss_fn(values, labels.to(values.device))


def custom_scores(
    plan: Plan, score: Callable[[Any, Any], Tensor], logits: dict[str, Tensor], batch: Any
) -> Tensor:
    """Scores from the user's own function, checked to be one per sample."""
    labels = plan.call.labels_of(batch)
    size = plan.call.samples.size(batch)
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
