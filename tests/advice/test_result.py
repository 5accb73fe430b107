"""What advice is made of."""

from __future__ import annotations

import pytest

from sifting.advice.result import LEAST, Range, Row, saved


def test_a_saving_has_the_ends_of_its_speed_up() -> None:
    row = Row("input", 2, 0.0, speedup=Range(1.25, 1.0, 2.0))
    assert row.saving is not None
    assert vars(row.saving) == pytest.approx({"value": 0.2, "low": 0.0, "high": 0.5})
    assert Row("input", 2, 0.0).saving is None


def test_a_prediction_of_harm_is_cut_off() -> None:
    assert saved(0.01) == saved(LEAST) == -3.0
