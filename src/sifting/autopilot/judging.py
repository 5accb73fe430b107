"""What is known of an option: its cost, its kept loss, and the progress that is made on what it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sifting.autopilot.arrivals import Arrivals
from sifting.autopilot.evidence import Evidence
from sifting.autopilot.held_out import HeldOut
from sifting.autopilot.looks import FORWARD
from sifting.autopilot.noted import Noted
from sifting.autopilot.options import LADDER, Judged, Option
from sifting.exits.auto import MEMORY, PREDICTED, AutoExit
from sifting.measure.learning import Progress, speedup

# share of progress that must be made where losses are high, for what selects by them: to be taken up,
# less two errors, and to be kept
LEARNABLE, STILL = 0.6, 0.56
BELIEVED = 0.8  # share that a step is credited with at most: while it selects, shares flatter it


@dataclass(frozen=True)
class Knowledge:
    """All that was measured, of all ranks together where there are several.

    Attributes:
        evidence: kept loss and agreement.
        arrivals: progress on new samples, which counts where there are no held-out ones.
        held_out: progress on held-out samples.
        exit: the scorers.
        noted: the same of some of the samples, where these alone are to count.
    """

    evidence: Evidence
    arrivals: Arrivals
    held_out: HeldOut
    exit: AutoExit
    noted: Noted | None = None

    def progress(self, scorer: str, step: int) -> Progress | None:
        """By the half that a scorer would keep; None where nothing is known of it."""
        if scorer == self.exit.looks and not self.held_out.looks:
            return self.arrivals.recent(step)
        noted = self.held_out.progress if self.noted is None else self.noted
        return noted.recent(Option(scorer, LADDER[0]))

    def summary(self, scorer: str, step: int) -> dict[str, float | None]:
        """What is known of keeping one in two by a scorer, for people."""
        option = Option(scorer, LADDER[0])
        recent = self.progress(scorer, step) if scorer != MEMORY else None
        known = recent is not None and recent.told and self.held_out.tells
        return {
            "learning_share": recent.share if recent is not None and known else None,
            "kept_loss": self.evidence.kept_loss(option),
            "agreement": self.evidence.agreement(option),
        }

    def judged(
        self,
        option: Option,
        *,
        step: int,
        timed: float,
        explore: float,
        using: bool,
        vetoed: bool,
    ) -> Judged:
        """What is known of an option.

        Args:
            option: which.
            step: how many are over.
            timed: what scoring a step's own samples takes, in steps, by the clocks.
            explore: share of the kept that is drawn at random.
            using: whether it is in use.
            vetoed: whether a trial has found harm in it.
        """
        scorer, ratio = option.scorer, option.ratio
        recent = self.progress(scorer, step)
        cost = ratio * self.exit.costs.get(scorer, 1.0) * FORWARD
        if scorer in (self.exit.looks, PREDICTED):  # by the clocks, where they say more
            # timed on as many samples as a step trains; most of it is not by the sample
            cost = max(cost, (0.5 + ratio / 4) * timed)
        one = Judged(
            option,
            cost,
            kept_loss=self.evidence.kept_loss(option),
            agreement=self.evidence.agreement(option),
            vetoed=vetoed,
        )
        if recent is None:
            # it knows high losses so early that wrong labels would deceive it
            return replace(one, learnable=False) if scorer == PREDICTED else one
        if scorer in (MEMORY, PREDICTED):
            sure = recent.share - 2 * recent.error > LEARNABLE
            one = replace(one, learnable=recent.share > STILL if using else sure)
        if scorer == MEMORY or ratio != LADDER[0] or not self.held_out.tells:
            return one
        share, error = recent.share, recent.error
        if not recent.told:  # no progress beyond noise: nothing to be had
            return replace(one, share=0.0, error=0.0, speedup=0.0, sure=1.0)
        low, value, most = (
            speedup(found, ratio=ratio, explore=explore)
            for found in (recent.balance - error, min(share, 1.0), BELIEVED)
        )
        return replace(
            one,
            share=share,
            error=error,
            speedup=value / (1 + cost),
            sure=min(max(1.0, low), most),
            forgets=using and recent.forgets,
        )
