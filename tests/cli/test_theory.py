"""`sift theory` as a person uses it: tables, plot files, and messages for wrong requests."""

import pytest

from sifting.cli import theory_commands
from sifting.cli.theory import main
from tests.helpers.theory import SMALL

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", SMALL)
def test_each_command_prints_a_table_and_writes_its_plot(command, folder, capsys):
    assert main([command, *SMALL[command]]) == 0
    out = capsys.readouterr().out
    assert f"wrote theory-{command}.png" in out
    assert (folder / f"theory-{command}.png").read_bytes().startswith(PNG)
    if command != "gsgd":  # SVG is the same for all: test_plots.py
        return
    assert main([command, *SMALL[command], "-o", "other.svg"]) == 0
    assert "<svg" in (folder / "other.svg").read_text()


def test_the_same_seed_prints_the_same_table(folder, undrawn, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        main(["gsgd", *SMALL["gsgd"], "--seed", seed])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gsgd", "--step-size", "1"], "step-size = 1, but 0 < step-size < 1"),
        (["gsgd", "--minority", "0.9"], "minority = 0.9"),
        (["gsgd", "-R", "1"], "R = 1"),
        (["gsgd", "--steps", "0"], "K = 0"),
        (["gsgd", "--runs", "0"], "runs = 0"),
        (["gsgd", "--sigma", "-1"], "sigma = -1"),
        (["gsgd", "-o", "x.pdf"], "x.pdf ends in .pdf, but must end in .png or .svg"),
        (["gsgd", "-o", "no/x.png"], "folder that does not exist"),
        (["exit", "--layers", "0"], "layers = 0"),
        (["exit", "--pairs", "0"], "pairs = 0"),
        (["rho", "--delta", "-1"], "delta = -1"),
        (["rho", "--delta", "0"], "eps = 0 with delta = 0"),
        (["rho", "-R", "1"], "R = 1"),
        (["rho", "--draws", "1"], "draws = 1"),
        (["noise", "--sigma", "-1"], "sigma"),
        (["noise", "-R", "8", "--sigma", "-1"], "sigma"),
        (["noise", "-R", "8", "--sigma", "99"], "sigma"),
        (["noise", "-R", "1"], "R = 1"),
        (["noise", "-R", "4", "-k", "5"], "k = 5, but k <= R"),
        (["kept", "--step-size", "1"], "step-size = 1, but 0 < step-size < 1"),
        (["kept", "--epsilon", "1"], "epsilon = 1"),
        (["kept", "-B", "1"], "B = 1"),
        (["kept", "-b", "99"], "b = 99, but b <= B"),
        (["kept", "-b", "0"], "b = 0"),
        (["kept", "--decay", "-1"], "decay = -1"),
        (["kept", "--dim", "0"], "dim = 0"),
        (["kept", "-o", "x.pdf"], "x.pdf ends in .pdf"),
        (["weakly-convex", "-R", "1"], "R = 1"),
        (["weakly-convex", "--slope", "0"], "slope = 0"),
        (["weakly-convex", "--steps", "0"], "K = 0"),
        (["weakly-convex", "--sigma", "-1"], "sigma = -1"),
        (["estimate", "nowhere"], "nowhere does not exist"),
    ],
)
def test_wrong_requests_get_a_message_and_exit_code_2(argv, message, folder, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"sift theory {argv[0]}: ")
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("argv", [[], ["bogus"], ["gsgd", "--steps", "many"], ["estimate"]])
def test_what_the_parser_refuses_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "usage: sift theory" in capsys.readouterr().err


def test_names_that_a_terminal_would_obey_are_cleaned(folder, capsys):
    assert main(["estimate", "no\x1b[2Jwhere"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_stopping_by_hand_is_not_a_traceback(folder, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(theory_commands, "simulate", stop)
    assert main(["gsgd"]) == 130
    assert "nothing was written" in capsys.readouterr().err


def test_a_missing_extra_is_named(folder, capsys, monkeypatch):
    def missing(*_, **__):
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr(theory_commands, "plot_rho", missing)
    assert main(["rho", *SMALL["rho"]]) == 2
    assert "pip install 'sifting[theory]'" in capsys.readouterr().err


def test_the_top_level_command_reaches_it(folder, undrawn, capsys):
    from sifting.cli.main import main as sift

    assert sift(["theory", "rho", *SMALL["rho"]]) == 0
    assert "wrote theory-rho.png" in capsys.readouterr().out
