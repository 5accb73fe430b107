"""The commands of `sift theory` that go past the paper."""

from __future__ import annotations

import pytest

from sifting.cli import theory_past
from sifting.cli.theory import build_parser, main
from tests.helpers.theory import SMALL


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
        assert f"{name}: ahead at equal gradients" in out
    options = ["-b", "2", "--per-loss", "0.1", "-o", "few.svg"]
    assert main(["kept", *SMALL["kept"], *options]) == 0
    out = capsys.readouterr().out
    assert "logistic" not in out
    assert "few.svg" in out


def test_weakly_convex_with_noise(folder, undrawn, capsys):
    assert main(["weakly-convex", *SMALL["weakly-convex"], "--sigma", "0.1"]) == 0
    out = capsys.readouterr().out
    for text in ("E|w − w*|²", "≤ by PL", "least E|∇φ|²", "phase: L = "):
        assert text in out


def test_each_command_is_a_function_of_its_options():
    for command, function in {
        "kept": theory_past.kept,
        "weakly-convex": theory_past.weakly_convex,
    }.items():
        assert build_parser().parse_args([command]).run is function
