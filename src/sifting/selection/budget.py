"""Choosing under a budget: as many candidates as it pays for, whatever each costs. Pure functions.

Shapes: B candidates, P of them in the order in which they are wanted, K kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from sifting.selection.choice import Choice, Rule

SLACK = 0.02  # of a budget, which what is kept may leave
TRIES = 8  # exchanges that are made to come closer
FINE = 2**26  # bits of the table of all sums that choices have; larger costs are rounded up

# `cost(batch) -> costs`, one for each sample.
Cost = Callable[[Any], Tensor]


@runtime_checkable
class Orders(Protocol):
    """A policy that can put all candidates in the order in which it wants them."""

    def order(self, scores_P: Tensor, generator: torch.Generator) -> Tensor:
        """Places of all candidates, whose scores come highest first."""


def check_order(rule: Rule) -> None:
    """Raise where a policy can only choose a number of candidates."""
    if not isinstance(rule.policy, Orders):
        raise ValueError(
            f"policy={rule.policy.name!r} chooses a number of samples, and budget= is not one: choose policy="
            "'top', 'percentile' or 'random'"
        )


def choose_within(
    scores_B: Tensor,
    costs_B: Tensor,
    budget: float,
    *,
    rule: Rule,
    generator: torch.Generator,
    least: int = 1,
    aim: float | None = None,
) -> Choice:
    """Choose candidates in the policy's order until a budget is spent.

    >>> g = torch.Generator().manual_seed(0)
    >>> choose_within(torch.tensor([0.1, 0.9, 0.5, 0.7]), torch.tensor([5, 6, 2, 4]), 10.0,
    ...               rule=Rule(), generator=g).indices_K
    tensor([1, 3])

    What does not fit is passed over for what does. Where more than 2 % of the budget is left, some are
    exchanged so that less is.

    Args:
        scores_B: what each is worth for its cost; one of −inf is kept only where others do not suffice.
        costs_B: what each costs.
        budget: what all kept may cost; where the costs allow it, it is not exceeded and 2 % of it left at
            most. A candidate that costs more than all of it is kept only where others do not suffice.
        rule: policy, trim and explore; the share explored is one of the budget.
        generator: the CPU source of every random choice made here.
        least: how many are kept at least, the cheapest, where none fits.
        aim: what the kept should come close to, over it or under, where the costs do not allow that; by
            default the budget.
    """
    assert isinstance(rule.policy, Orders)
    size = len(scores_B)
    costs = [float(cost) for cost in costs_B.tolist()]
    sorted_B, ranked_B = scores_B.cpu().sort(descending=True, stable=True)
    trimmed = math.floor(rule.trim * size + 1e-9)
    sound = size - int((sorted_B == -math.inf).sum())
    last = max(sound, min(size, trimmed + least))
    pool_P, scores_P = ranked_B[trimmed:last], sorted_B[trimmed:last]
    wanted = pool_P[rule.policy.order(scores_P, generator)].tolist()
    fits = [i for i in wanted if costs[i] <= budget + 1e-9]
    share = (1 - rule.explore) * budget
    ruled = fill([costs[i] for i in fits], share, aim=None if rule.explore else aim)
    taken = [fits[place] for place in ruled]
    explored: set[int] = set()
    if rule.explore:
        kept = set(taken)
        rest = [i for i in fits if i not in kept]
        order = torch.randperm(len(rest), generator=generator).tolist()
        # those of the rule come first, and are exchanged only where random ones alone do not suffice
        both = [*taken, *(rest[place] for place in order)]
        taken = [both[place] for place in fill([costs[i] for i in both], budget, aim=aim)]
        explored = set(taken) - kept
    if len(taken) < least:
        kept = set(taken)
        cheapest = sorted((i for i in wanted if i not in kept), key=lambda i: costs[i])
        taken += cheapest[: least - len(taken)]
    indices_K = torch.tensor(sorted(taken), device=scores_B.device)
    explored_K = torch.tensor([i in explored for i in sorted(taken)], device=scores_B.device)
    ones_K = torch.ones(len(taken), device=scores_B.device)
    return Choice(indices_K, ones_K, explored_K, len(explored))


def fill(costs: Sequence[float], budget: float, *, aim: float | None = None) -> list[int]:
    """Places of what is taken, the first wanted first, so that the costs come close to a budget.

    >>> fill([6, 4, 2], 10), fill([7, 4, 4, 3], 10), fill([7, 4, 4, 1], 8)
    ([0, 1], [0, 3], [0, 3])
    >>> fill([60, 50, 55, 44], 100)   # 60 alone leaves too much: it makes room
    [2, 3]
    >>> fill([51, 51, 51], 140), fill([51, 51, 51], 140, aim=120)   # nothing comes to 140 or a little less
    ([0, 1, 2], [0, 1])

    Args:
        costs: in the order in which they are wanted.
        budget: to be spent, or 2 % less.
        aim: what to come close to, over it or under, where no choice spends that; by default the budget.
    """
    slack = SLACK * budget
    taken = _near(costs, budget, slack)
    if -1e-9 <= budget - sum(costs[i] for i in taken) <= slack:
        return taken
    return _of_all(costs, budget, slack, budget if aim is None else aim)


def _near(costs: Sequence[float], budget: float, slack: float) -> list[int]:
    """The first wanted that fit, exchanged one by one as long as that comes closer to the budget."""
    total, taken = 0.0, []
    for place, cost in enumerate(costs):
        if total + cost <= budget + 1e-9:
            taken.append(place)
            total += cost
    for _ in range(TRIES):
        gap = budget - total
        left = sorted(set(range(len(costs))) - set(taken))
        if -1e-9 <= gap <= slack or not left:
            break
        better = _exchange(costs, taken, left, gap, slack)
        if better is None:
            break
        out, into = better
        if out is not None:
            taken.remove(out)
            total -= costs[out]
        taken.append(into)
        total += costs[into]
    return sorted(taken)


def _exchange(
    costs: Sequence[float], taken: list[int], left: list[int], gap: float, slack: float
) -> tuple[int | None, int] | None:
    """What to put in, and what to take out for it, to come closest; the last wanted goes first.

    Of all exchanges that meet the budget, the one that loses least of the order.
    """
    # a place beyond the last, of no cost, stands for taking nothing out
    out_K = torch.tensor([*(costs[i] for i in taken), 0.0], dtype=torch.float64)
    into_L = torch.tensor([costs[i] for i in left], dtype=torch.float64)
    after_KL = gap + out_K[:, None] - into_L[None, :]
    rank_KL = torch.tensor(left)[None, :] - torch.tensor([*taken, len(costs)])[:, None]
    meets_KL = (after_KL >= -1e-9) & (after_KL <= slack + 1e-9)
    if bool(meets_KL.any()):
        best = int(torch.where(meets_KL, rank_KL, len(costs) + 1).argmin())
    else:
        miss_KL = after_KL.abs()
        best = int(miss_KL.argmin())
        if float(miss_KL.flatten()[best]) >= abs(gap) - 1e-9:
            return None
    out, into = divmod(best, len(left))
    return (None if out == len(taken) else taken[out]), left[into]


def _of_all(costs: Sequence[float], budget: float, slack: float, aim: float) -> list[int]:
    """Of all choices that meet the budget, the one that has the first wanted; where none does, of the closest.

    >>> _of_all([9, 7, 6, 5], 18, 0.3, 18)   # no single exchange leads here
    [1, 2, 3]

    Sums are counted in whole units, one bit each, so that none of the 2ᴾ choices is looked at alone. Whole
    costs are their own units; others are rounded up, by a quarter of the slack in all.
    """
    size = len(costs)
    whole = all(cost == int(cost) for cost in costs)
    unit = max(1.0 if whole else slack / (4 * size), size * budget / FINE)
    units = [math.ceil(cost / unit - 1e-9) for cost in costs]
    lost = 0 if unit == 1.0 else size  # by rounding, at most
    lowest = max(0, math.ceil((budget - slack) / unit - 1e-9) + lost)
    highest = math.floor(budget / unit + 1e-9)
    goal = max(0.0, aim / unit)
    beyond = max(highest, math.ceil(2 * goal))  # further off than taking nothing
    allowed = (1 << beyond + 1) - 1
    sums = [1]  # bit n: some of the candidates from this one on come to n units
    for cost in reversed(units):
        sums.append((sums[-1] | sums[-1] << cost) & allowed if cost <= beyond else sums[-1])
    sums.reverse()
    if lowest > highest or not (sums[0] & (1 << highest + 1) - 1) >> lowest:
        under = (sums[0] & (1 << math.floor(goal) + 1) - 1).bit_length() - 1
        rest = sums[0] >> math.floor(goal) + 1
        over = math.floor(goal) + (rest & -rest).bit_length()
        lowest = highest = over if rest and over - goal < goal - under - 1e-9 else under
    taken, spent = [], 0
    for place, cost in enumerate(units):
        # what is left to be found has to be among the sums of those that come after
        least, most = max(0, lowest - spent - cost), highest - spent - cost
        if most >= 0 and (sums[place + 1] & ((1 << most + 1) - 1)) >> least:
            taken.append(place)
            spent += cost
    return taken


def deal(costs_K: Tensor, ranks: int) -> list[list[int]]:
    """Divide samples among ranks so that each pays about as much, each at least one.

    >>> deal(torch.tensor([5, 1, 4, 2, 3]), 2)
    [[0, 1, 3], [2, 4]]
    """
    hands: list[list[int]] = [[] for _ in range(ranks)]
    paid = [0.0] * ranks
    for i in costs_K.argsort(descending=True, stable=True).tolist():
        rank = min(range(ranks), key=lambda r: (paid[r], r))
        hands[rank].append(i)
        paid[rank] += float(costs_K[i])
    return [sorted(hand) for hand in hands]
