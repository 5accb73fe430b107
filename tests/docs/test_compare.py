"""docs/compare.md: its example runs, with its own command; its options exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sifting.cli import main as sift
from tests.helpers.comparisons import measure_briefly

TEXT = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
COMMANDS = re.findall(r"^sift (compare|grid) (.*)$", TEXT, re.M)


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_the_example_runs_as_the_page_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_briefly(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (code,) = CODE
    (tmp_path / "mine.py").write_text(code)
    (words,) = [rest.split() for _, rest in COMMANDS if rest.startswith("mine:build")]
    words[words.index("baseline:400u")] = "baseline:24u"  # as on the page, but short
    assert sift.main(["compare", *words, "--evaluations", "2"]) == 0
    found = json.loads((tmp_path / "runs" / "mine" / "comparison.json").read_text())
    assert list(found["arms"]) == ["baseline", "random", "sift", "sift@2", "mine:late_entropy"]
    assert (tmp_path / "runs" / "mine" / "mine-late_entropy" / "seed-2" / "summary.json").exists()
    verdict = json.loads((tmp_path / "runs" / "mine" / "verdict.json").read_text())
    assert verdict["outcome"] in ("pays", "no gain", "harm")


def test_every_command_on_the_page_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    from sifting.cli import compare as cli
    from sifting.cli import grid as grid_cli

    for command, rest in COMMANDS:
        if not rest.startswith("mine"):
            words = rest.split()
            plan = cli.parse(words) if command == "compare" else grid_cli.parse(words)
            assert plan.configs["baseline"].arm == "baseline"
    assert len(COMMANDS) == 5
