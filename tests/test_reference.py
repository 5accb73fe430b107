"""Losses of every sample of a data set by a reference, computed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from sifting import MemoryExit, Sifter, SiftingWarning
from sifting.reference import reference_losses
from tests.helpers.models import Net
from tests.helpers.references import COUNT, make_data


@pytest.fixture
def data() -> TensorDataset:
    return make_data()


def test_ids_in_the_batch_name_the_samples(data: TensorDataset):
    names = [f"doc-{i}" for i in range(COUNT)]
    batch = {"x": data.tensors[0], "labels": data.tensors[1], "id": names}
    options = {"ids": "id", "forward": lambda model, batch: model(batch["x"])}
    table = reference_losses(Net(), [batch], **options)
    sifter = Sifter(Net(), exit="last", score="reducible", reference=table, keep=0.5, **options)  # type: ignore[arg-type]
    assert sifter.select(batch).scores.shape == (COUNT,)
    strange = {**batch, "id": ["stranger", *names[1:]]}
    with pytest.raises(ValueError, match="no loss of sample stranger \\(it has 48\\)"):
        sifter.select(strange)
    unnamed = Sifter(Net(), exit="last", score="reducible", reference=table, keep=0.5)
    with pytest.raises(ValueError, match="a reference table has to know which sample is which"):
        unnamed.select((data.tensors[0], data.tensors[1]))


def test_labels_are_told_apart_where_samples_bring_their_own_ids(data: TensorDataset):
    class Named(TensorDataset):
        def __getitem__(self, index: int) -> dict[str, object]:  # type: ignore[override]
            return {"x": self.tensors[0][index], "labels": self.tensors[1][index], "id": index}

    options = {"ids": "id", "forward": lambda model, batch: model(batch["x"])}
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(Named(*data.tensors), batch_size=8, shuffle=True, generator=order)
    before = order.get_state()
    table = reference_losses(Net(), loader, **options)
    assert torch.equal(order.get_state(), before)  # the loader's own order is still to come
    sifter = Sifter(Net(), exit="last", score="reducible", reference=table, keep=0.5, **options)  # type: ignore[arg-type]
    batch = next(iter(loader))
    sifter.select(batch)
    with pytest.raises(ValueError, match="of other data: sample"):
        sifter.select({**next(iter(loader)), "labels": torch.full((8,), 4)})
    # what comes once cannot be read again to see whether its labels stay
    assert reference_losses(Net(), iter([batch]), **options).marks_N is None


def test_labels_that_are_drawn_anew_leave_no_mark():
    class Masked(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            return self.tensors[0][index], torch.randint(0, 5, ())

    loader = DataLoader(Masked(torch.randn(COUNT, 8)), batch_size=8)
    model = Net()
    state = torch.get_rng_state()
    assert reference_losses(model, loader).marks_N is None
    assert torch.equal(torch.get_rng_state(), state)  # whatever the data set draws


def test_making_one_leaves_no_trace(data: TensorDataset):
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    reference_losses(model, DataLoader(data, batch_size=8, shuffle=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Called(TensorDataset):
    """Samples that are called otherwise than their places."""

    def __getitem__(self, index: int):
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y, "id": len(self) - 1 - index}


OPTIONS = {"ids": "id", "forward": lambda model, batch: model(batch["x"]), "audit_every": 0}


def test_samples_are_looked_up_by_what_the_user_calls_them(data: TensorDataset):
    loader = DataLoader(Called(*data.tensors), 8)
    made = {name: OPTIONS[name] for name in ("ids", "forward")}
    net = Net()
    table = reference_losses(net, loader, **made)
    sifter = Sifter(net, exit="last", score="reducible", reference=table, keep=0.5, **OPTIONS)  # type: ignore[arg-type]
    next(iter(sifter(loader)))
    selection = sifter.observer.current.selection  # type: ignore[union-attr]
    # the reference is the model itself, so that nothing can be reduced
    torch.testing.assert_close(selection.scores, torch.zeros(16), atol=1e-5, rtol=0)


def test_what_was_looked_up_by_another_name_is_refused(data: TensorDataset):
    loader = DataLoader(Called(*data.tensors), 8)
    table = reference_losses(Net(), loader, ids="id", forward=OPTIONS["forward"])
    options = {**OPTIONS, "exit": MemoryExit(), "score": "reducible", "reference": table}
    with pytest.raises(ValueError, match=r"ids='id' calls the samples \[4.*leave out ids="):
        next(iter(Sifter(Net(), keep=0.5, **options)(loader)))  # type: ignore[arg-type]


class ByPairs(Dataset[Any]):
    """Read by a place and a seed, and by nothing else."""

    def __init__(self, rows: int) -> None:
        self.x_N = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x_N)

    def __getitem__(self, drawn: Any) -> Any:
        place, _ = drawn
        return self.x_N[place], place % 3

    def sample_id(self, drawn: Any) -> Any:
        return drawn[0]


class Pairs(Sampler[Any]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[Any]:
        return iter([(place, 7) for place in torch.randperm(self.rows).tolist()])


def test_a_data_set_that_is_read_by_pairs_is_read_as_its_sampler_draws_it() -> None:
    data, model = ByPairs(10), nn.Linear(4, 3)
    table = reference_losses(model, DataLoader(data, batch_size=4, sampler=Pairs(10)))
    exact_N = nn.functional.cross_entropy(
        model(data.x_N), torch.arange(10) % 3, reduction="none"
    ).detach()
    assert torch.allclose(table.of_ids(list(range(10))), exact_N, atol=1e-6)


def test_samples_that_a_loader_leaves_out_are_told() -> None:
    loader = DataLoader(ByPairs(10), batch_size=4, sampler=Pairs(10), drop_last=True)
    with pytest.warns(SiftingWarning, match=r"2 of 10 samples have no loss .*drop_last=True"):
        reference_losses(nn.Linear(4, 3), loader)


def test_every_sample_of_a_data_set_has_a_loss_also_where_the_batch_names_them(
    data: TensorDataset,
) -> None:
    rows = [
        {"x": x, "labels": y, "id": i} for i, (x, y) in enumerate(zip(*data.tensors, strict=True))
    ]
    options: dict[str, Any] = {"ids": "id", "forward": lambda model, batch: model(batch["x"])}
    loader = DataLoader(rows, batch_size=7, shuffle=True, drop_last=True)  # type: ignore[arg-type]
    table = reference_losses(Net(), loader, **options)
    assert table.of_ids(list(range(COUNT))).isfinite().all()


def test_an_error_of_a_data_set_that_is_read_by_index_is_its_own() -> None:
    with pytest.raises(TypeError, match="unpack"):
        reference_losses(nn.Linear(4, 3), DataLoader(ByPairs(10), batch_size=4))
