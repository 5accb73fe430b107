"""Judging the choice: when to audit it, what the audits say, and when to speak up."""

from __future__ import annotations

import json
import math
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch
from torch import Tensor

from sifting.log import warned
from sifting.measure.meter import Meter
from sifting.measure.quality import quality, rho_tokens
from sifting.measure.stats import SiftingWarning

DEAR = 0.5  # share of the time that choosing may take before a warning
SETTLED = 10.0  # seconds of training before the clocks are believed
EXPLORED = 0.5  # share of random picks that is advised, where there are fewer
COST = 0.01  # share of training time that audits may take by default


def default_period(keep: float, *, reads: bool = False) -> int:
    """Selections between audits that cost 1 % of training.

    >>> default_period(0.5), default_period(0.25, reads=True)
    (67, 300)

    An audit is a forward of all candidates; a step is a forward and a backward of the kept,
    about three forwards of them.

    Args:
        keep: the share that is kept.
        reads: whether candidates are read for the audit alone: that too is 1 % of the reading then.
    """
    forwards = 1 / (3 * keep)
    return math.ceil(max(forwards, 1 / keep - 1 if reads else 0) / COST)


class ExitAdvice(Protocol):
    """What to try in place of an exit; it may depend on the model that it is bound to."""

    @property
    def remedy(self) -> str:
        """Where it chooses badly."""

    @property
    def cheaper(self) -> str:
        """Where it takes too long."""


class Auditor:
    """Compares choices with exact losses, logs them, and warns once of each kind of harm.

    Args:
        meter: where its measures are kept.
        every: selections between audits; None for about 1 % of the cost, 0 for none.
        log: file to append early and exact losses, scores and choices to.
        silent: whether the choice is random on purpose.
        advice: the exit, which says what to try in its place.
        explore: share of random picks among the kept.
        trim: share of extreme scores that are never kept.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        every: int | None,
        log: str | Path | None,
        silent: bool,
        advice: ExitAdvice,
        explore: float = 0.0,
        trim: float = 0.0,
    ) -> None:
        if every is not None and (not isinstance(every, int) or every < 0):
            raise ValueError(
                f"audit_every={every!r}: give a whole number of selections, or 0 for none"
            )
        if log is not None and not Path(log).parent.is_dir():
            raise ValueError(
                f"audit_log={str(log)!r}: the folder {str(Path(log).parent)!r} does not exist"
            )
        self.meter = meter
        self.every = every
        self.log = None if log is None else Path(log)
        self._logs = log is not None
        self._random = silent
        self.advice, self.explore, self.trim = advice, explore, trim
        self.by_loss = False  # whether high losses are what is selected
        self.reducible = False  # whether it is what losses have beyond a reference's
        self.silent = silent

    @property
    def wants_early(self) -> bool:
        """Whether the log needs the exit's own losses beside the scores.

        The same on every rank, though one writes: they have to run the model equally often.
        """
        return self._logs and not self._random and not (self.by_loss or self.reducible)

    def due(self, keep: float, selection: int | None = None, *, reads: bool = False) -> bool:
        """Whether a selection is to be audited.

        Args:
            keep: the share that is kept.
            selection: its number, from 1; by default the one just made.
            reads: whether candidates are read for the audit alone.
        """
        every = default_period(keep, reads=reads) if self.every is None else self.every
        number = self.meter.counts["selections"] if selection is None else selection
        return every > 0 and number % every == 0

    def judge(
        self,
        *,
        step: int,
        scores_B: Tensor,
        exact_B: Tensor,
        wrong_B: Tensor | None,
        indices_K: Tensor,
        early_B: Tensor | None = None,
        sums_B: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> None:
        """Take in the exact losses of a choice's candidates.

        Args:
            early_B: the exit's own losses, for the log; the scores where they are losses.
            sums_B: losses of all tokens of each candidate together, where they are known.
            lengths_B: tokens of each candidate, where it has any.
        """
        by_token = None
        if sums_B is not None and lengths_B is not None and len(lengths_B) == len(sums_B):
            by_token = rho_tokens(sums_B, lengths_B, indices_K)
        sound_B = scores_B.isfinite() & exact_B.isfinite()
        if not bool(sound_B[indices_K].all()):
            return  # the run is breaking; its own loss will say so
        if not bool(sound_B.all()):  # samples that were dropped have no part in this
            place_B = sound_B.cumsum(0) - 1
            indices_K, scores_B, exact_B = place_B[indices_K], scores_B[sound_B], exact_B[sound_B]
            wrong_B = None if wrong_B is None else wrong_B[sound_B]
            early_B = None if early_B is None else early_B[sound_B]
        wrong = None
        if wrong_B is not None:
            kept_K = wrong_B[indices_K]
            counted_K = kept_K[kept_K >= 0].double()
            wrong = float(counted_K.mean()) if len(counted_K) else None
        # what a reference finds harder than the model does has nothing left to be learned
        worth_B = exact_B.clamp_min(0) if self.reducible else exact_B
        self.meter.audit(quality(scores_B, exact_B, indices_K, worth_B=worth_B), wrong, by_token)
        if self.log is not None:
            early = scores_B if early_B is None else early_B
            line = {
                "step": step,
                "early": early.tolist(),
                "exact": exact_B.tolist(),
                "scores": scores_B.tolist(),
                "kept": indices_K.tolist(),
            }
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self.speak_up(step)

    def speak_up(self, step: int) -> None:
        """Warn, once of each kind, of what they say by now."""
        if self.silent:
            return
        more = "" if self.explore >= EXPLORED else f", a larger explore= ({EXPLORED})"
        rho = self.meter.condemned()
        if rho is not None:
            self._warn(
                "worse_than_random",
                f"step {step}: the choice is worse than random: rho_approx is {rho:.2f}, so the kept "
                "samples have a lower exact loss than the candidates. The exit does not know what the model "
                f"finds hard. Try {self.advice.remedy}{more}, or end it with stop_step=",
            )
        self.speak_of_cost(step)
        if self.by_loss and self.meter.mostly_wrong():
            self._warn(
                "mostly_wrong",
                f"step {step}: {self.meter.stats().misclassified:.0%} of the kept samples are "
                "misclassified. Training on the highest losses alone can undo what the model knows about "
                f"the rest. Try score='entropy'{more}{'' if self.trim else ', trim=0.1'}, or a longer "
                "warmup_steps=",
            )

    def speak_of_cost(self, step: int) -> None:
        """Warn, once, where choosing takes longer than training."""
        seconds = self.meter.seconds
        # a first batch that tries everything is no measure, unless choosing has gone on for long since
        settled = seconds["between"] > SETTLED or seconds["scoring"] > 3 * SETTLED
        if self.silent or "dear" in self.meter.warned or not settled:
            return
        share = self.meter.stats().scoring_share
        if share > DEAR:
            self._warn(
                "dear",
                f"step {step}: choosing takes {share:.0%} of the time that training and choosing take "
                f"together, which can hardly pay. Try {self.advice.cheaper}",
            )

    def _warn(self, name: str, message: str) -> None:
        if name not in self.meter.warned:
            self.meter.warned.add(name)
            warn_user(message)


def explored_means(
    losses_K: Tensor, explored_K: Tensor, *, explored: int, candidates: int, kept: int | None = None
) -> Tensor:
    """Mean exact loss of the kept, and an unbiased estimate of the candidates', as one tensor.

    >>> import torch
    >>> explored_means(
    ...     torch.tensor([4.0, 2.0]), torch.tensor([False, True]), explored=1, candidates=4
    ... ).tolist()
    [3.0, 2.5]

    The rule's picks count for themselves, the random ones for all that the rule left. Nothing is
    read back from the device. There must be random picks, and nothing may have been trimmed.

    Args:
        losses_K: exact losses of the kept, or of one rank's part of them.
        explored_K: which of those were random picks.
        explored: how many of all the kept were.
        candidates: how many they were chosen from.
        kept: how many were kept in all, where these are a part: the mean over all parts of what
            this gives is then what the whole would have given.
    """
    losses_K = losses_K.detach().double()
    kept = len(losses_K) if kept is None else kept
    ruled, parts = kept - explored, kept / len(losses_K)
    rest = parts * (losses_K * explored_K).sum() / explored
    ruled_sum = parts * (losses_K * ~explored_K).sum()
    return torch.stack([losses_K.mean(), (ruled_sum + (candidates - ruled) * rest) / candidates])


# modules between a user's line and ours: hooks are called by torch, decorators by contextlib
BETWEEN = (__name__.partition(".")[0], "torch", "contextlib")


def _root(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def warn_user(message: str) -> None:
    """Warn at the line of the user's own code that led here."""
    warned(message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _root(frame) in BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, SiftingWarning, stacklevel=level)
