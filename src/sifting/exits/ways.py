"""Ways of scoring a model: exits, each with as much of a candidate as it looks at.

Shapes: B candidates, K kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.tree import leaves
from sifting.exits.base import Exit
from sifting.exits.block import BlockExit
from sifting.exits.economy import Economy, Precision
from sifting.exits.input import InputExit
from sifting.exits.tuned import TunedExit
from sifting.measure.costs import HALF, WayCost
from sifting.measure.quality import quality
from sifting.model.call import Call
from sifting.model.parts import Score
from sifting.model.places import Place, candidate_places
from sifting.model.plan import Plan
from sifting.model.sampling import LABELLED, located
from sifting.model.viewing import View
from sifting.plain import Plain

PLACES = 2  # early modules that are tried beside the usual one
EARLY, APART = 0.4, 0.05  # of a forward's work: where they are at most, and how far apart
EXITS: dict[str, Callable[[], Exit]] = {
    "tuned": TunedExit,
    "exit 1": lambda: BlockExit(1),
    "input": InputExit,
}
AT = "tuned at "  # before the path of a module
FEW = 4  # the part of the labelled positions that is tried is one in so many


@dataclass(eq=False)
class Way:
    """An exit, and how much of each candidate it looks at.

    Attributes:
        name: for people.
        exit: bound and prepared.
        economy: what is left out.
        seconds: that scoring the candidates of a step took, of the batches looked at.
        measured: rank correlation, recall and kept loss in each of them.
    """

    name: str
    exit: Exit
    economy: Economy = field(default_factory=Economy)
    seconds: list[float] = field(default_factory=list)
    measured: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The name, with the precision that was measured to be faster."""
        return f"{self.name}, bf16" if self.economy.low else self.name

    def same(self, other: Way) -> bool:
        """Whether another one looks at the same in the same place."""
        place = getattr(self.exit, "place", None)
        return (
            place is not None
            and isinstance(other.exit, type(self.exit))
            and place == getattr(other.exit, "place", None)
            and self.economy.settings() == other.economy.settings()
        )

    def prepare(self, plan: Plan, model: nn.Module, probe: Any, score: Score) -> None:
        """Check that the model can be scored so.

        Raises:
            ValueError: where it cannot.
        """
        self.economy.check(plan, probe)
        seen = self.economy.viewed(plan.call, probe)
        with self.economy.naming():
            self.exit.prepare(self.economy.planned(plan, score), model, seen)
            self.score(plan, model, probe, score, learn=False)

    def score(
        self, plan: Plan, model: nn.Module, batch: Any, score: Score, *, learn: bool
    ) -> Tensor:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with self.economy.drawing(advance=learn), self.economy.lowered(device):
            try:
                chosen, seen = self.economy.placed(plan, plan.call, batch, batch)
            except ValueError:  # sequences of which it shows nothing: nobody has asked for less
                chosen, seen = located(plan, batch), batch
            return self.exit.score(chosen, model, seen, score, learn)

    def judge(self, scores_B: Tensor, exact_B: Tensor, seconds: float) -> None:
        """Note how well it ranks one batch of candidates, and how long it took."""
        top_K = scores_B.argsort(descending=True, stable=True)[: max(1, int(HALF * len(exact_B)))]
        found = quality(scores_B, exact_B, top_K)
        total = float(exact_B.sum())
        kept = float(exact_B[top_K].sum()) / total if total > 0 else HALF
        self.measured.append((found.rank_correlation, found.recall, kept))
        self.seconds.append(seconds)

    def cost(self, step: float, *, used: bool) -> WayCost:
        """What was measured of it, on the later half of a look.

        Args:
            step: seconds of the user's own step; not a number where they are not known.
            used: whether it is the one in use.
        """
        late = slice(len(self.measured) // 2, None)
        columns = zip(*self.measured[late], strict=True)
        ranks, recall, kept = [statistics.fmean(column) for column in columns] or [math.nan] * 3
        spent = statistics.median(self.seconds[late]) if self.seconds else math.nan
        cost = spent / step if step > 0 else math.nan
        return WayCost(self.shown, cost, ranks, recall, kept, used)

    @property
    def asked(self) -> dict[str, Any]:
        """What of each candidate it looks at, as arguments of an `Economy`."""
        rows, view = self.economy.rows, self.economy.view
        found = {"rows": rows, "view": None if view is None else view.size}
        return {key: value for key, value in found.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "exit": self.exit.state_dict(),
            "economy": self.economy.state_dict(),
            "seconds": list(self.seconds),
            "measured": [list(row) for row in self.measured],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        found = Plain(saved, f"the way {self.name!r}")
        seconds, rows = found.numbers("seconds"), found.items("measured")
        measured = [found.numbers("measured", row, length=3) for row in rows]
        self.economy.load_state_dict(found.inside("economy").content)
        self.exit.load_state_dict(found.inside("exit").content)
        self.seconds, self.measured = seconds, [(a, b, c) for a, b, c in measured]


def exactly(
    exit: BlockExit, plan: Plan, model: nn.Module, batch: Any, score: Score
) -> tuple[Tensor, Tensor]:
    """Losses by the whole model, and its scores.

    Args:
        exit: the last.
        plan, model, batch, score: what it is asked for.
    """
    exact_B = exit.examine(plan, model, batch).exact
    if score == "loss":
        return exact_B, exact_B
    return exact_B, exit.score(plan, model, batch, score, False)


def check_saved_way(name: str, saved: Mapping[str, Any]) -> None:
    """Raise ValueError unless a way of this name, which is yet to be made, can continue from a state."""
    Plain(saved, f"the way {name!r}").made("asked", lambda asked: Economy(**asked))
    _made(name.partition(",")[0], saved["asked"], torch.Generator(), True).load_state_dict(saved)


def saved_ways(
    saved: Mapping[str, Any], *, generator: torch.Generator, vary: bool
) -> Iterator[Way]:
    """The ways that a state knows: another batch would suggest other lengths, and so other ways.

    Args:
        saved: states of ways by their names.
        generator, vary: see `possible_ways`.
    """
    for name, state in saved.items():
        if vary or not state["asked"]:
            yield _made(name.partition(",")[0], state["asked"], generator, vary)


def _made(kind: str, asked: Mapping[str, Any], generator: torch.Generator, vary: bool) -> Way:
    """A way by the name of its exit and what it looks at."""
    make = EXITS.get(kind, partial(TunedExit, kind.removeprefix(AT)))
    precision: Precision | None = "auto" if vary and kind != "input" else None
    economy = Economy(**asked, precision=precision, generator=generator)
    said = [f"{key}={value!r}" for key, value in asked.items()]
    return Way(", ".join([kind, *said]), make(), economy)


def possible_ways(
    plan: Plan, model: nn.Module, probe: Any, *, generator: torch.Generator, vary: bool
) -> Iterator[Way]:
    """Everything worth a try on a model, the dear first; what does not fit is found out later.

    Args:
        plan: how the model is scored.
        model: in eval mode, without gradients.
        probe: some samples.
        generator: the sifter's own.
        vary: whether how much of each candidate is looked at is left to us.
    """
    exits = [name for name in EXITS if name != "input" or not plan.heads]
    exits += [f"{AT}{path}" for path in _earlier(plan, model, probe)]
    economies: list[dict[str, Any]] = [{}]
    if vary:
        economies += _economies(plan, probe)
    for name in exits:
        for asked in economies:
            if name == "input" and asked:
                continue  # it looks at coarse images and averages anyway
            yield _made(name, asked, generator, vary)


def _earlier(plan: Plan, model: nn.Module, probe: Any) -> list[str]:
    """Modules of a network with one prediction per sample that come early, the cheapest last."""
    if plan.heads:
        return []
    size = plan.call.samples.size(probe)
    places = candidate_places(model, lambda: plan.call.run(model, probe), size=size)
    found: list[Place] = []
    for place in reversed(places):  # the last of those that cost the same
        share = place.share or 0.0
        if share < EARLY and all(abs(share - (other.share or 0.0)) > APART for other in found):
            found.append(place)
    return [place.path for place in found[-PLACES:]]


def _economies(plan: Plan, probe: Any) -> list[dict[str, Any]]:
    """What could be left out: positions of sequences, pixels of images."""
    found: list[dict[str, Any]] = []
    parts = [part for part in plan.parts if part.labels is not None and part.logits in plan.heads]
    if parts:
        labels = plan.labels_for(parts[0], probe)
        assert labels is not None
        mask_BT = parts[0].labelled(labels)
        many = float(mask_BT.sum(dim=1).float().mean())
        if many < 0.75 * mask_BT.shape[1]:
            found.append({"rows": LABELLED})
        if many >= 2 * FEW:
            found.append({"rows": round(many / FEW)})
    half = _half(plan.call, probe)
    if half is not None:
        found.append({"view": half})
    return found


def _half(call: Call, probe: Any) -> int | None:
    """Half of the positions or pixels that samples have; None where they cannot be cut."""
    sizes = {
        min(leaf.shape[2:]) if leaf.ndim == 4 else leaf.shape[1]
        for leaf in leaves(probe)
        if isinstance(leaf, Tensor) and not leaf.is_nested and leaf.ndim in (2, 4)
    }
    for size in sorted(sizes, reverse=True):
        if size >= 8:
            try:
                View(size // 2)(call, probe)
            except ValueError:
                continue
            return int(size // 2)
    return None
