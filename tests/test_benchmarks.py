"""What the benchmark of scoring says of its figures: which are missing, and which reach their marks."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "limits.json"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from overhead_parts import page

    return page


def made_up(**changed: Any) -> dict[str, Any]:
    """Rows as the benchmark writes them, as far as marks look at them."""
    alike = {"as it is": 1.0, "labelled": 0.99, "half": 0.6}
    quality = {name: {"as_before": {"mean": value}} for name, value in alike.items()}
    recalls = {"second stage": 0.0, "first stage": 0.01, "stem": -0.02}
    rows = {
        "bert-128": {"length": 128, "cost": {"as it is": 0.07, "labelled": 0.03, "half": 0.01}},
        "ranking": {"lengths": {"128": quality}},
        "resnet": {
            "cost": {"second stage": 0.5, "first stage": 0.14, "stem": 0.1},
            "quality": {name: {"recall_apart": {"mean": v}} for name, v in recalls.items()},
        },
        "llama": {
            "cost": {"as it is": 0.6},
            "flops": 0.55,
            "peak_growth_bytes": {"update": 100, "sifter": 10},
        },
    }
    return {**rows, **changed}


def test_a_row_that_was_not_measured_says_how_to(page: ModuleType) -> None:
    said = page.of_row("llama", {"decoder": {}})
    assert said == "Not measured yet: `python benchmarks/overhead.py limits --only llama`."
    assert page.of_row("summary", {}).count("not measured yet") == 7


def test_marks_are_reached_by_the_cheapest_way_that_still_ranks(page: ModuleType) -> None:
    summary = page.of_row("summary", made_up()).splitlines()
    assert "| 0.0300 by labelled (Spearman 0.990) | yes |" in summary[2]
    assert "| not measured yet | – |" in summary[3]
    assert "| 0.140 by first stage (recall +0.0100) | yes |" in summary[5]
    assert "| 1.09 × its FLOP ratio, memory 0.100 | yes |" in summary[8]
    missed = made_up(
        memory={"cost": 0.0021}, ahead={"ratios": {"ahead=1": {"wall": 1.03}}, "load": [1.0]}
    )
    summary = page.of_row("summary", missed).splitlines()
    assert [line.endswith("| **no** |") for line in summary] == [False] * 4 + [
        True,
        False,
        False,
        True,
        False,
    ]


def test_every_row_of_the_results_has_its_place_on_the_page(page: ModuleType) -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    needed = {name for _, names in page.ROWS.values() for name in names}
    assert set(results) <= {*needed, "decoder"}  # the quality that stands beside Llama's cost
    for row in page.ROWS:
        assert page.of_row(row, results)
