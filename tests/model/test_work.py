"""What each module does in a forward: how much work, by when."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.no_trace import no_trace
from sifting.model.places import candidate_places, find_place
from sifting.model.work import Work


class Plain(nn.Module):
    """Layers as attributes, joined by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 32, 3)
        self.fc1, self.fc2 = nn.Linear(32 * 36, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(F.relu(self.fc1(F.max_pool2d(x, 2).flatten(1))))


IMAGES = (2, 3, 16, 16)


def test_shares_are_those_of_the_multiplications() -> None:
    """Against sums worked out by hand, for two samples."""
    model = Plain()
    x = torch.randn(IMAGES)
    work = [
        2 * 14 * 14 * 4 * 3 * 9,
        2 * 12 * 12 * 32 * 4 * 9,
        2 * 32 * 36 * 32,
        2 * 32 * 5,
    ]
    with no_trace(model):
        places = candidate_places(model, lambda: model(x), size=2)
    assert [place.path for place in places] == ["conv1", "conv2", "fc1"]
    for i, place in enumerate(places):
        assert place.share == pytest.approx(sum(work[: i + 1]) / sum(work))


def test_frozen_layers_and_positions_are_no_places() -> None:
    class Positioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.positions = nn.Embedding(1, 4)
            self.hidden, self.out = nn.Linear(4, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            x = self.frozen(x) + self.positions(torch.zeros(len(x), dtype=torch.long))
            return self.out(self.hidden(x))

    model = Positioned()
    x = torch.randn(2, 4)
    with no_trace(model):
        assert [p.path for p in candidate_places(model, lambda: model(x))] == ["hidden"]


def test_a_frozen_backbone_has_places_too() -> None:
    """What is trained of a linear probe is its last layer, after all of the work."""
    body = nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)]).requires_grad_(False)
    model, x = nn.Sequential(body, nn.Linear(16, 2)), torch.randn(2, 16)
    with no_trace(model):
        places = candidate_places(model, lambda: model(x))
        assert [p.path for p in places][:2] == ["0.0", "0.1"]
        assert find_place(model, lambda: model(x), size=2).share == pytest.approx(1 / 8, abs=0.02)


def test_work_is_counted_by_when_each_module_has_ended() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 12))
    work = Work.of(model, lambda: model(torch.zeros(3, 4)))
    assert work.total == 2 * 3 * (4 * 8 + 8 * 12)
    assert work.share("0") == pytest.approx(4 * 8 / (4 * 8 + 8 * 12))
    assert work.share("nowhere") is None
    assert (work.width("0"), work.width("2")) == (8, 12)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_transposed_convolutions_and_attention_are_counted_by_what_they_are_given() -> None:
    up = nn.ConvTranspose2d(4, 2, 3, stride=2)
    assert Work.of(up, lambda: up(torch.zeros(1, 4, 5, 5))).total == 2 * 25 * up.weight.numel()
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.zeros(2, 3, 8)
    weights = sum(p.numel() for p in attention.parameters() if p.ndim > 1)
    assert Work.of(attention, lambda: attention(x, x, x)).total == 2 * 6 * weights


def test_looking_up_takes_nothing_and_modules_that_run_twice_are_no_exits() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.shared, self.head = (
                nn.Embedding(5, 4),
                nn.Linear(4, 4),
                nn.Linear(4, 9),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.shared(self.shared(self.table(x))))

    model = Twice()
    work = Work.of(model, lambda: model(torch.arange(3)))
    assert work.ended["table"] == 0
    assert work.calls["shared"] == 2
    assert "shared" not in work.exits(3)
