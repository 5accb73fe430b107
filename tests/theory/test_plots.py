"""Figures are whole files of the kind asked for, or none at all."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from sifting.theory import LeastSquares, plots, simulate

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def simulation():
    return simulate(LeastSquares(dim=3), K=50, R=3, sigma=0.2, runs=4, checkpoints=10)


def test_png_and_svg(simulation, tmp_path):
    plots.plot_simulation(simulation, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    plots.plot_simulation(simulation, tmp_path / "a.svg")
    words = "".join(ET.parse(tmp_path / "a.svg").getroot().itertext())
    for word in ("steps K", "SGD", "GSGD", "bound", "measured"):
        assert word in words
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_the_same_figure_gives_the_same_bytes(simulation, tmp_path):
    for name in ("a.svg", "b.svg"):
        plots.plot_simulation(simulation, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_failure_leaves_the_old_file_and_nothing_else(simulation, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def fail(self, file, **_):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plots.plot_simulation(simulation, path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_a_problem_without_a_floor_can_be_drawn(tmp_path):
    s = simulate(LeastSquares(dim=3, shift=0, minority=0), K=20, runs=3)
    plots.plot_simulation(s, tmp_path / "a.svg")
    assert "(loss" not in (tmp_path / "a.svg").read_text()


def test_other_figures(tmp_path):
    plots.plot_exits(np.array([-0.2, 0.5, 1.0]), np.array([0.4, 0.7, 1.0]), 100, tmp_path / "e.png")
    plots.plot_rho({2: (1.6, 0.1), 64: (7.0, 0.1)}, 0.0, 1.0, tmp_path / "r.png")
    plots.plot_noise(
        np.array([0.1, 0.5]), {"x": (np.array([0.9, 0.8]), np.zeros(2))}, tmp_path / "n.png"
    )
    for name in "ern":
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("name", ["a.gif", "a", "a.jpeg"])
def test_other_formats_are_refused_before_any_work(name):
    with pytest.raises(ValueError, match=r"must end in .png or .svg"):
        plots.check_path(name)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="folder that does not exist"):
        plots.check_path(tmp_path / "no" / "a.png")
