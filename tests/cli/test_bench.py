"""`sift bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting.bench.registry import find_task, tasks
from sifting.cli.bench import build_parser, command_of, main


def test_the_command_names_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["fashon", "--out", str(tmp_path)]) == 2
    assert "task='fashon' is unknown: choose among digits, fashion" in capsys.readouterr().err
    with pytest.raises(ValueError, match="task='x' is unknown"):
        find_task("x")
    with pytest.raises(SystemExit):
        main([])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["advise"], "give of which task: its name, all"),
        (["list", "report"], "list stands alone"),
        (["report", "digits"], "report stands alone"),
        (["digits", "report"], "report stands alone"),
        (["digits", "advise"], "advise comes before the tasks"),
    ],
)
def test_words_that_do_not_go_together_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err


def test_the_command_lists_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(tasks())


def test_the_command_beside_results_is_what_a_reader_would_type() -> None:
    args = build_parser().parse_args(
        ["all", "--hours", "2", "--seeds", "3", "--arms", "auto", "sift"]
    )
    assert command_of("digits", args) == "sift bench digits --seeds 3 --arms auto sift"
    mine = build_parser().parse_args(["--mine", "pkg.mod:build", "--updates", "9"])
    assert command_of("pkg.mod.build", mine) == "sift bench --mine pkg.mod:build --updates 9"


def test_a_report_of_nothing_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", "--out", str(tmp_path / "none"), "--results", str(tmp_path / "results")]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"no task in {tmp_path / 'none'} has a run" in said.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("option", ["--results", "--pages"])
def test_a_place_that_a_report_cannot_be_written_to_is_named(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.symlink_to(tmp_path / "nowhere")
    run = tmp_path / "runs" / "digits"
    run.mkdir(parents=True)
    (run / "bench.json").write_text("{}")
    found = {"task": "digits"} if option == "--results" else None
    monkeypatch.setattr("sifting.bench.results.result_of", lambda folder: found)
    others = [] if option == "--results" else ["--results", str(tmp_path / "results")]
    assert main(["report", "--out", str(run.parent), option, str(place), *others]) == 2
    said = capsys.readouterr().err
    assert "sift bench: the report cannot be written: " in said
    assert str(place) in said
    assert not (tmp_path / "nowhere").exists()
