"""A place to leave any network early, for networks that people write themselves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter
from sifting.exits.tuned import TunedExit
from sifting.model.features import pool, stopped_at
from sifting.model.no_trace import no_trace
from sifting.model.places import find_place, structural_place
from sifting.model.stack import StackError
from tests.helpers.models import Net


class Basic(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.down = nn.Conv2d(inputs, width, 1, stride) if stride > 1 or inputs != width else None

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.down is None else self.down(x)
        return F.relu(kept + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """Stages as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Basic(8, 8, 1), Basic(8, 8, 1))
        self.layer2 = nn.Sequential(Basic(8, 16, 2), Basic(16, 16, 1))
        self.layer3 = nn.Sequential(Basic(16, 32, 2), Basic(32, 32, 1))
        self.fc = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class Vgg(nn.Module):
    """One flat trunk whose repeated blocks come late."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in (8, 32, 0, 64, 64, 64, 0):
            if width:
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(64 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class Plain(nn.Module):
    """Layers as attributes, joined by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 32, 3)
        self.fc1, self.fc2 = nn.Linear(32 * 36, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(F.relu(self.fc1(F.max_pool2d(x, 2).flatten(1))))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Linear(16, 8),
            nn.Linear(8, 64),
            nn.Linear(64, 32),
        )
        self.out = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third):
            x = torch.tanh(layer(x))
        return self.out(x)


class Recurrent(nn.Module):
    """One label a sequence; the recurrent layers return tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.first = nn.GRU(8, 8, batch_first=True)
        self.second = nn.LSTM(8, 48, 2, batch_first=True)
        self.out = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.first(self.embed(x))
        _, (last, _) = self.second(hidden)
        return self.out(last[-1])


class TimeFirst(Recurrent):
    """The recurrent layers see (time, samples, features), so none of theirs is a row per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(8, 8)
        self.second = nn.LSTM(8, 48, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.first(self.embed(x).transpose(0, 1))
        return self.out(self.second(hidden)[1][0][-1])


class Experts(nn.Module):
    """The only list is of experts, of which a router picks one for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.router = nn.Linear(16, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.wide, self.out = nn.Linear(8, 256), nn.Linear(256, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        chosen, mixed = self.router(h).argmax(1), torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            mixed[chosen == i] = expert(h[chosen == i])
        return self.out(F.relu(self.wide(h + mixed)))


IMAGES = (2, 3, 16, 16)
CASES: list[tuple[Callable[[], nn.Module], tuple[int, ...], str]] = [
    (ResNet, IMAGES, "layer2"),
    (Vgg, IMAGES, "features.4"),
    (Plain, IMAGES, "conv1"),
    (Mlp, (2, 16), "first"),
    (Recurrent, (2, 7), "first"),
    (TimeFirst, (2, 7), "embed"),
    (Experts, (2, 16), "stem"),
    (Net, (2, 8), "blocks.0"),
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), (2, 16), "1"),
]


def inputs_for(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(0, 50, shape) if isinstance(model, Recurrent) else torch.randn(shape)


@pytest.mark.parametrize(("make", "shape", "path"), CASES)
def test_a_place_is_found_and_the_forward_stops_there(
    make: Callable[[], nn.Module], shape: tuple[int, ...], path: str
) -> None:
    model = make()
    x = inputs_for(model, shape)
    with no_trace(model):
        place = find_place(model, lambda: model(x), size=2)
        assert place.path == path
        caught: list[Tensor] = []
        handle = model.get_submodule(path).register_forward_hook(
            lambda m, a, out: caught.append((out if isinstance(out, Tensor) else out[0]).clone())
        )
        model(x)
        handle.remove()
        features = stopped_at(model.get_submodule(path), lambda: model(x))
    assert torch.equal(features, caught[0])
    assert len(pool(features, channels=None)) == 2
    assert place.share is not None


@pytest.mark.parametrize(
    ("make", "shape", "path"), [case for case in CASES if case[0] not in (Net, Experts)]
)
def test_a_tuned_exit_works_at_the_place(
    make: Callable[[], nn.Module], shape: tuple[int, ...], path: str
) -> None:
    model = make()
    x, y = inputs_for(model, (6, *shape[1:])), torch.randint(0, 5, (6,))
    sifter = Sifter(model, exit=TunedExit(path), score="loss")
    assert sifter.score((x, y)).shape == (6,)
    assert sifter.select((x, y)).indices.shape == (3,)


def test_a_dear_suggestion_gives_way_to_a_cheap_place() -> None:
    model = Vgg()
    x = torch.randn(IMAGES)
    late = structural_place(model)
    assert late is not None
    assert late.stack is not None
    assert late.stack.path == "features"
    with no_trace(model):
        place = find_place(model, lambda: model(x), size=2)
    assert (place.share or 1) < 0.1


def test_of_encoder_and_decoder_the_head_is_reached_from_the_decoder() -> None:
    t5 = hf.T5ForConditionalGeneration(
        hf.T5Config(
            d_model=16, d_ff=32, num_layers=3, num_heads=2, d_kv=8, vocab_size=50,
            decoder_start_token_id=0,
        )
    )  # fmt: skip
    ids = torch.randint(1, 50, (2, 6))
    with no_trace(t5):
        place = find_place(t5, lambda: t5(input_ids=ids, labels=ids), size=2, head=True)
        own = find_place(t5, lambda: t5(input_ids=ids, labels=ids), size=2)
    assert str(place).startswith("block 1 of 'decoder.block', after 5")
    assert own.path.startswith("encoder.")
    assert structural_place(t5) is None


def test_the_head_of_a_network_without_a_stack_cannot_be_reached_early() -> None:
    model = Plain()
    x = torch.randn(IMAGES)
    with no_trace(model), pytest.raises(StackError, match=r"Plain predicts at every.*exit='last'"):
        find_place(model, lambda: model(x), head=True)


def test_a_network_of_one_layer_has_no_place() -> None:
    model = nn.Linear(4, 2)
    x = torch.zeros(2, 4)
    with no_trace(model), pytest.raises(StackError, match=r"no module of Linear.*exit='last'"):
        find_place(model, lambda: model(x))


class Listed(nn.Module):
    """Stages as lists of blocks: lists have no forward, and the model walks through them itself."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.widen = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((8, *widths)))
        self.stages = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(2)) for width in widths
        )
        self.head = nn.Linear(widths[-1], 3)

    def forward(self, x: Tensor) -> Tensor:
        for widen, stage in zip(self.widen, self.stages, strict=True):
            x = widen(x)
            for block in stage:
                x = x + torch.relu(block(x))
        logits: Tensor = self.head(x)
        return logits


@pytest.mark.parametrize("widths", [(8, 8, 8), (8, 12, 16)])
def test_the_default_exit_finds_a_place_in_lists_of_lists(widths: tuple[int, ...]) -> None:
    model = Listed(widths)
    sifter = Sifter(model, keep=0.5)
    chosen = sifter.select((torch.randn(12, 8), torch.arange(12) % 3))
    assert len(chosen.indices) == 6
    place = sifter.exit.place
    assert place is not None
    assert type(model.get_submodule(place)) is nn.Linear
    again = Sifter(model, keep=0.5)
    again.load_state_dict(sifter.state_dict())
    again.select((torch.randn(12, 8), torch.arange(12) % 3))
    assert again.exit.place == place


def test_the_model_itself_may_be_the_stack() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    sifter = Sifter(model, keep=0.5)
    sifter.select((torch.randn(12, 8), torch.arange(12) % 3))
    assert sifter.exit.place == "0"
