"""exit="auto" with a fixed ratio: the way of scoring with the best net gain, as measured here.

For some selections every way scores the candidates, and all of their exact losses are computed; these
choose meanwhile. Then the way is used whose choice carries most loss for its time, and now and then it
is looked at again. Just before, the others learn along: a head that has hardly learned since the last
look would be judged by how little it knows.

Shapes: B candidates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.exits.base import Exit, Setting
from sifting.exits.block import BlockExit
from sifting.exits.teaching import lessons
from sifting.exits.ways import Way, check_saved_way, exactly, possible_ways, saved_ways
from sifting.log import say
from sifting.measure.costs import Costs, WayCost
from sifting.measure.stopwatch import now
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.model.stack import Stack
from sifting.parallel.detect import first_rank
from sifting.parallel.ranks import Ranks
from sifting.plain import Plain

FIRST, LATER = 16, 8  # selections of the first look, and of later ones; their second half is judged
AGAIN = 400  # selections until it is looked at again; then at three times as many, each time
BETTER = 1.02  # by so much another way must be ahead to take the place of the one in use


class BestExit(Exit):
    """Whichever way of scoring pays best on this model: exits, sampled rows, views, precisions.

    >>> BestExit()
    BestExit(not measured yet)

    Args:
        vary: whether how much of each candidate is looked at is left to it; not where the user says.

    Attributes:
        ways: all that fit the model.
        used: the one in use; None before the first look is over.
        refused: why others do not fit, by name.
    """

    learns = True
    default_explore = 0.25
    cheaper = "an exit= of your own: sifter.costs() shows what each takes"
    remedy = "an exit= of your own: sifter.costs() shows how each ranks"

    def __init__(self, *, vary: bool = True) -> None:
        self.vary = vary
        self.generator = torch.Generator()
        self.ways: list[Way] = []
        self.used: Way | None = None
        self.refused: dict[str, str] = {}
        self._exact = BlockExit("last")
        self._ranks: Ranks | None = None
        self._stack: str | None = None
        self._selections = 0  # that were scored
        self._look_ends, self._next = FIRST, AGAIN
        self._pupils: list[str] = []  # ways that learn along before the next look, by name
        self._lessons = 0  # selections for which they do
        self._steps: list[float] = []  # seconds of the user's own, within a look
        self._begun: float | None = None
        self._pending: dict[str, list[Tensor]] = {}  # scores of one batch, piece by piece
        self._whole: tuple[Tensor, Tensor] | None = None  # exact losses and scores of that piece
        self._spent: dict[str, float] = {}
        self._loaded: Mapping[str, Any] = {}  # states of ways that are yet to be made
        self._was_used = ""  # the name of the one among them
        self._score: Score = "entropy"
        self._device = torch.device("cpu")  # that candidates were scored on

    def __repr__(self) -> str:
        used = self.used.name if self.used else self._was_used  # also before a state is put back
        return f"BestExit({used or 'not measured yet'})"

    @property
    def settled(self) -> bool:  # type: ignore[override]
        return self.used is not None and not self.looking and not self._learning

    @property
    def block(self) -> tuple[Stack, int] | None:  # type: ignore[override]
        """Of the way in use, where it looks at all of a candidate."""
        way = self.used if self.settled else None
        return None if way is None or way.economy.rows is not None else way.exit.block

    @property
    def place(self) -> str | None:
        way = self.used if self.settled else None
        at = None if way is None or way.economy.rows is not None else way.exit
        return getattr(at, "place", None)

    @property
    def whole(self) -> bool:  # type: ignore[override]
        way = self.used if self.settled else None
        return way is not None and way.economy.whole

    def suits(self, setting: Setting) -> None:
        self._score = setting.score

    def may_leave_out(self, generator: torch.Generator, free: bool) -> None:
        self.generator, self.vary = generator, free

    def join(self, ranks: Ranks) -> None:
        self._ranks = ranks
        for way in self.ways:
            way.exit.join(ranks)

    def bind(self, model: nn.Module, stack: str | None) -> None:
        self._stack = stack

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        score = self._score_for(plan)
        if self.ways:  # of batches of another kind
            for way in self.ways:
                way.prepare(plan, model, probe, score)
            return
        free: dict[str, Any] = {"generator": self.generator, "vary": self.vary}
        for way in saved_ways(self._loaded, **free):
            self._try(way, plan, model, probe, score)
        if not self.ways:  # nothing was loaded, or nothing of it fits this model
            for way in possible_ways(plan, model, probe, **free):
                self._try(way, plan, model, probe, score)
        if not self.ways:
            raise ValueError(
                "exit='auto' finds no way to score this model early: "
                + "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            )
        self._restore()

    def _try(self, way: Way, plan: Plan, model: nn.Module, probe: Any, score: Score) -> None:
        """Take a way where it fits the model, and looks at something that no other looks at."""
        try:
            way.exit.bind(model, self._stack)
            way.prepare(plan, model, probe, score)
        except (ValueError, RuntimeError) as error:
            self.refused[way.name] = str(error)
            return
        if any(way.same(other) for other in self.ways):
            return
        if self._ranks is not None:
            way.exit.join(self._ranks)
        self.ways.append(way)

    def _score_for(self, plan: Plan) -> Score:
        """The score that ways are tried with: the user's, or what suits the objective."""
        try:
            plan.check_score(self._score)
        except ValueError:
            return plan.default_score()
        return self._score

    @property
    def looking(self) -> bool:
        """Whether the candidates that come next are scored in every way."""
        return self._selections < self._look_ends

    @property
    def _learning(self) -> list[Way]:
        """Ways that learn from the candidates that come next, while another one chooses."""
        if self.looking or self._selections < self._next - self._lessons:
            return []
        return [way for way in self.ways if way.name in self._pupils and way is not self.used]

    def see_whole(self, plan: Plan, model: nn.Module, batch: Any, score: Score) -> None:
        """Take the exact losses of samples of which the user shows the ways only a part (`view=`)."""
        self._whole = None
        if self.looking and plan.labelled:
            self._whole = exactly(self._exact, plan, model, batch, score)

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        if learn and self.looking and plan.labelled:
            return self._compare(plan, model, batch, score)
        for way in self._learning if learn and plan.labelled else ():
            way.score(plan, model, batch, score, learn=True)
        way = self.used or self.ways[0]
        return way.score(plan, model, batch, score, learn=learn)

    def _compare(self, plan: Plan, model: nn.Module, batch: Any, score: Score) -> Tensor:
        """Scores by every way, noted; gives those of the whole model."""
        self._device = device = next((p.device for p in model.parameters()), torch.device("cpu"))
        whole, self._whole = self._whole, None
        exact_B, chosen_by_B = whole or exactly(self._exact, plan, model, batch, score)
        self._pending.setdefault("", []).append(exact_B.float())
        for way in self.ways:
            if way.economy.low is None:
                way.economy.measure(
                    lambda way=way: way.score(plan, model, batch, score, learn=False),  # type: ignore[misc]
                    device,
                    ranks=self._ranks,
                )
            with self._charging(way, device):
                found_B = way.score(plan, model, batch, score, learn=True)
            self._pending.setdefault(way.name, []).append(found_B.float())
        return chosen_by_B

    @contextmanager
    def _charging(self, way: Way, device: torch.device) -> Iterator[None]:
        """While open, time is a way's to pay for: also what a device has yet to do, but not before it."""
        _wait(device)
        begin = now()
        yield
        _wait(device)
        self._spent[way.name] = self._spent.get(way.name, 0.0) + now() - begin

    def learn(self, plan: Plan) -> None:
        for way in self.ways:
            if self._pending:
                with self._charging(way, self._device):
                    way.exit.learn(plan)
            elif way is (self.used or self.ways[0]) or way in self._learning:
                way.exit.learn(plan)
        self._selections += 1
        if self._pending:
            self._judge()
        if self._selections == self._look_ends:
            self._decide()
        elif self._selections == self._next:
            self._look_ends, self._next = self._selections + LATER, 3 * self._selections
            self._steps.clear()
            for way in self.ways:
                way.seconds.clear()
                way.measured.clear()
        self._begun = now() if self.looking else None

    def _judge(self) -> None:
        """What one batch of candidates says of every way."""
        exact_B = torch.cat(self._pending.pop("")).double().cpu()
        for way in self.ways:
            scores_B = torch.cat(self._pending[way.name]).double().cpu()
            way.judge(scores_B, exact_B, self._spent[way.name])
        self._pending, self._spent = {}, {}

    def end_step(self) -> None:
        """The user's step is over: its time is what scoring is measured by."""
        if self._begun is not None:
            _wait(self._device)
            self._steps.append(now() - self._begun)
            self._begun = None

    def _decide(self) -> None:
        judged = [(cost.gain, way) for way, cost in self._known() if cost.known]
        # where no step's end was ever told, there is nothing to compare costs with: the first
        gain, best = max(judged, key=lambda one: one[0], default=(0.0, self.ways[0]))
        own = next((gain for gain, way in judged if way is self.used), None)
        if self.used is not None and own is not None and gain < BETTER * own:
            best = self.used
        if self._next <= self._selections:  # passed by while all were measured anew
            self._next = 3 * self._selections
        found = best.name, *self._taught_next(best)
        if self._ranks is not None:
            found = self._ranks.gather(found)[0]
        name, self._pupils, self._lessons = found
        best = next(way for way in self.ways if way.name == name)
        if best is not self.used and first_rank():
            say(f"exit='auto' takes {best.shown}, of {len(self.ways)} ways that were measured")
        self.used = best

    def _known(self) -> list[tuple[Way, WayCost]]:
        """Each way, and what was measured of it."""
        step = statistics.median(self._steps) if self._steps else math.nan
        return [(way, way.cost(step, used=way is self.used)) for way in self.ways]

    def _taught_next(self, best: Way) -> tuple[list[str], int]:
        """Which other ways learn along before the next look, by name, and for how many selections."""
        known = [replace(cost, name=way.name) for way, cost in self._known() if way.exit.learns]
        others = [cost for cost in known if cost.name != best.name]
        return lessons(Costs(others), self._next - self._selections)

    def compared(self) -> Costs:
        """What is known of every way by now."""
        done = f"measured on {self._selections} of {self._look_ends} selections so far"
        return Costs([cost for _, cost in self._known()], "" if self.used else done)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        ways = {way.name: way.state_dict() for way in self.ways}
        return {
            "used": self.used.name if self.used else self._was_used,
            "counts": [self._selections, self._look_ends, self._next],
            "steps": list(self._steps),
            "pupils": list(self._pupils),
            "lessons": self._lessons,
            "ways": ways or dict(self._loaded),  # where no batch was seen since
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"used", "counts", "steps", "pupils", "lessons", "ways"}:
            raise ValueError(
                f"the state holds {', '.join(state) or 'nothing'} of an exit, not what exit='auto' has "
                "measured: make the sifter with the exit the state was saved with"
            )
        found = Plain(state, "what exit='auto' has measured")
        named = dict(zip(("selections", "ends", "next"), found.items("counts"), strict=True))
        counts = [Plain(named, "its counts").whole(name) for name in named]
        steps, many = found.numbers("steps"), found.whole("lessons")
        pupils = [str(name) for name in found.items("pupils")]
        ways = found.inside("ways")
        for name in ways:
            check_saved_way(name, ways.get(name))
        self._loaded = dict(ways.content)
        self._was_used = str(state["used"])
        self._selections, self._look_ends, self._next = counts
        self._steps, self._pupils, self._lessons = steps, pupils, many
        if self.ways:
            self._restore()

    def share(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on with the ways that all ranks have: each has found its own on its own batches."""
        found = [state["ways"] for state in states if state["ways"]]
        common = [name for name in (found or [{}])[0] if all(name in ways for ways in found)]
        by_name = {way.name: way for way in self.ways}
        self.ways = [by_name[name] for name in common if name in by_name]
        ways = {name: saved for name, saved in states[0]["ways"].items() if name in common}
        self.load_state_dict({**states[0], "ways": ways})

    def _restore(self) -> None:
        """Put a loaded state into the ways, once these are made."""
        if not self._loaded:
            return
        for way in self.ways:
            if way.name in self._loaded:
                way.load_state_dict(self._loaded[way.name])
        self.used = next((way for way in self.ways if way.name == self._was_used), None)
        if self.used is None and self._was_used and not self.looking:
            self._look_ends = self._selections + FIRST  # it does not fit any more: measured anew
        self._loaded = {}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
