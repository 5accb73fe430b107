"""`sift report`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sifting.cli import main as cli
from sifting.cli.report import build_parser
from sifting.report import NothingToReport, collect
from tests.helpers.pages import Text
from tests.helpers.run_folders import made, write, write_comparison


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs")


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
        (["--target", "nan"], "--target nan: give a finite value of the metric"),
    ):
        with pytest.raises(SystemExit) as done:
            cli.main(["report", str(runs), *options])
        assert done.value.code == 2
        assert message in capsys.readouterr().err


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


def test_options_have_their_defaults() -> None:
    args = build_parser().parse_args(["runs"])
    assert (args.runs, args.out, args.format, args.watch) == ([Path("runs")], None, None, None)
    assert build_parser().parse_args(["runs", "--watch"]).watch == 10.0
