"""The autopilot: gathers evidence while training goes on, looks at held-out samples, decides.

plain step ─▶ scores of every scorer ─▶ the user's forward: exact losses ─▶ evidence
look ─▶ held-out losses at averaged weights ─▶ where progress was made ─▶ trial ─▶ decision

Shapes: B samples of a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sifting.autopilot.account import Account
from sifting.autopilot.arrivals import Arrivals
from sifting.autopilot.deciding import decide, expected
from sifting.autopilot.evidence import Evidence, below_random, errors_in
from sifting.autopilot.features import LastLayer
from sifting.autopilot.held_out import HeldOut
from sifting.autopilot.judging import Knowledge
from sifting.autopilot.noted import Noted
from sifting.autopilot.options import LADDER, PLAIN, Judged, Option, PilotDecision
from sifting.autopilot.pacing import Pacing
from sifting.autopilot.predicting import predict
from sifting.autopilot.trial import Trial
from sifting.autopilot.trials import Trials
from sifting.exits.auto import MEMORY, AutoExit
from sifting.exits.scoring import Scorer
from sifting.measure.kept_loss import kept_loss
from sifting.measure.meter import Meter
from sifting.measure.stats import WINDOW
from sifting.measure.stopwatch import now
from sifting.parallel.ranks import Ranks
from sifting.plain import Plain
from sifting.step import Rehearsed, Step

WAITING = 100  # records that wait for a log at most
DECIDE_EVERY = 50  # steps between decisions, where nothing is looked at


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
        self.evidence, self.arrivals = Evidence(), Arrivals()
        self.audits: deque[float] = deque(maxlen=WINDOW)  # kept loss of the option in use
        self.passes = 0  # that were begun over the data, as far as is known
        self.decision = PilotDecision(0, PLAIN, "too little is known yet")
        self.decisions: list[PilotDecision] = []
        self.records: list[dict[str, Any]] = []  # for the log, until it takes them
        self.rehearsing = False
        self.acts = True  # whether what is decided is done, or only told
        self.trials: Trials | None = None  # of options, before they are taken up
        self.held_out = HeldOut(scorer, exit, meter=meter, trial=trial or Trial())
        self.pacing = Pacing((trial or Trial()).updates, cost=(trial or Trial()).cost)
        self.account = Account(trial or Trial())
        self._last_layer = LastLayer(scorer.model, scorer.whole)
        self._met = self._done = 0  # steps that were handed out, that are over
        self._gained = 0.0  # plain steps that the steps so far are expected to stand for

    def tell(self, trial: Trial) -> None:
        """Use this of the training loop from now on."""
        self.held_out.trial = self.account.trial = trial
        self.pacing.steps = trial.updates
        self.pacing.given(trial.cost)
        if self.trials is not None:
            self.trials.pieces.trial = trial

    about = "auto"  # in place of a number

    def __call__(self, step: int) -> float:
        """Share of the candidates that is kept, as `keep=` takes it."""
        return 1 / self.decision.option.ratio if self.acts else 1.0

    def __repr__(self) -> str:
        return "'auto'"

    @property
    def ranks(self) -> Ranks | None:
        return self.scorer.ranks

    @property
    def option(self) -> Option:
        return self.decision.option

    @property
    def saving(self) -> float:
        """Share of the time that the run so far is expected to have saved."""
        return 1 - self._done / self._gained if self._gained > self._done > 0 else 0.0

    # -- evidence from training itself

    def meet(self, batch: Any, handed: Step) -> Rehearsed | None:
        """Score a batch that is about to be trained as it is, for comparing scorers, now and then.

        Returns what is known of it, to be handed back with its losses; None mostly.
        """
        step, self._met = self._met, self._met + 1
        self.account.hand_out(self.decision.worth if self.acts else 1.0)
        if self.trials is not None:
            self.trials.pieces.note(handed.drawn)
        if self.rehearsing or handed.selection is not None or not self.pacing.due(step):
            return None
        begin = now()
        with self.meter.time("auditing", self.scorer.device):
            self.meter.counts["rehearsals"] += 1
            found = self.scorer.rehearse(batch, handed.ids)
            new_B = self.exit.new(handed.ids) if found else None
        training = self.meter.seconds["between"] / max(1, self._done)
        last = self.pacing.timed(now() - begin, step_seconds=training)
        if last and self.ranks is not None:  # who rehearses when must be the same on all of them
            self.pacing.cost = max(self.ranks.gather(self.pacing.cost or 0.0))
        return Rehearsed(found, new_B) if found else None

    def listen(self) -> None:
        """A batch that was met is about to be trained: what its last layer is given is wanted."""
        self._last_layer.listen(self.scorer.plan)

    def unlisten(self) -> None:
        self._last_layer.take()  # the step is over, or was broken off

    def hear(
        self,
        met: Rehearsed,
        losses_B: Tensor,
        output: Any,
        batch: Any,
        ids: Sequence[Any] | None = None,
    ) -> None:
        """Take in the exact losses of a batch that was met, from the user's own forward.

        Args:
            met: what `meet` gave.
            losses_B: of its samples.
            output: of the forward; None where the losses were reported.
            batch: as it was trained.
            ids: of its samples, where they are known.
        """
        features_BH, scores = self._last_layer.take(), met.scores
        if any(len(found) != len(losses_B) for found in scores.values()):
            return
        self._arrived(scores.get(self.exit.looks), losses_B, met.new_B)
        scores = {**scores, **predict(self.scorer, self.exit, batch, scores, ids)}
        errors_BC = errors_in(output, batch, self.scorer)
        if features_BH is not None and len(features_BH) != len(losses_B):
            features_BH = None
        self.evidence.add(scores, losses_B.detach(), errors_BC, features_BH)

    def audited(self, scores_B: Tensor, exact_B: Tensor) -> None:
        """Take in an audit of candidates by the scorer in use, with all of their exact losses."""
        self.evidence.add({self.exit.active: scores_B}, exact_B)
        self.audits.append(kept_loss(scores_B, exact_B.nan_to_num(0.0, 0.0), self.option.ratio))
        if self.exit.active == self.exit.looks:
            self._arrived(scores_B, exact_B, None)

    def _arrived(self, scores_B: Tensor | None, losses_B: Tensor, new_B: Tensor | None) -> None:
        """Take in the losses of samples that may never have been trained."""
        known = new_B is not None or self.passes <= 1
        if scores_B is not None and known and not self.held_out.looks:
            losses_B = losses_B.detach().float().clamp_max(self.held_out.guessing())
            self.arrivals.add(self._done, scores_B, losses_B, new_B)

    # -- looking and deciding

    def after_step(self, size: int) -> None:
        """A training step is over: follow the weights, look where it is time, and decide.

        Args:
            size: samples that it trained.
        """
        self._last_layer.take()
        self._done += 1
        step, before = self._done, self.account.trained
        self.account.close(self.passes)
        self._gained += self.decision.speedup
        if self.pacing.hopeless:
            self._give_up(step)
            return
        if self.rehearsing or not (self.scorer.plan is not None or self.exit.looks):
            return  # nothing is known of the model yet
        self.held_out.follow(step, size)
        if self.held_out.due(before, self.account.trained):
            with self.meter.time("auditing", self.scorer.device):
                self.held_out.look(step)
                self._decide(step, size)
        elif not self.held_out.looks and step % DECIDE_EVERY == 0:
            self._decide(step, size)

    def _give_up(self, step: int) -> None:
        """Say, once, that choosing takes too long here to pay."""
        why = f"scoring a batch takes {self.pacing.cost:.2g} of the time of training it"
        if self.decision.why != why:
            self.decision = PilotDecision(step, PLAIN, why)
            self._record(self.decision, changed=False)

    def judge(self, noted: Noted | None = None) -> list[Judged]:
        """What is known of every option by now.

        Args:
            noted: progress on held-out samples; None for what it goes by itself.
        """
        evidence, arrivals = self.evidence, self.arrivals
        if self.ranks is not None:
            parts = self.ranks.gather((evidence, arrivals))
            evidence = Evidence.joined(part for part, _ in parts)
            arrivals = Arrivals.joined(part for _, part in parts)
        knows = Knowledge(evidence, arrivals, self.held_out, self.exit, noted)
        return [
            knows.judged(
                Option(scorer, ratio),
                step=self._done,
                timed=self.pacing.cost or 0.0,
                explore=self.explore,
                using=self.acts and self.option == Option(scorer, ratio),
                vetoed=self._vetoed(Option(scorer, ratio)),
            )
            for scorer in self.exit.competing
            for ratio in LADDER
        ]

    def _disproved(self) -> bool:
        """Whether audits say that the option in use chooses worse than chance; of all ranks together."""
        everywhere = [self.audits] if self.ranks is None else self.ranks.gather(self.audits)
        masses = [mass for own in everywhere for mass in own]
        return len(masses) >= WINDOW * len(everywhere) and below_random(masses, self.option.ratio)

    def _decide(self, step: int, size: int) -> None:
        if not self.held_out.looks and self._disproved():
            self.arrivals = Arrivals()  # what samples said when they were new holds no more
        judged = self.judge()
        option, why = self._chosen(judged)
        while option not in (PLAIN, self.option) and self._harms(option, judged, step, size):
            judged = [replace(one, vetoed=self._vetoed(one.option)) for one in judged]
            option, why = self._chosen(judged)
        if self.trials is not None:
            self.records += self.trials.take_records()
        chosen = next((one for one in judged if one.option == option), Judged(PLAIN))
        gain, worth = max(1.0, expected(chosen)), chosen.sure or 1.0
        made = PilotDecision(step, option, why, gain, worth, tuple(judged))
        changed = option != self.option
        self.decision = made if changed else replace(made, step=self.decision.step)
        if changed:
            self.decisions.append(made)
            self.audits.clear()
            self.exit.active = option.scorer or self.exit.looks or MEMORY
        self._record(made, changed=changed)

    def _record(self, made: PilotDecision, *, changed: bool) -> None:
        plain = made.to_plain()
        about = {"kind": "decision", "batch": plain.pop("step"), "changed": changed, **plain}
        judged = [one.to_plain() for one in made.judged]
        self.records.append({**about, "judged": judged, **self.held_out.told(self.judge)})
        del self.records[:-WAITING]

    def _chosen(self, judged: Sequence[Judged]) -> tuple[Option, str]:
        """What `decide` says; the first rank's word: sums may differ in their last bits."""
        found = decide(judged, self.option, held_out=self.held_out.looks)
        return found if self.ranks is None else self.ranks.gather(found)[0]

    def _harms(self, option: Option, judged: Sequence[Judged], step: int, size: int) -> bool:
        """Whether a trial finds harm in an option; on all ranks alike."""
        if self.trials is None:
            return False
        cost = next(one.cost for one in judged if one.option == option)
        return self.trials.harms(option, cost, step=step, size=size, ranks=self.ranks)

    def _vetoed(self, option: Option) -> bool:
        return self.trials is not None and self.trials.vetoed(option, self._done)

    def rehearse(self) -> None:
        """Choose one in two by what looks at samples from now on, whatever it is worth: to be timed."""
        self.rehearsing = True
        self.decision = PilotDecision(0, Option(self.exit.looks or "any", LADDER[0]), "to be timed")

    def take_records(self) -> list[dict[str, Any]]:
        """What has happened since this was last asked, for a log."""
        found, self.records = self.records, []
        return found

    def summary(self) -> dict[str, Any]:
        """What `Stats` says of it."""
        knows = Knowledge(self.evidence, self.arrivals, self.held_out, self.exit)
        return {
            "option": f"keeps {self.option}",
            "since": self.decision.step,
            "why": self.decision.why,
            "saving": self.saving,
            **knows.summary(self.option.scorer or self.exit.looks or MEMORY, self._done),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "decision": self.decision.to_plain(),
            "decisions": [made.to_plain() for made in self.decisions],
            "records": list(self.records),
            "evidence": self.evidence.state_dict(),
            "arrivals": self.arrivals.state_dict(),
            "audits": list(self.audits),
            "passes": self.passes,
            "pacing": self.pacing.to_plain(),
            "steps": [self._met, self._done],
            "gained": self._gained,
            "account": self.account.state_dict(),
            "held_out": self.held_out.state_dict(),
            "trials": None if self.trials is None else self.trials.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; held-out samples are read again."""
        found = Plain(state, "the autopilot")
        met_done = dict(zip(("met", "done"), found.items("steps"), strict=True))
        steps = [Plain(met_done, "its steps").whole(name) for name in ("met", "done")]
        evidence, arrivals, passes = Evidence(), Arrivals(), found.whole("passes")
        evidence.load_state_dict(state["evidence"])
        audits = found.numbers("audits") if "audits" in found else []
        arrivals.load_state_dict(found.get("arrivals"))
        decision = PilotDecision.from_plain(dict(state["decision"]))
        decisions = [PilotDecision.from_plain(dict(made)) for made in state["decisions"]]
        self.evidence, self.decision, self.decisions = evidence, decision, decisions
        self.arrivals, self.passes, self.audits = arrivals, passes, deque(audits, maxlen=WINDOW)
        self.records = [dict(record) for record in state["records"]]
        self.pacing.load(state["pacing"])
        self.pacing.given(self.held_out.trial.cost)
        self._gained = found.number("gained")
        self._met, self._done = steps
        self.account.load_state_dict(found.inside("account").content)
        self.held_out.load_state_dict(state["held_out"])
        if self.trials is not None and state["trials"] is not None:
            self.trials.load_state_dict(state["trials"])
