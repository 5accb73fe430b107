"""What holds for every test: no Hub, one thread, the same random numbers."""

from __future__ import annotations

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

from tests.helpers.models import Net

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples every time (`make fuzz` draws others); how long one takes says more about the
# machine than about the code.
hypothesis.settings.register_profile(
    "sifting",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("sifting")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(12, 8), torch.randint(0, 5, (12,))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made up but not drawn, which takes longer than all else in a small command."""
    from sifting.theory import plots, plots_past

    for module in (plots, plots_past):
        monkeypatch.setattr(module, "save", lambda figure, path: plots.check_path(path))
