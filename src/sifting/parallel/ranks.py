"""What ranks tell each other: their scores, their samples, what their exits have learned.

Every method of `Ranks` but the plain properties is a collective: all ranks call it, in the same
order. What goes wrong is found from what all of them have said, so it is raised on all of them.

Shapes: B candidates of this rank, N of all ranks, K kept of those, D ranks.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sifting.data.member import pick
from sifting.data.samples import Samples
from sifting.parallel.detect import in_use

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Share:
    """What one rank trains of the samples that all ranks keep together: a part of them, in order.

    >>> share = Share(rank=1, sizes=(4, 4), kept_K=torch.tensor([1, 2, 3, 6]))
    >>> share.mine, share.leaving.tolist(), share.sent, share.received
    (slice(2, 4, None), [2], (0, 1), (1, 1))

    Here rank 1 of 2 trains candidates 3 and 6. It has 6, which is number 2 of its own, and gets
    3 from rank 0.

    Args:
        rank: this one.
        sizes: candidates of each rank.
        kept_K: the kept, those of rank 0 first, each rank's ascending.
        counts: how many of them each rank trains; by default as many.
    """

    rank: int
    sizes: tuple[int, ...]
    kept_K: Tensor
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.counts:
            assert len(self.kept_K) % len(self.sizes) == 0
            even = len(self.kept_K) // len(self.sizes)
            object.__setattr__(self, "counts", (even,) * len(self.sizes))
        assert sum(self.counts) == len(self.kept_K)

    @property
    def count(self) -> int:
        return self.counts[self.rank]

    @property
    def mine(self) -> slice:
        """This rank's part of the kept."""
        start = sum(self.counts[: self.rank])
        return slice(start, start + self.count)

    def among(self, joined: Sequence[T]) -> list[T]:
        """This rank's part of what all ranks have said of their kept, each of its own."""
        by_owner_K = self._owners().argsort(stable=True)
        place_K = torch.empty_like(by_owner_K)
        place_K[by_owner_K] = torch.arange(len(by_owner_K))
        return [joined[i] for i in place_K[self.mine].tolist()]

    def _owners(self) -> Tensor:
        """Which rank has each of the kept."""
        ends_D = torch.tensor(self.sizes).cumsum(0)
        return torch.searchsorted(ends_D, self.kept_K.cpu(), right=True)

    @property
    def leaving(self) -> Tensor:
        """The kept among this rank's own candidates, by their place there."""
        own = self.kept_K.cpu()[self._owners() == self.rank]
        return own - sum(self.sizes[: self.rank])

    @property
    def sent(self) -> tuple[int, ...]:
        """How many of those go to each rank."""
        to_K = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.counts))
        return self._counted(to_K[self._owners() == self.rank])

    @property
    def received(self) -> tuple[int, ...]:
        """How many samples come from each rank."""
        return self._counted(self._owners()[self.mine])

    def _counted(self, ranks: Tensor) -> tuple[int, ...]:
        return tuple(torch.bincount(ranks, minlength=len(self.sizes)).tolist())


def even_count(count: int, sizes: Sequence[int]) -> int:
    """The next multiple of the number of ranks, at most what the candidates allow.

    >>> even_count(32, [32, 32]), even_count(5, [5, 5]), even_count(9, [5, 4])
    (32, 6, 8)
    """
    ranks = len(sizes)
    return min(-(-count // ranks), sum(sizes) // ranks) * ranks


def spread(count: int, ranks: int) -> tuple[int, ...]:
    """A number as evenly over the ranks as it goes.

    >>> spread(7, 3)
    (3, 2, 2)
    """
    return tuple(count // ranks + (rank < count % ranks) for rank in range(ranks))


class Ranks:
    """The processes of one group, as seen by one of them.

    Args:
        device: gives the model's device, which may change until training starts.
        group: the process group; the default one where it is None.
    """

    def __init__(
        self, device: Callable[[], torch.device], group: dist.ProcessGroup | None = None
    ) -> None:
        if not in_use():
            raise ValueError(
                "there is no process group to talk over: call torch.distributed.init_process_group() "
                "before the Sifter is made, and start the script with torchrun"
            )
        self._device, self.group = device, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    @property
    def where(self) -> torch.device:
        """The device that messages are on: the model's, where the group has a backend for it."""
        config = str(dist.get_backend_config(self.group))
        backends = dict(pair.split(":") for pair in config.split(","))
        device = self._device()
        if backends.get(device.type, "gloo") != "gloo":
            return device
        if "cpu" in backends:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.world} got no answer while {what}: another rank has ended, or "
                "is not in step with this one (it has fewer batches, or skips some). The first error in "
                "the other ranks' output is the cause; init_process_group(timeout=…) sets how long a "
                f"rank waits. Here: {error}"
            ) from error

    def gather(self, value: T) -> list[T]:
        """Every rank's object, in the order of ranks."""
        found: list[Any] = [None] * self.world
        with self._asking("gathering from all ranks"):
            dist.all_gather_object(found, value, group=self.group)
        return found

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Raise, on all ranks, unless they have the same settings."""
        everyones = self.gather(dict(settings))
        for rank, theirs in enumerate(everyones):
            for name, value in theirs.items():
                if value != everyones[0][name]:
                    raise ValueError(
                        f"{name}={everyones[0][name]!r} on rank 0 but {value!r} on rank {rank}: ranks that "
                        "choose together need the same settings and the same seed"
                    )

    def share_first(self, value: T | None) -> T | None:
        """The first rank's object that is not None, on all ranks."""
        return next((found for found in self.gather(value) if found is not None), None)

    def join(
        self, scores_B: Tensor, batch: Any, generator: torch.Generator, samples: Samples
    ) -> tuple[Tensor, tuple[int, ...]]:
        """The scores of all ranks' candidates, rank 0's first, and how many each rank has.

        The ranks must hold batches of the same layout and be at the same place of the same random
        stream, or they could not make the same choice and act on it.
        """
        size = len(scores_B)
        layout = _layout(samples.columns(batch, size=size))
        stream = zlib.crc32(generator.get_state().numpy().tobytes())
        where = self.where
        header = torch.tensor([size, zlib.crc32(repr(layout).encode()), stream], device=where)
        headers = [torch.empty_like(header) for _ in range(self.world)]
        with self._asking("comparing candidates"):
            dist.all_gather(headers, header, group=self.group)
        sizes, layouts, streams = torch.stack(headers).T.tolist()
        if len(set(layouts)) > 1:
            raise ValueError(
                "samples cannot move between ranks, since their batches differ: "
                + "; ".join(f"rank {i} has {found}" for i, found in enumerate(self.gather(layout)))
                + ". Pad all batches to one length (padding='max_length'), or use scope='rank'"
            )
        if len(set(streams)) > 1:
            raise ValueError(
                "the ranks' random streams differ, so they would not make the same choice: give every "
                "rank the same seed, and restore their states together (sifting.checkpoint)"
            )
        padded = torch.zeros(max(sizes), device=where)
        padded[:size] = scores_B.detach().to(where, torch.float32)
        found = [torch.empty_like(padded) for _ in range(self.world)]
        with self._asking("gathering scores"):
            dist.all_gather(found, padded, group=self.group)
        joined_N = torch.cat([part[:n] for part, n in zip(found, sizes, strict=True)])
        return joined_N.to(scores_B.device), tuple(sizes)

    def exchange(self, batch: T, share: Share, samples: Samples) -> T:
        """Send the kept samples to where they are trained; gives this rank's part of them."""
        size = share.sizes[self.rank]
        old = samples.columns(batch, size=size)
        kept = [pick(column, share.leaving) for column in old]
        rows = {i: found for i, column in enumerate(kept) if (found := _rows(column)) is not None}
        new: list[Any] = list(kept)
        if rows:
            for i, values in zip(rows, self._send_rows(list(rows.values()), share), strict=True):
                new[i] = _like(values, old[i])
        others = [i for i in range(len(kept)) if i not in rows]
        if others:
            everyones = self.gather([_entries(kept[i]) for i in others])
            for place, i in enumerate(others):
                joined = [entry for theirs in everyones for entry in theirs[place]]
                new[i] = _like(share.among(joined), old[i])
        return samples.with_columns(batch, new, size=size)

    def _send_rows(self, columns: list[Tensor], share: Share) -> list[Tensor]:
        """Move rows of any types as bytes, all columns of a sample together, in one message."""
        as_bytes = [_bytes(column).to(self.where) for column in columns]
        sending = torch.cat(as_bytes, dim=1)
        arriving = sending.new_empty(share.count, sending.shape[1])
        with self._asking("moving samples"):
            dist.all_to_all_single(
                arriving, sending, list(share.received), list(share.sent), group=self.group
            )
        parts = torch.split(arriving, [part.shape[1] for part in as_bytes], dim=1)
        return [
            # a copy starts at an address that its type can be read from
            part.clone(memory_format=torch.contiguous_format)
            .flatten()
            .view(column.dtype)
            .reshape(share.count, *column.shape[1:])
            for part, column in zip(parts, columns, strict=True)
        ]

    def average(self, grads: list[Tensor], weight: float | Tensor) -> list[Tensor]:
        """The mean of the ranks' gradients, by weight; zeros where all weights are 0.

        A rank with nothing to say has weight 0, and gradients of zeros. No host waits for its device here.
        """
        flat = torch.cat([(weight * grad).flatten() for grad in grads]).to(self.where)
        told = weight.to(flat) if isinstance(weight, Tensor) else flat.new_full((), weight)
        flat = torch.cat([flat, told.reshape(1)])
        with self._asking("averaging what exits have learned"):
            dist.all_reduce(flat, group=self.group)
        total = torch.where(flat[-1] == 0, 1, flat[-1])
        parts = torch.split(flat[:-1] / total, [grad.numel() for grad in grads])
        return [part.view_as(grad).to(grad.device) for part, grad in zip(parts, grads, strict=True)]


def _layout(columns: list[Any]) -> list[str]:
    """What each per-sample member holds, for ranks to compare."""
    found = []
    for column in columns:
        rows = _rows(column)
        if rows is None:
            found.append("nested tensors" if isinstance(column, Tensor) else "entries of a list")
        else:
            found.append(f"{str(rows.dtype).removeprefix('torch.')}{[*rows.shape[1:]]}")
    return found


def _rows(column: Any) -> Tensor | None:
    """A member as a tensor of rows; None where it has none of equal size."""
    if isinstance(column, Tensor):
        return None if column.is_nested else column.detach()
    if isinstance(column, list | tuple) or column.dtype.kind not in "biufc":
        return None
    return torch.from_numpy(column)


def _bytes(column: Tensor) -> Tensor:
    width = math.prod(column.shape[1:])
    return column.reshape(len(column), width).contiguous().view(torch.uint8)


def _entries(column: Any) -> list[Any]:
    if isinstance(column, Tensor):
        return [part.cpu() for part in column.unbind()]
    return list(column)


def _like(values: Any, column: Any) -> Any:
    """Samples that have come in, as the member that they belong to has them."""
    if isinstance(column, Tensor):
        if column.is_nested:
            there = [value.to(column.device) for value in values]
            return torch.nested.as_nested_tensor(there, layout=column.layout)
        return values.to(column.device)
    if isinstance(column, list | tuple):
        return list(values) if isinstance(column, list) else tuple(values)
    if isinstance(values, Tensor):
        return values.cpu().numpy()
    import numpy  # in use already, since the batch holds an array

    return numpy.array(values, dtype=object if column.dtype.kind == "O" else None)
