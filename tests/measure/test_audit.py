"""Judging the choice: when to audit it, what the audits say, and when to speak up."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sifting.log import hearing
from sifting.measure.audit import Auditor, default_period, explored_means, warn_user
from sifting.measure.meter import Meter
from sifting.measure.stats import SiftingWarning

LOSSES = torch.arange(8.0)


def auditor(remedy: str = "exit=2", cheaper: str = "exit=1", **options: Any) -> Auditor:
    advice = SimpleNamespace(remedy=remedy, cheaper=cheaper)
    given = {"every": 1, "log": None, "silent": False, "advice": advice}
    return Auditor(Meter(), **{**given, **options})


def judge(by: Auditor, kept: list[int], *, exact_B: Tensor = LOSSES, **more: Any) -> None:
    """Take in a choice by scores that are the exact losses, unless said otherwise."""
    more = {"scores_B": exact_B, "wrong_B": None, **more}
    by.judge(step=7, exact_B=exact_B, indices_K=torch.tensor(kept), **more)


def test_audits_come_as_often_as_asked_and_cost_one_per_cent_by_default() -> None:
    by = auditor(every=3)
    assert [n for n in range(1, 10) if by.due(0.5, n)] == [3, 6, 9]
    assert not any(auditor(every=0).due(0.5, n) for n in range(1, 100))
    assert [n for n in range(1, 150) if auditor(every=None).due(0.5, n)] == [67, 134]
    assert default_period(0.25) == 134, "fewer kept are a shorter step"
    reading = [n for n in range(1, 300) if auditor(every=None).due(0.5, n, reads=True)]
    assert reading == [100, 200], "one batch more is read in a hundred"
    assert default_period(0.9, reads=True) == default_period(0.9)
    by.meter.counts["selections"] = 6
    assert by.due(0.5), "by default the selection just made"


def test_the_best_choice_has_full_recall() -> None:
    by = auditor()
    judge(by, [4, 5, 6, 7], wrong_B=torch.tensor([0, 0, 0, 0, 1, 0, -1, 1]))
    stats = by.meter.stats()
    assert (stats.recall, stats.rank_correlation) == (1.0, 1.0)
    assert stats.rho_approx == pytest.approx(5.5 / 3.5)
    assert stats.misclassified == pytest.approx(2 / 3), "of those with a class"


def test_samples_that_are_not_finite_have_no_part_in_it() -> None:
    by, broken = auditor(), LOSSES.clone()
    broken[0] = torch.nan
    judge(by, [4, 5, 6, 7], exact_B=broken)
    assert by.meter.stats().rho_approx == pytest.approx(5.5 / 4.0)
    judge(by, [0, 5, 6, 7], exact_B=broken)
    assert by.meter.counts["audits"] == 1, "a kept one that is not finite: the run says so itself"


def test_what_a_reference_finds_harder_has_nothing_left_to_learn() -> None:
    by = auditor()
    by.reducible = True
    judge(by, [2, 3], exact_B=torch.tensor([-9.0, -9.0, 1.0, 3.0]))
    assert by.meter.stats().rho_approx == pytest.approx(2.0)


def test_the_log_has_early_and_exact_losses(tmp_path: Path) -> None:
    by = auditor(log=tmp_path / "audits.jsonl")
    assert by.wants_early, "scores need not be losses"
    judge(by, [6, 7], early_B=2 * LOSSES, scores_B=3 * LOSSES)
    (line,) = map(json.loads, (tmp_path / "audits.jsonl").read_text().splitlines())
    assert (line["step"], line["kept"]) == (7, [6, 7])
    assert (line["early"][1], line["exact"][1], line["scores"][1]) == (2.0, 1.0, 3.0)
    by.by_loss = True
    assert not by.wants_early
    assert not auditor(log=tmp_path / "x", silent=True).wants_early, "random choice has no exit"


def test_harm_is_warned_of_once_with_a_remedy() -> None:
    by = auditor(remedy="a later exit")
    with pytest.warns(SiftingWarning, match=r"step 7: .*worse than random.*Try a later exit"):
        for _ in range(5):
            judge(by, [0, 1, 2, 3], scores_B=-LOSSES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge(by, [0, 1, 2, 3], scores_B=-LOSSES)
    silent = auditor(silent=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            judge(silent, [0, 1, 2, 3], scores_B=-LOSSES)


def test_choosing_that_takes_too_long_is_warned_of_once_clocks_are_settled() -> None:
    by = auditor(cheaper="a cheaper one")
    by.meter.seconds.update(scoring=20.0, between=9.0)
    by.speak_up(1)
    by.meter.seconds["between"] = 11.0
    with pytest.warns(SiftingWarning, match=r"choosing takes 65% .* Try a cheaper one"):
        by.speak_up(2)


def test_the_mean_of_the_candidates_is_estimated_without_bias() -> None:
    torch.manual_seed(0)
    losses_B, found = torch.rand(10), []
    ruled = losses_B.topk(3).indices
    rest = [i for i in range(10) if i not in ruled.tolist()]
    for one in rest:  # every random pick that could be made
        kept = torch.cat([losses_B[ruled], losses_B[one : one + 1]])
        explored = torch.tensor([False, False, False, True])
        found.append(explored_means(kept, explored, explored=1, candidates=10))
    mean = torch.stack(found).mean(0)
    assert mean[1].item() == pytest.approx(losses_B.double().mean().item(), rel=1e-6)


def test_parts_of_ranks_average_to_the_whole() -> None:
    losses, explored = torch.rand(8), torch.tensor([True, False] * 4)
    whole = explored_means(losses, explored, explored=4, candidates=16)
    parts = [
        explored_means(losses[s], explored[s], explored=4, candidates=16, kept=8)
        for s in (slice(0, 4), slice(4, 8))
    ]
    torch.testing.assert_close(torch.stack(parts).mean(0), whole)


def test_warnings_are_told_to_those_who_hear() -> None:
    heard: list[str] = []
    with hearing(heard.append), pytest.warns(SiftingWarning, match="careful") as caught:
        warn_user("careful")
    assert heard == ["careful"]
    assert caught[0].filename == __file__, "at the line of the user's own code"


def test_a_warning_from_a_hook_is_at_the_line_that_called_the_model() -> None:
    # the hook is one of the library's own, so that torch's frames stand between it and the user
    inside = {"__name__": "sifting.exits.somewhere", "warn_user": warn_user}
    exec("def hook(module, args, output): warn_user('from a hook')", inside)
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(inside["hook"])  # type: ignore[arg-type]
    with pytest.warns(SiftingWarning, match="from a hook") as caught:
        model(torch.zeros(1, 2))
    assert caught[0].filename == __file__, "not in torch"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every": -1}, "audit_every=-1"),
        ({"every": 2.5}, "audit_every=2.5"),
        ({"log": "/no/such/folder/log"}, "the folder '/no/such/folder' does not exist"),
    ],
)
def test_bad_settings_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        auditor(**given)
