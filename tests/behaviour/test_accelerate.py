"""Plain loops under Accelerate: prepare everything, then sift the prepared loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from tests.helpers.trainer_models import Texts, classifier

PAPER = {"exit": 1, "score": "loss", "keep": 0.5, "audit_every": 0}


@pytest.fixture(autouse=True)
def _leave_no_settings() -> Any:
    yield
    forget()


def forget() -> None:
    """Accelerate keeps its settings in singletons."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def prepared(
    dispatch: bool | None = None, stateful: bool = False, workers: int = 0, **options: Any
) -> tuple[Any, Any, Any, Any]:
    forget()
    kind: Any = DataLoader
    if stateful:
        torchdata = pytest.importorskip("torchdata.stateful_dataloader")
        # with workers, the order has to be told: see the test of one that is not
        kind = torchdata.StatefulDataLoader if workers else kind
    config = DataLoaderConfiguration(dispatch_batches=dispatch, use_stateful_dataloader=stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=config, **options)
    model = classifier()
    data = [{k: v for k, v in sample.items() if k != "unused"} for sample in Texts()]
    torch.manual_seed(5)
    loader = kind(data, batch_size=16, shuffle=True, num_workers=workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def train(
    accelerator: Any, model: Any, optimizer: Any, batches: Any, stop: int | None = None
) -> tuple[list[list[int]], list[float], int]:
    seen, losses, updates = [], [], 0
    model.train()
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            updates += accelerator.sync_gradients
            optimizer.zero_grad()
        seen.append(batch["input_ids"][:, 0].tolist())
        losses.append(loss.item())
        if len(seen) == stop:
            break
    return seen, losses, updates


OPTIONS: list[dict[str, Any]] = [
    {},
    {"dispatch": True},
    {"gradient_accumulation_steps": 3},
    {"stateful": True},
    {"mixed_precision": "bf16"},
]
pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"
)  # torchdata's


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_keeping_all_is_the_plain_loop_bit_for_bit(options: dict[str, Any]) -> None:
    accelerator, model, optimizer, loader = prepared(**options)
    want = [train(accelerator, model, optimizer, loader) for _ in range(2)]
    stream = torch.get_rng_state().tolist()
    accelerator, model, optimizer, loader = prepared(**options)
    batches = Sifter(model, keep=1.0)(loader)
    assert [train(accelerator, model, optimizer, batches) for _ in range(2)] == want
    assert torch.get_rng_state().tolist() == stream


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_choices_are_those_of_the_loop_without_accelerate(options: dict[str, Any]) -> None:
    accelerator, model, optimizer, loader = prepared(**options)
    sifter = Sifter(model, **PAPER, explore=0.25)
    seen, losses, updates = train(accelerator, model, optimizer, sifter(loader))

    model = classifier()
    torch.manual_seed(5)
    data = [{k: v for k, v in sample.items() if k != "unused"} for sample in Texts()]
    plain = DataLoader(data, batch_size=16, shuffle=True)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sifter = Sifter(model, **PAPER, explore=0.25)
    every = options.get("gradient_accumulation_steps", 1)
    model.train()
    want: list[list[int]] = []
    for batch in sifter(plain):
        want.append(batch["input_ids"][:, 0].tolist())
        (model(**batch).loss / every).backward()
        if len(want) % every == 0 or len(want) == len(plain):
            optimizer.step()
            optimizer.zero_grad()
    # Accelerate's dispatcher is no DataLoader to draw from by index: its batches are pooled, and a
    # second pass has an order of its own
    same = 2 if options.get("dispatch") else 4
    assert seen[:same] == want[:same]
    assert [len(ids) for ids in seen] == [16] * 4
    assert len(losses) == 4
    assert updates == -(-4 // every)


@pytest.mark.parametrize("options", [*OPTIONS[:4], {"stateful": True, "workers": 1}], ids=str)
def test_warm_up_is_the_plain_loop_bit_for_bit(options: dict[str, Any]) -> None:
    found = []
    for sifts in (False, True):
        accelerator, model, optimizer, loader = prepared(**options)
        exit = {"exit": MemoryExit()} if options.get("workers") else {}
        own = {**PAPER, **exit, "warmup_steps": 100}
        batches = Sifter(model, **own)(loader) if sifts else loader
        epochs = [train(accelerator, model, optimizer, batches) for _ in range(2)]
        found.append((epochs, torch.get_rng_state().tolist()))
    assert found[0] == found[1]


def test_a_memory_where_workers_have_an_order_that_is_not_told_is_refused() -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    forget()
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model, data = classifier(), list(Texts())
    loader = accelerator.prepare(DataLoader(data, 16, shuffle=True, num_workers=1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Leave out use_stateful_dataloader"):
        Sifter(model, exit=MemoryExit())(loader)


def test_accelerate_steps_at_the_end_of_the_epoch_as_in_the_plain_loop() -> None:
    accelerator, model, optimizer, loader = prepared(gradient_accumulation_steps=3)
    sifter = Sifter(model, **{**PAPER, "keep": 0.3})
    assert train(accelerator, model, optimizer, sifter(loader))[2] == 2
    assert sifter.stats().candidates_seen == 4 * 54


def test_bf16_scores_under_the_autocast_of_training() -> None:
    accelerator, model, optimizer, loader = prepared(mixed_precision="bf16")
    kinds: set[torch.dtype] = set()
    model.classifier.register_forward_hook(lambda m, a, out: kinds.add(out.dtype))
    train(accelerator, model, optimizer, Sifter(model, **PAPER)(loader))
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize(
    ("sift", "options"),
    [
        ({"explore": 0.25}, {}),
        ({"exit": "tuned", "score": "entropy"}, {}),
        ({"explore": 0.25}, {"stateful": True}),
        ({"exit": "memory"}, {"stateful": True, "workers": 1}),
    ],
    ids=str,
)
def test_save_state_and_load_state_resume_in_the_middle_of_an_epoch(
    tmp_path: Path, sift: dict[str, Any], options: dict[str, Any]
) -> None:
    def make(model: Any) -> Sifter:
        exit = {"exit": MemoryExit()} if sift.get("exit") == "memory" else {}
        return Sifter(model, **{**PAPER, **sift, **exit})

    accelerator, model, optimizer, loader = prepared(**options)
    sifter = make(model)
    accelerator.register_for_checkpointing(sifter)
    train(accelerator, model, optimizer, sifter(loader), stop=2)
    accelerator.save_state(str(tmp_path))
    # go on to know what was to come: iterating again would start an epoch, so from the same state
    results = []
    for _ in range(2):
        accelerator, model, optimizer, loader = prepared(**options)
        sifter = make(model)
        accelerator.register_for_checkpointing(sifter)
        accelerator.load_state(str(tmp_path))
        results.append(train(accelerator, model, optimizer, sifter(loader)))
    assert results[0] == results[1]
    assert len(results[0][0]) == 2

    accelerator, model, optimizer, loader = prepared(**options)
    whole = train(accelerator, model, optimizer, make(model)(loader))
    assert results[0][0] == whole[0][2:]
    assert results[0][1] == whole[1][2:]
