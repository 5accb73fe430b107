"""Audits of choices: the exact losses of all candidates, of all ranks where they choose together.

Shapes: B candidates (of all ranks, where they choose together), K kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.autopilot.pilot import Pilot
from sifting.data.lengths import token_counts
from sifting.exits.scoring import Scorer
from sifting.measure.audit import Auditor
from sifting.parallel.ranks import Ranks


class ChoiceAudits:
    """Gives an auditor the exact losses of the candidates that something was chosen from.

    Args:
        scorer: examines batches by the whole model.
        auditor: judges.
        trim: share of the highest scores that is never kept, and has no part in the judgement.
        together: the ranks that choose together; None where each chooses alone.
        pilot: is told too, where what is kept is left to it.
    """

    def __init__(
        self,
        scorer: Scorer,
        auditor: Auditor,
        *,
        trim: float = 0.0,
        together: Ranks | None = None,
        pilot: Pilot | None = None,
    ) -> None:
        self.scorer, self.auditor, self.trim = scorer, auditor, trim
        self.together, self.pilot = together, pilot

    def judge(
        self,
        batch: Any,
        scores_B: Tensor,
        indices_K: Tensor,
        *,
        step: int,
        ids: Sequence[Any] | None = None,
    ) -> None:
        """Judge one choice; nothing is done where no candidate has a label.

        Args:
            batch: this rank's candidates.
            scores_B: of all ranks' candidates.
            indices_K: those that were kept.
            step: number of the training step.
            ids: of this rank's candidates, where they are known.
        """
        self._tell_auditor()
        found = self._examined(batch, ids)
        if found is None:
            return
        wrong = [flags for _, flags, *_ in found if flags is not None]
        early = [losses for _, _, losses, _ in found if losses is not None]
        sums = [losses for *_, losses in found if losses is not None]
        lengths_B = self._lengths(batch) if sums else None
        exact_B = torch.cat([losses for losses, *_ in found]).float()
        scores_B = self._without_trimmed(scores_B.to(exact_B.device))
        if self.pilot is not None:
            self.pilot.audited(scores_B, exact_B)
        self.auditor.judge(
            step=step,
            scores_B=scores_B,
            exact_B=exact_B,
            wrong_B=torch.cat(wrong) if wrong else None,
            indices_K=indices_K.to(exact_B.device),
            early_B=torch.cat(early) if early else None,
            sums_B=torch.cat(sums) if sums else None,
            lengths_B=lengths_B,
        )

    def _tell_auditor(self) -> None:
        """What is selected by is only known for certain once something was scored."""
        self.auditor.reducible = self.scorer.reference is not None
        self.auditor.by_loss = self.scorer.score == "loss" and not self.auditor.reducible

    def _examined(self, batch: Any, ids: Sequence[Any] | None) -> list[Any] | None:
        """Piece by piece, what the whole model says of all ranks' candidates; None without labels."""
        found: list[Any] | None = self.scorer.examine(
            batch, early=self.auditor.wants_early, ids=ids
        )
        if self.together is None:
            return found
        here = [tuple(v if v is None else v.cpu() for v in piece) for piece in found or ()]
        parts: list[list[Any]] = self.together.gather(here)  # empty where nothing has a label
        return [piece for pieces in parts for piece in pieces] if all(parts) else None

    def _lengths(self, batch: Any) -> Tensor | None:
        """Tokens of each candidate; None where a rank cannot count its own."""
        lengths_B = token_counts(batch) if self.scorer.reference is None else None
        if self.together is None:
            return lengths_B
        everyones = self.together.gather(lengths_B)
        known = [one for one in everyones if one is not None]
        return torch.cat(known) if len(known) == len(everyones) else None

    def _without_trimmed(self, scores_B: Tensor) -> Tensor:
        """What was trimmed has no part in the judgement: as a score that was dropped."""
        trimmed = math.floor(self.trim * len(scores_B) + 1e-9)
        if not trimmed:
            return scores_B
        highest = scores_B.argsort(descending=True, stable=True)[:trimmed]
        return scores_B.index_fill(0, highest, -math.inf)
