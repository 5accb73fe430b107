"""What the log and the summary of a run say."""

from __future__ import annotations

import pytest
import torch

from sifting import Sifter
from sifting.measure.clocks import CLOCKS, OPERATIONS
from sifting.training.records import clocks, counts, is_new, log_record, warnings_in
from tests.helpers.models import Net


@pytest.fixture(scope="module")
def sifter() -> Sifter:
    """One that has selected twice and audited once."""
    torch.manual_seed(0)
    made = Sifter(Net(), exit=1, score="loss", keep=0.5, audit_every=2, draws="batch")
    for _ in made([(torch.randn(12, 8), torch.randint(0, 5, (12,)))] * 2):
        pass
    return made


def test_a_line_has_counts_times_and_the_load(sifter: Sifter) -> None:
    stats = sifter.stats()
    seconds = clocks(dict.fromkeys(CLOCKS, 1.23456789), stats)
    record = log_record("train", 2, everyone=stats, own=stats, seconds=seconds, table=None)
    assert (record["kind"], record["step"]) == ("train", 2)
    assert (record["candidates_seen"], record["samples_trained"]) == (24, 12)
    assert record["seconds"]["forward"] == 1.234568
    assert record["seconds"]["scoring"] == round(stats.seconds_scoring, 6) > 0
    assert record["load"] >= 0
    assert "reference" not in record
    assert "tokens_seen" not in record, "of images there are none"


def test_time_by_a_table_charges_what_was_done(sifter: Sifter) -> None:
    stats = sifter.stats()
    table = dict.fromkeys(OPERATIONS, 1.0)
    record = log_record("eval", 2, everyone=stats, own=stats, seconds={}, table=table)
    charged = record["reference"]
    assert (charged["scoring"], charged["auditing"]) == (stats.selections, stats.audits) == (2, 1)
    assert (charged["forward"], charged["data"]) == (2, 24)


def test_a_rehearsal_is_charged_as_a_selection(sifter: Sifter) -> None:
    stats = sifter.stats()
    assert counts(stats)["selections"] == stats.selections + stats.rehearsals
    assert counts(stats)["candidates_seen"] == 24


def test_warnings_are_found_and_said_once_whatever_their_numbers() -> None:
    log = [{"kind": "warning", "message": "recall 0.3"}, {"kind": "eval"}, {"kind": "warning"}]
    assert warnings_in(log) == ["recall 0.3"]
    assert not is_new("recall 0.25", warnings_in(log))
    assert is_new("precision 0.3", warnings_in(log))
