from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from sifting import Sifter
from sifting.data.accelerated import EpochEnd, at_its_end, count_pass

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(64, 8, generator=GENERATOR), torch.randint(3, (64,), generator=GENERATOR)
SAMPLES: Any = list(zip(X, Y, strict=True))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(SAMPLES)


def forget() -> None:
    """Accelerate keeps its settings in singletons."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def updates(kind: str, **sift: Any) -> tuple[list[list[bool]], Any]:
    """In which steps of two epochs the optimizer makes an update, every third being asked for."""
    torch.manual_seed(0)
    config = DataLoaderConfiguration(
        dispatch_batches=True if kind == "dispatch" else None, use_seedable_sampler=True
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, dataloader_config=config)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    streams = kind == "stream"
    loader: Any = DataLoader(Stream() if streams else SAMPLES, 8, shuffle=not streams)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = loader
    if sift:
        batches = Sifter(model, exit="last", score="loss", loss_fn=F.cross_entropy, **sift)(loader)
    found = []
    for _ in range(2):
        made = []
        for inputs, labels in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(inputs), labels))
                optimizer.step()
                optimizer.zero_grad()
            made.append(accelerator.sync_gradients)
        found.append(made)
    return found, accelerator


@pytest.mark.parametrize("kind", ["index", "dispatch", "stream"])
@pytest.mark.parametrize(
    "sift",
    [
        {"keep": 1.0},
        {"keep": 0.5},
        {"keep": 0.6},
        {"keep": 0.3},
        {"keep": 0.5, "warmup_steps": 3},
        {"keep": 0.5, "ahead": 1},
        {"keep": 0.5, "epoch": "pass"},
        {"keep": 0.5, "draws": "batch"},
    ],
    ids=str,
)
def test_what_is_accumulated_is_applied_where_the_plain_loop_would(
    kind: str, sift: dict[str, Any]
) -> None:
    found, accelerator = updates(kind, **sift)
    for made in found:
        last = len(made) - 1
        assert made == [step % 3 == 2 or step == last for step in range(len(made))]
    if "epoch" not in sift:
        want, _ = updates(kind)
        assert found == want
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("keep", [0.5, 0.3])
def test_what_accelerate_dispatches_has_the_order_of_what_is_drawn_by_index(keep: float) -> None:
    seen = []
    for dispatch in (None, True):
        forget()
        config = DataLoaderConfiguration(dispatch_batches=dispatch, use_seedable_sampler=True)
        loader: Any = DataLoader(range(64), 8, shuffle=True)  # type: ignore[arg-type]
        loader = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
        sifter = Sifter(nn.Linear(1, 1), keep=keep, policy="random", exit="last")
        seen.append([sorted(batch.tolist()) for _ in range(2) for batch in sifter(loader)])
        assert loader.iteration == 2
    assert seen[0] == seen[1]


def test_an_epoch_that_is_left_in_a_later_pass_counts_for_nothing() -> None:
    config = DataLoaderConfiguration(dispatch_batches=True, use_seedable_sampler=True)
    loader: Any = DataLoader(range(64), 8, shuffle=True)  # type: ignore[arg-type]
    loader = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
    batches = iter(Sifter(nn.Linear(1, 1), keep=0.5, policy="random", exit="last")(loader))
    for _ in range(6):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert loader.iteration == 0


def test_other_loaders_are_told_nothing() -> None:
    end = EpochEnd([1, 2])
    with end.step(None, 1):
        assert not end.end_of_dataloader
    end.over()
    assert not at_its_end([1, 2])


def test_a_data_set_that_is_told_the_epoch_is_told_the_next_one() -> None:
    class Counted:
        iteration, batch_sampler = 0, None

    loader = Counted()
    count_pass(loader, 3, 1)
    assert loader.iteration == 4
