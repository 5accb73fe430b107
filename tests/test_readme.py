"""The README says what the results say, and its commands exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_tables_are_those_of_the_results() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_claimed_has_its_controls() -> None:
    for name in (
        "demo",
        "vision-updates",
        "vision-time",
        "vision-repeated",
        "text-updates",
        "text-time",
    ):
        result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        arms = {arm["name"]: arm for arm in result["verdict"]["arms"]}
        assert {"baseline", "random"} <= set(arms)
        assert min(arm["finished"] for arm in arms.values()) >= 3
        pages = [ROOT / "README.md", *(ROOT / "docs" / "results").glob("*.md")]
        assert any(f"<!-- verdict {name}:" in page.read_text(encoding="utf-8") for page in pages)


def test_every_make_target_named_is_there_and_every_link_leads_somewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^make (\w+)", readme, flags=re.M))
    assert targets == {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.M)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
