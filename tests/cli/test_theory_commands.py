"""What each command of `sift theory` computes and prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sifting import checksums
from sifting.checksums import Growing
from sifting.cli import theory_commands
from sifting.cli.theory import build_parser, main
from tests.helpers.theory import SMALL

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


@pytest.mark.parametrize("name", ["\x1b[2J\u202ex.png", "[bold]x.png"])
def test_the_name_of_a_drawing_is_shown_and_not_obeyed(run, undrawn, capsys, name):
    assert main(["estimate", str(run), "--resamples", "20", "-o", name]) == 0
    shown = name.replace("\x1b", "\ufffd").replace("\u202e", "\ufffd")
    assert f"wrote {shown}" in capsys.readouterr().out


def test_gsgd_says_where_the_bounds_cross(folder, undrawn, capsys):
    assert main(["gsgd", *SMALL["gsgd"], "--sigma", "0.2"]) == 0
    out = capsys.readouterr().out
    for text in ("GSGD, noisy", "bound", "F* = 4.5", "its bound leads SGD's until K", "±"):
        assert text in out


def test_gsgd_on_logistic_regression_whose_bound_never_leads(folder, undrawn, capsys):
    assert main(["gsgd", *SMALL["gsgd"], "--problem", "logistic"]) == 0
    assert "its bound leads SGD's at no K" in capsys.readouterr().out


def test_rho_shows_where_the_bound_is_not_defined(folder, undrawn, capsys):
    main(["rho", *SMALL["rho"]])
    lines = capsys.readouterr().out.splitlines()
    assert any("1.6366" in text and "R < 4 log R" in text for text in lines)
    assert any("1,000,000" in text and " – " in text for text in lines)


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


def test_each_command_is_a_function_of_its_options():
    for command, function in {
        "gsgd": theory_commands.gsgd,
        "exit": theory_commands.exits,
        "rho": theory_commands.rho,
        "noise": theory_commands.noise,
    }.items():
        assert build_parser().parse_args([command]).run is function


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
