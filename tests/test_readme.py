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
        "vision-updates",
        "vision-time",
        "vision-repeated",
        "vision-auto",
        "text-updates",
        "text-time",
    ):
        result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        arms = {arm["name"]: arm for arm in result["verdict"]["arms"]}
        assert {"baseline", "random"} <= set(arms)
        assert min(arm["finished"] for arm in arms.values()) >= 3
        pages = list((ROOT / "docs" / "results").glob("*.md"))
        assert any(f"<!-- verdict {name}:" in page.read_text(encoding="utf-8") for page in pages)


def test_the_readme_has_one_table_of_results_and_links_to_the_rest() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(": benchmarks/tables.py -->") == 1
    for page in (ROOT / "docs" / "results").glob("*.md"):
        if page.name != "log.md":  # which the results' own page links to
            assert f"(docs/results/{page.name})" in readme


def test_the_first_snippet_runs() -> None:
    """The README's diff, applied: its added and its common lines, on a model and a loader."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import BertConfig, BertForSequenceClassification

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    diff = re.search(r"```diff\n(.*?)```", readme, flags=re.DOTALL)
    assert diff is not None
    code = "\n".join(line[1:] for line in diff[1].splitlines() if not line.startswith("-"))
    assert "Sifter(model, trial=" in code  # what we recommend is the autopilot
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, intermediate_size=16, **small))
    data = [{"input_ids": torch.randint(5, 50, (8,)), "labels": i % 2} for i in range(32)]
    names = {
        "model": model,
        "loader": DataLoader(data, batch_size=8, shuffle=True),
        "optimizer": torch.optim.AdamW(model.parameters()),
        "held_out_batches": [
            {"input_ids": torch.randint(5, 50, (8, 8)), "labels": torch.arange(8) % 2}
        ],
        "epochs": 1,
    }
    exec(code, names)
    stats = names["sifter"].stats()
    assert (stats.steps, stats.samples_trained, stats.candidates_seen) == (4, 32, 32)


def test_every_make_target_named_is_there_and_every_link_leads_somewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^make (\w+)", readme, flags=re.M))
    assert targets == {"demo", "test", "docs"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.M)
    for page in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("**/*.md"))]:
        prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_ci_runs_the_readmes_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make test", "make docs"} <= set(lines)


def test_every_task_that_the_readme_shows_has_its_controls_and_seeds() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = sorted((ROOT / "benchmarks/results/bench").glob("[!_]*.json"))
    assert found
    for path in found:
        result = json.loads(path.read_text())
        assert f"(docs/results/bench/{result['task']}.md)" in readme
        assert {"baseline", "random", "auto"} <= set(result["arms"])
        assert min(arm["finished"] for arm in result["arms"].values()) >= 3
