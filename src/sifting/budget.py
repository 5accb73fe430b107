"""What a step may train, in tokens or another cost: kept from step to step, so that the average holds.

Shapes: B candidates (of all ranks, where they choose together).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sifting.data.lengths import labelled_counts, token_counts, without_padding
from sifting.data.tree import describe
from sifting.measure.audit import warn_user
from sifting.model.call import Call
from sifting.plain import Plain
from sifting.selection.budget import SLACK, check_order, choose_within
from sifting.selection.choice import Choice, Rule
from sifting.selection.tokens import MeanOfTokens, Tokens

TOKENS = "tokens"


class Budget:
    """Chooses candidates whose costs come to a share of all candidates' costs.

    Where the costs allow it, a step spends no more than it may, and leaves 2 % at most. What it
    leaves is spent by the next ones, 2 % of its own budget by each, so that none misses its budget by
    more and the average holds. Where no choice of the candidates comes so close, the closest is taken,
    over or under, and what the steps before have left, or took too much, decides which. A candidate that
    costs more than the whole budget of its step is passed over, which is said once; where all do, the
    cheapest is kept.

    Args:
        given: "tokens", or a function `(batch) -> costs`.
        tokens: how a sample's score is made of its tokens'.

    Attributes:
        carry: what is left over from the steps so far; negative where they took too much.
    """

    def __init__(self, given: str | Callable[[Any], Any], tokens: Tokens) -> None:
        self.given, self.tokens = given, tokens
        self.carry = 0.0
        self._said = False

    def __repr__(self) -> str:
        return (
            self.given
            if isinstance(self.given, str)
            else getattr(self.given, "__name__", "a function")
        )

    def costs(self, batch: Any, size: int) -> Tensor:
        """What each sample of a batch costs."""
        if callable(self.given):
            return self._checked(self.given(batch), size)
        found = token_counts(batch)
        if found is None or len(found) != size:
            raise ValueError(
                f"budget='tokens', and the tokens of {size} samples cannot be counted in {describe(batch)}: "
                "yield a dict with 'attention_mask' or 'input_ids', or pass budget=lambda batch: … that "
                "returns one cost per sample"
            )
        return found.double().clamp_min(1)

    def _checked(self, found: Any, size: int) -> Tensor:
        costs_B = torch.as_tensor(found).detach().double().cpu()
        sound = costs_B.shape == (size,) and bool((costs_B > 0).all() & costs_B.isfinite().all())
        if not sound:
            shown = costs_B.tolist() if costs_B.numel() <= 8 else f"{tuple(costs_B.shape)}"
            raise ValueError(
                f"budget={self!r} gave {shown} for {size} samples: return one cost above 0 for each"
            )
        return costs_B

    def per_cost(self, scores_B: Tensor, costs_B: Tensor, batch: Any, call: Call) -> Tensor:
        """What each candidate is worth for what it costs.

        A mean, or a share, is worth as much again for each token that has a label; where all of a
        document's have one, it is the order of the scores themselves. One prediction per sample is
        worth its score, however long the sample.
        """
        costs_B = costs_B.to(scores_B)
        if self.tokens.grows or callable(self.given):
            return scores_B / costs_B
        labels, size = call.labels_of(batch).values(), len(scores_B)
        found = (labelled_counts(batch, value, size) for value in labels)
        counts_B = next((counts for counts in found if counts is not None), None)
        if counts_B is not None:
            return scores_B * counts_B.to(scores_B) / costs_B
        return scores_B / costs_B if labels else scores_B

    def choose(
        self,
        scores_B: Tensor,
        costs_B: Tensor,
        keep: float,
        *,
        rule: Rule,
        generator: torch.Generator,
        ranks: int = 1,
    ) -> Choice:
        """Choose within this step's budget, and carry over what it misses.

        Args:
            ranks: among which the chosen are divided: each gets one at least.
        """
        share = keep * float(costs_B.sum())
        more = min(max(self.carry, 0.0), SLACK * share)
        lowest = float(costs_B.min())
        budget = max(share + more, lowest)
        # by half of a candidate, no more: the next of this size is then on the other side
        aim = share + min(max(self.carry, -lowest / 2), lowest / 2)
        highest = float(costs_B.max())
        if highest > (1 + SLACK) * budget / ranks and not self._said:
            self._said = True
            warn_user(
                f"a sample costs {highest:.0f}, and the budget of its step is {budget / ranks:.0f}: such samples "
                "are passed over. Draw more candidates a step (a larger batch size), or cut long documents"
            )
        found = choose_within(
            scores_B,
            costs_B,
            budget,
            rule=rule,
            generator=generator,
            least=min(ranks, len(costs_B)),
            aim=aim,
        )
        spent = float(costs_B[found.indices_K.cpu()].sum())
        # where costs are too coarse for the budget, debts must not pile up
        self.carry = min(max(share + self.carry - spent, -share), share)
        return found

    def ready(self, batch: Any) -> Any:
        """What is trained: without the columns that only those left out had tokens in."""
        return without_padding(batch) if self.given == TOKENS else batch

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.carry = Plain(state, "the budget").number("carry")


def make_budget(given: Any, tokens: Tokens) -> Budget | None:
    """The budget that the argument `budget=` stands for; None where samples are counted.

    >>> from sifting.selection.tokens import MEAN
    >>> make_budget("samples", MEAN), make_budget("tokens", MEAN)
    (None, tokens)
    """
    if given == "samples":
        return None
    if given == TOKENS or (callable(given) and not isinstance(given, type)):
        return Budget(given, tokens)
    raise ValueError(
        f"budget={given!r}: choose 'samples', 'tokens', or pass a function (batch) -> costs"
    )


def checked_budget(budget: Any, tokens: Tokens, rule: Rule, keep: Any) -> Budget | None:
    """What `budget=` stands for, where the other arguments go with it."""
    found = make_budget(budget, tokens)
    if keep == "auto" and not isinstance(tokens, MeanOfTokens):
        raise ValueError(
            f"tokens={tokens.name!r} goes with a fixed keep=: an autopilot goes by losses as they are trained. "
            "Give keep=0.5, say"
        )
    if found is None:
        return None
    if keep == "auto":
        raise ValueError(
            f"budget={found!r} goes with a fixed keep=: an autopilot counts samples. Give keep=0.5, say"
        )
    check_order(rule)
    return found


def tokens_in(batch: Any) -> int:
    """Tokens of a batch, padding not counted; 0 where it has none, or cannot be read."""
    try:
        found = token_counts(batch)
    except ValueError:  # who divides it will say so
        return 0
    return 0 if found is None else int(found.sum())
