"""What training itself tells of the scorers: kept loss and agreement, pooled over steps.

Shapes: B samples of a step, C outputs, H features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.autopilot.options import LADDER, Option
from sifting.exits.scoring import Scorer
from sifting.log import say
from sifting.measure.kept_loss import GradientAgreement, agreement, kept_loss, products
from sifting.model.call import logits_of

FADE = 0.95  # weight of what is known beside the next step's
FEWEST = 8  # steps before anything is concluded from them, or from there being none


class Evidence:
    """Kept loss and agreement of every scorer at every ratio, as running means."""

    def __init__(self) -> None:
        self.kept: dict[Option, tuple[float, float]] = {}  # sum and weight
        self.agreements: dict[Option, GradientAgreement] = {}
        self.counts: dict[str, int] = {}

    def add(
        self,
        scores: Mapping[str, Tensor],
        losses_B: Tensor,
        errors_BC: Tensor | None = None,
        features_BH: Tensor | None = None,
    ) -> None:
        """Take in a step whose exact losses are known.

        Args:
            scores: of its samples, by scorer.
            losses_B: exact ones.
            errors_BC, features_BH: see `products`; None where they are not known.
        """
        whole_BB: Tensor | None = None  # of all samples, for every scorer that has scores of all
        for scorer, scores_B in scores.items():
            sound_B = losses_B.isfinite() & scores_B.to(losses_B.device).isfinite()
            if int(sound_B.sum()) < 2 * LADDER[0]:
                continue
            self.counts[scorer] = self.counts.get(scorer, 0) + 1
            scores_B = scores_B.to(losses_B.device)[sound_B]
            gram_BB = None
            if errors_BC is not None:
                features = None if features_BH is None else features_BH[sound_B]
                every = bool(sound_B.all())
                gram_BB = whole_BB if every else None
                if gram_BB is None:
                    gram_BB = products(errors_BC[sound_B], features)
                whole_BB = gram_BB if every else whole_BB
            for ratio in LADDER:
                option = Option(scorer, ratio)
                total, weight = self.kept.get(option, (0.0, 0.0))
                found = kept_loss(scores_B, losses_B[sound_B], ratio)
                self.kept[option] = FADE * total + found, FADE * weight + 1
                if gram_BB is None:
                    continue
                count = max(1, math.ceil(len(scores_B) / ratio))
                kept_K = scores_B.argsort(descending=True, stable=True)[:count]
                new = agreement(gram_BB, kept_K)
                known = self.agreements.get(option, GradientAgreement())
                self.agreements[option] = known.faded(FADE) + new

    def kept_loss(self, option: Option) -> float | None:
        """μ of an option; None while too little is known."""
        total, weight = self.kept.get(option, (0.0, 0.0))
        return total / weight if self.counts.get(option.scorer, 0) >= FEWEST else None

    def agreement(self, option: Option) -> float | None:
        """Agreement of an option; None where too little is known, or nothing can be told."""
        known = self.agreements.get(option)
        if known is None or self.counts.get(option.scorer, 0) < FEWEST:
            return None
        return None if math.isnan(known.value) else known.value

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts),
            "kept": [[o.scorer, o.ratio, *value] for o, value in self.kept.items()],
            "agreements": [
                [o.scorer, o.ratio, *vars(value).values()] for o, value in self.agreements.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.counts = {str(name): int(count) for name, count in state["counts"].items()}
        self.kept = {Option(s, int(r)): (float(a), float(b)) for s, r, a, b in state["kept"]}
        self.agreements = {
            Option(s, int(r)): GradientAgreement(*map(float, rest))
            for s, r, *rest in state["agreements"]
        }

    @classmethod
    def joined(cls, parts: Iterable[Evidence]) -> Evidence:
        """The evidence of all ranks together."""
        whole = cls()
        for part in parts:
            for option, (total, weight) in part.kept.items():
                known = whole.kept.get(option, (0.0, 0.0))
                whole.kept[option] = known[0] + total, known[1] + weight
            for option, value in part.agreements.items():
                whole.agreements[option] = whole.agreements.get(option, GradientAgreement()) + value
            for scorer, count in part.counts.items():
                whole.counts[scorer] = max(whole.counts.get(scorer, 0), count)
        return whole


def errors_of(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Derivative of cross-entropy by the logits: p − y.

    >>> errors_of(torch.zeros(1, 2), torch.tensor([0])).tolist()
    [[-0.5, 0.5]]
    """
    errors_BC = logits_BC.detach().float().softmax(dim=1)
    errors_BC[torch.arange(len(labels_B)), labels_B.long()] -= 1
    return errors_BC


def errors_in(output: Any, batch: Any, scorer: Scorer) -> Tensor | None:
    """`errors_of` a training forward; None where it does not predict one class per sample.

    Args:
        output: of the forward; None where losses were reported instead.
        batch: as it was trained.
        scorer: knows how the model's outputs and its labels belong together.
    """
    plan = scorer.plan
    if output is None or plan is None or plan.kind != "parts" or len(plan.parts) != 1:
        return None
    part = plan.parts[0]
    labels = plan.labels_for(part, scorer.moved(batch))
    logits = logits_of(output).get(part.logits)
    if logits is None or logits.ndim != 2 or part.kind != "classes":
        return None
    if labels is None or not bool((labels >= 0).all()):
        return None
    return errors_of(logits, labels)


def below_random(masses: Sequence[float], ratio: int) -> bool:
    """Whether audits find the kept one in `ratio` to carry less of the loss than as many at random.

    >>> below_random([0.3, 0.4, 0.35], 2), below_random([0.3, 0.7, 0.4], 2), below_random([0.3], 1)
    (True, False, False)

    Args:
        masses: kept loss at each audit.
        ratio: candidates for each that is kept; 1 where all are.
    """
    if ratio == 1 or len(masses) < 2:
        return False
    found = torch.tensor(masses, dtype=torch.float64)
    return bool(found.mean() + found.std() / math.sqrt(len(masses)) < 1 / ratio)


def say_unheard(batches: int, *, read: int) -> None:
    """Say, once, that no losses of what is trained reach the autopilot.

    Args:
        batches: that scorers were compared on, whose losses were waited for in vain.
        read: losses of steps that were read.
    """
    if batches == FEWEST and read == 0:
        say(
            f"the losses of {batches} batches that scorers were compared on did not reach the autopilot, which "
            "therefore knows no kept loss: call sifter.observe(losses) with one loss for each sample that "
            "is trained, or train the model that the sifter was given, on each batch as a whole and with "
            "logits that fit its labels"
        )
