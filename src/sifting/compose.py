"""The parts of a `Sifter`, made and checked from its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sifting.autopilot.pieces import Pieces
from sifting.autopilot.pilot import Pilot
from sifting.autopilot.trial import Trial
from sifting.autopilot.trials import Trials
from sifting.budget import Budget
from sifting.data.tree import describe
from sifting.exits.auto import AutoExit
from sifting.exits.base import Exit
from sifting.exits.economy import Economy
from sifting.exits.reference import REDUCIBLE, Reference
from sifting.exits.scoring import Scorer
from sifting.measure.audit import Auditor, warn_user
from sifting.measure.costs import Costs, WayCost
from sifting.measure.meter import Meter
from sifting.measure.stats import Stats, reduced
from sifting.model.by_sample import Losses
from sifting.model.call import Call
from sifting.model.parts import Score
from sifting.model.sample_losses import PerSampleLoss
from sifting.parallel.detect import data_parallel, in_use, replicated, sharded, unwrap
from sifting.parallel.ranks import Ranks
from sifting.selection import scores
from sifting.selection.choice import Rule
from sifting.selection.policies import find_policy, weighted
from sifting.selection.schedule import Schedule, kept_count
from sifting.selection.tokens import MeanOfTokens, find_tokens


def one_of(name: str, value: object, first: str, second: str) -> None:
    """Raise unless an argument has one of two values."""
    if value not in (first, second):
        raise ValueError(f"{name}={value!r}: choose {first!r} or {second!r}")


AUTO = "auto"


def choose_mode(exit: Any, keep: Any, policy: Any) -> tuple[Any, Any]:
    """What `exit=` and `keep=` stand for where one of them, or both, are left out.

    >>> choose_mode(None, None, "top"), choose_mode(1, None, "top"), choose_mode(None, 0.5, "top")
    (('auto', 'auto'), (1, 0.5), ('tuned', 0.5))

    Whoever names neither gets the autopilot; whoever names how to choose, a fixed half by it.
    """
    named = exit is not None or policy != "top"
    if keep is None:
        keep = 0.5 if named and exit != AUTO else AUTO
    if exit is None:
        exit = AUTO if keep == AUTO else "tuned"
    if isinstance(keep, str) and keep != AUTO:
        raise TypeError(
            f"keep={keep!r}: give a number in (0, 1], a function of the step, or 'auto'"
        )
    return exit, keep


def check_auto(keep: Any, *, policy: Any, draws: str, scope: str, trial: Trial | None) -> None:
    """Raise where other arguments do not go with keep="auto"."""
    if keep != AUTO:
        if trial is not None:
            raise ValueError(f"trial= tells keep='auto' how to judge, and keep={keep!r} is fixed")
        return
    for name, value, wanted in (
        ("policy", policy, "top"),
        ("draws", draws, "samples"),
        ("scope", scope, "rank"),
    ):
        if value != wanted:
            raise ValueError(
                f"keep='auto' goes with {name}={wanted!r} and not with {value!r}: leave it out, or give a "
                "fixed keep="
            )
    if trial is not None and not isinstance(trial, Trial):
        raise TypeError(f"trial={describe(trial)}: give a sifting.Trial(held_out=…)")


def make_pilot(
    scorer: Scorer, exit: AutoExit, *, meter: Meter, rule: Rule, trial: Trial | None, seed: int
) -> Pilot:
    """The autopilot, with trials once the loop's step is known: a trainer may tell it later."""
    pilot = Pilot(scorer, exit, meter=meter, explore=rule.explore, trial=trial)
    rank = dist.get_rank() if in_use() else 0
    own = seed + 1_000_003 * (rank + 1)  # each rank draws its own
    pieces = Pieces(scorer, exit, rule=rule, trial=trial or Trial(), meter=meter, seed=own)
    pieces.check()
    pilot.trials = Trials(pieces, pilot.held_out)
    return pilot


def make_rule(
    policy: Any,
    exit: Exit,
    *,
    keep: float | Callable[[int], float] | str,
    trim: float,
    explore: float | None,
) -> Rule:
    """How samples are chosen by their scores."""
    chosen = find_policy(policy)
    if explore is None:
        # "proportional" corrects for its own choice, and needs no insurance
        explore = 0.0 if weighted(chosen) else exit.default_explore
    rule = Rule(chosen, trim, explore)
    if isinstance(keep, str):
        if trim > 0.5:
            raise ValueError(
                f"trim={trim} leaves less than half, which keep='auto' keeps at most: lower it"
            )
    elif not callable(keep) and kept_count(keep, 1) and trim + keep > 1:
        raise ValueError(
            f"trim={trim} and keep={keep} add up to more than all candidates: lower one of them"
        )
    return rule


def make_scorer(
    model: nn.Module,
    exit: Exit,
    *,
    score: Score | None,
    call: Call,
    loss_fn: Callable[..., Tensor] | None,
    losses: Losses | None,
    batch_size: int | None,
    idle: bool,
    reference: Reference | None = None,
    tokens: Any = "mean",
    economy: Economy,
) -> Scorer:
    """What gives the scores."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if score is not None and not callable(score) and score not in scores.BY_NAME:
        raise ValueError(
            f"score={score!r} is unknown: choose one of {', '.join(scores.BY_NAME)}, {REDUCIBLE} (with "
            "reference=), or pass a function (logits, labels) -> scores"
        )
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ValueError(
            f"score_batch_size={batch_size!r}: give a whole number from 1, or None for all"
        )
    weighing = find_tokens(tokens)
    if reference is not None:
        reference.weighed_by(weighing)
    return Scorer(
        model,
        exit,
        score=score,
        call=call,
        loss_fn=None if loss_fn is None else PerSampleLoss(loss_fn),
        losses=losses,
        batch_size=batch_size,
        idle=idle,
        reference=None if idle else reference,
        tokens=weighing,
        economy=economy,
    )


def make_economy(exit: Exit, generator: torch.Generator, **asked: Any) -> Economy:
    """How much of each candidate is scored; raises where an exit looks at none of it.

    Args:
        exit: scores them.
        generator: the sifter's own.
        asked: the user's `rows`, `view` and `precision`.
    """
    economy = Economy(**asked, generator=generator)
    shown = ", ".join(f"{name}={value!r}" for name, value in economy.shown().items())
    if shown and exit.by_id:
        raise ValueError(
            f"{shown}: {exit!r} looks at no sample when it scores, so there is nothing to save: leave it out"
        )
    exit.may_leave_out(generator, not shown)
    return economy


def costs_of(scorer: Scorer, stats: Stats, *, keep: float) -> Costs:
    """What ways of scoring cost and tell: those that were compared, or the one in use.

    Args:
        keep: share that is kept now.
    """
    if scorer.idle:
        return Costs([], "nothing is scored: keep=1 and policy='random' choose without it")
    compared = scorer.exit.compared()
    if compared is not None:
        return compared
    unknown = math.nan
    timed = stats.selections and stats.seconds_between > 0
    step = stats.seconds_between / stats.steps if timed else unknown
    cost = stats.seconds_scoring / stats.selections / step if timed else unknown
    if keep == 1 and stats.candidates_seen:  # for the time being
        keep = stats.samples_trained / stats.candidates_seen
    ranks, recall, rho = (
        unknown if value is None else value
        for value in (stats.rank_correlation, stats.recall, stats.rho_approx)
    )
    note = "" if stats.audits else "not audited yet, so how well it ranks is not known"
    way = WayCost(repr(scorer.exit), cost, ranks, recall, rho * keep, used=True, keep=keep)
    return Costs([way], note)


def group_of(model: nn.Module) -> dist.ProcessGroup | None:
    """The process group of a DDP model."""
    wrapper = data_parallel(model)
    return None if wrapper is None else wrapper.process_group


def join_ranks(
    scorer: Scorer,
    auditor: Auditor,
    scope: str,
    group: dist.ProcessGroup | None,
    settings: Mapping[str, Any],
    wrapper: nn.Module | None = None,
) -> Ranks | None:
    """The ranks that scoring has to stay in step with; None where it has to with none.

    Args:
        scorer: scores on this rank.
        auditor: tells, on rank 0 where all choose together.
        scope: "rank" or "global".
        group: of the ranks, where the user named it.
        settings: that ranks which choose together must share.
        wrapper: in which the model is trained; by default the one that the scorer was made with.
    """
    wrapper = scorer.whole if wrapper is None else wrapper
    one_of("scope", scope, "rank", "global")
    exit = scorer.exit
    learns = exit.learns and not scorer.idle and replicated(wrapper)
    if scope != "global" and not (in_use() and (scorer.sharded or learns)):
        return None
    if group is None:
        group = group_of(wrapper)
    ranks = scorer.ranks = Ranks(lambda: scorer.device, group)
    check_shardable(scorer)
    if exit.learns and not scorer.idle:
        exit.join(ranks)
    if scope == "global":
        ranks.agree(settings)
        if ranks.rank > 0:  # all ranks judge the same choice: one of them tells
            auditor.silent, auditor.log = True, None
    return ranks


def check_shardable(scorer: Scorer) -> None:
    """Leave out, or refuse, exits that cannot score a model whose parameters are spread over ranks."""
    exit = scorer.exit
    if not scorer.sharded or scorer.idle:
        return
    if not exit.shardable:
        raise ValueError(
            f"{exit!r} leaves the model's forward in the middle, which sharded parameters do not "
            "allow (fully_shard gathers and frees them around it): choose exit=k, exit='last' or a "
            "TunedExit at a block of the stack, or train with DDP"
        )
    exit.keep_shardable()


def join_late(
    scorer: Scorer, model: nn.Module, auditor: Auditor, group: dist.ProcessGroup | None
) -> None:
    """Have a scorer take part in what was made of its model since: DDP around it, or shards of it.

    What an exit has learned by then is the first rank's from now on.

    Args:
        scorer: that was made before.
        model: the wrapper, or the scorer's own model, which may have been sharded.
        auditor, group: see `join_ranks`.
    """
    if not in_use() or not any(part is scorer.model for part in model.modules()):
        return
    if unwrap(model) is scorer.model and model is not scorer.model:
        scorer.whole = model  # else it is only a part of what is wrapped
    if not scorer.sharded and sharded(scorer.model):
        scorer.sharded = True
        check_shardable(scorer)
    if scorer.ranks is None:
        ranks = join_ranks(scorer, auditor, "rank", group, {}, wrapper=model)
        if ranks is not None and scorer.exit.learns and not scorer.idle:
            scorer.exit.share(ranks.gather(scorer.exit.state_dict()))


def of_all_ranks(stats: Stats, meter: Meter, scorer: Scorer) -> Stats:
    """One summary from those of all ranks; this one's where there are no others."""
    if not in_use():
        return stats
    ranks = scorer.ranks or Ranks(lambda: scorer.device, group_of(scorer.whole))
    return reduced(ranks.gather((stats, meter.explored_means)))


def described(scorer: Scorer, schedule: Schedule, rule: Rule) -> str:
    """A sifter as it prints."""
    objective = "found on the first batch" if scorer.plan is None else str(scorer.plan)
    score = scorer.score if scorer.reference is None else REDUCIBLE
    left_out = "".join(f", {name}={value!r}" for name, value in scorer.economy.shown().items())
    return (
        f"Sifter(exit={scorer.exit!r}, score={score!r}{left_out}, {schedule}, {rule},\n"
        f"       objective: {objective})"
    )


def settings_of(
    scorer: Scorer, rule: Rule, schedule: Schedule, budget: Budget | None = None
) -> dict[str, Any]:
    """What is selected by, in plain values."""
    keep, score, reference = schedule.keep, scorer.score, scorer.reference
    if not scorer.score_is_known:
        score = "default"  # a name: what suits the objective is found on the first batch
    return {
        "exit": repr(scorer.exit),
        "score": getattr(score, "__name__", "a function") if callable(score) else score,
        **({} if reference is None else {"score": REDUCIBLE, "reference": repr(reference)}),
        **({} if isinstance(scorer.tokens, MeanOfTokens) else {"tokens": scorer.tokens.name}),
        **({} if budget is None else {"budget": repr(budget)}),
        "policy": rule.policy.name,
        "keep": getattr(keep, "about", "a function") if callable(keep) else keep,
        "explore": rule.explore,
        "trim": rule.trim,
        **scorer.economy.settings(),
        "warmup_steps": schedule.warmup_steps,
        "stop_step": schedule.stop_step,
        "every": schedule.every,
        **({} if scorer.beside is None else {"ahead": 1}),
    }


def say_changes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Warn where a sifter continues from a state that was saved with other settings."""
    # a setting that is left out stands in neither, so that the names of both are looked at
    changed = [name for name in {**saved, **own} if saved.get(name) != own.get(name)]
    if changed:
        shown = "; ".join(f"{name}={saved.get(name)!r} → {own.get(name)!r}" for name in changed)
        warn_user(f"this sifter continues from a state that was saved with other settings: {shown}")
