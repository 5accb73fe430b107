"""Dividing a batch of known size: which members go by sample, and what is refused.

What has one entry per sample is divided; everything else is carried along as it is. Where a member
could be either, or goes by sample along another dimension than the first, it is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sifting.data.count import alike, has_scalars, possible
from sifting.data.member import indivisible, own_size
from sifting.data.tree import (
    describe,
    is_array,
    is_graph,
    is_leaf,
    leading,
    leaves,
    rebuild,
)

# Names that always go by sample where they are used, so that another size is a sign of samples
# that were flattened together (several pictures or pieces a sample).
BY_SAMPLE = frozenset(
    {"input_ids", "inputs_embeds", "token_type_ids", "decoder_input_ids", "bbox", "image", "images"}
    | {"pixel_values", "pixel_mask", "input_features", "input_values"}
)
# Names of members that say where in another member the samples are, end to end.
RAGGED = frozenset({"edge_index", "ptr", "image_grid_thw", "video_grid_thw", "cu_seqlens"})
SPREAD = ("position", "mask")  # one row that stands for all samples is common in these
TAKE = "pass take=lambda batch, indices: …, which gives a batch of those samples"

Seen = dict[str, str]  # how each member was read in batches where it was clear


class Division:
    """One pass over a batch of `size` samples that hands every per-sample member to `change`.

    Args:
        size: how many samples the batch holds.
        change: what to do with each member that goes by sample.
        labels: the labels, by identity: a list that holds them is no list of samples.
        seen: how members were read so far, by path. A table of 10 rows that was carried along in
            batches of 16 is still one in a last batch of 10.
    """

    def __init__(
        self,
        size: int,
        change: Callable[[Any], Any],
        *,
        labels: Mapping[str, Any] | None = None,
        seen: Seen | None = None,
    ) -> None:
        self.size = size
        self.change = change
        self.labels = {id(value) for value in (labels or {}).values()}
        self._labels_met: set[int] = set()
        self.seen: Seen = {} if seen is None else seen
        self.strict = size > 1  # of one sample, nothing can be lost
        self.divided = 0  # members beside the labels
        self.carried: dict[str, Any] = {}
        self.whole_numbers: dict[str, Any] = {}  # that may say where samples are in another member

    def apply(self, batch: Any) -> Any:
        """The batch with its per-sample members changed."""
        changed = self.walk(batch, "")
        if self.strict:
            self._check(batch)
        return changed

    def walk(self, node: Any, path: str) -> Any:
        if is_array(node):
            return self._array(node, path)
        if is_leaf(node) or is_graph(node):
            return self._leaf(node, path)
        if isinstance(node, list | tuple) and not hasattr(node, "_fields"):
            if len(node) == self.size and self._is_column(node, path):
                self._count(node)
                return self.change(node)
            # clear here, and no longer in a batch of as many samples as this has members
            clear = self.strict and len(node) != self.size and path not in self.seen
            there = [member for member in node if member is not None]
            if clear and there and all(is_array(m) and self._fits(m) for m in there):
                self.seen[path] = "members"
        elif self.strict and isinstance(node, Mapping):
            ragged = sorted(RAGGED & {key for key in node if isinstance(key, str)})
            if ragged:
                raise ValueError(
                    f"the batch has {ragged[0]!r}, so some members hold all samples end to end, which cannot "
                    f"be divided from here: {TAKE}"
                )
        new = rebuild(node, self.walk, path=path)
        encodings = getattr(
            new, "_encodings", None
        )  # BatchEncoding: one per sample, beside its items
        if encodings is not None and new is not node and len(encodings) == self.size:
            new._encodings = self.change(encodings)
        return new

    def _array(self, array: Any, path: str) -> Any:
        if array.ndim == 0:
            return array
        size = self.size
        name = _name(path)
        if name == "position_ids" and array.ndim == 3 and array.shape[1] == size:
            # several positions a token (text, height, width): samples are the second dimension
            return self.change(array.transpose(0, 1)).transpose(0, 1)
        by_sample = leading(array) == size
        if self.strict:
            by_sample = self._reconcile(path, array, by_sample)
            if by_sample and (reason := indivisible(array, size)):
                raise ValueError(f"batch{path} {reason}, or {TAKE}")
        if by_sample:
            if self._count(array) and array.ndim == 1 and not _nested(array):
                self.whole_numbers[path] = array
            return self.change(array)
        if self.strict:
            self._check_carried(path, name, array)
            self.carried[path] = array
        return array

    def _count(self, member: Any) -> bool:
        """Note a member that goes by sample; whether it is more than the labels.

        Tokens that are their own labels are one tensor under two names.
        """
        more = id(member) not in self.labels or id(member) in self._labels_met
        self._labels_met.add(id(member))
        self.divided += more
        return more

    def _reconcile(self, path: str, array: Any, by_sample: bool) -> bool:
        """What a member was in earlier batches, it is in this one."""
        before = self.seen.get(path)
        if before is None:
            self.seen[path] = "by sample" if by_sample else "carried"
        elif before == "by sample" and not by_sample:
            raise ValueError(
                f"batch{path} {tuple(array.shape)} had one entry per sample so far, but not in this batch "
                f"of {self.size} samples: {TAKE}"
            )
        elif before == "carried":
            return False
        return by_sample

    def _check_carried(self, path: str, name: str, array: Any) -> None:
        size, shape = self.size, tuple(array.shape) if not _nested(array) else (leading(array),)
        if name in BY_SAMPLE:
            raise ValueError(
                f"batch{path} {shape} does not have one entry for each of {size} samples, though {name!r} "
                f"goes by sample: {TAKE}"
            )
        known = f"{path} along 1"
        if len(shape) > 1 and shape[1] == size and known not in self.seen:
            if shape[0] == 1 and any(word in name for word in SPREAD):
                return
            raise ValueError(
                f"batch{path} {shape} has the {size} samples along its second dimension, and only the first "
                "is divided: let the collate function put samples first (batch_first=True), or "
                f"{TAKE}; if it does not go by sample at all, keep it out of the batch"
            )
        self.seen.setdefault(known, "no")

    def _leaf(self, leaf: Any, path: str) -> Any:
        if self.strict and (reason := indivisible(leaf, self.size)):
            raise ValueError(f"batch{path} {reason}: {TAKE}")
        if own_size(leaf) != self.size or not self.strict:
            return leaf
        self._count(leaf)
        return self.change(leaf)

    def _is_column(self, node: Any, path: str) -> bool:
        """Whether a list of as many entries as samples has one for each of them."""
        if any(id(member) in self.labels for member in node):
            return False
        if self.strict and path in self.seen:
            return self.seen[path] == "entries"
        # what is missing fits either reading
        readings = [self._fits(member) for member in node if member is not None]
        found = self._read(node, readings, path)
        if self.strict:
            self.seen[path] = "entries" if found else "members"
        return found

    def _read(self, node: Any, readings: list[bool], path: str) -> bool:
        same = alike(node)
        if not any(readings):
            holds = any(own_size(leaf) is not None for leaf in leaves(node))
            if same or (isinstance(node, list) and not holds):
                return True
            if not holds:
                return False  # settings: ("train", 0.1)
            raise self._ambiguous(node, path)
        if not same:
            return False
        if has_scalars(node):
            return True
        if not all(readings):
            arrays = [member for member in node if is_array(member)]
            trailing = {tuple(array.shape[1:]) for array in arrays if not _nested(array)}
            if len(trailing) < 2:
                return True  # of differing lengths, some as many as samples
            raise self._ambiguous(node, path)
        if not self.strict:
            return True  # one entry: it makes no difference
        raise self._ambiguous(node, path)

    def _fits(self, member: Any) -> bool:
        """Whether a member of a list could itself hold all samples."""
        sizes = possible(member)
        if sizes is not None:
            return self.size in sizes
        return isinstance(member, list | tuple) and len(member) == self.size and alike(member)

    def _ambiguous(self, node: Any, path: str) -> ValueError:
        return ValueError(
            f"batch{path} is a {type(node).__name__} of {len(node)} ({describe(node)}) in a batch of "
            f"{self.size} samples: it could be one entry per sample, or members that hold all samples each. "
            f"Let the collate function stack it into a tensor, or {TAKE}"
        )

    def _check(self, batch: Any) -> None:
        """What shows only in the whole: labels alone were divided, or samples lie end to end."""
        for path, array in self.carried.items():
            if f"{path} apart" in self.seen:
                continue
            for where in (*self.whole_numbers, *self.carried):
                numbers = self.whole_numbers.get(where, self.carried.get(where))
                if where != path and lies_end_to_end(leading(array), numbers, self.size):
                    raise ValueError(
                        f"batch{path} {tuple(array.shape)} holds all samples end to end, as batch{where} "
                        f"says, which cannot be divided from here: {TAKE}"
                    )
            self.seen[f"{path} apart"] = "yes"
        if self.carried and not self.divided:
            raise ValueError(
                f"{self.size} samples, by the labels or batch_size=, and no other member has that many entries: "
                f"{describe(batch)}. Name one that has an entry per sample (batch_size='…'), or {TAKE}"
            )


def lies_end_to_end(total: int, numbers: Any, size: int) -> bool:
    """Whether whole numbers say where, among `total` rows, each of `size` samples is.

    >>> lies_end_to_end(9, torch.tensor([0, 4, 6]), 3), lies_end_to_end(9, torch.tensor([4, 2, 3]), 3)
    (True, True)

    They do as lengths, which add up to the total; as places where each sample starts; or as
    places between samples, one more than there are samples.
    """
    values = torch.as_tensor(numbers)
    if values.ndim != 1 or values.is_floating_point() or values.dtype == torch.bool:
        return False
    if len(values) not in (size, size + 1) or bool((values < 0).any()):
        return False
    rises = int(values[0]) == 0 and bool((values.diff() >= 0).all())
    if len(values) == size + 1:
        return rises and int(values[-1]) == total
    # numbers in order, 0, 1, 2, …, are names of samples and not places
    places = rises and bool((values.diff() > 1).any()) and int(values[-1]) <= total
    return places or int(values.sum()) == total


def _name(path: str) -> str:
    """The last key of a path, without its brackets."""
    return path.rpartition("[")[2].strip("]'\"") if path.endswith("]") else path.rpartition(".")[2]


def _nested(array: Any) -> bool:
    return isinstance(array, Tensor) and array.is_nested
