"""The autopilot: gathers evidence while training goes on, looks at held-out samples, decides.

plain step ─▶ scores of every scorer ─▶ the user's forward: exact losses ─▶ evidence
look ─▶ held-out losses at averaged weights ─▶ where progress was made ─▶ decision

Shapes: B samples of a step, M held-out samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sifting.autopilot.average import AveragedWeights
from sifting.autopilot.deciding import decide, expected
from sifting.autopilot.evidence import Evidence, errors_of
from sifting.autopilot.features import LastLayer
from sifting.autopilot.looks import FORWARD, LookPlan, plan_looks
from sifting.autopilot.options import LADDER, PLAIN, Decision, Judged, Option
from sifting.autopilot.trial import Trial, read_held_out
from sifting.exits.auto import MEMORY, AutoExit
from sifting.exits.scoring import Scorer
from sifting.measure.learning import Progress, progress, speedup
from sifting.measure.meter import Meter
from sifting.model.call import logits_of
from sifting.parallel.ranks import Ranks

OFTEN, EARLY, SELDOM = 2, 256, 8  # steps between two rehearsals: at first, until when, later
DECIDE_EVERY = 50  # steps between decisions, where nothing is looked at
SETTLED = 0.08  # error of a share that later looks need not lower
MOST = 10_000  # held-out samples that are kept at most


class Pilot:
    """Decides what is kept, step by step; a sifter with keep="auto" has one.

    Args:
        scorer: scores and examines batches.
        exit: the scorers that compete.
        meter: what is timed and counted.
        explore: share of the kept that is drawn at random.
        trial: what it may use of the training loop.
    """

    def __init__(
        self,
        scorer: Scorer,
        exit: AutoExit,
        *,
        meter: Meter,
        explore: float,
        trial: Trial | None,
    ) -> None:
        self.scorer, self.exit, self.meter, self.explore = scorer, exit, meter, explore
        self.trial = trial or Trial()
        self.evidence = Evidence()
        self.decision = Decision(0, PLAIN, "nothing is known yet")
        self.decisions: list[Decision] = []
        self.records: list[dict[str, Any]] = []  # for the log, until it takes them
        self.ranks: Ranks | None = None
        self.rehearsing = False
        self._plan: LookPlan | None = None
        self._average: AveragedWeights | None = None
        self._held_out: list[Any] = []
        self._looks: list[tuple[int, Tensor]] = []  # steps, and the losses then
        self._progress: dict[str, list[Progress]] = {}
        self._scores: dict[str, Tensor] = {}  # of the batch under way
        self._last_layer = LastLayer(scorer.model)
        self._met = self._done = 0  # steps that were handed out, that are over
        self._saved: tuple[Any, Any] | None = None  # plan and averaged weights of a state
        self._gained = 0.0  # plain steps that the steps so far are expected to stand for

    about = "auto"  # in place of a number

    def __call__(self, step: int) -> float:
        """Share of the candidates that is kept, as `keep=` takes it."""
        return 1 / self.decision.option.ratio

    def __repr__(self) -> str:
        return "'auto'"

    @property
    def option(self) -> Option:
        """What is done now."""
        return self.decision.option

    @property
    def saving(self) -> float:
        """Share of the time that the run so far is expected to have saved."""
        return 1 - self._done / self._gained if self._gained > self._done > 0 else 0.0

    # -- evidence from training itself

    def meet(self, batch: Any, ids: Sequence[Any] | None, *, selected: bool) -> None:
        """Score a batch that is about to be trained as it is, for comparing scorers, now and then."""
        self._scores = {}
        step, self._met = self._met, self._met + 1
        if self.rehearsing or selected or step % (OFTEN if step < EARLY else SELDOM):
            return
        with self.meter.time("auditing", self.scorer.device):
            self._scores = self.scorer.rehearse(batch, ids)
            self.meter.counts["rehearsals"] += 1
            self._last_layer.listen(self.scorer.plan)

    def hear(self, losses_B: Tensor, output: Any, batch: Any) -> None:
        """Take in the exact losses of the batch under way, from the user's own forward."""
        features_BH = self._last_layer.take()
        if not self._scores:
            return
        scores, self._scores = self._scores, {}
        if any(len(found) != len(losses_B) for found in scores.values()):
            return
        errors_BC = None
        plan = self.scorer.plan
        if (
            output is not None
            and plan is not None
            and plan.kind == "parts"
            and len(plan.parts) == 1
        ):
            part = plan.parts[0]
            labels = plan.labels_for(part, self.scorer.moved(batch))
            logits = logits_of(output).get(part.logits)
            single = logits is not None and logits.ndim == 2 and part.kind == "classes"
            if single and labels is not None and bool((labels >= 0).all()):
                assert logits is not None
                errors_BC = errors_of(logits, labels)
        if features_BH is not None and len(features_BH) != len(losses_B):
            features_BH = None
        self.evidence.add(scores, losses_B.detach(), errors_BC, features_BH)

    def audited(self, scores_B: Tensor, exact_B: Tensor) -> None:
        """Take in an audit of candidates by the scorer in use, with all of their exact losses."""
        self.evidence.add({self.exit.active: scores_B}, exact_B)

    # -- looking and deciding

    def after_step(self, size: int) -> None:
        """A training step is over: follow the weights, look where it is time, and decide.

        Args:
            size: samples that it trained.
        """
        self._scores = {}
        self._last_layer.take()
        self._done += 1
        step = self._done
        self._gained += self.decision.speedup
        if self.rehearsing or self.scorer.plan is None:
            return
        if self._plan is None:
            self._prepare(size)
        assert self._plan is not None
        if self._average is not None and step % self._every == 0:
            self._average.update(self._every)
        if self._plan.due(step):
            with self.meter.time("auditing", self.scorer.device):
                self._look(step)
            self._decide(step)
        elif not self._plan.steps and step % DECIDE_EVERY == 0:
            self._decide(step)

    def _prepare(self, size: int) -> None:
        held_out = self.trial.held_out
        samples = self.scorer.call.samples
        if held_out is None:
            self._plan = LookPlan((), 0)
            return
        self._held_out = read_held_out(held_out, most=MOST, size=samples.size)
        there = sum(map(samples.size, self._held_out))
        self._plan = plan_looks(self.trial.updates, batch=size, held_out=there)
        if self._saved is not None and self._saved[0] is not None:
            steps, count = self._saved[0]
            self._plan = LookPlan(tuple(map(int, steps)), int(count))
        if not self._plan.steps or not self.exit.looks:
            self._plan = LookPlan((), 0)
            self._held_out = []
            return
        taken, seen = [], 0
        for batch in self._held_out:
            count = samples.size(batch)
            wanted = min(count, self._plan.samples - seen)
            if wanted <= 0:
                break
            whole = wanted == count
            taken.append(batch if whole else samples.take(batch, torch.arange(wanted), size=count))
            seen += wanted
        self._held_out = taken
        horizon = max(10.0, 0.02 * (self.trial.updates or 2500))
        self._average = AveragedWeights(self.scorer.model, min(horizon, 100.0))
        if self._saved is not None and self._saved[1] is not None:
            self._average.load_state_dict(self._saved[1])
        self._saved = None

    @property
    def _every(self) -> int:
        """Steps between two updates of the averaged weights, which then cost next to nothing."""
        assert self._average is not None
        return max(1, round(self._average.horizon / 5))

    def _look(self, step: int) -> None:
        """Held-out losses as the averaged weights have them, and where they fell."""
        assert self._average is not None
        losses, scores = [], []
        with self._average.in_place():
            for batch in self._held_out:
                found = self.scorer.examine(batch, early=False)
                if found is None:
                    return
                losses += [exact_B.float().cpu() for exact_B, *_ in found]
                scored = self.scorer.rehearse(batch, None, learn=False)
                scores.append(scored[self.exit.looks].float().cpu())
        now_M, scores_M = torch.cat(losses), torch.cat(scores)
        self.meter.counts["held_out_seen"] += len(now_M)
        if self._looks:
            before_M = self._looks[-1][1]
            self._note(self.exit.looks, progress(before_M, now_M, scores_M, LADDER[0]))
        if len(self._looks) > 1:
            # ranked by a look before the one that progress is counted from: else what was high by
            # chance, and falls back, would look like progress
            ranked_M = self._looks[-2][1]
            self._note(MEMORY, progress(self._looks[-1][1], now_M, ranked_M, LADDER[0]))
        self._looks = [*self._looks[-1:], (step, now_M)]

    def _note(self, scorer: str, found: Progress) -> None:
        self._progress[scorer] = [*self._progress.get(scorer, [])[-3:], found]

    def _recent(self, scorer: str) -> Progress | None:
        """Progress over the last look, and the ones before it while it says too little."""
        whole: Progress | None = None
        for found in reversed(self._progress.get(scorer, [])):
            whole = found if whole is None else whole + found
            if whole.error <= SETTLED:
                break
        return whole

    def judge(self) -> list[Judged]:
        """What is known of every option by now."""
        evidence = self.evidence
        if self.ranks is not None:
            evidence = Evidence.joined(self.ranks.gather(evidence))
        found = []
        for scorer in self.exit.scorers:
            recent = self._recent(scorer)
            for ratio in LADDER:
                option = Option(scorer, ratio)
                cost = ratio * self.exit.costs.get(scorer, 1.0) * FORWARD
                one = Judged(
                    option,
                    cost,
                    kept_loss=evidence.kept_loss(option),
                    agreement=evidence.agreement(option),
                )
                if recent is not None and scorer == MEMORY:
                    one = replace(one, learnable=recent.share - recent.error > 1 / LADDER[0])
                elif recent is not None and ratio == LADDER[0]:
                    one = self._with_share(one, recent, cost)
                found.append(one)
        return found

    def _with_share(self, one: Judged, recent: Progress, cost: float) -> Judged:
        share, error = recent.share, recent.error
        if math.isnan(share) or math.isinf(error):  # no progress at all: nothing to be had
            return replace(one, share=0.0, error=0.0, speedup=0.0, lower=0.0)
        at = [
            speedup(value, ratio=one.option.ratio, explore=self.explore) / (1 + cost)
            for value in (min(share, 1.0), min(share, 1.0) - error)
        ]
        using = self.option == one.option
        return replace(
            one,
            share=share,
            error=error,
            speedup=at[0],
            lower=at[1],
            forgets=using and self._progress[one.option.scorer][-1].forgets,
        )

    def _decide(self, step: int) -> None:
        judged = self.judge()
        held_out = bool(self._plan is not None and self._plan.steps)
        option, why = decide(judged, self.option, held_out=held_out)
        if self.ranks is not None:  # the first rank's word: sums may differ in their last bits
            plain = self.ranks.gather((option, why))[0]
            option, why = plain
        gain = next((expected(one) for one in judged if one.option == option), 1.0)
        made = Decision(step, option, why, max(1.0, gain), tuple(judged))
        changed = option != self.option
        self.decision = made if changed else replace(made, step=self.decision.step)
        if changed:
            self.decisions.append(made)
            self.exit.active = option.scorer or self.exit.looks or MEMORY
        self.records.append(
            {
                "kind": "decision",
                "batch": step,
                "changed": changed,
                **{k: v for k, v in made.to_plain().items() if k != "step"},
                "judged": [one.to_plain() for one in judged],
            }
        )

    def rehearse(self) -> None:
        """Choose one in two by what looks at samples from now on, whatever it is worth: to be timed."""
        self.rehearsing = True
        self.decision = Decision(0, Option(self.exit.looks or "any", LADDER[0]), "to be timed")

    def take_records(self) -> list[dict[str, Any]]:
        """What has happened since this was last asked, for a log."""
        found, self.records = self.records, []
        return found

    @property
    def listening(self) -> bool:
        """Whether the exact losses of the batch under way are wanted."""
        return bool(self._scores)

    def summary(self) -> dict[str, Any]:
        """What `Stats` says of it."""
        scorer = self.option.scorer or self.exit.looks or MEMORY
        option = Option(scorer, LADDER[0])
        recent = self._recent(scorer) if scorer != MEMORY else None
        return {
            "option": f"keeps {self.option}",
            "since": self.decision.step,
            "why": self.decision.why,
            "learning_share": None
            if recent is None or recent.share != recent.share
            else recent.share,
            "kept_loss": self.evidence.kept_loss(option),
            "agreement": self.evidence.agreement(option),
            "saving": self.saving,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "decision": self.decision.to_plain(),
            "decisions": [made.to_plain() for made in self.decisions],
            "records": list(self.records),
            "evidence": self.evidence.state_dict(),
            "looks": [[step, losses_M] for step, losses_M in self._looks],
            "progress": {
                name: [list(vars(one).values()) for one in found]
                for name, found in self._progress.items()
            },
            "steps": [self._met, self._done],
            "gained": self._gained,
            "plan": None if self._plan is None else [list(self._plan.steps), self._plan.samples],
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; held-out samples are read again."""
        evidence = Evidence()
        evidence.load_state_dict(state["evidence"])
        decision = Decision.from_plain(dict(state["decision"]))
        decisions = [Decision.from_plain(dict(made)) for made in state["decisions"]]
        plan = state["plan"]
        self.evidence, self.decision, self.decisions = evidence, decision, decisions
        self.records = [dict(record) for record in state["records"]]
        self._looks = [(int(step), losses_M) for step, losses_M in state["looks"]]
        self._progress = {
            str(name): [Progress(*map(float, one)) for one in found]
            for name, found in state["progress"].items()
        }
        self._gained = float(state["gained"])
        self._met, self._done = map(int, state["steps"])
        self._plan = self._average = None
        self._saved = plan, state["average"]
