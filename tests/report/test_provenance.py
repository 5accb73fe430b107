"""What stood around the runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting.report import collect, provenance
from tests.helpers.run_folders import write_comparison


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs")


def test_settings_that_differ_and_settings_in_common(runs: Path) -> None:
    different, common = provenance.settings_tables(collect([runs]).experiments[0])
    rows = {row[0]: row[1:] for row in different.rows}
    assert different.columns == ["setting", "baseline", "random-keep", "sift"]
    assert rows["selector.policy"] == ["–", "random", "top"]
    assert ["recipe", "made"] in common.rows
    assert "seed" not in {*rows, *(row[0] for row in common.rows)}
