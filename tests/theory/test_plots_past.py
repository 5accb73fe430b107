"""The figures of what goes past the paper."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np

from sifting.theory import LeastSquares, Neuron, compare_rules, plots_past


def test_figures_past_the_paper(tmp_path):
    results = {
        name: compare_rules(problem, K=8, B=4, runs=2, checkpoints=4)
        for name, problem in (("squares", LeastSquares(dim=2)), ("phase", Neuron(dim=2)))
    }
    plots_past.plot_kept(results, tmp_path / "k.svg")
    words = "".join(ET.parse(tmp_path / "k.svg").getroot().itertext())
    for word in ("gradients computed", "GSGD, top 1 of 4", "kept", "bound", "What the rule keeps"):
        assert word in words
    ones, steps = np.ones((3, 2)), np.array([1.0, 2.0, 4.0])
    bounds = dict.fromkeys(("aim", "pl", "phase"), np.full(3, 2.0))
    plots_past.plot_weak(steps, ones, ones, ones[:, 0], bounds, tmp_path / "w.svg")
    assert "Phase retrieval" in (tmp_path / "w.svg").read_text()
