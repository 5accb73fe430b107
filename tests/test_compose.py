"""The parts of a sifter, made and checked from its arguments."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter, SiftingWarning, Trial, TunedExit
from sifting.compose import (
    choose_mode,
    costs_of,
    join_ranks,
    make_rule,
    of_all_ranks,
    say_changes,
)
from tests.helpers.models import Net, candidates


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit": 0}, r"exit=0: blocks are counted from 1"),
        ({"exit": 9}, r"exit=9 is out of range.*choose 1 to 4, or 'last'"),
        ({"exit": "nowhere"}, r"exit='nowhere' names no module.*'tuned', .*MemoryExit\(\)"),
        ({"exit": 1, "stack": "nowhere"}, r"stack='nowhere' names no module"),
        ({"keep": 0}, r"keep=0 is not in \(0, 1\]"),
        ({"keep": 1.01}, r"keep=1.01 is not in \(0, 1\]"),
        ({"score": "novelty"}, r"score='novelty' is unknown: choose one of loss, entropy"),
        ({"policy": "bottom"}, r"policy='bottom' is unknown"),
        ({"trim": 0.6}, r"trim=0.6 leaves less than half, which keep='auto' keeps at most"),
        ({"keep": "auto", "policy": "random"}, r"policy='top' and not with 'random'"),
        ({"keep": "auto", "draws": "batch"}, r"draws='samples' and not with 'batch'"),
        ({"keep": 0.5, "trial": Trial()}, r"keep=0.5 is fixed"),
        ({"keep": 0.5, "trim": 0.6}, r"trim=0.6 and keep=0.5 add up to more than all"),
        ({"nonfinite": "skip"}, r"nonfinite='skip'"),
        ({"score_batch_size": 0}, r"score_batch_size=0"),
        ({"audit_every": -1}, r"audit_every=-1"),
        ({"audit_log": "no/such/folder/log"}, r"the folder 'no/such/folder' does not exist"),
    ],
)
def test_bad_settings_are_named_at_construction(
    net: Net, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sifter(net, **options)


def test_wrong_types_are_named_at_construction(net: Net) -> None:
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        Sifter(lambda x: x)
    with pytest.raises(TypeError, match=r"exit=1.5"):
        Sifter(net, exit=1.5)
    with pytest.raises(TypeError, match=r"loss_fn='mse' is not callable"):
        Sifter(net, loss_fn="mse")
    with pytest.raises(ValueError, match="no stack of repeated blocks found in Linear"):
        Sifter(nn.Linear(2, 2), exit=1)


def test_the_default_of_a_fixed_ratio_is_entropy_at_a_tuned_exit_with_exploration(net: Net) -> None:
    sifter = Sifter(net, keep=0.5)
    assert isinstance(sifter.exit, TunedExit)
    assert (sifter.settings()["score"], sifter.rule.explore) == ("entropy", 0.25)
    assert Sifter(net, exit=1).rule.explore == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "half"}, "keep='half': give a number"),
        ({"trial": 3}, r"trial=3: give a sifting.Trial"),
        (
            {"trial": {"held_out": [torch.zeros(9)]}},
            r"^trial=\['held_out'\].* \(9,\): give a sifting",
        ),
        ({"keep": True}, "keep=True"),
        ({"explore": "some"}, "explore='some': give a number"),
        ({"forward": 3}, "forward=3 is not callable"),
        ({"labels": "y"}, "labels='y' is not callable"),
    ],
)
def test_wrong_types_name_the_value(net: Net, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Sifter(net, **options)


def test_repr_tells_what_was_found_out(net: Net, pair: tuple[Tensor, Tensor]) -> None:
    sifter = Sifter(net, exit=2, score="loss")
    assert "BlockExit(2 of blocks)" in repr(sifter)
    assert "found on the first batch" in repr(sifter)
    sifter.score(pair)
    assert "logits → labels by cross-entropy; assumed" in repr(sifter)


def test_the_random_control_needs_no_exit() -> None:
    model = nn.Sequential(nn.Linear(8, 5))
    assert len(Sifter(model, policy="random").select(candidates(1)[0]).indices) == 6


def test_what_keeps_everything_or_picks_at_random_needs_no_exit() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    data = [(torch.randn(4, 4), torch.arange(4)) for _ in range(2)]
    for options in ({"keep": 1.0}, {"policy": "random"}):
        kept = list(Sifter(Odd(), exit=1, **options)(data))
        assert [len(y) for _, y in kept] == [4, 4]


def test_a_warning_advises_what_would_help_this_sifter(net: Net) -> None:
    assert "exit='tuned'" not in Sifter(net, exit="last").auditor.advice.remedy
    assert "exit='tuned'" in Sifter(net, exit=1).auditor.advice.remedy
    assert "TunedExit" in Sifter(net, keep=0.5).auditor.advice.remedy
    assert "later" not in Sifter(net, exit=4).auditor.advice.remedy  # of 4 blocks
    assert "earlier" not in Sifter(net, exit=1).auditor.advice.cheaper
    assert "earlier" not in Sifter(net, exit="input").auditor.advice.cheaper


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((None, None, "top"), ("auto", "auto")),
        (("auto", None, "top"), ("auto", "auto")),
        ((None, None, "random"), ("tuned", 0.5)),
        ((2, None, "top"), (2, 0.5)),
        ((None, 0.3, "top"), ("tuned", 0.3)),
        (("last", "auto", "top"), ("last", "auto")),
    ],
)
def test_what_is_left_out_stands_for_the_autopilot_or_a_fixed_half(given: Any, found: Any) -> None:
    assert choose_mode(*given) == found


def test_a_rule_that_corrects_for_itself_explores_nothing_by_default(net: Net) -> None:
    exit = TunedExit()
    assert make_rule("top", exit, keep=0.5, trim=0.0, explore=None).explore == 0.25
    assert make_rule("proportional", exit, keep=0.5, trim=0.0, explore=None).explore == 0.0
    assert make_rule("top", exit, keep=0.5, trim=0.0, explore=0.1).explore == 0.1


def test_settings_are_plain_and_those_of_before_are_said_where_they_differ(net: Net) -> None:
    settings = Sifter(net, exit=1, score="loss", keep=0.5, every=2).settings()
    assert json.loads(json.dumps(settings)) == settings
    assert (settings["exit"], settings["every"]) == ("BlockExit(1 of blocks)", 2)
    with pytest.warns(SiftingWarning, match=r"saved with other settings: keep=0.5 → 0.25"):
        say_changes(settings, {**settings, "keep": 0.25})


@pytest.mark.parametrize("more", [{"budget": "tokens"}, {"tokens": "hardest"}])
def test_a_setting_that_one_of_them_leaves_out_is_said_both_ways(
    net: Net, more: dict[str, Any]
) -> None:
    plain = {"exit": 1, "score": "loss", "keep": 0.5}
    before, after = (Sifter(net, **plain, **own).settings() for own in ({}, more))
    name = next(iter(more))
    with pytest.warns(SiftingWarning, match=rf"other settings: {name}=None → '{more[name]}'"):
        say_changes(before, after)
    with pytest.warns(SiftingWarning, match=rf"other settings: {name}='{more[name]}' → None"):
        say_changes(after, before)


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_costs_of_the_exit_in_use_are_those_that_were_measured(net: Net, keep: float) -> None:
    sifter = Sifter(net, exit=1, score="loss", keep=keep, audit_every=1, warmup_steps=1)
    (unknown,) = costs_of(sifter._scorer, sifter.stats(), keep=keep)
    assert not unknown.known
    for x, _ in sifter(candidates(8)):
        net(x)
    stats = sifter.stats()
    (way,) = sifter.costs()
    assert way.used
    assert way.known
    assert way.recall == stats.recall
    assert stats.rho_approx is not None
    assert way.kept_loss == pytest.approx(keep * stats.rho_approx)
    assert way.gain == pytest.approx(stats.rho_approx / (1 + way.cost))


@pytest.mark.parametrize("options", [{"keep": 1.0}, {"policy": "random", "keep": 0.5}], ids=str)
def test_where_nothing_is_scored_there_are_no_costs(net: Net, options: dict[str, Any]) -> None:
    costs = Sifter(net, **options).costs()
    assert len(costs) == 0
    assert "nothing is scored" in str(costs)


def test_alone_there_are_no_ranks_to_join(net: Net) -> None:
    sifter = Sifter(net, exit="tuned", keep=0.5)
    assert sifter._scorer.ranks is None
    stats = sifter.stats()
    assert of_all_ranks(stats, sifter.meter, sifter._scorer) is stats
    with pytest.raises(ValueError, match="scope='all': choose 'rank' or 'global'"):
        join_ranks(sifter._scorer, sifter.auditor, "all", None, {})


@pytest.mark.parametrize(
    ("asked", "said", "unsaid"),
    [
        ({}, "larger explore= (0.5), trim=0.1, or", "nothing"),
        ({"trim": 0.2}, "larger explore= (0.5), or", "trim=0.1"),
        ({"explore": 0.5}, "score='entropy', trim=0.1, or", "explore"),
    ],
)
def test_a_warning_does_not_advise_what_is_done_already(
    net: Net, asked: dict[str, Any], said: str, unsaid: str
) -> None:
    sifter = Sifter(net, exit="last", score="loss", audit_every=1, **asked)
    with pytest.warns(SiftingWarning, match="misclassified") as heard:
        for batch in candidates(20):
            sifter.select(batch)
    (message,) = [str(one.message) for one in heard if "misclassified" in str(one.message)]
    assert said in message
    assert unsaid not in message


@pytest.mark.parametrize(
    ("exit", "cheaper"), [("last", "exit='tuned', or exit=MemoryExit"), (2, r"exit=1\), or")]
)
def test_choosing_that_outweighs_training_is_said_once(net: Net, exit: Any, cheaper: str) -> None:
    """Also where nothing is audited; with the cheaper exit to take."""
    sifter = Sifter(net, exit=exit, score="loss", audit_every=0)
    sifter.meter.seconds.update(between=1000.0, scoring=900.0)
    for x, y in sifter(candidates(101)):  # a warning would be an error
        F.cross_entropy(net(x), y).backward()
    sifter.meter.seconds["scoring"] = 1100.0
    with pytest.warns(
        SiftingWarning, match=rf"choosing takes 5\d% of the time .*{cheaper}"
    ) as heard:
        for x, y in sifter(candidates(202)):
            F.cross_entropy(net(x), y).backward()
    assert len(heard) == 1


@pytest.mark.parametrize(("scoring", "said"), [(25.0, False), (31.0, True)])
def test_training_need_not_be_long_where_choosing_is(net: Net, scoring: float, said: bool) -> None:
    """Where it takes ten times as long, ten seconds of training would be two minutes."""
    sifter = Sifter(net, exit="last", score="loss", audit_every=0)
    sifter.meter.seconds.update(between=3.0, scoring=scoring)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for x, y in sifter(candidates(101)):
            F.cross_entropy(net(x), y).backward()
    assert ["choosing takes 9" in str(one.message) for one in heard] == [True] * said
