"""Reading runs, and writing what they say, without a browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sifting.cli import main as cli
from sifting.report import NothingToReport, bands, collect, provenance, tables, write_html
from sifting.report.figures import drawings
from sifting.report.page import page
from sifting.training.run_folder import Run
from sifting.verdict import Verdict, judge
from tests.helpers.run_folders import made, write

SPEEDS = {"baseline": 1.0, "random-keep": 1.0, "sift": 1.3}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for arm, speed in SPEEDS.items():
        for seed in range(3):
            write(made(arm, seed, speed=speed, scoring=0.1, noise=0.01, points=8), folder)
    return folder


class Text(HTMLParser):
    """The page's text and tags."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.feed(source)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_the_command_writes_a_page_and_says_the_verdict(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert cli.main(["report", str(runs), "-o", str(out), "--target", "0.6"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Selection pays ")
    assert str(out) in said
    source = out.read_text(encoding="utf-8")
    seen = Text(source)
    assert said.splitlines()[0].replace("`", "") in seen.text.replace("\u00a0", " ")
    assert "script" not in seen.tags
    assert not re.search(r'(src|href)="(?!#)', source), "nothing from elsewhere"
    assert 'http-equiv="refresh"' not in source
    assert "default-src 'none'" in source
    assert not list(tmp_path.glob(".*.part"))


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
    found = collect([runs])
    assert {s.name: s.reason for s in found.skipped} == {
        "thief": "config.json is a link out of the folder that was given",
        "pipe": "reference.json is not a file",
    }
    assert "secret" not in page(found, written="now")


def test_two_of_one_arm_and_seed_are_one(runs: Path) -> None:
    write(replace(made("sift", 0, status="running", points=8), path=Path("again")), runs)
    found = collect([runs])
    assert [(s.name, s.reason) for s in found.skipped] == [
        ("again", "of the same arm and seed as sift-seed0")
    ]


def test_experiments_that_differ_are_judged_apart(runs: Path) -> None:
    for seed in range(3):
        write(replace(made("baseline", seed, recipe="bert"), path=Path(f"b{seed}")), runs)
    found = collect([runs])
    assert [e.title for e in found.experiments] == [
        "bert · accuracy · 1000 updates",
        "made · accuracy · 400 updates",
    ]
    source = page(found, written="now")
    assert source.count('<section class="experiment"') == 2
    ids = re.findall(r'\bid="([^"]+)"', source)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("given", ["nowhere", "empty"])
def test_nothing_to_report_is_an_error_that_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    (tmp_path / "empty").mkdir()
    out = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / given), "-o", str(out)]) == 2
    assert f"no run to report in {tmp_path / given}" in capsys.readouterr().err
    assert not out.exists()
    with pytest.raises(NothingToReport, match="there is no such folder"):
        collect([tmp_path / "nowhere"])


def test_mistakes_on_the_command_line_are_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in (
        (["--watch", "0"], "--watch 0: give a number of seconds above 0"),
        (["-o", str(tmp_path / "no" / "report.html")], "its folder does not exist"),
        (["-o", str(tmp_path / "x.pdf")], "x.pdf: give a name that ends in .html or .htm or .md"),
        (["-o", str(tmp_path / "x")], "x: give a name that ends in"),
        (["-o", str(tmp_path / "x.md"), "--format", "html"], "ends in .html or .htm"),
        (["--target", "nan"], "--target nan: give a finite figure"),
    ):
        with pytest.raises(SystemExit) as done:
            cli.main(["report", str(runs), *options])
        assert done.value.code == 2
        assert message in capsys.readouterr().err


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


def test_figures_are_written_for_papers(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    arguments = ["report", str(runs), "-o", str(tmp_path / "r.html"), "--figures", str(folder)]
    assert cli.main(arguments) == 0
    names = {f"{key}.{kind}" for key in METRICS for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == names
    again = next(iter(drawings(collect([runs]).experiments[0])))
    assert (folder / "time.svg").read_bytes() == again.file("svg"), "the same runs, the same bytes"


METRICS = ("time", "samples", "clocks", "rho", "recall")


def test_reference_time_is_shown_where_runs_have_it(tmp_path: Path) -> None:
    for arm in SPEEDS:
        for seed in range(3):
            path = write(made(arm, seed, reference=True, points=4, scoring=0.1), tmp_path)
            costs = {"scoring": 0.004, "forward": 0.018, "backward": 0.022}
            (path / "reference.json").write_text(json.dumps(costs))
    experiment = collect([tmp_path]).experiments[0]
    assert experiment.verdict.axis == "reference"
    assert {d.key: d.title for d in drawings(experiment)}["time"].endswith("reference time")
    assert tables.exit_table(experiment).rows == [["1", "sift", "4 ms", "18 ms", "22 ms", "0.100"]]
    named = [row[0] for row in tables.clock_table(experiment).rows]
    assert named[:2] == ["baseline, measured", "baseline, reference"]


def test_tokens_are_shown_where_runs_count_them(tmp_path: Path) -> None:
    for arm in ("baseline", "random", "sift"):
        run = made(arm, 0, points=4)
        if arm == "sift":
            for record in run.metrics:
                record.update(tokens_seen=20 * record["step"], tokens_trained=10 * record["step"])
        write(run, tmp_path)
    experiment = collect([tmp_path]).experiments[0]
    found = tables.token_table(experiment)
    assert [row[:3] for row in found.rows] == [["sift", "4000", "2000"]]
    assert float(found.rows[0][3]) == pytest.approx(2 * float(found.rows[0][4]), rel=0.02)
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path), "-o", str(page)]) == 0
    assert "<h4>Tokens</h4>" in page.read_text()


def test_a_seed_on_a_busy_machine_does_not_cut_the_curve_short() -> None:
    steps, figures = np.array([10.0, 20.0]), np.array([0.5, 0.9])
    found = bands.band([(steps, steps, figures), (steps, 3 * steps, figures - 0.1)])
    assert found is not None
    assert found.x.tolist() == [20.0, 40.0]
    assert found.mean.tolist() == pytest.approx([0.45, 0.85])
    assert found.std.tolist() == pytest.approx([0.1 / 2**0.5] * 2)
    assert bands.band([(steps[:0],) * 3]) is None


def test_settings_that_differ_and_settings_in_common(runs: Path) -> None:
    different, common = provenance.settings_tables(collect([runs]).experiments[0])
    rows = {row[0]: row[1:] for row in different.rows}
    assert different.columns == ["setting", "baseline", "random-keep", "sift"]
    assert rows["selector.policy"] == ["–", "random", "top"]
    assert ["recipe", "made"] in common.rows
    assert "seed" not in {*rows, *(row[0] for row in common.rows)}


def test_runs_without_a_selection_or_an_evaluation_are_still_shown(tmp_path: Path) -> None:
    run = made("baseline", 0, points=3)
    train = [m for m in run.metrics if m["kind"] == "train"]
    write(replace(run, metrics=train, status="running"), tmp_path)
    found = collect([tmp_path])
    assert [d.key for d in drawings(found.experiments[0])] == ["clocks"]
    assert "Cannot be judged" in page(found, written="now")


def test_a_name_in_any_script_or_with_formulas_can_be_drawn(tmp_path: Path) -> None:
    for number, arm in enumerate(("baseline", "$\\frac{", "学習", "_hidden", "\ud800\x00" * 80)):
        write(replace(made(arm, 0, points=3), path=Path(str(number))), tmp_path)
    found = collect([tmp_path])
    write_html(found, tmp_path / "report.html")
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "学習" in source
    assert "$\\frac{" in source
    assert all(d.file("png") for d in drawings(found.experiments[0]))


def test_watching_keeps_the_page_current_until_ctrl_c(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    command = ["-m", "sifting.cli.main", "report", str(runs), "-o", str(out), "--watch", "0.2"]
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: out.exists(), process)
        assert '<meta http-equiv="refresh" content="1">' in out.read_text(encoding="utf-8")
        write(made("late", 0, points=8), runs)
        wait_for(lambda: "late" in out.read_text(encoding="utf-8"), process)
        process.send_signal(signal.SIGINT)
        said, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "the report is" in said
    assert "refresh" not in out.read_text(encoding="utf-8")


def wait_for(there: object, process: subprocess.Popen[str]) -> None:
    """Wait until a function says yes; a watcher that has ended says why."""
    assert callable(there)
    end = time.monotonic() + 60
    while not there():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_without_an_evaluation_yet_does_not_cost_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside runs with reference times: one that has just begun, and one that diverged at once."""
    folder = tmp_path / "runs"
    for seed in range(3):
        write(made("baseline", seed, reference=True, points=4), folder)
    young = made("sift", 0, reference=True, points=4)
    train = [m for m in young.metrics if m["kind"] == "train"]
    write(replace(young, metrics=train[:1], status="running"), folder)
    broken = made("tuned", 0, reference=True, points=4, status="failed")
    log = [{**m, "accuracy": float("nan")} if m["kind"] == "eval" else m for m in broken.metrics]
    write(replace(broken, metrics=log), folder)
    out = tmp_path / "report.html"
    assert cli.main(["report", str(folder), "-o", str(out)]) == 0
    shown = Text(out.read_text(encoding="utf-8")).text
    assert collect([folder]).experiments[0].verdict.axis == "reference"
    assert "tuned cannot be judged: 0 of 1 runs finished, 1 failed." in shown
    assert "cannot be drawn" not in shown
    assert "unexpected" not in shown + capsys.readouterr().err


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


def test_the_last_two_evaluations_make_no_cliff_and_ends_are_ends() -> None:
    steps = np.array([100.0, 200.0, 300.0, 400.0, 403.0])
    one = (steps, steps, np.array([0.1, 0.2, 0.3, 0.4, 0.3]))
    found = bands.band([one])
    assert found is not None
    assert found.x.tolist() == [100.0, 200.0, 300.0, 403.0]
    ahead = steps + np.array([0, 0, 0, 0, 20.0])
    two = (ahead, ahead, np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    found = bands.band([one, two])
    assert found is not None
    assert found.x[-1] == 413.0  # the mean of the ends
    assert found.mean[-1] == pytest.approx(0.4)
    half = (steps[:2], steps[:2], np.array([0.1, 0.2]))
    found = bands.band([one, half])
    assert found is not None
    assert found.x.tolist() == [100.0, 200.0], "one that is only half way has no end yet"


def test_thinning_keeps_what_is_seen() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(50_000.0)
    whole = bands.Band(x, rng.standard_normal(50_000), np.full(50_000, 0.1), 3)
    thin = bands.thinned(whole, 200)
    assert len(thin.x) <= 4 * 200
    for start in range(0, 50_000, 250):
        before, after = (b.mean[(b.x >= start) & (b.x < start + 250)] for b in (whole, thin))
        assert (before.min(), before.max()) == (after.min(), after.max())
    short = bands.Band(x[:800], x[:800], x[:800], 3)
    assert bands.thinned(short, 200) is short


def test_a_page_of_many_experiments_stays_small(tmp_path: Path) -> None:
    for number in range(300):
        run = made("baseline", 0, points=2, recipe=f"recipe {number}")
        write(replace(run, path=Path(f"r{number}")), tmp_path)
    found = collect([tmp_path])
    source = page(found, written="now")
    assert len(source.encode()) < 3_000_000
    assert source.count('<section class="experiment"') == 300
    assert "Figures, settings and runs are shown of the first" in source


def test_long_logs_and_vast_settings_are_cut(tmp_path: Path) -> None:
    run = made("sift", 0, points=1)
    log = [
        {**m, "step": step, "samples_trained": step, "accuracy": 0.5 + 0.1 * np.sin(step)}
        for step in range(1, 10_000)
        for m in run.metrics
    ]
    vast = {**run.config, "note": "x" * 5_000_000, "keys": {str(i): i for i in range(5000)}}
    write(replace(run, metrics=log, config=vast), tmp_path)
    for seed in (1, 2):
        write(made("sift", seed, points=3), tmp_path)
    source = page(collect([tmp_path]), written="now")
    assert len(source.encode()) < 3_000_000
    assert "x" * 400 not in source


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
