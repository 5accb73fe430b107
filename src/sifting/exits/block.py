"""The exit of the paper's BERT: the model's own head on the k-th block's output."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sifting.exits.base import Exit
from sifting.model.call import logits_of
from sifting.model.find import exit_in_stack, find_stack
from sifting.model.narrow import Narrow, find_narrow, narrowed
from sifting.model.parts import Part, Rows, Score, row_scores
from sifting.model.plan import Plan
from sifting.model.replica import Twin
from sifting.model.score_functions import custom_scores
from sifting.model.stack import Stack
from sifting.parallel.detect import sharded
from sifting.selection.tokens import SumOfTokens


class Examined(NamedTuple):
    """What is known of some samples: one value each, or None where it has no meaning.

    Attributes:
        exact: losses, weighed over positions as scores are.
        wrong: whether a sample is misclassified: 0 or 1, −1 for one without a label.
        early: the exit's own losses.
        sums: losses of all positions together.
    """

    exact: Tensor
    wrong: Tensor | None = None
    early: Tensor | None = None
    sums: Tensor | None = None


def take_off(found: list[Examined], off_B: Tensor) -> list[Examined]:
    """What was found of samples, piece by piece, with losses less those of a reference."""
    done = []
    for piece in found:
        less, off_B = off_B[: len(piece.exact)].to(piece.exact), off_B[len(piece.exact) :]
        early_B = None if piece.early is None else piece.early - less
        done.append(piece._replace(exact=piece.exact - less, early=early_B))
    return done


class BlockExit(Exit):
    """The model's own head applied to the k-th block's output; the whole model for "last".

    >>> model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 2))
    >>> exit = BlockExit(1)
    >>> exit.bind(model, stack=None)
    >>> exit.stack.path, exit.k
    ('0', 1)

    Args:
        at: block number from 1, "last", or the dotted path of a block.
    """

    shardable = True
    pipelined = True
    needs_labels = False

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.at == "last"

    @property
    def block(self) -> tuple[Stack, int] | None:  # type: ignore[override]
        return None if self.stack is None or not self.k else (self.stack, self.k)

    @property
    def remedy(self) -> str:  # type: ignore[override]
        if self.at == "last":  # exact already: no other exit knows better
            return "score='loss'"
        last = self.block is not None and self.k == len(self.block[0])
        return "exit='tuned', exit='last'" if last else "exit='tuned', a later exit"

    @property
    def cheaper(self) -> str:  # type: ignore[override]
        if self.at == "last":
            return "exit='tuned', or exit=MemoryExit()"
        if self.k == 1:
            return "less of each candidate (rows=, view=), or exit=MemoryExit()"
        return "an earlier exit (exit=1), or exit=MemoryExit()"

    def __init__(self, at: int | str) -> None:
        if isinstance(at, bool) or not isinstance(at, int | str):
            raise TypeError(f"exit={at!r}: give a block number from 1, 'last', or a module's path")
        self.at = at
        self.k: int | None = None
        self.stack: Stack | None = None
        self._narrow: dict[tuple[Part, ...], Narrow | None] = {}  # by the terms of an objective

    def __repr__(self) -> str:
        where = f" of {self.stack.path}" if self.stack is not None else ""
        return f"{type(self).__name__}({self.at!r}{where})"

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if self.at == "last":
            return
        if isinstance(self.at, int) and self.at < 1:
            raise ValueError(f"exit={self.at}: blocks are counted from 1; or choose 'last'")
        if isinstance(self.at, str):
            self.stack, self.k = exit_in_stack(model, self.at)
        else:
            self.stack, self.k = find_stack(model, stack), self.at
        self.stack.check_exit(self.k)

    def beside(self, twin: Twin) -> Exit:
        made = copy.copy(self)
        made.stack = None if self.stack is None else self.stack.beside(twin)
        return made

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        if self.stack is not None:
            self.stack.check_chain(lambda: plan.call.run(model, probe))
            if plan.rows is not None and self.k is not None and not sharded(model):
                self._narrow[plan.parts] = find_narrow(self.stack, self.k, plan, model, probe)

    @contextmanager
    def _truncated(self, plan: Plan) -> Iterator[None]:
        if self.stack is None or self.k is None:
            yield
            return
        with self.stack.truncated(self.k), narrowed(self._narrow.get(plan.parts), plan):
            yield

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        with self._truncated(plan):
            exact_B = plan.exact_losses(model, batch) if score == "loss" else None
            if exact_B is not None:
                return exact_B
            if callable(score) and not plan.by_rows:
                return custom_scores(plan, score, logits_of(plan.call.run(model, batch)), batch)
            values: list[Tensor] = []
            plan.each_part(
                model,
                batch,
                lambda part, found, y: values.append(plan.score(part, found, y, score)),
            )
        return torch.stack(values).sum(dim=0)

    def examine(self, plan: Plan, model: nn.Module, batch: Any) -> Examined:
        """What the whole model makes of each sample."""
        wrong: list[Tensor] = []
        losses: list[Tensor] = []
        sums: list[Tensor] = []

        def consume(part: Part, found: Rows | Tensor, labels: Tensor | None) -> None:
            if plan.kind == "parts":
                for values, kind in zip(
                    _exact(plan, part, found, labels), (losses, sums), strict=True
                ):
                    kind.append(values)
            single = isinstance(found, Rows) and found.mask_BT.shape[1] == 1
            if single and part.kind == "classes" and labels is not None:
                assert isinstance(found, Rows)
                assert found.labels_BT is not None
                missed_B = found.inputs_BTH[:, 0].argmax(dim=-1) != found.labels_BT[:, 0]
                wrong.append(torch.where(found.mask_BT[:, 0], missed_B.int(), -1))

        if plan.parts and plan.kind != "model":
            plan.each_part(model, batch, consume)
        exact_B = plan.exact_losses(model, batch)
        if exact_B is not None:
            losses.append(exact_B)
        return Examined(
            torch.stack(losses).sum(dim=0),
            wrong[0] if wrong else None,
            sums=torch.stack(sums).sum(dim=0) if sums and exact_B is None else None,
        )


def _exact(
    plan: Plan, part: Part, found: Rows | Tensor, labels: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One part's loss of each sample as it is weighed, and the sum over its positions."""
    if not isinstance(found, Rows):
        losses_B = plan.score(part, found, labels, "loss")
        return losses_B, losses_B
    values_N = row_scores(found, "loss", width=plan.width(part, found))
    whole_B, sums_B = (
        found.weighed(values_N, plan.tokens),
        found.weighed(values_N, SumOfTokens()),
    )
    return part.weight * whole_B, part.weight * sums_B
