"""Audits of choices."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sifting import Sifter, SiftingWarning
from sifting.chooser.audits import ChoiceAudits
from tests.helpers.models import Net, candidates

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


def test_an_audit_without_labels_among_the_kept_does_not_break_the_others() -> None:
    net = Net()
    sifter = Sifter(net, exit="last", score="loss", audit_every=1)
    with pytest.warns(SiftingWarning, match="misclassified"):
        for i in range(5):
            x, y = candidates(1)[0]
            sifter.select((x, torch.full_like(y, -100) if i == 2 else y))
    assert sifter.stats().misclassified is not None


def test_the_audit_log_holds_losses_whatever_the_score(net: Net, tmp_path: Any) -> None:
    log = tmp_path / "audits.jsonl"
    x, y = candidates(1)[0]
    x[4] = torch.nan
    sifter = Sifter(net, exit=1, score="entropy", audit_every=1, audit_log=log, nonfinite="drop")
    sifter.select((x, y))
    line = json.loads(log.read_text())
    sound = torch.arange(12) != 4
    early = Sifter(net, exit=1, score="loss").score((x[sound], y[sound]))
    assert line["early"] == pytest.approx(early.tolist(), rel=1e-4)
    assert len(line["exact"]) == len(line["scores"]) == 11
    assert "Infinity" not in log.read_text()


def test_what_is_trimmed_has_no_part_in_the_judgement(net: Net) -> None:
    x, y = torch.randn(40, 8), torch.arange(40) % 5
    trimmed = Sifter(net, exit="last", score="loss", keep=0.5, trim=0.25, audit_every=1)
    trimmed.select((x, y))
    assert trimmed.stats().rho_approx > 1.0  # of those that were not trimmed, the highest
    assert trimmed.stats().recall == 1.0


class Noting:
    """An auditor that takes down what it is given."""

    reducible = by_loss = False
    wants_early = False

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def judge(self, **given: Any) -> None:
        self.given = given


def test_an_auditor_is_given_exact_losses_of_all_candidates(net: Net) -> None:
    x, y = candidates(1)[0]
    scorer = Sifter(net, exit=1, score="loss")._scorer
    auditor = Noting()
    audits = ChoiceAudits(scorer, auditor, trim=0.25)  # type: ignore[arg-type]
    audits.judge((x, y), torch.arange(12.0), torch.tensor([1, 3]), step=7)
    net.eval()
    with torch.no_grad():
        exact = F.cross_entropy(net(x), y, reduction="none")
    torch.testing.assert_close(auditor.given["exact_B"], exact)
    assert auditor.given["step"] == 7
    assert auditor.given["scores_B"].tolist() == [*range(9), *[-torch.inf] * 3]
    assert auditor.by_loss
    assert auditor.given["lengths_B"] is None, "samples have no tokens"


def test_without_labels_nothing_is_judged(net: Net) -> None:
    auditor = Noting()
    scorer = Sifter(net, exit=1, score="entropy")._scorer
    audits = ChoiceAudits(scorer, auditor)  # type: ignore[arg-type]
    audits.judge(torch.randn(6, 8), torch.arange(6.0), torch.tensor([1]), step=0)
    assert auditor.given == {}


class Twice:
    """Two ranks that have the same to say."""

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


def test_ranks_that_choose_together_judge_all_their_candidates(net: Net) -> None:
    auditor = Noting()
    scorer = Sifter(net, exit=1, score="loss")._scorer
    audits = ChoiceAudits(scorer, auditor, together=Twice())  # type: ignore[arg-type]
    audits.judge(candidates(1)[0], torch.arange(24.0), torch.tensor([1, 20]), step=0)
    assert len(auditor.given["exact_B"]) == 24
    assert torch.equal(*auditor.given["exact_B"].chunk(2))
