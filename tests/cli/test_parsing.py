"""Command lines made from the fields of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sifting.cli.parsing import (
    SharedOptions,
    TrainOptions,
    parse_preset,
    refuse,
    run_many,
    spell_out_resume,
    usage,
)
from sifting.training.config import RunConfig
from sifting.training.run_folder import RunError

PRESETS = {"small": RunConfig(batch=8), "large": RunConfig(batch=64)}


def parsed(
    argv: list[str], presets: dict[str, RunConfig] = PRESETS, kind: Any = TrainOptions
) -> Any:
    return parse_preset(
        presets,
        argv,
        make=lambda c: kind(out=Path("x"), config=c),
        prog="sift mine",
        about="It runs.",
    )


def test_a_preset_and_what_differs_from_it() -> None:
    name, found = parsed(["large", "--out", "runs/a", "--seed", "3", "--resume", "auto"])
    assert name == "large"
    assert (found.out, found.resume) == (Path("runs/a"), "auto")
    assert (found.config.batch, found.config.seed) == (64, 3)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a preset after `sift mine`: small, large"),
        (["--out", "x"], "name a preset after `sift mine`: small, large"),
        (["huge"], "sift mine has no preset 'huge'; it has: small, large"),
    ],
)
def test_a_missing_or_unknown_preset_is_an_error_that_lists_them(
    argv: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(argv)


def test_help_says_the_presets_and_then_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in ((["--help"], "{small,large}"), (["small", "--help"], "--keep-checkpoints")):
        with pytest.raises(SystemExit) as done:
            parsed(argv)
        assert done.value.code == 0
        assert words in capsys.readouterr().out


def test_settings_without_a_name_take_options_alone() -> None:
    name, found = parsed(["--seed", "2"], {"": RunConfig()})
    assert (name, found.config.seed) == ("", 2)
    with pytest.raises(ValueError, match="has no preset 'small': it takes options alone"):
        parsed(["small"], {"": RunConfig()})


def test_what_comparisons_share_may_be_given_often() -> None:
    words = [
        "small",
        "--arms",
        "sift",
        "tuned",
        "--seeds",
        "1",
        "2",
        "--set",
        "a=1",
        "--set",
        "b=2",
    ]
    _, found = parsed([*words, "--no-control"], kind=SharedOptions)
    assert (found.arms, found.seeds, found.set) == (("sift", "tuned"), (1, 2), ("a=1", "b=2"))
    assert not found.control


def test_resume_may_be_written_alone() -> None:
    assert spell_out_resume(["--resume", "auto"]) == ["--resume", "auto"]
    assert spell_out_resume(["--resume"]) == ["--resume=yes"]
    assert spell_out_resume(["--no-resume", "x"]) == ["--resume=no", "x"]


def test_options_of_single_runs_are_refused_with_what_stands_for_them() -> None:
    refuse(RunConfig(), RunConfig(), {"seed": "--seeds"})
    with pytest.raises(ValueError, match="--audit-every is for single runs: here it is the same"):
        refuse(RunConfig(audit_every=9), RunConfig(), {"audit_every": "the same"})


def test_a_command_of_many_runs_ends_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    def run(work: Any, **more: bool) -> int:
        return run_many(["x"], label="sift mine", text="sift mine X", work=work, **more)

    def broken(words: list[str], console: Console) -> None:
        raise RunError("it is damaged")

    def stopped(words: list[str], console: Console) -> None:
        raise KeyboardInterrupt

    assert run(lambda words, console: None) == 0
    assert run(lambda words, console: "SIGTERM") == 143
    assert "stopped by SIGTERM; the same command continues" in capsys.readouterr().err
    assert run(broken) == 2
    assert "sift mine: it is damaged" in capsys.readouterr().err
    assert run(stopped) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert run(stopped, continues=False) == 130
    said = capsys.readouterr().err
    assert "the same command begins anew" in said
    assert "continues" not in said


def test_how_a_command_is_called_is_printed_where_nothing_follows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert usage("sift mine X", ["x"]) is None
    assert usage("sift mine X", ["--help"]) == 0
    assert capsys.readouterr().out == "usage: sift mine X\n"
    assert usage("sift mine X", []) == 2
    assert capsys.readouterr().err == "usage: sift mine X\n"
