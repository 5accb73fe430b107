from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchEncoding

from sifting.data.samples import Samples
from sifting.model.call import Call

LABELLED = Samples(labels=Call().labels_of)
CHOSEN = torch.tensor([3, 0])


def fresh(**given: Any) -> Samples:
    """What a sifter has at the start: it has seen no batch."""
    return Samples(labels=Call().labels_of, **given)


def test_the_size_is_that_of_the_labels_and_what_has_another_is_left_alone() -> None:
    batch = {
        "x": torch.arange(16 * 8).reshape(16, 8),
        "labels": torch.arange(16),
        "pos": torch.arange(10),
        "freq": torch.zeros(10, 4),
        "mask": torch.zeros(10, 10),
    }
    samples = fresh()
    assert samples.size(batch) == 16
    taken = samples.take(batch, CHOSEN)
    assert taken["labels"].tolist() == [3, 0]
    assert taken["x"][:, 0].tolist() == [24, 0]
    assert all(taken[name] is batch[name] for name in ("pos", "freq", "mask"))


def test_a_table_is_still_one_in_a_last_batch_of_as_many_samples_as_it_has_rows() -> None:
    table = torch.zeros(10, 4)
    samples = fresh()
    for size in (16, 10, 4):
        batch = {"x": torch.zeros(size, 8), "labels": torch.arange(size), "freq": table}
        taken = samples.take(batch, CHOSEN)
        assert taken["freq"] is table
        assert taken["x"].shape == (2, 8)


def test_what_was_divided_by_chance_is_noticed_when_the_size_changes() -> None:
    samples = fresh()
    samples.take(
        {"x": torch.zeros(10, 2), "labels": torch.arange(10), "pos": torch.zeros(10)}, CHOSEN
    )
    with pytest.raises(ValueError, match=r"batch\['pos'\] \(10,\) had one entry per sample so far"):
        samples.take(
            {"x": torch.zeros(6, 2), "labels": torch.arange(6), "pos": torch.zeros(10)}, CHOSEN
        )


def test_torchvisions_collate_is_tuples_of_samples() -> None:
    data = [
        (torch.full((3, 4 + i % 2, 5), float(i)), {"boxes": torch.full((i % 3, 4), float(i))})
        for i in range(8)
    ]
    batch = tuple(zip(*data, strict=True))
    samples = fresh()
    assert samples.size(batch) == 8
    pictures, targets = samples.take(batch, torch.tensor([5, 4]))
    assert [picture.shape for picture in pictures] == [(3, 5, 5), (3, 4, 5)]
    assert [float(picture[0, 0, 0]) for picture in pictures] == [5, 4]
    assert [len(target["boxes"]) for target in targets] == [2, 1]


def test_pictures_and_numbers_in_tuples() -> None:
    batch = (tuple(torch.full((3, 4, 4), float(i)) for i in range(6)), (0, 1, 2, 0, 1, 2))
    pictures, labels = fresh().take(batch, CHOSEN)
    assert [float(picture.mean()) for picture in pictures] == [3, 0]
    assert labels == (0, 0)


def test_samples_along_the_second_dimension_are_refused() -> None:
    batch = (torch.zeros(11, 32), torch.arange(32))
    assert fresh().size(batch) == 32
    with pytest.raises(
        ValueError, match=r"batch\[0\] \(11, 32\) has the 32 samples along its second.*take="
    ):
        fresh().take(batch, CHOSEN)


def test_take_is_the_way_out() -> None:
    def take(batch: Any, indices: torch.Tensor) -> Any:
        return batch[0][:, indices], batch[1][indices]

    batch = (torch.arange(11 * 32).reshape(11, 32), torch.arange(32))
    samples = fresh(take_with=take)
    steps, labels = samples.take(batch, CHOSEN)
    assert steps.shape == (11, 2)
    assert labels.tolist() == [3, 0]
    assert [len(piece[1]) for piece in samples.split(batch, 20)] == [20, 12]
    wrong = fresh(take_with=lambda batch, indices: batch)
    with pytest.raises(ValueError, match="take= gave a batch of 32 for 2 indices"):
        wrong.take(batch, CHOSEN)
    with pytest.raises(ValueError, match="scope='rank'"):
        samples.columns(batch)


@pytest.mark.parametrize(
    ("given", "size"),
    [("x", 4), (4, 4), (lambda batch: len(batch["x"]), 4), ("pos", 9), (9, 9)],
    ids=["key", "number", "function", "other key", "other number"],
)
def test_the_size_can_be_told(given: Any, size: int) -> None:
    batch = {"x": torch.zeros(4, 2), "pos": torch.zeros(9), "names": ["a", "b", "c", "d"]}
    with pytest.raises(
        ValueError, match=r"allow 4, 9 \(\['x'\] \(4, 2\), \['pos'\] \(9,\).*batch_size="
    ):
        Samples().size(batch)
    samples = Samples(batch_size=given)
    assert samples.size(batch) == size
    taken = samples.take(batch, CHOSEN)
    assert len(taken["x"]) == (2 if size == 4 else 4)
    assert len(taken["pos"]) == (2 if size == 9 else 9)


@pytest.mark.parametrize(
    ("given", "batch", "message"),
    [
        (7, torch.zeros(4), "batch_size=7, but no member of the batch has 7 entries"),
        ("y", {"x": torch.zeros(4)}, "batch_size='y' does not name a member"),
        (lambda batch: 4.0, torch.zeros(4), "batch_size= gave 4.0"),
        (lambda batch: True, torch.zeros(4), "batch_size= gave True"),
    ],
)
def test_a_wrong_word_is_refused(given: Any, batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Samples(batch_size=given).size(batch)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"batch_size": True}, TypeError, "batch_size=True"),
        ({"batch_size": 1.5}, TypeError, "batch_size=1.5"),
        ({"batch_size": lambda: 3}, TypeError, "batch_size=<function"),
        ({"take_with": 3}, TypeError, "take=3 is not callable"),
        ({"take_with": lambda batch: batch}, TypeError, r"take=<function.*\(batch, indices\)"),
        ({"labels": "y"}, TypeError, "labels='y' is not callable"),
    ],
)
def test_arguments_are_checked_at_once(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Samples(**given)


@pytest.mark.parametrize("as_dicts", [True, False])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_raw_samples_in_a_list(as_dicts: bool, size: int) -> None:
    data = [(torch.full((3, 8), float(i)), i) for i in range(size)]
    batch: list[Any] = [{"x": x, "label": y} for x, y in data] if as_dicts else data
    (loaded,) = DataLoader(batch, batch_size=size, collate_fn=list)  # type: ignore[arg-type]
    samples = fresh()
    assert samples.size(loaded) == size
    taken = samples.take(loaded, torch.tensor([1, 0]))
    assert taken[0] is loaded[1]
    assert taken[1] is loaded[0]


@pytest.mark.parametrize("size", [2, 4])
def test_samples_without_a_number_of_their_own_could_be_views(size: int) -> None:
    batch = [{"input_ids": torch.zeros(8), "labels": torch.zeros(8)} for _ in range(size)]
    with pytest.raises(ValueError, match=rf"allow {size}, 8 .*such as len"):
        fresh().size(batch)
    told = fresh(batch_size=len)
    assert told.size(batch) == size
    assert told.take(batch, torch.tensor([1]))[0] is batch[1]


def test_tensors_in_a_list_fit_two_readings() -> None:
    views = [torch.zeros(4, 8), torch.zeros(4, 8), torch.zeros(4, 8)]
    with pytest.raises(ValueError, match=r"allow 3, 4 .*such as len.*collate_fn=list"):
        Samples().size(views)
    assert len(Samples(batch_size=len).take(views, torch.tensor([1]))) == 1
    by_first = Samples(batch_size=lambda batch: len(batch[0]))
    assert [len(view) for view in by_first.take(views, torch.tensor([1]))] == [1, 1, 1]


def test_a_member_that_is_missing_is_no_sample() -> None:
    """(inputs, None) in a batch of two: not two samples, of which one is missing."""
    with pytest.raises(ValueError, match=r"\[1\] None\) in a batch of 2 samples.* take="):
        Samples().take((torch.zeros(2, 3), None), torch.tensor([0]))
    told = Samples(batch_size=lambda batch: len(batch[0]))
    for size in (5, 2):  # told apart by the first, and so in the last of an epoch
        taken = told.take((torch.arange(size), None), torch.tensor([1]))
        assert taken[0].tolist() == [1]
        assert taken[1] is None


def test_a_square_of_readings_is_refused_too() -> None:
    batch = {"views": [torch.zeros(3, 8)] * 3, "labels": torch.arange(3)}
    with pytest.raises(ValueError, match="one entry per sample, or members that hold all samples"):
        fresh().take(batch, torch.tensor([1]))


def test_a_pair_of_two_samples_is_a_pair() -> None:
    x, y = fresh().take((torch.zeros(2, 8), torch.ones(2, 8)), torch.tensor([1]))
    assert (x.shape, y.shape) == ((1, 8), (1, 8))


def test_what_loaders_give_by_default() -> None:
    (one,) = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=6)
    assert Samples().size(one) == 6
    (two,) = DataLoader(TensorDataset(torch.zeros(6, 2), torch.arange(6)), batch_size=6)
    assert LABELLED.take(two, CHOSEN)[1].tolist() == [3, 0]
    halves = [({"x": torch.zeros(2)}, {"y": i}) for i in range(6)]
    (pair,) = DataLoader(halves, batch_size=6)  # type: ignore[arg-type]
    assert LABELLED.take(pair, CHOSEN)[1]["y"].tolist() == [3, 0]


def test_sequences_packed_by_torch() -> None:
    def sequence(i: int) -> torch.Tensor:
        return torch.full((1 + i % 3, 2), float(i))

    packed = pack_sequence([sequence(i) for i in range(5)], enforce_sorted=False)
    assert Samples().size(packed) == 5
    taken, labels = fresh().take((packed, torch.arange(5)), torch.tensor([1, 4, 2]))
    padded, lengths = pad_packed_sequence(taken, batch_first=True)
    assert lengths.tolist() == [2, 2, 3]
    assert padded[:, 0, 0].tolist() == [1, 4, 2] == labels.tolist()
    in_order = pack_sequence([torch.zeros(n, 2) for n in (4, 3, 1)])
    assert Samples().take(in_order, torch.tensor([0, 2])).sorted_indices is None


def test_ragged_tensors_that_add_up_still_do() -> None:
    x = torch.nested.nested_tensor([torch.ones(n, 2) for n in (1, 2, 3)], layout=torch.jagged)
    batch = {"x": x, "twice": x * 2, "labels": torch.arange(3)}
    taken = fresh().take(batch, torch.tensor([2, 0]))
    total = taken["x"] + taken["twice"]
    assert [part.shape for part in total.unbind()] == [(3, 2), (1, 2)]
    assert all((part == 3).all() for part in total.unbind())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors() -> None:
    batch = {"x": torch.eye(4).to_sparse(), "labels": torch.arange(4)}
    assert fresh().take(batch, CHOSEN)["x"].to_dense().argmax(1).tolist() == [3, 0]
    batch["x"] = torch.eye(4).to_sparse_csr()
    with pytest.raises(
        ValueError, match=r"batch\['x'\] is a tensor of layout torch.sparse_csr.*to_sparse_coo"
    ):
        fresh().take(batch, CHOSEN)


class Graphs:
    """As PyTorch Geometric has them: nodes of all graphs end to end, and which graph each is of."""

    def __init__(self, graphs: list[torch.Tensor]) -> None:
        self.x = torch.cat(graphs)
        self.batch = torch.repeat_interleave(torch.tensor([len(g) for g in graphs]))
        self.graphs = graphs
        self.num_graphs = len(graphs)

    def index_select(self, indices: torch.Tensor) -> list[torch.Tensor]:
        return [self.graphs[i] for i in indices.tolist()]

    @classmethod
    def from_data_list(cls, graphs: list[torch.Tensor]) -> Graphs:
        return cls(graphs)


def test_graphs_that_can_be_chosen_are() -> None:
    graphs = Graphs([torch.full((n, 2), float(n)) for n in (1, 2, 3, 4)])
    assert Samples().size(graphs) == 4
    taken, labels = fresh().take((graphs, torch.arange(4)), CHOSEN)
    assert isinstance(taken, Graphs)
    assert taken.x[:, 0].tolist() == [4, 4, 4, 4, 1]
    assert labels.tolist() == [3, 0]


def test_other_graphs_are_refused_by_name() -> None:
    class DGLGraph:
        batch_size = 4

        def batch_num_nodes(self) -> None: ...

    with pytest.raises(ValueError, match=r"batch\[0\] is a DGLGraph.*take="):
        fresh().take((DGLGraph(), torch.arange(4)), CHOSEN)
    nodes = {"x": torch.zeros(9, 2), "edge_index": torch.zeros(2, 12), "labels": torch.arange(4)}
    with pytest.raises(
        ValueError, match=r"'edge_index', so some members hold all samples end to end"
    ):
        fresh().take(nodes, CHOSEN)


@pytest.mark.parametrize(
    "where", [[0, 3, 5, 9], [3, 2, 4, 1], [0, 3, 5, 9, 10]], ids=["starts", "lengths", "between"]
)
def test_samples_that_lie_end_to_end_are_refused(where: list[int]) -> None:
    batch = (torch.arange(4), torch.zeros(10), torch.tensor(where))
    samples = Samples(labels=lambda batch: {"labels": batch[0]})
    assert samples.size(batch) == 4
    with pytest.raises(
        ValueError, match=r"batch\[1\] \(10,\) holds all samples end to end, as batch\[2\]"
    ):
        samples.take(batch, CHOSEN)


def test_pictures_flattened_over_samples_are_refused() -> None:
    batch = {
        "input_ids": torch.zeros(4, 7),
        "pixel_values": torch.zeros(8, 3, 2, 2),
        "labels": torch.zeros(4, 7),
    }
    with pytest.raises(ValueError, match=r"'pixel_values'\] \(8, 3, 2, 2\).*goes by sample"):
        fresh().take(batch, CHOSEN)


def test_labels_of_another_size_than_everything_else_are_refused() -> None:
    batch = (torch.zeros(7, 5), torch.zeros(35))  # tokens, and labels flattened
    with pytest.raises(ValueError, match="35 samples, by the labels or batch_size=, and no other"):
        fresh().take(batch, CHOSEN)


def test_positions_of_several_axes_have_samples_second() -> None:
    batch = {
        "input_ids": torch.zeros(3, 5),
        "position_ids": torch.arange(45).reshape(3, 3, 5),
        "labels": torch.zeros(3, 5),
    }
    taken = fresh().take(batch, torch.tensor([2, 0]))["position_ids"]
    assert torch.equal(taken, batch["position_ids"][:, [2, 0]])


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(0, 3), {"x": torch.zeros(0, 3), "labels": torch.zeros(0)}, (torch.zeros(0), [])],
)
def test_an_empty_batch_is_named(batch: Any) -> None:
    with pytest.raises(ValueError, match="the batch holds no sample"):
        fresh().size(batch)


@pytest.mark.parametrize("batch", [{}, [], "text", {"a": 1.0}, torch.tensor(3.0)])
def test_a_batch_without_samples_is_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot tell how many samples.*batch_size="):
        Samples().size(batch)


@pytest.mark.parametrize(
    "member",
    [collections.deque(range(4)), {1, 2, 3, 4}, np.ma.zeros((4, 2))],  # type: ignore[no-untyped-call]
    ids=["deque", "set", "masked array"],
)
def test_types_that_are_not_known_do_not_go_along(member: Any) -> None:
    with pytest.raises(ValueError, match=rf"batch\['z'\] is a {type(member).__name__} of 4"):
        fresh().take({"x": torch.zeros(4, 2), "labels": torch.arange(4), "z": member}, CHOSEN)


def test_an_object_with_tensors_in_it_does_not_go_along() -> None:
    class Record:
        def __init__(self) -> None:
            self.boxes = torch.zeros(7, 4)

    with pytest.raises(ValueError, match="is a Record, which holds tensors"):
        fresh().take((Record(), torch.arange(4)), CHOSEN)


def test_containers_keep_their_types() -> None:
    class Words(collections.UserDict[str, Any]):
        pass

    @dataclasses.dataclass(frozen=True)
    class Held:
        x: torch.Tensor
        source: str = "camera"

    members = {"x": torch.zeros(4, 2), "labels": torch.arange(4), "none": None, "name": "abcd"}
    for kind in (dict, collections.OrderedDict, Words, BatchEncoding):
        batch = kind(members)
        taken = fresh().take(batch, CHOSEN)
        assert type(taken) is kind
        assert taken["labels"].tolist() == [3, 0]
        assert (taken["none"], taken["name"]) == (None, "abcd")
        assert len(batch["labels"]) == 4
    counted = collections.defaultdict(list, members)
    assert fresh().take(counted, CHOSEN)["labels"].tolist() == [3, 0]
    held, _ = fresh().take((Held(torch.arange(4)), torch.arange(4)), CHOSEN)
    assert (held.x.tolist(), held.source) == ([3, 0], "camera")


def test_columns_come_back_in_their_places() -> None:
    samples = fresh()
    batch = {"x": torch.zeros(4, 2), "labels": torch.arange(4), "names": list("abcd"), "lr": 0.1}
    columns = samples.columns(batch)
    assert [len(column) for column in columns] == [4, 4, 4]
    new = samples.with_columns(batch, [torch.ones(1, 2), torch.tensor([7]), ["z"]])
    assert (new["labels"].tolist(), new["names"], new["lr"]) == ([7], ["z"], 0.1)


def test_two_inputs_are_still_two_in_a_batch_of_two() -> None:
    """Once it was clear that each holds all samples, it stays so."""
    samples = Samples(labels=lambda batch: {"labels": batch[1]})

    def batch(size: int) -> Any:
        return (torch.zeros(size, 5), torch.ones(size, 5)), torch.arange(size)

    samples.take(batch(8), torch.tensor([0, 1]))
    (first, second), labels = samples.take(batch(2), torch.tensor([1]))
    assert (first.shape, second.shape, labels.tolist()) == ((1, 5), (1, 5), [1])
    with pytest.raises(ValueError, match="one entry per sample, or members that hold all samples"):
        Samples(labels=samples.labels).take(batch(2), torch.tensor([1]))


def test_lists_of_raw_samples_are_told_from_a_pair() -> None:
    samples = Samples()
    assert samples.are_raw([(torch.zeros(8), 3), (torch.ones(8), 1)])
    assert not samples.are_raw([torch.zeros(2, 8), torch.zeros(2)])
    assert not Samples(batch_size=len).are_raw([(torch.zeros(8), 3), (torch.ones(8), 1)])
