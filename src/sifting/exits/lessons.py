"""What a tuned exit can learn to predict, and what its heads are trained on.

Shapes: B samples, T positions, H features, C classes, N labelled positions; F pooled features.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.exits.predictors import Predictor
from sifting.model.features import by_position
from sifting.model.parts import Part, Rows, Score, part_losses, rows_of
from sifting.model.plan import Plan
from sifting.model.stack import StackError

EXACT_EVERY = 8  # with losses=, every so many candidates the exact loss is computed to learn from
MOST_CLASSES = 1024  # of a head of its own at every position; more would cost what the model's does


def check_learnable(plan: Plan, probe: Any) -> None:
    """Raise where a model's outputs and labels are nothing that a tuned exit can learn from."""
    if not plan.call.labels_of(probe) or not plan.shapes:
        raise ValueError(
            "a tuned exit learns from logits and labels, and this model or batch gives "
            f"no {'logits' if not plan.shapes else 'labels'}: pass forward= and labels=, or choose exit=k or "
            "exit='last'"
        )
    if not plan.parts and plan.loss_fn is None:
        raise ValueError(
            "a tuned exit cannot learn what this model's labels mean, since they fit none of its "
            f"outputs {plan.shapes}: pass forward= and loss_fn=, or choose exit=k or exit='last'"
        )
    if plan.loss_fn is not None and any(len(shape) > 1 for shape in plan.shapes.values()):
        raise ValueError(
            f"a tuned exit predicts one value or vector per sample, not {plan.shapes}: choose exit=k or "
            "exit='last'"
        )
    for part in plan.parts:
        if part.labels in ("start_positions", "end_positions"):
            raise ValueError(
                f"a tuned exit cannot predict {part.labels}, whose number of classes is the length of "
                "each batch: choose exit=k or exit='last'"
            )


def classes_of(part: Part, shape: tuple[int, ...]) -> int:
    """How many classes logits have, by the shape of one sample's."""
    return shape[0 if part.kind == "classes_first" else -1]


def check_positions(
    plan: Plan, part: Part, hidden: Tensor, labels: Tensor | None, *, where: str
) -> None:
    """Raise where a head at every position has nothing to go by, or too many classes."""
    classes = classes_of(part, plan.shapes[part.logits])
    if classes > MOST_CLASSES:
        raise StackError(
            f"{where} cannot reach the model's own head, and would need one of {classes} classes at every "
            f"position ({MOST_CLASSES} at most): choose a block of its stack with TunedExit(k) and stack=, "
            "or use exit='last' or exit=MemoryExit()"
        )
    if labels is not None:
        at_positions(part, hidden, labels, where=where)


def at_positions(part: Part, hidden: Tensor, labels: Tensor, *, where: str) -> Tensor:
    """Features of each labelled position at an exit; raises where there are none."""
    first = part.kind == "classes_first"
    found = by_position(hidden, tuple(labels.shape[1:]), channels_first=first)
    if found is None:
        raise ValueError(
            f"{where} cannot predict {part.logits} at every position: labels are of shape {tuple(labels.shape)}, "
            f"and its module outputs {tuple(hidden.shape)}, which is not a vector for each of them. Name one "
            "that does, with exit=TunedExit('path.to.module'), or use exit='last' or exit=MemoryExit()"
        )
    return found


def score_rows(
    plan: Plan, part: Part, rows: Rows, score: Score, predictor: Predictor, *, study: int
) -> Tensor:
    """Scores of positions by what `rows.head` makes of them; the predictor in it learns from some.

    Args:
        plan: how the model is scored.
        part: the term.
        rows: the positions that count, with a head that contains the predictor.
        score: by what.
        predictor: what is trained.
        study: positions, at most, to learn from; 0 for none.
    """
    if callable(score) and not plan.by_rows:
        return torch.zeros(len(rows.mask_BT), device=rows.mask_BT.device)
    head = rows.head
    assert head is not None
    assert rows.labels_BT is not None
    if study:
        places = rows.located()
        # evenly spaced rather than drawn: no random stream is touched
        stride = -(-len(places.b_N) // study) or 1
        b, t = places.b_N[::stride], places.t_N[::stride]
        inputs_NH, labels_N = rows.inputs_BTH[b, t], rows.labels_BT[b, t]

        def objective() -> tuple[Tensor, Tensor | float]:
            # a sum over no rows is 0, and so is its gradient
            losses = F.cross_entropy(head(inputs_NH).float(), labels_N, reduction="sum")
            return losses / max(1, len(labels_N)), len(labels_N)

        predictor.study(objective)
    return plan.score(part, rows, None, score)


def objective_of(
    plan: Plan, name: str, predictor: Predictor, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor | float]:
    """What a head of its own is trained on: the loss of the model's own, averaged, and over what."""
    predicted = predictor(inputs).reshape(len(inputs), *plan.shapes[name])
    labels = labels.to(predicted.device)
    if plan.loss_fn is not None:
        return plan.loss_fn(predicted, labels).mean(), len(labels)
    part = next(part for part in plan.parts if part.logits == name)
    if not part.has_classes:
        return part_losses(part, predicted, labels).mean(), len(labels)
    if part.kind == "soft":
        return F.cross_entropy(predicted, labels), len(labels)
    rows = rows_of(part, predicted, labels)
    assert rows.labels_BT is not None
    kept_BT = rows.mask_BT
    safe_BT = rows.labels_BT.clamp_min(0)
    losses_BT = F.cross_entropy(rows.inputs_BTH.flatten(0, 1), safe_BT.flatten(), reduction="none")
    count = kept_BT.sum()
    return (losses_BT * kept_BT.flatten()).sum() / count.clamp_min(1), count


def study_losses(
    plan: Plan, model: nn.Module, batch: Any, predictor: Predictor, pooled_BF: Tensor
) -> None:
    """Have a predictor learn how high each loss is among its batch's, from the exact ones of some samples.

    Args:
        plan: how the model is scored, with the user's `losses=`.
        model: in eval mode, without gradients.
        batch: the samples.
        predictor: what is trained.
        pooled_BF: their features.
    """
    size = len(pooled_BF)
    rows = torch.arange(0, size, EXACT_EVERY if size > EXACT_EVERY else 1)
    exact_N = plan.exact_losses(model, plan.call.samples.take(batch, rows, size=size))
    assert exact_N is not None
    spread = exact_N.std().clamp_min(1e-12) if len(exact_N) > 1 else exact_N.new_ones(())
    wanted_N = ((exact_N - exact_N.mean()) / spread).to(pooled_BF.device)
    inputs_NF = pooled_BF[rows.to(pooled_BF.device)]

    def objective() -> tuple[Tensor, Tensor | float]:
        return F.huber_loss(predictor(inputs_NF).squeeze(1), wanted_N), len(rows)

    predictor.study(objective)


def labels_of_output(plan: Plan, name: str, batch: Any) -> Tensor | None:
    """The labels that an output of the model is trained on; None where it is not trained."""
    if plan.loss_fn is not None:
        return next(iter(plan.call.labels_of(batch).values()))
    for part in plan.parts:
        if part.logits == name:
            return plan.labels_for(part, batch)
    return None
