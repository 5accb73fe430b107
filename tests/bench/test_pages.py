"""The committed pages say what the committed results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting.bench.pages import summary, texts, write_pages
from sifting.bench.results import RESULTS, read_results

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "results"


def test_pages_are_current() -> None:
    for path, text in texts(ROOT / RESULTS, PAGES).items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path} is out of date; run sift bench report --pages docs/results"
        )


def test_every_page_has_results_and_a_picture() -> None:
    results = set(read_results(ROOT / RESULTS))
    assert {path.stem for path in (PAGES / "bench").glob("*.md")} == results
    assert {path.stem for path in (PAGES / "bench").glob("*.svg")} - {"predicted"} == results


def test_a_figure_that_was_retyped_is_found(tmp_path: Path) -> None:
    found = texts(ROOT / RESULTS, PAGES)
    readme = PAGES / "README.md"
    if len(found) == 1:
        pytest.skip("no task has been run yet")
    (tmp_path / "README.md").write_text(found[readme].replace(" %", "1 %"), encoding="utf-8")
    assert texts(ROOT / RESULTS, tmp_path)[tmp_path / "README.md"] != (
        tmp_path / "README.md"
    ).read_text(encoding="utf-8")


def test_a_folder_without_pages_gets_them(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    written = write_pages(ROOT / RESULTS, pages)
    assert pages / "README.md" in written
    text = (pages / "README.md").read_text(encoding="utf-8")
    assert all(f"](bench/{name}.md)" in text for name in read_results(ROOT / RESULTS))


def test_signs_are_counted_by_points_and_by_tasks() -> None:
    results = read_results(ROOT / RESULTS)
    fashion = results["fashion"]  # both arms save, by a quarter and by a fifth
    wrong = {"auto": {"saving": 0.1}, "input-entropy": {"saving": -0.1}}
    right = {arm: {"saving": 0.1} for arm in wrong}
    advised = {
        name: {**fashion, "advice": {**fashion["advice"], "arms": arms}}
        for name, arms in (("one", right), ("other", wrong))
    }
    assert "is right for 3 of 4 points, and for all points of 1 of 2 tasks" in summary(advised)
