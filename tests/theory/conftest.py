"""What the tests of the theory share."""

import pytest


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made up but not drawn, which takes longer than all else in a small command."""
    from sifting.theory import plots, plots_past

    for module in (plots, plots_past):
        monkeypatch.setattr(module, "save", lambda figure, path: plots.check_path(path))
