"""Finding and reading run folders: what is damaged is named, and costs nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sifting.cli import main as cli
from sifting.report import collect, provenance, write_html
from sifting.report.page import page
from sifting.training.run_folder import Run
from sifting.verdict import Verdict, judge
from tests.helpers.pages import Text
from tests.helpers.run_folders import SPEEDS, made, write, write_comparison


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs")


def test_runs_are_found_at_any_depth_and_given_one_by_one(runs: Path) -> None:
    deep = collect([runs.parent])
    one_by_one = collect([*runs.iterdir(), runs])
    assert deep.experiments[0].verdict == one_by_one.experiments[0].verdict
    assert len(one_by_one.experiments[0].entries) == 9
    assert one_by_one.skipped == ()


def test_damaged_and_half_written_runs_are_named_and_left_out(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(name: str, file: str, content: bytes) -> None:
        path = write(replace(made("other", len(name)), path=Path(name)), runs)
        (path / file).write_bytes(content)

    spoil("torn", "run.json", b'{"format": 1, "sta')
    spoil("newer", "run.json", b'{"format": 99}')
    spoil("list", "config.json", b"[]")
    spoil("bytes", "metrics.jsonl", b"\xff\xfe\n")
    spoil("empty", "metrics.jsonl", b"")
    spoil("numbers", "metrics.jsonl", b"1\n2\n")
    spoil("clocks", "metrics.jsonl", b'{"kind": "eval", "accuracy": 1, "step": 1}\n')
    spoil("deep", "config.json", b'{"a":' * 100_000)
    write(replace(made("cut", 0, points=8), path=Path("cut")), runs)
    log = runs / "cut" / "metrics.jsonl"
    log.write_text(log.read_text() + '{"kind": "ev')
    out = tmp_path / "report.html"
    assert cli.main(["report", str(runs), "-o", str(out)]) == 0
    err, shown = capsys.readouterr().err, Text(out.read_text(encoding="utf-8")).text
    for name in ("torn", "newer", "list", "bytes", "empty", "numbers", "clocks", "deep", "cut"):
        assert f"sift report: {name}: " in err
        assert f"{name}: " in shown[shown.index("Left out") :]
    assert "cut: the last line of a log was cut off; the rest is shown" in err
    assert {"cut", *SPEEDS} == set(collect([runs]).experiments[0].arms)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": {"forward": -5.0}},
        {"seconds": {"forward": 1e300}},
        {"step": None},
        {"step": "x"},
        {"load": 10**400},
        {"accuracy": 1e300},
        {"accuracy": -1.7e308},
    ],
    ids=lambda change: str(change)[:40],
)
def test_one_damaged_run_does_not_cost_the_report(
    runs: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    log = runs / "sift-seed0" / "metrics.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    for record in records:
        if "step" not in change or record["kind"] == "train":  # evaluations are read more closely
            record.update(change)
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    material = collect([runs], target=0.6)
    assert material.experiments[0].verdict.arm("sift").finished in (2, 3)
    provenance.machines(material.experiments[0])
    assert write_html(material, tmp_path / "report.html").stat().st_size > 10_000


def test_a_table_of_costs_with_a_number_that_no_float_holds_is_named(runs: Path) -> None:
    (runs / "sift-seed0" / "reference.json").write_text(f'{{"scoring": {10**400}}}')
    assert [skipped.name for skipped in collect([runs]).skipped] == ["sift-seed0"]


def test_links_out_of_the_folder_are_not_followed(runs: Path, tmp_path: Path) -> None:
    secret = write(replace(made("secret", 0), path=Path("elsewhere")), tmp_path)
    (runs / "door").symlink_to(secret)
    path = write(replace(made("thief", 0), path=Path("thief")), runs)
    (path / "config.json").unlink()
    (path / "config.json").symlink_to(secret / "config.json")
    os.mkfifo(write(replace(made("pipe", 0), path=Path("pipe")), runs) / "reference.json")
    # read for its checksum alone, and as long as somebody likes
    path = write(replace(made("audited", 0), path=Path("audited")), runs)
    (path / "audits.jsonl").unlink(missing_ok=True)
    (path / "audits.jsonl").symlink_to(secret / "metrics.jsonl")
    found = collect([runs])
    assert {s.name: s.reason for s in found.skipped} == {
        "thief": "config.json is a link out of the folder that was given",
        "audited": "audits.jsonl is a link out of the folder that was given",
        "pipe": "reference.json is not a file",
    }
    assert "secret" not in page(found, written="now")


def test_two_of_one_arm_and_seed_are_one(runs: Path) -> None:
    write(replace(made("sift", 0, status="running", points=8), path=Path("again")), runs)
    found = collect([runs])
    assert [(s.name, s.reason) for s in found.skipped] == [
        ("again", "of the same arm and seed as sift-seed0")
    ]


def test_what_cannot_be_judged_or_drawn_costs_itself_alone(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge_but_not_sift(of: list[Run], **more: Any) -> Verdict:
        if any(run.config["arm"] == "sift" for run in of):
            raise RuntimeError("a mistake of ours")
        return judge(of, **more)

    monkeypatch.setattr("sifting.report.reading.judge", judge_but_not_sift)
    found = collect([runs])
    assert set(found.experiments[0].arms) == {"baseline", "random-keep"}
    assert {s.reason for s in found.skipped} == {"unexpected RuntimeError: a mistake of ours"}
    monkeypatch.setattr("sifting.report.figures.clocks._plot", lambda *_: 1 / 0)
    source = page(found, written="now")
    assert "It cannot be drawn: unexpected ZeroDivisionError" in source
    assert 'id="e0-time"' in source
