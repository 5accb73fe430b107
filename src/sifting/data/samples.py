"""How batches divide into samples: how many one holds, and taking some of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from sifting.data import packing
from sifting.data.count import alike, raw_samples, size_of_labels, sizes_of_structure
from sifting.data.divide import Division, Seen
from sifting.data.documents import document_of_position, documents
from sifting.data.member import own_size, pick
from sifting.data.told import Told
from sifting.data.tree import describe, is_leaf, members

T = TypeVar("T")
BatchSize = int | str | Callable[[Any], int]
Take = Callable[[Any, Tensor], Any]
Labels = Callable[[Any], Mapping[str, Any]]

REMEDIES = (
    "Say it with batch_size= (a number, the key of the member that has one entry per sample, or a function "
    "of the batch such as len), pass take=lambda batch, indices: … beside it where samples cannot be "
    "taken member by member, or let the loader yield raw samples (collate_fn=list)"
)


@dataclass(frozen=True)
class Samples:
    """How many samples a batch holds, and which part of it belongs to each.

    >>> samples = Samples(labels=lambda batch: {"labels": batch["labels"]})
    >>> batch = {"x": torch.zeros(4, 2), "labels": torch.arange(4), "table": torch.zeros(9, 9)}
    >>> samples.size(batch)
    4
    >>> samples.take(batch, torch.tensor([2, 0]))["labels"]
    tensor([2, 0])

    The size is that of the labels; without labels, the one that all tensors share. Members of
    that size are divided and all others carried along. Documents packed into a row count one by
    one, and a list of raw samples (`collate_fn=list`) by its entries. What fits more than one reading
    is refused by an error that shows the members. What no one can tell is a member that has the size
    by chance and from the first batch on, such as a 16×16 mask in batches of 16: there, `take` helps.

    Args:
        batch_size: the number of samples where it cannot be determined: that of the first batch (what has so
            many entries there is counted in those that follow), the key (or attribute) of
            the member that has one entry per sample, or a function of the batch, such as `len` for a
            list of samples. Rows of a packed batch are then samples, not documents.
        take_with: `take(batch, indices) -> batch`, for batches that cannot be divided by member.
        labels: `labels(batch) -> labels by name`.
    """

    batch_size: BatchSize | None = None
    take_with: Take | None = None
    labels: Labels | None = None
    # How each member was read in batches where it was clear, so that one that has the batch's size
    # by chance (the last batch of an epoch, say) is still read the same.
    _seen: Seen = field(default_factory=dict, init=False, repr=False, compare=False)
    _number: Told | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.batch_size
        if isinstance(given, bool) or not (
            given is None or isinstance(given, int | str) or callable(given)
        ):
            raise TypeError(
                f"batch_size={given!r}: give a number, the key of the member that has one entry per sample, or "
                "a function of the batch"
            )
        if isinstance(given, int) and given < 1:
            raise ValueError(f"batch_size={given}: a batch holds at least 1 sample")
        if isinstance(given, int):
            told = Told(given, any_dimension=self.take_with is not None)
            object.__setattr__(self, "_number", told)
        _check_function("take", self.take_with, "batch, indices", 2)
        _check_function("labels", self.labels, "batch", 1)
        if callable(given):
            _check_function("batch_size", given, "batch", 1)

    def size(self, batch: Any) -> int:
        """How many samples a batch holds.

        >>> Samples().size([(torch.zeros(8), 3), (torch.ones(8), 1)])
        2
        """
        size = self._size(batch) if self.batch_size is None else self._told(batch)
        if size < 1:
            raise ValueError(
                f"the batch holds no sample: {describe(batch)}. Let the loader leave out empty batches"
            )
        return size

    def take(self, batch: T, indices_K: Tensor, *, size: int | None = None) -> T:
        """The same batch with only the samples at `indices_K`, type and keys unchanged.

        >>> Samples().take((torch.arange(4), ["a", "b", "c", "d"], "train"), torch.tensor([1, 3]))
        (tensor([1, 3]), ['b', 'd'], 'train')

        Args:
            batch: any batch; it is not modified.
            indices_K: which samples, in the order wanted.
            size: the batch's size, where the caller knows it already.
        """
        if self.take_with is not None:
            return self._taken_by_user(batch, indices_K)
        if self._packed(batch):
            return packing.take_documents(batch, indices_K)  # type: ignore[no-any-return]
        shared: dict[int, Tensor] = {}
        size = self.size(batch) if size is None else size
        return self._divide(batch, size, lambda column: pick(column, indices_K, shared=shared))  # type: ignore[no-any-return]

    def split(self, batch: T, count: int) -> list[T]:
        """Cut a batch into consecutive pieces of `count` samples; the last may be smaller.

        >>> Samples().split(torch.arange(5), 2)
        [tensor([0, 1]), tensor([2, 3]), tensor([4])]

        A batch that fits in one piece is returned as it is, the same object.
        """
        if count < 1:
            raise ValueError(f"count={count}: a piece must hold at least 1 sample")
        size = self.size(batch)
        if size <= count:
            return [batch]
        return [
            self.take(batch, torch.arange(start, min(start + count, size)), size=size)
            for start in range(0, size, count)
        ]

    def split_both(self, batch: T, host: T, count: int | None) -> list[tuple[T, T]]:
        """Pieces of a batch, each with what it was before the batch was moved; see `split`.

        >>> Samples().split_both(torch.arange(3), torch.arange(3), 2)
        [(tensor([0, 1]), tensor([0, 1])), (tensor([2]), tensor([2]))]

        Args:
            batch: on the model's device.
            host: the same before, which can be asked how large it is.
            count: samples of a piece; None for all.
        """
        told = [host] if count is None else self.split(host, count)
        if len(told) == 1:
            return [(batch, host)]
        return list(
            zip(told if host is batch else self.split(batch, count or 1), told, strict=True)
        )

    def columns(self, batch: Any, *, size: int | None = None) -> list[Any]:
        """The members of a batch that go by sample, in the order of the tree.

        >>> Samples().columns({"x": torch.zeros(2, 3), "names": ["a", "b"], "split": "train"})[1]
        ['a', 'b']

        A packed batch has one: the list of its documents.
        """
        self._refuse_take("its samples cannot be sent one by one")
        if self._packed(batch):
            return [packing.unpack(batch)]
        found: list[Any] = []

        def note(column: Any) -> Any:
            found.append(column)
            return column

        self._divide(batch, self.size(batch) if size is None else size, note)
        return found

    def with_columns(self, batch: T, new: Iterable[Any], *, size: int | None = None) -> T:
        """The same batch with other per-sample members, in the order of `columns`.

        >>> Samples().with_columns((torch.zeros(2), ["a", "b"]), [torch.ones(1), ["c"]])
        (tensor([1.]), ['c'])
        """
        self._refuse_take("its samples cannot be put together")
        source = iter(new)
        if self._packed(batch):
            return packing.pack(batch, next(source))  # type: ignore[no-any-return]
        size = self.size(batch) if size is None else size
        return self._divide(batch, size, lambda _: next(source))  # type: ignore[no-any-return]

    def are_raw(self, batch: Any) -> bool:
        """Whether a batch is a list of samples as the data set gives them.

        >>> Samples().are_raw([(torch.zeros(8), 3), (torch.ones(8), 1)])
        True
        """
        if not isinstance(batch, list | tuple) or self.batch_size is not None:
            return False
        return self._seen.get("") == "entries" or raw_samples(batch)

    def documents(self, batch: Any) -> Tensor | None:
        """The sample of each position of a packed batch, −1 for padding; None for any other batch.

        >>> Samples().documents({"position_ids": torch.tensor([[0, 1, 2, 0, 1]])})
        tensor([[0, 0, 0, 1, 1]])
        """
        return document_of_position(batch) if self._packed(batch) else None

    def _divide(self, batch: Any, size: int, change: Callable[[Any], Any]) -> Any:
        return Division(size, change, labels=self._labels(batch), seen=self._seen).apply(batch)

    def _packed(self, batch: Any) -> bool:
        return self.batch_size is None and documents(batch) is not None

    def _labels(self, batch: Any) -> Mapping[str, Any]:
        if self.labels is None:
            return {}
        try:
            return self.labels(batch)
        except TypeError:  # no tensors: the structure tells, and who needs the labels will say so
            return {}

    def _size(self, batch: Any) -> int:
        packed = documents(batch)
        if packed is not None:
            return len(packed)
        if self.are_raw(batch):
            return len(batch)
        # two dicts with the same keys are hardly inputs and labels, rather two samples or two views
        twins = isinstance(batch, list | tuple) and _are_mappings(batch) and alike(batch)
        found = set() if twins else size_of_labels(self._labels(batch))
        what = "labels"
        if not found:
            found, what = sizes_of_structure(batch), "members"
        if len(found) == 1:
            return next(iter(found))
        if not found:
            empty = not is_leaf(batch) and not members(batch)
            why = (
                "it is empty"
                if empty
                else "it has no tensor with a leading batch dimension and no list"
            )
            raise ValueError(
                f"cannot tell how many samples a {type(batch).__name__} holds: {why}. {REMEDIES}"
            )
        sizes = ", ".join(map(str, sorted(found)))
        raise ValueError(
            f"cannot tell how many samples the batch holds: its {what} allow {sizes} ({describe(batch)}). "
            f"{REMEDIES}"
        )

    def _told(self, batch: Any) -> int:
        """The size by the user's own word."""
        given = self.batch_size
        if self._number is not None:
            return self._number.count(batch)
        if callable(given):
            size = given(batch)
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise ValueError(f"batch_size= gave {size!r}: return the number of samples, an int")
            return size
        assert isinstance(given, str)
        member = batch.get(given) if isinstance(batch, Mapping) else getattr(batch, given, None)
        found = len(member) if isinstance(member, list | tuple) else own_size(member)
        if found is None:
            raise ValueError(
                f"batch_size={given!r} does not name a member with one entry per sample: {describe(batch)}"
            )
        return found

    def _taken_by_user(self, batch: T, indices_K: Tensor) -> T:
        assert self.take_with is not None
        taken = self.take_with(batch, indices_K)
        if len(indices_K) < 2:
            return taken  # type: ignore[no-any-return]
        got = self.size(taken)
        if got != len(indices_K):
            raise ValueError(
                f"take= gave a batch of {got} for {len(indices_K)} indices ({describe(taken)}): return a batch of "
                "just the samples at the indices, in their order; where it is one, say how many samples a batch "
                "holds with batch_size=lambda batch: …"
            )
        return taken  # type: ignore[no-any-return]

    def _refuse_take(self, why: str) -> None:
        if self.take_with is not None:
            raise ValueError(f"take= divides this batch, so {why} between ranks: use scope='rank'")


def _are_mappings(batch: Iterable[Any]) -> bool:
    return all(isinstance(member, Mapping) for member in batch)


def _check_function(name: str, function: Any, arguments: str, count: int) -> None:
    if function is None:
        return
    if not callable(function):
        raise TypeError(f"{name}={function!r} is not callable: pass a function of ({arguments})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built in
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise TypeError(
            f"{name}={function!r} is called with ({arguments}), which its signature {signature} does not "
            f"allow: {error}"
        ) from error
