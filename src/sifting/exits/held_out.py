"""A reference from held-out samples: a frozen tuned exit, trained on them before the first choice.

Shapes: B samples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.tree import to_device
from sifting.exits.input import InputExit
from sifting.exits.reference import Reference
from sifting.exits.tuned import TunedExit
from sifting.log import say
from sifting.model.call import Call
from sifting.model.no_trace import no_trace
from sifting.model.plan import Plan
from sifting.model.replica import deep_copy, modules_run
from sifting.model.resolving import find_plan
from sifting.parallel.detect import first_rank, sharded
from sifting.plain import Plain
from sifting.rng import RandomState

STUDIED = 64  # samples of an update
MOST = 20_000  # held-out samples that are studied at most
EMPTY = "held_out= holds no batch: give samples that are not trained"


class HeldOutReference(Reference):
    """A tuned exit that learns held-out samples once, and is frozen from then on.

    >>> from sifting import Sifter
    >>> batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(4)]
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    >>> reference = HeldOutReference(batches)
    >>> sifter = Sifter(model, exit="last", score="reducible", reference=reference, keep=0.5)
    >>> sifter.score(batches[0]).shape
    torch.Size([8])

    It has seen none of the samples that are trained, so what it gets wrong cannot be
    known from similar samples: a wrong label, noise. Nothing has to be computed beforehand, and
    samples need no IDs. It learns at the first selection: after `warmup_steps`, where features of the
    model are looked at.

    Args:
        held_out: batches of samples that are not trained, with labels like those of what is: a
            list, or a loader that can be iterated again.
        exit: the kind of tuned exit. By default an `InputExit`, which looks at what the model is
            given; where that does not fit (language models), a `TunedExit`, for which the model as
            it is then is copied, and kept.
        passes: how often each held-out sample is learned from.
    """

    def __init__(
        self, held_out: Iterable[Any], *, exit: TunedExit | None = None, passes: int = 5
    ) -> None:
        if not isinstance(held_out, Iterable) or isinstance(held_out, Iterator):
            raise TypeError(
                f"held_out={held_out!r}: give batches of held-out samples, a list or a loader that can be "
                "iterated again"
            )
        if exit is not None and not isinstance(exit, TunedExit):
            raise TypeError(f"exit={exit!r}: give a TunedExit or an InputExit")
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise ValueError(f"passes={passes!r}: give a whole number of at least 1")
        self.held_out, self.passes = held_out, passes
        self._given: TunedExit | None = exit
        self._exit: TunedExit | None = None
        self._copy: nn.Module | None = None  # the model as it was, where its features are needed
        self._plan: Plan | None = None  # of the copy
        self._ready = False
        self._saved: Mapping[str, Any] | None = None  # of a state, until it is used

    def __repr__(self) -> str:
        return f"HeldOutReference(passes={self.passes})"

    def begin(self, call: Call, batch: Any) -> None:
        if isinstance(self.held_out, Sized) and not len(self.held_out) and self._saved is None:
            raise ValueError(EMPTY)

    def losses(self, plan: Plan, model: nn.Module, batch: Any, ids: Sequence[Any] | None) -> Tensor:
        if not self._ready:
            self._prepare(plan, model, batch)
        assert self._exit is not None
        frozen = model if self._copy is None else self._copy
        own = plan if self._plan is None else self._plan
        with no_trace(frozen):
            return self._exit.score(own, frozen, batch, "loss", False).float()

    def _prepare(self, plan: Plan, model: nn.Module, batch: Any) -> None:
        """Make the exit and train it, or take both from a state; the random streams stay."""
        streams = RandomState.now()
        try:
            with no_trace(model):
                self._fit(plan, model, batch)
            saved = self._saved
            if saved is None:
                self._study(plan)
            else:
                assert self._exit is not None
                self._exit.load_state_dict(saved["exit"])
                if self._copy is not None:
                    self._copy.load_state_dict(saved["model"])
            self._ready, self._saved = True, None
        finally:
            streams.restore()

    def _fit(self, plan: Plan, model: nn.Module, batch: Any) -> None:
        """Take the exit that fits the model, and a copy of the model where it runs some of it."""
        samples = plan.call.samples
        size = samples.size(batch)
        probe = samples.take(batch, torch.arange(min(size, 2)), size=size)
        self._exit = exit = InputExit() if self._given is None else copy.deepcopy(self._given)
        try:
            if isinstance(exit, InputExit):
                exit.prepare(plan, model, probe)
                exit.always = math.inf
        except ValueError:
            if self._given is not None:
                raise
            self._exit = exit = TunedExit()
        if isinstance(exit, InputExit) and not exit.runs:
            return
        if sharded(model):
            raise ValueError(
                "a HeldOutReference keeps a copy of the model, whose parameters are sharded here: compute a "
                "ReferenceTable with sift reference, or train with DDP"
            )
        frozen = deep_copy(model).requires_grad_(False).eval()
        with modules_run(model) as originals:
            try:
                own = self._prepared(exit, plan, frozen, probe)
            except Exception:
                _check_originals(originals)  # where they ran, the copy was passed by: say that
                raise
        _check_originals(originals)
        self._copy, self._plan = frozen, own

    @staticmethod
    def _prepared(exit: TunedExit, plan: Plan, frozen: nn.Module, probe: Any) -> Plan:
        losses = plan.losses_fn
        own = find_plan(plan.call, frozen, probe, plan.loss_fn, losses=losses, score="loss")
        own = replace(own, tokens=plan.tokens)
        if not isinstance(exit, InputExit):
            exit.bind(frozen, None)
        try:
            exit.prepare(own, frozen, probe)
        except ValueError as error:  # which advises on exits that choose
            raise ValueError(
                f"a HeldOutReference predicts losses by a {type(exit).__name__} of its own, and cannot "
                "learn those of this model and its loss: compute a ReferenceTable (sift reference)"
            ) from error
        return own

    def _study(self, plan: Plan) -> None:
        assert self._exit is not None
        samples, seen, updates = plan.call.samples, 0, 0
        frozen = self._copy if self._copy is not None else nn.Identity()
        own = plan if self._plan is None else self._plan
        for _ in range(self.passes):
            torch.default_generator.manual_seed(
                0
            )  # a loader that shuffles does it alike on resuming
            in_pass = 0
            for batch in self.held_out:
                size = samples.size(batch)
                device = next((p.device for p in frozen.parameters()), None)
                moved = batch if device is None else to_device(batch, device)
                for piece in samples.split(moved, STUDIED):
                    with no_trace(frozen):
                        self._exit.score(own, frozen, piece, "loss", True)
                        self._exit.learn(own)
                    updates += 1
                in_pass += size
                if in_pass >= MOST:
                    break
            seen = max(seen, in_pass)
        if not updates:
            raise ValueError(EMPTY)
        if first_rank():
            say(
                f"the reference of score='reducible' is {self._exit!r}, trained on {seen} held-out samples"
            )

    def state_dict(self) -> dict[str, Any]:
        if not self._ready:
            return dict(self._saved or {})
        assert self._exit is not None
        weights = None if self._copy is None else dict(self._copy.state_dict())
        return {"exit": self._exit.state_dict(), "model": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave: nothing is learned again."""
        if state:
            found = Plain(state, "the reference")
            InputExit().load_state_dict(found.inside("exit").content)  # here, to be used later
            if found.get("model") is not None:
                weights = found.inside("model")
                for name in weights:
                    weights.tensor(name)
        self._ready, self._copy, self._plan, self._exit = False, None, None, None
        self._saved = dict(state) or None


def _check_originals(originals: list[str]) -> None:
    if originals:
        raise ValueError(
            "a HeldOutReference keeps a copy of the model, and that still runs "
            f"{originals[0] or 'the model'!r} of the model itself, so that it would not stay as it is: forward= "
            "and losses= must call the model that they are given; or compute a ReferenceTable (sift reference)"
        )
