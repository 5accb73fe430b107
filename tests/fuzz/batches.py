"""Batches made from known samples by many collate functions, divided, and taken apart again.

The reference knows nothing of the library: it makes N samples whose values say whose they are,
collates them, and reads sample after sample back from what was taken.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from transformers import BatchEncoding

from sifting.data.samples import Samples
from tests.fuzz import Fuzz, refusal, register

Read = Callable[[Any, int], Any]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.float16, torch.bool]
FORMS = [
    *(
        "tensor",
        "tensor",
        "tensor",
        "numpy",
        "list",
        "tuple",
        "texts",
        "numbers",
        "tokens",
        "ragged",
    ),
    *("pictures", "targets", "nested", "jagged", "sparse", "packed", "object"),
]
ODD = [
    "pos",
    "freq",
    "mask",
    "scalar",
    "text",
    "none",
    "zero",
    "time",
    "flat_lengths",
    "flat_starts",
]
CONTAINERS = [
    *("dict", "dict", "dict", "OrderedDict", "UserDict", "BatchEncoding", "tuple", "list"),
    *("namedtuple", "dataclass", "inner"),
]
NAMES = ["x", "y_in", "z", "extra", "aux"]


@dataclasses.dataclass
class Member:
    """One member of a batch: how it is collated from N samples, and how one of them is read."""

    collate: Callable[[int], Any]
    read: Read | None  # None: not by sample, must come back as it was
    names: str
    first: bool = True  # whether its first dimension (or length) is the samples


def value(i: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int) -> torch.Tensor:
    """What sample i holds: numbers that no other sample holds, as far as the type allows."""
    count = int(np.prod(shape, dtype=int))
    numbers = torch.arange(count) * 7 + (i + 1) * 31 + salt
    return (
        (numbers % 2 == i % 2 if dtype == torch.bool else numbers % 2000).to(dtype).reshape(shape)
    )


def plain(found: Any) -> Any:
    """Anything as nested lists, to compare."""
    if isinstance(found, torch.Tensor):
        return found.to_dense().tolist() if found.layout != torch.strided else found.tolist()
    if isinstance(found, np.ndarray | np.generic):
        return found.tolist()
    if isinstance(found, dict):
        return {key: plain(v) for key, v in found.items()}
    if isinstance(found, list | tuple):
        return [plain(v) for v in found]
    return found


def lengths_of(i: int, salt: int, same: int | None) -> int:
    return same if same is not None else (i * 5 + salt) % 4 + 1


SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def by_sample(draw: st.DrawFn) -> tuple[Member, Callable[[int], Any]]:
    """A member that has one entry per sample, in one of the forms people use, and the samples."""
    salt = draw(st.integers(0, 9))
    form = draw(st.sampled_from(FORMS))
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(DTYPES))
    same = draw(st.none() | st.integers(1, 4))

    def entry(i: int) -> Any:
        if form in ("tensor", "numpy"):
            return value(i, shape, dtype, salt)
        if form in ("list", "tuple", "sparse"):
            return value(i, shape or (3,), torch.float32, salt)
        if form == "texts":
            return f"sample {i} {salt}"
        if form == "numbers":
            return i * 10 + salt
        if form == "tokens":
            return list(range(i, i + lengths_of(i, salt, same)))
        if form == "pictures":
            return value(i, (3, 2 + lengths_of(i, salt, same), 4), torch.float32, salt)
        if form == "targets":
            k = lengths_of(i, salt, same)
            boxes, kinds = value(i, (k, 4), torch.float32, salt), value(i, (k,), torch.int64, salt)
            return {"boxes": boxes, "classes": kinds}
        if form == "object":
            return {"id": i, "note": f"{salt}"}
        return value(i, (lengths_of(i, salt, same), 2), torch.float32, salt)

    def collate(n: int) -> Any:
        entries = [entry(i) for i in range(n)]
        if form == "tensor":
            return torch.stack(entries)
        if form == "numpy":
            return torch.stack(entries).numpy()
        if form == "tuple" or (form in ("texts", "targets", "pictures") and salt % 2):
            return tuple(entries)
        if form == "nested":
            return torch.nested.nested_tensor(entries)
        if form == "jagged":
            return torch.nested.nested_tensor(entries, layout=torch.jagged)
        if form == "sparse":
            return torch.stack(entries).to_sparse()
        if form == "packed":
            return pack_sequence(entries, enforce_sorted=False)
        return entries

    def read(member: Any, j: int) -> Any:
        if form in ("nested", "jagged"):
            return member.unbind()[j]
        if form == "packed":
            padded, lengths = pad_packed_sequence(member, batch_first=True)
            return padded[j, : lengths[j]]
        if form == "sparse":
            return member.to_dense()[j]
        return member[j]

    return Member(collate, read, form), entry


@st.composite
def odd(draw: st.DrawFn, sizes: list[int]) -> list[tuple[Member, Callable[[int], Any] | None]]:
    """Members that do not go by sample, or go by it in a way that cannot be divided."""
    salt = draw(st.integers(0, 9))
    form = draw(st.sampled_from(ODD))
    # from the first batch on, a table of as many rows as samples cannot be told from a column
    first = next((n for n in sizes if n > 1), 1)
    rows = draw(st.integers(1, 12).filter(lambda r: r != first))
    if form in ("pos", "freq", "mask"):
        shape = {"pos": (rows,), "freq": (rows, draw(st.integers(1, 6))), "mask": (rows, rows)}[
            form
        ]
        table = torch.arange(int(np.prod(shape))).reshape(shape) + salt
        return [(Member(lambda n: table, None, form, False), None)]
    if form in ("scalar", "text", "none", "zero"):
        fixed = {"scalar": 0.1, "text": "train", "none": None, "zero": torch.tensor(3.0)}[form]
        return [(Member(lambda n: fixed, None, form, False), None)]
    if form == "time":

        def step(i: int) -> Any:
            return value(i, (rows, 2), torch.float32, salt)

        return [
            (
                Member(
                    lambda n: torch.stack([step(i) for i in range(n)], dim=1),
                    lambda member, j: member[:, j],
                    form,
                    False,
                ),
                step,
            )
        ]

    def document(i: int) -> Any:
        return value(i, (lengths_of(i, salt, None) + 1,), torch.int64, salt)

    def starts(n: int) -> list[int]:
        return np.cumsum([0] + [len(document(i)) for i in range(n)]).tolist()

    def one(member: Any, j: int) -> Any:  # only if flat members were divided, which is not so
        raise AssertionError("samples that lie end to end were handed out")

    flat = Member(lambda n: torch.cat([document(i) for i in range(n)]), one, form, False)
    if form == "flat_lengths":
        where = Member(lambda n: torch.tensor(starts(n)).diff(), lambda m, j: m[j], form)
        return [(flat, document), (where, lambda i: len(document(i)))]
    where = Member(lambda n: torch.tensor(starts(n)[:-1]), lambda m, j: m[j], form)
    return [(flat, document), (where, None)]


@dataclasses.dataclass
class Case:
    """Batches of some sizes by one collate function, with what is to be taken from each."""

    make: Callable[[int], Any]
    find: Callable[[Any], list[Any]]
    members: list[tuple[Member, Callable[[int], Any] | None]]
    samples: Samples
    sizes: list[int]
    wanted: list[list[int]]
    about: str

    def __repr__(self) -> str:
        first = self.make(self.sizes[0])
        return f"{self.about}, sizes {self.sizes}, taking {self.wanted}, first batch: {first!r}"


def contain(
    kind: str, names: list[str]
) -> tuple[Callable[[list[Any]], Any], Callable[[Any], list[Any]]]:
    """A container of members, and how they are found in it again."""
    record: Any = namedtuple("record", names)
    holder: Any = dataclasses.make_dataclass("holder", names)
    if kind in ("dict", "OrderedDict", "UserDict", "BatchEncoding"):
        make: Any = {"dict": dict, "OrderedDict": OrderedDict}.get(kind) or (
            UserDict if kind == "UserDict" else BatchEncoding
        )
        return lambda ms: make(zip(names, ms, strict=True)), lambda b: [b[name] for name in names]
    if kind == "namedtuple":
        return lambda ms: record(*ms), lambda b: list(b)
    if kind == "dataclass":
        return lambda ms: holder(*ms), lambda b: [getattr(b, name) for name in names]
    if kind == "inner":  # ({…}, last)
        return (
            lambda ms: (dict(zip(names[:-1], ms[:-1], strict=True)), ms[-1]),
            lambda b: [*(b[0][name] for name in names[:-1]), b[1]],
        )
    return {"tuple": tuple, "list": list}[kind], list


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=8))
    wanted = [
        draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)) for n in sizes
    ]
    members: list[Any] = [draw(by_sample()) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        members += draw(odd(sizes))
    members = draw(st.permutations(members))
    labelled = draw(st.booleans())
    if labelled:
        shape = draw(st.sampled_from([(), (), (3,)]))

        def target(i: int) -> torch.Tensor:
            return value(i, shape, torch.int64, 3)

        stacked = Member(
            lambda n: torch.stack([target(i) for i in range(n)]), lambda m, j: m[j], "labels"
        )
        members = [*members, (stacked, target)]
    elif not all(m.first for m, _ in members) and all(m.names != "tensor" for m, _ in members):
        # beside what does not go by sample, something must say how many there are
        members = [*members, draw(by_sample().filter(lambda made: made[0].names == "tensor"))]
    if len(members) > 1 and draw(st.integers(0, 9)) == 0 and all(m.first for m, _ in members):
        return draw(raw(members, sizes, wanted))
    names = [*NAMES, "more", "most", "last", "end"][: len(members)]
    if labelled:
        names[-1] = "labels"
    kind = draw(st.sampled_from(CONTAINERS))
    if kind == "inner" and len(members) < 2:
        kind = "tuple"
    make, find = contain(kind, names)
    # by a function of the batch, or by the number in the first
    told = draw(st.sampled_from((None,) * 4 + (lambda batch: len(find(batch)[-1]), sizes[0])))
    samples = Samples(
        labels=(lambda batch: {"labels": find(batch)[-1]}) if labelled else None,
        batch_size=told if labelled else None,
    )
    about = f"{kind} of {', '.join(member.names for member, _ in members)}" + (
        " by labels" if labelled else ""
    )
    return Case(
        lambda n: make([member.collate(n) for member, _ in members]),
        find,
        members,
        samples,
        sizes,
        wanted,
        about,
    )


@st.composite
def raw(draw: st.DrawFn, members: list[Any], sizes: list[int], wanted: list[list[int]]) -> Case:
    """A list of samples as the data set gives them."""
    as_dicts, told = draw(st.booleans()), draw(st.sampled_from((None, len, sizes[0])))
    entries = [entry for _, entry in members]

    def sample(i: int) -> Any:
        parts = [entry(i) for entry in entries]
        return dict(zip("abcdefgh", parts, strict=False)) if as_dicts else tuple(parts)

    def find(batch: Any) -> list[Any]:
        return [
            [(list(s.values()) if as_dicts else s)[c] for s in batch] for c in range(len(entries))
        ]

    columns = [(Member(lambda n: None, lambda m, j: m[j], "raw"), entry) for entry in entries]
    about = (
        "raw "
        + ("dicts" if as_dicts else "tuples")
        + " of "
        + ", ".join(m.names for m, _ in members)
    )
    return Case(
        lambda n: [sample(i) for i in range(n)],
        find,
        columns,
        Samples(batch_size=told),
        sizes,
        wanted,
        about,
    )


def check(case: Case) -> list[str]:
    """Each batch is divided right, or refused; what is handed out is never something else."""
    outcomes = []
    for n, chosen in zip(case.sizes, case.wanted, strict=True):
        batch = case.make(n)
        before = case.find(batch)
        try:
            size = case.samples.size(batch)
            taken = case.samples.take(batch, torch.tensor(chosen))
            by_number = isinstance(case.samples.batch_size, int)
            assert not by_number or case.samples.size(taken) == len(chosen)
        except ValueError as error:
            outcomes.append(refusal(error))
            break  # training ends here
        assert size == n, f"{size} samples were counted, of {n}"
        assert type(taken) is type(batch)
        after = case.find(taken)
        for (member, entry), old, new in zip(case.members, before, after, strict=True):
            if member.read is None:
                assert plain(new) == plain(old), f"{member.names} was not carried along"
            elif entry is not None and (member.first or n > 1):
                got = [plain(member.read(new, j)) for j in range(len(chosen))]
                assert got == [plain(entry(i)) for i in chosen], member.names
        outcomes.append("right")
    return outcomes


FUZZ = register("batches", Fuzz(cases(), check))
