from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sifting import Sifter
from sifting.data.begun import take_begun
from tests.helpers.loaders import Counted, ids, model, walk

pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"
)  # torchdata's


def begun_loader(**options: Any) -> Any:
    """A loader whose state was asked for, as Accelerate does when it prepares one."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    torch.manual_seed(4)
    loader = stateful.StatefulDataLoader(Counted(), 5, shuffle=True, **options)
    loader.state_dict()
    return loader


def sifter_of(keep: float) -> Sifter:
    return Sifter(model(), exit="last", score="loss", keep=keep, audit_every=0)


@pytest.mark.parametrize(("seed", "workers"), [(None, 0), (3, 0), (None, 2)])
def test_keeping_all_goes_on_with_the_order_that_was_begun(seed: int | None, workers: int) -> None:
    found = []
    for sifts in (False, True):
        options = {} if seed is None else {"generator": torch.Generator().manual_seed(seed)}
        loader, network = begun_loader(num_workers=workers, **options), model()
        batches = Sifter(network, keep=1.0)(loader) if sifts else loader
        epochs = [ids(walk(batches, loader, network)) for _ in range(2)]
        found.append((epochs, torch.get_rng_state().tolist()))
    assert found[0] == found[1]


def test_an_epoch_that_was_begun_before_resumes_in_the_middle() -> None:
    loader, sifter = begun_loader(), sifter_of(0.5)
    whole = [ids(walk(sifter(loader), loader, sifter.model)) for _ in range(2)]
    assert [len(batch) for batch in whole[0]] == [5] * 7 + [2]

    loader, sifter = begun_loader(), sifter_of(0.5)
    start = ids(walk(sifter(loader), loader, sifter.model, stop=3))
    state, stream = sifter.state_dict(), torch.get_rng_state()
    loader, sifter = begun_loader(), sifter_of(0.5)
    sifter.load_state_dict(state)
    torch.set_rng_state(stream)
    assert start + ids(walk(sifter(loader), loader, sifter.model)) == whole[0]
    assert ids(walk(sifter(loader), loader, sifter.model)) == whole[1]


def test_other_loaders_have_begun_nothing() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    assert take_begun(DataLoader(Counted(), 5)) is None
    assert take_begun(stateful.StatefulDataLoader(Counted(), 5)) is None
    loader = begun_loader()
    assert take_begun(loader) is not None
    assert take_begun(loader) is None  # it can be taken over once
