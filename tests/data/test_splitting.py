from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from sifting import Sifter as AnySifter
from sifting.data.samples import Samples
from sifting.data.splitting import BatchSource
from sifting.rng import RandomState
from sifting.selection.schedule import Schedule
from tests.helpers.loaders import (
    Counted,
    make_loader,
    model,
    seed_everything,
    streams,
    through_a_file,
)
from tests.helpers.loaders import walk as walk_loader
from tests.helpers.models import Net
from tests.helpers.streams import Placed


def Sifter(model: Net, **options: Any) -> AnySifter:
    """One for which each batch of the loader is the candidates."""
    return AnySifter(model, **{"draws": "batch", **options})


def dataset(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples * 8.0).reshape(samples, 8), torch.arange(samples) % 5)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [48, 50, 53])
@pytest.mark.parametrize(
    "options", [{}, {"warmup_steps": 5}, {"every": 2}, {"stop_step": 3}, {"keep": 0.3}]
)
def test_len_is_the_number_of_batches(
    options: dict[str, Any], samples: int, drop_last: bool
) -> None:
    loader = DataLoader(dataset(samples), batch_size=8, drop_last=drop_last)
    sifter = Sifter(Net(), **{"exit": 1, "score": "loss", "audit_every": 0, **options})
    sifted = sifter(loader)
    for _ in range(2):  # the second epoch starts past warm-up
        expected = len(sifted)
        lengths = [len(sifted) for _ in sifted]
        assert len(lengths) == expected
        assert set(lengths) == {expected}  # also while it is being iterated


def test_warm_up_throws_nothing_away_and_trains_the_kept_size() -> None:
    sifter = Sifter(Net(), exit=1, score="loss", keep=0.5, warmup_steps=6)
    seen = [y for _, y in sifter(DataLoader(dataset(64), batch_size=16))]
    assert [len(y) for y in seen] == [8] * (6 + 1)
    assert torch.cat(seen[:6]).tolist() == [i % 5 for i in range(48)]
    assert sifter.stats().selections == 1


def test_nothing_is_scored_in_warm_up_or_after_the_stop() -> None:
    net = Net()
    calls: list[int] = []
    net.head.register_forward_hook(lambda m, a, out: calls.append(len(out)))
    sifter = Sifter(net, exit=1, score="loss", warmup_steps=4, stop_step=5, audit_every=0)
    steps = list(sifter(DataLoader(dataset(64), batch_size=16)))
    assert len(steps) == 4 + 1 + 2
    assert [c for c in calls if c == 16] == [16]


def test_every_second_batch_is_sifted_and_the_others_trained_whole() -> None:
    sifter = Sifter(Net(), exit=1, score="loss", every=2, audit_every=0)
    seen = [y for _, y in sifter(DataLoader(dataset(64), batch_size=16))]
    assert len(seen) == 1 + 2 + 1 + 2
    assert torch.cat(seen[1:3]).tolist() == [i % 5 for i in range(16, 32)]


def test_keep_can_be_a_schedule() -> None:
    sifter = Sifter(Net(), exit=1, score="loss", keep=lambda step: 0.5 if step < 2 else 0.25)
    assert [len(y) for _, y in sifter(DataLoader(dataset(64), batch_size=16))] == [8, 8, 4, 4]


def test_iterables_without_a_length_work_but_have_none() -> None:
    sifter = Sifter(Net(), exit=1, score="loss")
    stream = ((torch.randn(8, 8), torch.zeros(8).long()) for _ in range(3))
    sifted = sifter(stream)
    with pytest.raises(TypeError, match="a generator has no length"):
        len(sifted)
    assert len(list(sifted)) == 3


def test_a_loader_of_unknown_sizes_can_be_iterated_all_the_same() -> None:
    class Own:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([(torch.randn(8, 8), torch.zeros(8).long())] * 3)

    sifted = Sifter(Net(), exit=1, score="loss", warmup_steps=2)(Own())
    with pytest.raises(TypeError, match="the sizes of a Own's batches cannot be determined"):
        len(sifted)
    assert len(list(sifted)) == 4
    assert len(Sifter(Net(), exit=1, score="loss")(Own())) == 3  # one each, whatever their sizes


def test_a_loader_that_ended_too_early_cannot_be_resumed() -> None:
    sifter = Sifter(Net(), exit=1, score="loss")
    data = [(torch.randn(8, 8), torch.zeros(8).long()) for _ in range(4)]
    batches = iter(sifter(data))
    for _ in range(3):
        next(batches)
    state = sifter.state_dict()
    fresh = Sifter(Net(), exit=1, score="loss")
    fresh.load_state_dict(state)
    assert len(fresh(data)) == 1
    with pytest.raises(ValueError, match="the loader ended after 1 batches, but 3 had been used"):
        list(fresh(data[:1]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own_generator", [False, True])
def test_the_order_of_a_shuffled_loader_is_found_again(workers: int, own_generator: bool) -> None:
    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5) if own_generator else None
        return DataLoader(
            dataset(48), batch_size=8, shuffle=True, num_workers=workers, generator=generator
        )

    torch.manual_seed(3)
    sifter = Sifter(Net(), exit=1, score="loss", policy="random", warmup_steps=3)
    seen = []
    for x, _ in sifter(loader()):
        seen.append(x[:, 0].tolist())
        torch.rand(7)  # the user's own use of the global stream
        if len(seen) == 3:
            state, here = sifter.state_dict(), torch.get_rng_state()
    torch.manual_seed(99)
    fresh = Sifter(Net(), exit=1, score="loss", policy="random", warmup_steps=3)
    fresh.load_state_dict(state)
    torch.set_rng_state(here)
    rest = [x[:, 0].tolist() for x, _ in fresh(loader())]
    assert rest == seen[3:]


def test_the_models_hooks_are_gone_between_steps_and_after_a_break() -> None:
    net = Net()
    sifter = Sifter(net, exit=1, score="loss")
    for _ in sifter(DataLoader(dataset(32), batch_size=8)):
        assert len(net._forward_hooks) == 1  # reads the training forward while the step runs
        break
    assert len(net._forward_hooks) == 0


def test_training_in_smaller_pieces_than_were_selected_is_not_misread() -> None:
    net = Net()
    sifter = Sifter(net, exit=1, score="loss", explore=0.5)
    for x, _ in sifter(DataLoader(dataset(32), batch_size=8)):
        net(x[:2])
    assert sifter.stats().rho_explored is None


def test_what_cannot_work_fails_on_the_first_batch_not_after_warm_up() -> None:
    data = [torch.randn(8, 8) for _ in range(3)]
    batches = iter(Sifter(Net(), exit=1, score="loss", warmup_steps=20_000)(data))
    with pytest.raises(ValueError, match="needs labels in a tensor, and the batch has none"):
        next(batches)


def test_a_single_last_sample_after_warm_up_is_trained_as_it_is() -> None:
    sifter = Sifter(Net(), exit=1, score="loss", warmup_steps=4)
    sifted = sifter(DataLoader(dataset(17), batch_size=8))
    expected = len(sifted)
    assert [len(y) for _, y in sifted] == [4, 4, 4, 4, 1]
    assert expected == 5


def test_weights_are_ones_where_nothing_was_selected() -> None:
    sifter = Sifter(Net(), exit=1, score="loss", policy="proportional", warmup_steps=2)
    with pytest.raises(RuntimeError, match="no batch was handed out yet"):
        _ = sifter.weights
    sums = [float(sifter.weights.sum()) for _ in sifter(DataLoader(dataset(32), batch_size=16))]
    assert sums[:2] == [8, 8]


def test_a_batch_sampler_has_a_length_and_an_order_that_is_found_again() -> None:
    def loader() -> DataLoader[Any]:
        order = RandomSampler(dataset(50), generator=torch.Generator().manual_seed(4))
        return DataLoader(dataset(50), batch_sampler=BatchSampler(order, 8, drop_last=False))

    sifter = Sifter(Net(), exit=1, score="loss", policy="random", keep=0.3, warmup_steps=5)
    sifted = sifter(loader())
    expected, seen = len(sifted), []
    for x, _ in sifted:
        seen.append(x[:, 0].tolist())
        if len(seen) == 4:
            state = sifter.state_dict()
    assert len(seen) == expected
    fresh = Sifter(Net(), exit=1, score="loss", policy="random", keep=0.3, warmup_steps=5)
    fresh.load_state_dict(state)
    assert [x[:, 0].tolist() for x, _ in fresh(loader())] == seen[4:]


class Noisy(Dataset[Any]):
    """Augments by the global streams of Python and NumPy."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((8,), i + random.random() + float(np.random.rand())), i % 5  # noqa: NPY002


class AheadByOne:
    """Fetches a batch before it hands out the one before, as Accelerate's loaders do."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        source = iter(self.loader)
        current = next(source)
        for following in source:
            yield current
            current = following
        yield current


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_augmentation_by_python_and_numpy_resumes_too(stop: int, ahead: bool) -> None:
    def loader() -> Any:
        plain = DataLoader(Noisy(), batch_size=8, shuffle=True)
        return AheadByOne(plain) if ahead else plain

    def make() -> Sifter:
        return Sifter(Net(), exit=1, score="loss", policy="random", warmup_steps=4)

    sifter, seen = make(), []
    for x, _ in sifter(loader()):
        seen.append(x[:, 0].tolist())
        random.random()
        if len(seen) == stop:
            state, here = sifter.state_dict(), RandomState.now()
    fresh = make()
    fresh.load_state_dict(state)
    random.seed(1)
    here.restore()
    rest = []
    for x, _ in fresh(loader()):
        rest.append(x[:, 0].tolist())
        random.random()
    assert rest == seen[stop:]


def test_a_model_copied_or_pickled_in_the_middle_of_a_step_takes_no_sifter_along() -> None:
    net = Net()
    sifter = Sifter(net, exit=1, score="loss", explore=0.5)
    for x, _ in sifter(DataLoader(dataset(32), batch_size=8)):
        twin = copy.deepcopy(net)
        again = pickle.loads(pickle.dumps(net))
        for other in (twin, again):
            (hook,) = other._forward_hooks.values()
            assert hook._observer is None
            assert other(x).shape == (4, 5)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.full((8,), float(i)), i % 5) for i in range(40)])


@pytest.mark.parametrize("options", [{"keep": 1.0}, {}, {"warmup_steps": 3}, {"every": 2}])
def test_a_stream_can_be_sifted(options: dict[str, Any]) -> None:
    sifter = Sifter(Net(), **{"exit": 1, "score": "loss", **options})
    sifted = sifter(DataLoader(Stream(), batch_size=8))
    with pytest.raises(TypeError):
        len(sifted)
    assert sum(len(y) for _, y in sifted) == sifter.stats().samples_trained > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads, torch's own
def test_persistent_workers_resume_in_a_later_epoch() -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(
            dataset(48), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True
        )

    def make() -> Sifter:
        return Sifter(Net(), exit=1, score="loss", policy="random")

    sifter, source, seen = make(), loader(), []
    for epoch in range(2):
        for x, _ in sifter(source):
            if epoch == 1:
                seen.append(x[:, 0].tolist())
                if len(seen) == 2:
                    state, here = sifter.state_dict(), RandomState.now()
    fresh = make()
    fresh.load_state_dict(state)
    torch.manual_seed(5)
    here.restore()
    assert [x[:, 0].tolist() for x, _ in fresh(loader())] == seen[2:]


def test_a_loop_inside_a_loop_leaves_the_outer_position() -> None:
    sifter = Sifter(Net(), exit=1, score="loss", policy="random")
    outer = [(torch.full((8, 8), float(i)), torch.zeros(8).long()) for i in range(4)]
    for step, _ in enumerate(sifter(outer)):
        if step == 0:
            list(sifter(outer[:2]))  # say, a probe of other data
        if step == 1:
            state = sifter.state_dict()
            break
    fresh = Sifter(Net(), exit=1, score="loss", policy="random")
    fresh.load_state_dict(state)
    assert [float(x[0, 0]) for x, _ in fresh(outer)] == [2.0, 3.0]


class Numbered:
    """Makes each batch from its number, so that it can start anywhere."""

    batch_size, drop_last = 8, True

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.dataset = range(48)
        self.start = 0
        self.made: list[int] = []

    def __len__(self) -> int:
        return 6

    def fast_forward(self, count: int) -> None:
        self.start = count

    def __iter__(self) -> Any:
        epoch = int(torch.randint(2**40, (), generator=self.generator))
        start, self.start = self.start, 0
        for number in range(start, len(self)):
            self.made.append(number)
            own = torch.Generator().manual_seed(epoch + number)
            yield torch.randn(8, 8, generator=own), torch.randint(0, 5, (8,), generator=own)


@pytest.mark.parametrize("stop", [1, 3, 7, 9])
def test_a_loader_that_can_be_fast_forwarded_is_not_replayed(stop: int) -> None:
    def sifter() -> Sifter:
        torch.manual_seed(0)
        return Sifter(Net(), exit=1, score="loss", warmup_steps=4, audit_every=0)

    def handed(sifter: Sifter, loader: Numbered, epochs: int, count: int = -1) -> list[Any]:
        found = []
        for _ in range(epochs):
            for x, _ in sifter(loader):
                found.append(x)
                if len(found) == count:
                    return found
        return found

    whole = handed(sifter(), Numbered(), 2)
    first, loader = sifter(), Numbered()
    before = handed(first, loader, 2, stop)
    again, fresh = sifter(), Numbered()
    again.load_state_dict(first.state_dict())
    epochs_left = 1 if stop > 8 else 2  # an epoch with warm-up makes eight batches
    after = handed(again, fresh, epochs_left)
    assert len(before + after) == len(whole) == 14
    assert all(torch.equal(a, b) for a, b in zip(whole, before + after, strict=True))
    assert fresh.made[0] == {1: 0, 3: 1, 7: 5, 9: 1}[stop]


def test_a_batch_is_cut_into_pieces_of_the_kept_size_where_nothing_is_chosen() -> None:
    source = BatchSource([], Schedule(0.25), Samples())
    batch = (torch.arange(10.0), torch.arange(10))
    pieces = [labels.tolist() for (_, labels), _ in source.pieces(batch, step=0, size=10)]
    assert [y for piece in pieces for y in piece] == list(range(10)), "none is thrown away"
    assert {len(piece) for piece in pieces} <= {1, 2, 3}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's call
@pytest.mark.parametrize("kind", ["shuffled", "weighted", "stream"])
@pytest.mark.parametrize("given", [False, True])
def test_a_stateful_loader_goes_on_by_its_own_state(kind: str, given: bool) -> None:
    """Where its sampler tells its order; else it is iterated up to the place, whatever it was told."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def fresh() -> tuple[Any, Any, Sifter]:
        seed_everything()
        data: Any = Placed() if kind == "stream" else Counted(22)
        loader = stateful(data, 4) if kind == "stream" else make_loader(kind, data, 4, cls=stateful)
        seed_everything()
        options: Any = {"warmup_steps": 3, "keep": 0.5, "draws": "batch", "audit_every": 0}
        return loader, data, Sifter(model(), exit="last", score="loss", **options)

    loader, whole_data, sifter = fresh()
    whole = [walk_loader(sifter(loader), loader, sifter.model) for _ in range(2)], streams()
    for stop in (1, 3, 5, 8):
        loader, data, sifter = fresh()
        found = [walk_loader(sifter(loader), loader, sifter.model, stop=stop)]
        if stop > len(found[0]):
            left = stop - len(found[0])
            found.append(walk_loader(sifter(loader), loader, sifter.model, stop=left))
        state, said, now = through_a_file(sifter), loader.state_dict(), RandomState.now()
        cut = len(data.read)
        loader, data, sifter = fresh()
        if given:
            loader.load_state_dict(said)
        sifter.load_state_dict(state)
        now.restore()
        found[-1] += walk_loader(sifter(loader), loader, sifter.model)
        if len(found) == 1:
            found.append(walk_loader(sifter(loader), loader, sifter.model))
        assert (found, streams()) == whole, stop
        if kind != "weighted":  # at most the batch again that was left half-trained
            assert len(data.read) <= len(whole_data.read) - cut + 4
