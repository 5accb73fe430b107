"""How batches are scored, found out once for each kind of them; and again where a class is new."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.tree import to_device
from sifting.exits.base import Exit
from sifting.exits.checks import in_step
from sifting.exits.economy import Economy
from sifting.log import say
from sifting.measure.audit import warn_user
from sifting.model.agreement import to_verify, verifiable, verify
from sifting.model.by_sample import Losses
from sifting.model.call import Call
from sifting.model.evidence import MOST_CHECKS, CheckedClasses
from sifting.model.failed_call import failed_calls
from sifting.model.no_trace import first_parameter
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.model.probing import probe_rows, signature
from sifting.model.resolving import find_plan
from sifting.model.sample_losses import PerSampleLoss
from sifting.model.score_functions import check_labelled
from sifting.parallel.detect import first_rank
from sifting.parallel.ranks import Ranks
from sifting.selection.tokens import Tokens

UNPLANNED = 10  # batches without any label before a warning


class Planner:
    """The part of a `Scorer` that knows plans."""

    model: nn.Module
    exit: Exit
    call: Call
    score: Score
    economy: Economy
    tokens: Tokens
    loss_fn: PerSampleLoss | None
    losses_fn: Losses | None
    sharded: bool
    idle: bool
    ranks: Ranks | None  # those that have to run the model in step with this one
    _by_default: bool

    def __init__(self) -> None:
        self.plan: Plan | None = None  # the one used last
        self.plans: dict[tuple[Any, ...], Plan] = {}  # by the kind of labels
        self._evidence: dict[tuple[Any, ...], CheckedClasses] = {}
        self._unplanned = 0  # batches in which nothing had a label

    @property
    def score_is_known(self) -> bool:
        """Whether a batch cannot change what is scored by: it may where nobody named it."""
        told = self.loss_fn is None and self.losses_fn is None
        return not self._by_default or told or self.plan is not None

    @property
    def device(self) -> torch.device:
        """Where the model is, and candidates are scored."""
        parameter = first_parameter(self.model)
        return torch.device("cpu") if parameter is None else parameter.device

    def moved(self, batch: Any) -> Any:
        """A batch on the model's device."""
        return to_device(batch, self.device)

    def known(self, batch: Any) -> Plan | None:
        """The plan for a batch, where nothing more has to be run to know it."""
        plan = self.plans.get(kind := self.kind(batch))
        if plan is None or self.ranks is not None or self._evidence[kind].suffices(plan, batch):
            return plan
        return None

    def kind(self, batch: Any) -> tuple[Any, ...]:
        """What a plan goes by. Ranks in step must find theirs at once, whatever labels each has."""
        # only a model's own loss can ignore a class that nobody was told of
        zeros = self.ranks is None and self.loss_fn is None and self.losses_fn is None
        return signature(
            self.call, batch, zeros=zeros and self.call.takes_labels(self.model, batch)
        )

    def _planned(self, batch: Any, host: Any = None) -> Plan | None:
        """How the model is scored on such a batch; None while no sample with a label was seen.

        Args:
            host: the same batch before it was moved, where what it is can be asked without waiting.
        """
        host = batch if host is None else host
        kind = self.kind(host)
        if kind in self.plans and self._holds(kind, batch, host):
            self.plan = self.plans[kind]
            return self.plan
        rows, probe = self._probe(batch)
        if probe is None:
            self._unplanned += 1
            if self._unplanned == UNPLANNED:
                warn_user(
                    f"{UNPLANNED} batches had no sample with a label, so the kept were picked at random: "
                    f"look at {', '.join(self.call.labels_of(batch))}, or pass labels="
                )
            return None
        return self._find(kind, batch, probe, rows)

    @failed_calls()
    def _find(self, kind: tuple[Any, ...], batch: Any, probe: Any, rows: Tensor | None) -> Plan:
        """Find out how the model is scored, on some samples, and hold it against the whole batch."""
        plan = find_plan(
            self.call,
            self.model,
            probe,
            self.loss_fn,
            losses=self.losses_fn,
            score=None if self._by_default and self.losses_fn is not None else self.score,
            rows=rows,
        )
        plan = replace(plan, tokens=self.tokens)
        if self.sharded:
            plan = in_step(plan)
        if not self.idle:
            if self._by_default and self.call.labels is None:
                check_labelled(plan, batch)
            if self._by_default and self.exit.default_score != "loss":
                self.score = plan.default_score()
            plan = plan.for_score(self.score, self.model, probe)
            plan = self.economy.planned(plan, self.score)
            self.economy.check(plan, batch)
            with self.economy.naming():
                self.exit.prepare(plan, self.model, self.economy.viewed(self.call, probe))
        plan.check_batch(batch)
        self._verify(kind, plan, batch)
        if (not self.plans or kind in self.plans) and first_rank():
            say(f"the objective that is scored is {plan.describe()}")
        if plan.kind == "model":
            warn_user(
                "the model's loss cannot be computed from its logits and labels by any loss that was tried "
                "(smoothing, weights, or no logits), so it is taken from the model one sample at a time, "
                "which is slow: pass forward= that returns the logits, and loss_fn="
            )
        self.plan = self.plans[kind] = plan
        return plan

    def _holds(self, kind: tuple[Any, ...], batch: Any, host: Any) -> bool:
        """Whether a plan gives the model's own loss of a batch with classes that it was not tried on.

        It does not where a label is of no class either: in the model's loss, that number may mean none.
        """
        plan = self.plans[kind]
        if self.ranks is not None or not self.exit.runs:  # nothing more is run for it
            return True
        try:
            if self._evidence[kind].suffices(plan, host):
                plan.check_batch(host)
            else:
                self._verify(kind, plan, batch)
        except ValueError:  # found again, or refused
            self._evidence[kind] = CheckedClasses()
            return False
        return True

    def _verify(self, kind: tuple[Any, ...], plan: Plan, batch: Any) -> None:
        evidence = self._evidence.setdefault(kind, CheckedClasses())
        if not verifiable(plan, self.model, batch):
            evidence.checks = MOST_CHECKS
            return
        piece = to_verify(plan, batch)
        verify(plan, self.model, piece)
        evidence.add(plan, piece)

    def _probe(self, batch: Any) -> tuple[Tensor | None, Any | None]:
        """Some samples with labels to find out with; the same on all ranks that stay in step.

        What is tried with a sharded model takes as many forwards on every rank.
        """
        rows = probe_rows(self.call, batch)
        probe = None if rows is None else self.call.samples.take(batch, rows)
        if self.ranks is None:
            return rows, probe
        if probe is not None:
            probe = to_device(probe, torch.device("cpu"))
        probe = self.ranks.share_first(probe)
        return None, None if probe is None else self.moved(probe)
