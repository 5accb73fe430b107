"""Losses of every sample of a data set by a reference, computed once."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sifting import MemoryExit, Sifter
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
