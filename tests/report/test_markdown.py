"""The report as Markdown."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from sifting.cli import main as cli
from sifting.report import collect
from sifting.report.markdown import map_fields
from tests.helpers.run_folders import made, write, write_comparison


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs")


def test_markdown_links_to_figures_that_are_there(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out report.md"
    assert cli.main(["report", str(runs), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    links = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert len(links) == 5
    for link in links:
        png = tmp_path / link.replace("%20", " ")
        assert png.read_bytes().startswith(b"\x89PNG")
        root = ET.parse(png.with_suffix(".svg")).getroot()
        words = {e.text for e in root.iter("{http://www.w3.org/2000/svg}text")}
        assert words & {"sift", "forward"}, "a legend, as text"
    assert collect([runs]).experiments[0].verdict.markdown() in text
    assert "| 1 | sift | 5 ms | 20 ms | 30 ms | 0.100 |" in text


def test_names_are_never_markdown_nor_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a\x1b[2Jb"
    for arm in ("baseline", "mine:tent:", "~~x~~ <b>"):
        for seed in range(3):
            run = made(arm, seed, points=3, recipe="www.example.org :tent:")
            write(replace(run, path=Path(f"{arm[:4]}-{seed}")), folder)
    out = tmp_path / "report.md"
    assert cli.main(["report", str(folder), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "mine:tent:" in said.out
    text = re.sub(r"`[^`]*`", "", out.read_text(encoding="utf-8"))
    for name in (":tent:", "~~", "www.", "<b>"):
        assert name not in text, "outside code"


def test_fields_that_can_be_nothing_but_text_are_left_as_they_are() -> None:
    assert map_fields(["0.82 (0.68–0.98)", "a b", "−1.5 %"]) == [
        "0.82 (0.68–0.98)",
        "a b",
        "−1.5 %",
    ]
    for risky in ("*x*", "a|b", "<b>", "www.example.org", "mine:tent:", "[a](b)", "~~x~~"):
        assert map_fields([risky])[0].startswith("`")
