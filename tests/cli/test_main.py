from __future__ import annotations

import builtins
import errno
import sys
import warnings
from typing import Any

import pytest

import sifting
import sifting.recipes
from sifting import SiftingWarning, __version__
from sifting.cli import main as cli


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, text in (("--version", f"sifting {__version__}"), ("--help", "sift COMMAND --help")):
        with pytest.raises(SystemExit) as done:
            cli.main([flag])
        assert done.value.code == 0
        assert text in capsys.readouterr().out


def test_an_unknown_command_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(["sort"])
    assert done.value.code == 2
    assert "demo" in capsys.readouterr().err


def test_a_warning_of_the_library_is_one_sentence_and_others_are_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Command:
        @staticmethod
        def main(arguments: list[str]) -> int:
            for category in (SiftingWarning, UserWarning):
                print(warnings.formatwarning("a\x1b[2J choice", category, "mine.py", 8), end="")
            return 0

    usual = warnings.formatwarning
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Command)
    assert cli.main(["train"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "warning: a\N{REPLACEMENT CHARACTER}[2J choice"
    assert second.startswith("mine.py:8: UserWarning: ")
    assert warnings.formatwarning is usual


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(cli.importlib, "import_module", fails)
    assert cli.main(["theory"]) == 2
    assert (
        "needs scipy, which is not installed: pip install 'sifting[theory]'"
        in capsys.readouterr().err
    )
    assert builtins.__import__ is not fails


def test_an_extra_that_is_missed_only_on_the_way_is_named_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sifting, "recipes", sifting.recipes)  # to be put back, as the modules are
    monkeypatch.setitem(sys.modules, "numpy", None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("sifting.recipes")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["train", "bert", "smoke", "--out", "x"]) == 2
    said = capsys.readouterr().err
    assert "sift train needs numpy, which is not installed: pip install 'sifting[recipes]'" in said


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x.json"), 2, "sift cost: [Errno 28] No"),
        (KeyboardInterrupt(), 130, "sift cost: stopped"),
        (KeyboardInterrupt("SIGTERM"), 143, "sift cost: stopped"),
    ],
)
def test_a_full_disk_and_being_stopped_are_told_without_a_traceback(
    raised: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(argv: Any) -> int:
        raise raised

    monkeypatch.setattr("sifting.cli.cost.main", fails)
    assert cli.main(["cost"]) == code
    assert capsys.readouterr().err.startswith(said)


def test_what_a_users_own_code_raises_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(argv: Any) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file", "mine.csv")

    monkeypatch.setattr("sifting.cli.cost.main", fails)
    with pytest.raises(FileNotFoundError):
        cli.main(["cost"])
