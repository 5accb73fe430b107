from __future__ import annotations

import pytest
import torch

from sifting.measure.meter import Meter
from sifting.measure.quality import Quality

CPU = torch.device("cpu")


def audits(*rhos: float) -> Meter:
    meter = Meter()
    for rho in rhos:
        meter.audit(Quality(0.5, 0.0, rho), None)
    return meter


def test_worse_than_random_needs_evidence() -> None:
    assert audits(0.5, 0.5).condemned() is None  # too few
    assert audits(0.5, 0.6, 0.4).condemned() is not None
    assert audits(0.7, 1.3, 0.9, 1.05).condemned() is None  # noise around 1
    assert audits(1.2, 1.1, 1.3).condemned() is None


def test_only_the_last_audits_count() -> None:
    meter = audits(*[0.2] * 5, *[1.5] * 10)
    assert meter.stats().rho_approx == pytest.approx(1.5)
    assert meter.stats().audits == 15


def test_time_is_charged_also_when_the_body_raises() -> None:
    meter = Meter()
    with pytest.raises(KeyError), meter.time("scoring", CPU):
        raise KeyError
    assert meter.stats().seconds_scoring > 0


def test_state_round_trip() -> None:
    meter = audits(0.9, 1.1)
    meter.counts.update(steps=7, selections=2)
    meter.observe(torch.tensor([2.0, 1.0]))
    meter.warned.add("worse_than_random")
    other = Meter()
    other.load_state_dict(meter.state_dict())
    assert other.stats() == meter.stats()
    assert other.warned == meter.warned


def test_the_report_reads_like_one() -> None:
    text = str(audits(1.25, 1.35).stats())
    assert "rho_approx 1.30 (random: 1.00)" in text
    assert "not audited" in str(Meter().stats()) or "0 steps" in str(Meter().stats())
