"""Finding out, on some samples, how a model is scored: its plan.

The objective comes first (`model/objective.py`), or the user's own loss, held against the model; then
the heads that can run on single positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.data.tree import describe
from sifting.model.by_sample import Losses, check_reduced, given_losses
from sifting.model.call import Call, logits_of
from sifting.model.head import Head, find_head
from sifting.model.objective import Objective, resolve
from sifting.model.parts import IGNORE, Score
from sifting.model.plan import Plan
from sifting.model.sample_losses import PerSampleLoss


def find_plan(
    call: Call,
    model: nn.Module,
    batch: Any,
    loss_fn: PerSampleLoss | None = None,
    *,
    losses: Losses | None = None,
    score: Score | None = None,
    rows: Tensor | None = None,
) -> Plan:
    """The plan of a model, found on some samples; the model is in eval mode, without gradients.

    >>> import torch
    >>> batch = (torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    >>> print(find_plan(Call(), nn.Linear(3, 5), batch))
    logits → labels by cross-entropy; assumed, since the model gives no loss of its own

    Args:
        call: how the model is called.
        model: to score.
        batch: the samples.
        loss_fn: the user's loss, made per sample.
        losses: the user's `losses(model, batch)`.
        score: by what is scored; with `losses`, logits are only looked for where it needs them.
        rows: the rows of these samples in the batch that they are from.
    """
    if losses is not None:
        if loss_fn is not None:
            raise ValueError(
                "loss_fn= and losses= both say what a sample's loss is: pass one of them"
            )
        given_losses(losses, call, model, batch)
        if score is None or score == "loss":
            return Plan(call, (), explained=False, losses_fn=losses)
    else:
        call.check_labels(batch)
    custom = loss_fn is not None or losses is not None
    ignore = IGNORE if loss_fn is None else loss_fn.ignore
    found = resolve(call, model, batch, custom=custom, ignore=ignore, rows=rows)
    call = found.call
    if not found.parts and not found.logits and found.reference is None:
        raise ValueError(
            "the model's output holds neither logits nor a loss, so nothing can be scored "
            f"({describe(batch)}): pass losses=lambda model, batch: … that returns one loss per sample, or "
            "forward= that returns the logits"
        )
    if loss_fn is not None:
        _check_loss_fn(loss_fn, found, batch)
    elif losses is None and not found.explained and found.loss_fn is None:
        assert found.reference is not None
        check_reduced(call, model, batch, found.reference)
    loss_fn = loss_fn or found.loss_fn
    shapes = {name: tuple(value.shape[1:]) for name, value in found.logits.items()}
    explained = found.explained and losses is None
    plan = Plan(call, found.parts, {}, shapes, loss_fn, explained, losses, found.origin(custom))
    if rows is not None:  # else it is said of the whole batch, by its own rows
        plan.check_batch(batch, rows=rows)
    if call.always_labels or loss_fn is not None:
        return plan  # a model that must have labels works on its logits, so it must get real ones
    return replace(plan, heads=_heads(found, model, batch))


def _check_loss_fn(loss_fn: PerSampleLoss, found: Objective, batch: Any) -> None:
    """Raise where the user's loss is no loss of each sample of this model's outputs."""
    given = found.call.labels_of(batch)
    if len(found.logits) != 1 or len(given) != 1:
        raise ValueError(
            f"loss_fn needs one output and one set of labels; the model gives {sorted(found.logits)} "
            f"and the batch {sorted(given)}: pass losses=lambda model, batch: … for "
            "the sum of several, or forward= and labels= that return one each"
        )
    (logits,), (labels,) = found.logits.values(), given.values()
    labels = labels.to(logits.device)
    if found.reference is not None and loss_fn.by_class:
        _check_shift(loss_fn, logits, labels, found.reference)
    loss_fn.check(logits, labels)


def _check_shift(loss_fn: PerSampleLoss, logits: Tensor, labels: Tensor, reference: Tensor) -> None:
    """Raise where a loss of torch's would hold each token of a causal model against itself."""
    if logits.ndim != 3 or logits.shape[:2] != labels.shape or labels.shape[1] < 2:
        return
    wanted = labels[:, 1:].long()
    own = F.cross_entropy(logits[:, :-1].float().movedim(-1, 1), wanted, ignore_index=IGNORE)
    if not torch.isclose(own, reference.to(own), rtol=1e-3):
        return
    raise ValueError(
        f"loss_fn={loss_fn} holds each position against its own label, and this model's own loss holds it "
        "against the next one's: by loss_fn= a token would be predicted from itself. Leave loss_fn= out; or shift "
        "in it: loss_fn=lambda z, y: F.cross_entropy(z[:, :-1].movedim(-1, 1), y[:, 1:], reduction='none')"
    )


def _heads(found: Objective, model: nn.Module, batch: Any) -> dict[str, Head]:
    """By name of the logits, the head that can run on single positions."""
    heads = {}
    for part in found.parts:
        shape = found.logits[part.logits].shape
        if part.kind == "classes" and len(shape) == 3:
            head = find_head(
                model, lambda: logits_of(found.call.run(model, batch)), part.logits, shape
            )
            if head is not None:
                heads[part.logits] = head
    return heads
