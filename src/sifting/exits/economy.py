"""How much of each candidate is scored, and in what precision: less of it is cheaper.

Shapes: B samples.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from sifting.data.tree import leaves, to_device
from sifting.log import say
from sifting.measure.quality import rank_correlation
from sifting.measure.stopwatch import now
from sifting.model.call import Call
from sifting.model.failed_call import FAILURES, model_error
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.model.sampling import (
    RowCount,
    check_count,
    check_sampled,
    located,
    positional,
    sampled,
)
from sifting.model.viewing import View, ViewSize, check_seen
from sifting.parallel.ranks import Ranks
from sifting.plain import Plain

Precision = Literal["bf16", "auto"]
ROUNDS = 3  # in which both precisions are timed, by turns
FASTER = 0.9  # of the time: less of a gain is not worth the lost digits
ALIKE = 0.95  # rank correlation of the scores in both that is asked for


class Economy:
    """What is left out when candidates are scored; nothing by default.

    >>> Economy(), Economy(rows=8, view=64)
    (Economy(), Economy(rows=8, view=64))

    Args:
        rows: labelled positions of each sequence, at most, redrawn each time; "labelled" for all
            of them, and nothing else of the last block that runs.
        view: what is looked at of each sample; see `View`.
        precision: "bf16", or "auto" for whichever is faster here; None for that of the training.
        generator: the sifter's own.
    """

    def __init__(
        self,
        *,
        rows: RowCount | None = None,
        view: ViewSize | None = None,
        precision: Precision | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_count(rows)
        if precision not in (None, "bf16", "auto"):
            raise ValueError(
                f"precision={precision!r}: choose 'bf16', 'auto' to have it measured, or None for that of "
                "your training step"
            )
        self.rows, self.precision = rows, precision
        self.view = None if view is None else View(view)
        self.low: bool | None = {None: False, "bf16": True}.get(precision)  # None: not measured yet
        self.generator = generator if generator is not None else torch.Generator()
        self._drawn = torch.Generator()  # for one batch of candidates, seeded by the sifter's

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.shown().items())})"

    def shown(self) -> dict[str, Any]:
        """What the user, or a measurement, has asked for."""
        found = {"rows": self.rows, "view": self.view, "precision": self.precision}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def whole(self) -> bool:
        """Whether all of a sample is looked at, in the precision of the training."""
        return self.rows is None and self.view is None and not self.low

    def settings(self) -> dict[str, Any]:
        """The same in plain values, what was not asked for too: for logs, and for ranks to compare."""
        view = None if self.view is None else repr(self.view)
        return {"rows": self.rows, "view": view, "precision": self.precision}

    def __str__(self) -> str:
        """In words, as reports say it; empty where nothing is left out."""
        words = []
        if self.rows is not None:
            many = f"{self.rows} labelled" if isinstance(self.rows, int) else "only labelled"
            words.append(f"{many} positions of each")
        if self.view is not None:
            words.append(f"a view of {self.view}")
        if self.low:
            words.append("in bf16")
        return ", ".join(words)

    # -- what the exit is given

    def planned(self, plan: Plan, score: Score) -> Plan:
        """The plan of a model that is scored so; raises where it cannot be."""
        if self.rows is None:
            return plan
        check_sampled(plan, self.rows, score)
        return replace(plan, rows=self.rows)

    def viewed(self, call: Call, batch: Any, host: Any = None) -> Any:
        """The batch as it is scored, perhaps with what it was before it went to a device (`View`)."""
        return batch if self.view is None else self.view(call, batch, host=host)

    def check(self, plan: Plan, batch: Any) -> None:
        """Raise where what is looked at of a batch is too little to tell samples apart."""
        if self.view is not None:
            seen = self.viewed(plan.call, batch)
            check_seen(self.view, plan.call, batch, seen, parts=plan.parts)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """While open, a model that does not run on what is looked at is said to be so."""
        try:
            yield
        except FAILURES as error:
            theirs = error if isinstance(error, RuntimeError) else model_error(error)
            if self.view is None or theirs is None or isinstance(error, torch.OutOfMemoryError):
                raise
            raise ValueError(
                f"view={self.view!r}: the model does not run on samples of that size ({theirs}): choose another "
                "size, an earlier exit, or leave view= out"
            ) from error

    def placed(self, plan: Plan, call: Call, batch: Any, host: Any) -> tuple[Plan, Any]:
        """The plan for one batch, with its positions drawn and looked up, and what is seen of the batch.

        Args:
            host: the same batch where it can be looked into without waiting for a device.
        """
        if not positional(plan):
            return plan, self.viewed(call, batch, host)
        if host is batch or self.view is None or not callable(self.view.size):
            seen = self.viewed(call, batch, host)
            told = seen if host is batch else self.viewed(call, host)
        else:  # asked once: a function of the user's may show another part the next time
            told = self.viewed(call, host)
            devices = [leaf.device for leaf in leaves(batch) if isinstance(leaf, Tensor)]
            seen = batch if told is host else to_device(told, devices[0])
        drawn = plan if self.rows is None else sampled(plan, told, self.rows, self._drawn)
        return located(drawn, told), seen

    @contextmanager
    def drawing(self, *, advance: bool) -> Iterator[None]:
        """Open while one batch of candidates is scored, in however many pieces.

        The sifter's own stream moves by one number, whatever the batch, so that ranks stay in step.

        Args:
            advance: whether it moves at all; otherwise nothing happened.
        """
        if self.rows is None:
            yield
            return
        before = self.generator.get_state()
        seed = int(torch.randint(2**62, (), generator=self.generator))
        if not advance:
            self.generator.set_state(before)
        self._drawn.manual_seed(seed)
        yield

    def again(self) -> Economy:
        """The same for another thread: it draws once more what was drawn last, from a stream of its own."""
        made = copy.copy(self)
        made._drawn = torch.Generator().manual_seed(self._drawn.initial_seed())
        return made

    def lowered(self, device: torch.device) -> AbstractContextManager[Any]:
        """The autocast that candidates are scored under, where that is one of our own."""
        if not self.low or torch.is_autocast_enabled(device.type):
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)

    # -- precision

    def measure(
        self,
        run: Callable[[], Tensor],
        device: torch.device,
        *,
        ranks: Ranks | None = None,
        tell: bool = False,
    ) -> None:
        """Find out, on one batch, whether bf16 is faster here and ranks samples alike.

        Args:
            run: scores the batch, and leaves no trace.
            device: where.
            ranks: those that run the model in step: all take the first one's word.
            tell: whether to say so where it is faster.
        """
        self._measure(run, device)
        if ranks is not None:
            self.low = ranks.gather(self.low)[0]
        if self.low and tell:
            say("candidates are scored in bf16, which was measured to be faster here")

    def _measure(self, run: Callable[[], Tensor], device: torch.device) -> None:
        seconds: dict[bool, list[float]] = {False: [], True: []}
        scores: dict[bool, Tensor] = {}
        try:
            for turn in range(ROUNDS + 1):
                for low in (False, True):
                    self.low = low
                    begin = now()
                    scores[low] = run()
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    if turn:  # the first of each warms up
                        seconds[low].append(now() - begin)
        except RuntimeError:  # an operation that has no bf16 here
            if self.low is False:
                raise
            self.low = False
            return
        faster = statistics.median(seconds[True]) < FASTER * statistics.median(seconds[False])
        alike = rank_correlation(scores[True].cpu(), scores[False].cpu()) >= ALIKE
        self.low = faster and (alike or bool((scores[False] == scores[False][0]).all()))

    def state_dict(self) -> dict[str, Any]:
        return {"low": -1 if self.low is None else int(self.low)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the precision that was measured before."""
        found = Plain(state, "what is scored").whole("low", least=-1, most=1)
        if self.precision == "auto":
            self.low = None if found < 0 else bool(found)
