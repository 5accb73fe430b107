"""`sift theory` as a person uses it: tables, plot files, and messages for wrong requests."""

import json

import numpy as np
import pytest

from sifting import checksums
from sifting.checksums import Growing
from sifting.cli import theory_commands
from sifting.cli.theory import main

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    rng = np.random.default_rng(0)
    (folder / "run").mkdir()
    with open(folder / "run" / "audits.jsonl", "w") as file:
        for step in range(30):
            exact = rng.exponential(size=16)
            early = exact * np.exp(0.2 * rng.standard_normal(16))
            record = {"step": step, "early": early.tolist(), "exact": exact.tolist()}
            file.write(json.dumps(record) + "\n")
    return folder / "run"


SMALL = {
    "gsgd": ["--steps", "60", "--runs", "5", "--dim", "3", "-R", "3"],
    "exit": ["--layers", "3", "--width", "8", "--pairs", "500"],
    "rho": ["-R", "2", "9", "1000000", "--draws", "200"],
    "noise": ["--sigma", "0.1", "0.5", "--draws", "1000"],
    "kept": ["--steps", "40", "--runs", "3", "--dim", "3", "-B", "4", "--problem", "few"],
    "weakly-convex": ["--steps", "30", "--runs", "2", "-R", "3"],
}


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


def test_gsgd_says_where_the_bounds_cross(folder, undrawn, capsys):
    assert main(["gsgd", *SMALL["gsgd"], "--sigma", "0.2"]) == 0
    out = capsys.readouterr().out
    for text in ("GSGD, noisy", "bound", "F* = 4.5", "its bound leads SGD's until K", "±"):
        assert text in out


def test_gsgd_on_logistic_regression_whose_bound_never_leads(folder, undrawn, capsys):
    assert main(["gsgd", *SMALL["gsgd"], "--problem", "logistic"]) == 0
    assert "its bound leads SGD's at no K" in capsys.readouterr().out


def test_the_same_seed_prints_the_same_table(folder, undrawn, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        main(["gsgd", *SMALL["gsgd"], "--seed", seed])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_rho_shows_where_the_bound_is_not_defined(folder, undrawn, capsys):
    main(["rho", *SMALL["rho"]])
    lines = capsys.readouterr().out.splitlines()
    assert any("1.6366" in text and "R < 4 log R" in text for text in lines)
    assert any("1,000,000" in text and " – " in text for text in lines)


def test_noise_for_more_candidates_and_for_the_top_k(folder, undrawn, capsys):
    assert main(["noise", "--sigma", "0.1", "0.5", "--draws", "2000", "-R", "8"]) == 0
    out = capsys.readouterr().out
    for text in ("top 1 of 8", "Gauss, worst", "f ~ LogN", "σ_max", "wrote theory-noise.png"):
        assert text in out
    assert main(["noise", "--sigma", "0.5", "--draws", "2000", "-R", "8", "-k", "4"]) == 0
    out = capsys.readouterr().out
    assert "top 4 of 8" in out
    assert "worst" not in out


def test_kept_names_every_problem_and_who_is_ahead(folder, undrawn, capsys):
    assert main(["kept", *SMALL["kept"], "--problem", "all"]) == 0
    out = capsys.readouterr().out
    for name in ("squares", "noisy-squares", "few", "logistic", "phase"):
        assert f"{name}: ahead for its gradients" in out
    options = ["-b", "2", "--per-loss", "0.1", "-o", "few.svg"]
    assert main(["kept", *SMALL["kept"], *options]) == 0
    out = capsys.readouterr().out
    assert "logistic" not in out
    assert "few.svg" in out


def test_tables_are_whole_in_a_narrow_terminal(capsys):
    from rich.console import Console

    from sifting.cli.theory_tables import table

    rows = [["squares", "0.9345 ±0.08", "1.5", "a long remark"], ["", "–", "2,000", "another"]]
    for width, lines in ((80, 7), (46, 9), (42, 9), (20, 9)):
        console = Console(width=width, force_terminal=False)
        table(console, "t", ["problem", "loss of the mean", "K", "meaning"], rows, wrap=(3,))
        out = capsys.readouterr().out
        assert console.width == width
        assert "…" not in out
        for cell in ("squares", "0.9345 ±0.08", "2,000"):
            assert cell in out, (width, cell)
        assert max(map(len, out.splitlines())) <= max(width, 42)  # what the cells need
        assert len(out.splitlines()) == lines, (width, out)


def test_weakly_convex_with_noise(folder, undrawn, capsys):
    assert main(["weakly-convex", *SMALL["weakly-convex"], "--sigma", "0.1"]) == 0
    out = capsys.readouterr().out
    for text in ("E|w − w*|²", "≤ by PL", "least E|∇φ|²", "phase: L = "):
        assert text in out


def test_estimate_prints_what_the_theory_predicts(run, folder, capsys):
    assert main(["estimate", str(run), "-R", "3"]) == 0
    out = capsys.readouterr().out
    for text in ("ρ_3,approx", "recall, top 50%", "σ_max", "Break-even", "The bounds allow up to"):
        assert text in out
    assert "wrote" not in out
    assert main(["estimate", str(run), "-o", "estimate.png"]) == 0
    assert (folder / "estimate.png").read_bytes().startswith(PNG)


def test_estimate_warns_of_a_cut_line_and_goes_on(run, capsys):
    with open(run / "audits.jsonl", "a") as file:
        file.write('{"step": 99, "early": [1.')
    assert main(["estimate", str(run)]) == 0
    assert "line 31 is cut off" in capsys.readouterr().err


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


def test_a_log_that_was_cut_is_not_estimated_from(run, folder, capsys):
    log = Growing()
    log.catch_up(run / "audits.jsonl")
    logs = {"audits.jsonl": log.said(), "metrics.jsonl": Growing().said()}
    about = {"format": 2, "status": "finished", "files": {}, "logs": logs}
    checksums.write_json(run / "run.json", about)
    assert main(["estimate", str(run), "--resamples", "20"]) == 0
    lines = (run / "audits.jsonl").read_text().splitlines(keepends=True)
    (run / "audits.jsonl").write_text("".join(lines[:-5]))
    for path in (run, run / "audits.jsonl"):
        assert main(["estimate", str(path)]) == 2
        assert "audits.jsonl was shortened" in capsys.readouterr().err
    (run / "audits.jsonl").rename(folder / "mine.jsonl")  # of nobody's run
    assert main(["estimate", str(folder / "mine.jsonl"), "--resamples", "20"]) == 0


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
