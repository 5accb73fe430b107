"""A verdict as a table and as Markdown."""

from __future__ import annotations

from dataclasses import replace

from sifting.verdict import judge
from sifting.verdict.layout import columns, markdown, table
from tests.helpers.run_folders import made
from tests.helpers.verdicts import PLAIN, SECONDS, UPDATES, comparison, ending

FAST = (PLAIN[0], [0.5, 0.52, 0.48])


def test_what_decides_comes_first_and_the_baseline_is_one() -> None:
    verdict = comparison(UPDATES, 0.5, baseline=PLAIN, random_keep=PLAIN, sift=FAST)
    heads, rows = table(verdict)
    assert heads[:3] == ["arm", "points to baseline", "time to 50 % ÷ baseline"]
    baseline, control, sift = rows
    assert baseline == ["baseline", "–", "1", "60.50 ± 0.50", "1", "1", "3"]
    assert control[1:3] == ["+0.00 (every seed)", "1.00 (1.00–1.00)"]
    assert sift[0] == "sift"
    assert sift[2].startswith("0.50 (")


def test_what_is_not_known_is_a_dash_and_what_failed_is_counted() -> None:
    runs = ending("baseline", *PLAIN[:1], pace=PLAIN[1], budget=UPDATES)
    broken = [
        replace(run, status="failed")
        for run in ending("sift", *PLAIN[:1], pace=PLAIN[1], budget=UPDATES)
    ]
    slow = ending("slow", [0.4, 0.62, 0.3], pace=PLAIN[1], budget=UPDATES)
    _, rows = table(judge([*runs, *broken, *slow], target=0.55))
    found = {row[0]: row[1:] for row in rows}
    assert found["sift"] == ["–", "–", "–", "–", "–", "0 of 3"]
    assert found["slow"][1] == "reached by 1 of 3"
    assert found["slow"][5] == "3"


def test_a_metric_that_is_no_share_has_no_points() -> None:
    runs = [
        made(arm, seed, points=5, metric="loss", lower_is_better=True)
        for arm in ("baseline", "sift")
        for seed in range(3)
    ]
    for run in runs:
        for record in run.metrics:
            record["loss"] = 3.0 - record.get("accuracy", 0.0)
    heads = [column.bare() for column in columns(judge(runs))]
    assert heads[1] == "difference to baseline"
    assert heads[3] == "loss"


def test_markdown_has_the_sentence_the_table_a_line_for_each_arm_and_notes() -> None:
    verdict = comparison(SECONDS, baseline=PLAIN, random_keep=PLAIN, sift=PLAIN)
    overall, shown, lines, *notes = markdown(verdict).strip().split("\n\n")
    assert overall.startswith("**No measurable gain: leave it off.**")
    assert shown.splitlines()[0].startswith("| arm | points to baseline |")
    assert len(shown.splitlines()) == 2 + 3
    assert [line[:6] for line in lines.splitlines()] == ["- `bas", "- `ran", "- `sif"]
    assert len(notes) == len(verdict.notes)


def test_names_are_code_in_markdown_and_one_line_in_a_table() -> None:
    arms = {"baseline": "baseline", "mine": "*x*|\n`y`\x1b"}
    runs = [
        replace(run, config={**run.config, "arm": name})
        for arm, name in arms.items()
        for run in ending(arm, *PLAIN[:1], pace=PLAIN[1], budget=UPDATES)
    ]
    verdict = judge(runs)
    assert "| `` *x*\\| `y`\N{REPLACEMENT CHARACTER} `` |" in markdown(verdict)
    assert "\x1b" not in str(table(verdict))
