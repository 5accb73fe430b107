"""ahead=1 on two ranks: the thread talks to nobody, and choices are those of weights one update old."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as DDP

from sifting import Sifter
from tests.parallel.scripts.common import candidates, make_net, part, run

STEPS = 6


class Run:
    """A model in DDP, its optimizer and its sifter."""

    def __init__(self, *, compiled: bool = False, **options: Any) -> None:
        self.net = make_net(torch.float32)
        self.model = DDP(self.net)
        self.call: Any = torch.compile(self.model, backend="eager") if compiled else self.model
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.3, momentum=0.9)
        self.sifter = Sifter(self.call, ahead=1, draws="batch", audit_every=0, **options)
        assert self.sifter.beside is not None
        self.beside, self.used = self.sifter.beside, 0

    def train(
        self,
        *,
        every: int = 1,
        autocast: bool = False,
        on_batch: Callable[[int], None] = lambda step: None,
    ) -> list[Any]:
        """What each step trained, and its loss."""
        found: list[Any] = []
        for x, y in self.sifter(batches()):
            self.used += self.beside.ahead is not None and self.beside.ahead.future is not None
            on_batch(len(found))
            last = len(found) % every == every - 1
            with nullcontext() if last else self.model.no_sync():
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    loss = F.cross_entropy(self.call(x), y)
                loss.backward()
            if last:
                self.update()
            found.append((x.tolist(), y.tolist(), loss.item()))
        return found

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def batches() -> list[tuple[Tensor, Tensor]]:
    return [part(candidates(step, dtype=torch.float32)) for step in range(STEPS)]


def reference(options: dict[str, Any], **how: Any) -> list[Any]:
    """Candidates are scored in the loop, by weights that are one update old."""
    run = Run(**options)
    net, scorer = run.net, run.sifter._scorer
    old, score, noted = copy.deepcopy(net), scorer.scores, scorer.autocast
    run.beside.begin = lambda: None  # type: ignore[method-assign]

    def scores(batch: Any, *, learn: bool, ids: Any = None) -> Tensor | None:
        if run.sifter.step < 2:
            return score(batch, learn=learn)
        now, autocast = copy.deepcopy(net.state_dict()), scorer.autocast
        net.load_state_dict(old.state_dict())
        scorer.autocast = noted
        found = score(batch, learn=learn)
        net.load_state_dict(now)
        scorer.autocast = autocast
        return found

    def remember(step: int) -> None:
        nonlocal noted
        old.load_state_dict(net.state_dict())
        noted = scorer.autocast

    scorer.scores = scores  # type: ignore[method-assign]
    return run.train(on_batch=remember, **how)


def compare(options: dict[str, Any], **how: Any) -> None:
    run = Run(**options)
    assert run.train(**how) == reference(options, **how)
    assert run.used == STEPS - 2  # all but the first two were scored beside a step


def check_tuned_exits_learn_together() -> None:
    compare({"exit": "tuned"})


def check_ranks_choose_together() -> None:
    compare({"exit": 2, "score": "loss", "scope": "global"})


def check_accumulation_autocast_and_compiled_models() -> None:
    options = {"exit": 2, "score": "loss", "scope": "global"}
    compare(options, every=2)
    compare(options, autocast=True)
    compare({**options, "compiled": True}, every=2, autocast=True)


def check_a_state_taken_in_flight_goes_on_identically() -> None:
    options = {"exit": "tuned", "scope": "global"}
    run, saved = Run(**options), dict[str, Any]()

    def save(step: int) -> None:
        if step == 3:
            parts = {"sifter": run.sifter, "net": run.net, "optimizer": run.optimizer}
            saved.update({name: copy.deepcopy(one.state_dict()) for name, one in parts.items()})

    whole = run.train(on_batch=save)
    again = Run(**options)
    again.net.load_state_dict(saved["net"])
    again.optimizer.load_state_dict(saved["optimizer"])
    again.sifter.load_state_dict(saved["sifter"])
    x, y, loss = whole[3]  # the step that the state was taken in is trained again
    value = F.cross_entropy(again.call(torch.tensor(x)), torch.tensor(y))
    assert value.item() == loss
    value.backward()
    again.update()
    assert again.train() == whole[4:]


if __name__ == "__main__":
    run(
        [
            check_tuned_exits_learn_together,
            check_ranks_choose_together,
            check_accumulation_autocast_and_compiled_models,
            check_a_state_taken_in_flight_goes_on_identically,
        ]
    )
