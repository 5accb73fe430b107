"""Judging the choice: when to audit it, what the audits say, and when to speak up."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

from torch import Tensor

from sifting.meter import Meter, SiftingWarning, quality

COST = 0.01  # share of training time that audits may take by default


def default_period(keep: float) -> int:
    """Selections between audits that cost 1 % of training.

    >>> default_period(0.5)
    67

    An audit is a forward of all candidates; a step is a forward and a backward of the kept,
    about three forwards of them.
    """
    return math.ceil(1 / (3 * keep) / COST)


class Auditor:
    """Compares choices with exact losses, logs them, and warns once of each kind of harm.

    Args:
        meter: where the figures are kept.
        every: selections between audits; None for about 1 % of the cost, 0 for none.
        log: file to append scores and exact losses to.
        by_loss: whether high losses are what is selected.
        silent: whether the choice is random on purpose.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        every: int | None,
        log: str | Path | None,
        by_loss: bool,
        silent: bool,
    ) -> None:
        if every is not None and every < 0:
            raise ValueError(f"audit_every={every}: give a number of selections, or 0 for none")
        if log is not None and not Path(log).parent.is_dir():
            raise ValueError(
                f"audit_log={str(log)!r}: the folder {str(Path(log).parent)!r} does not exist"
            )
        self.meter = meter
        self.every = every
        self.log = None if log is None else Path(log)
        self.by_loss = by_loss
        self.silent = silent

    def due(self, keep: float) -> bool:
        """Whether the selection just made is to be audited."""
        every = default_period(keep) if self.every is None else self.every
        return every > 0 and self.meter.counts["selections"] % every == 0

    def judge(
        self,
        *,
        step: int,
        scores_B: Tensor,
        exact_B: Tensor,
        wrong_B: Tensor | None,
        indices_K: Tensor,
    ) -> None:
        """Take in the exact losses of a choice's candidates."""
        if not bool(exact_B.isfinite().all()):
            return  # the run is breaking; its own loss will say so
        wrong = None if wrong_B is None else float(wrong_B[indices_K].double().mean())
        self.meter.audit(quality(scores_B, exact_B, indices_K), wrong)
        if self.log is not None:
            line = {"step": step, "early": scores_B.tolist(), "exact": exact_B.tolist()}
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.silent:
            return
        stats = self.meter.stats()
        if self.meter.worse_than_random():
            self._warn(
                "worse_than_random",
                f"step {step}: sifting picks worse than at random: rho_approx is {stats.rho_approx:.2f}, so "
                "the kept samples have a lower exact loss than the candidates. The exit no longer knows "
                "what the model finds hard. Try exit='tuned', a larger explore= (0.5), a later exit, or "
                "end it with stop_step=",
            )
        if self.by_loss and self.meter.mostly_wrong():
            self._warn(
                "mostly_wrong",
                f"step {step}: {stats.misclassified:.0%} of the kept samples are misclassified. Training on "
                "the highest losses alone can undo what the model knows about the rest. Try "
                "score='entropy', a longer warmup_steps=, explore=0.5 or trim=0.1",
            )

    def _warn(self, name: str, message: str) -> None:
        if name not in self.meter.warned:
            self.meter.warned.add(name)
            warnings.warn(message, SiftingWarning, stacklevel=2)


def explored_means(
    losses_K: Tensor, explored_K: Tensor, candidates: int
) -> tuple[float, float] | None:
    """Mean exact loss of the kept, and an unbiased estimate of the candidates'.

    >>> import torch
    >>> explored_means(torch.tensor([4.0, 2.0]), torch.tensor([False, True]), 4)
    (3.0, 2.5)

    The rule's picks count for themselves, the random ones for all that the rule left. None where
    the kept are all of one kind.
    """
    ruled = int((~explored_K).sum())
    if ruled in (0, len(explored_K)):
        return None
    losses_K = losses_K.detach().double()
    rest = float(losses_K[explored_K].mean())
    mean = (float(losses_K[~explored_K].sum()) + (candidates - ruled) * rest) / candidates
    kept = float(losses_K.mean())
    return (kept, mean) if math.isfinite(kept) and math.isfinite(mean) else None
