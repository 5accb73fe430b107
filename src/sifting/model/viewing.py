"""Less of each sample than the batch has: the first positions of a sequence, or a smaller image.

Shapes: B samples, T positions, C channels, X height, Y width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sifting.data.tree import describe, is_leaf, leaves, rebuild
from sifting.model.call import Call, mask_of
from sifting.model.features import coarser
from sifting.model.parts import Part

Viewer = Callable[[Any], Any]
ViewSize = int | tuple[int, int] | Viewer
_POSITIONS = ("start_positions", "end_positions")


class View:
    """What is scored of a batch: `view(call, batch)` gives a batch of as many, smaller samples.

    >>> import torch
    >>> batch = {"input_ids": torch.ones(2, 8).long(), "labels": torch.ones(2, 8).long()}
    >>> {name: tuple(value.shape) for name, value in View(4)(Call(), batch).items()}
    {'input_ids': (2, 4), 'labels': (2, 4)}
    >>> images, labels = View(16)(Call(), (torch.zeros(2, 3, 32, 48), torch.zeros(2)))
    >>> images.shape
    torch.Size([2, 3, 16, 24])

    Args:
        size: of sequences, how many positions from the first, or which as (first, end); of images,
            the pixels of the shorter side, by averages; or a function of the batch.
    """

    def __init__(self, size: ViewSize) -> None:
        self.size = size
        if callable(size):
            return
        whole = (size,) if not isinstance(size, tuple) else size
        if any(isinstance(n, bool) or not isinstance(n, int) for n in whole):
            raise TypeError(f"view={size!r}: {_WAYS}")
        if isinstance(size, int) and size < 1:
            raise ValueError(f"view={size!r} shows nothing: {_WAYS}")
        if isinstance(size, tuple) and (len(size) != 2 or not 0 <= size[0] < size[1]):
            raise ValueError(f"view={size!r} is not a range of positions: {_WAYS}")

    def __repr__(self) -> str:
        return (
            getattr(self.size, "__name__", "a function") if callable(self.size) else repr(self.size)
        )

    def __call__(self, call: Call, batch: Any, *, host: Any = None) -> Any:
        """The batch as it is scored; itself where it is no larger.

        Args:
            host: the same batch where it can be looked into without waiting for a device.
        """
        if callable(self.size):
            return self._by_user(call, batch)
        if call.samples.documents(batch) is not None:
            raise ValueError(
                f"view={self.size!r}: the batch is packed ({describe(batch)}), and a range of its rows would "
                "cut documents off: leave view= out, rows= works there; or pass a function of the batch"
            )
        lengths = _lengths(call, batch)
        length = lengths.pop() if len(lengths) == 1 else None
        if length is None and any(map(_is_image, leaves(batch))):
            return self._smaller(call, batch)
        return self._cut(call, batch, length, batch if host is None else host)

    def _by_user(self, call: Call, batch: Any) -> Any:
        assert callable(self.size)
        # in containers of its own, since a function may put shorter members into what it is given
        given, size = _changed(batch, lambda leaf: leaf), call.samples.size(batch)
        before = _versions(batch)
        seen = self.size(given)
        if _versions(batch) != before:
            raise ValueError(
                f"view={self!r} wrote into tensors of the batch, which are trained: let it change a clone"
            )
        if seen is given and list(map(id, leaves(seen))) == list(map(id, leaves(batch))):
            return batch
        if seen is None:
            raise ValueError(f"view={self!r} returned None: return the batch as it is to be scored")
        found = call.samples.size(seen)
        if found != size:
            raise ValueError(
                f"view= made {found} samples ({describe(seen)}) of {size}: return as many as it is given, each "
                "of them smaller"
            )
        missing = set(call.labels_of(batch)) - set(call.labels_of(seen))
        if missing:
            raise ValueError(
                f"view={self!r} returned {describe(seen)}, without the batch's {', '.join(sorted(missing))}: "
                "return the labels too"
            )
        return seen

    # -- images

    def _smaller(self, call: Call, batch: Any) -> Any:
        for name, value in call.labels_of(batch).items():
            if value.ndim > 2:
                raise ValueError(
                    f"view={self.size!r}: {name} {tuple(value.shape)} are of each pixel, and would not fit a "
                    "smaller image: pass view=lambda batch: … that makes both smaller"
                )
        if not isinstance(self.size, int):
            raise ValueError(
                f"view={self.size!r} is a range of positions, and the batch holds images "
                f"({describe(batch)}): give the pixels of the shorter side, or a function of the batch"
            )
        return _changed(batch, self._smaller_image)

    def _smaller_image(self, leaf: Any) -> Any:
        if not _is_image(leaf):
            return leaf
        last = _channels_last(leaf)
        image_BCXY = leaf.permute(0, 3, 1, 2) if last else leaf
        sides = image_BCXY.shape[2:]
        if min(sides) <= self.size:
            return leaf
        new = [round(side * self.size / min(sides)) for side in sides]
        small = coarser(image_BCXY.float(), new)
        if not leaf.is_floating_point():
            small = small.round()
        small = small.to(leaf.dtype)
        return small.permute(0, 2, 3, 1) if last else small

    # -- sequences

    def _cut(self, call: Call, batch: Any, length: int | None, host: Any) -> Any:
        assert not callable(self.size)
        first, end = (0, self.size) if isinstance(self.size, int) else self.size
        if length is None:
            lengths = sorted(_lengths(call, batch))
            held = "neither images (B, C, height, width) nor tokens (B, T)"
            if lengths:
                held = f"sequences of {' and '.join(map(str, lengths))} tokens"
            raise ValueError(
                f"view={self.size!r}: the batch holds {held} ({describe(batch)}): pass view=lambda batch: … "
                "that returns a batch of smaller samples"
            )
        labels = call.labels_of(batch)
        for name, value in labels.items():
            if name in _POSITIONS or (value.is_floating_point() and _by_position(value, length)):
                raise ValueError(
                    f"view={self.size!r}: what becomes of {name} {tuple(value.shape)} in a part of a sequence "
                    "cannot be determined: pass view=lambda batch: … that returns a batch of shorter samples"
                )
        if end >= length and first == 0:
            return batch
        if first >= length:
            raise ValueError(f"view={self.size!r} begins after the {length} positions of a batch")
        whole = mask_of(host)
        if whole is not None and whole.ndim == 2:
            mask = _part(whole, length, first, end)
            lost = (mask.sum(dim=1) == 0) & (whole.sum(dim=1) > 0)
            if bool(lost.any()):
                raise ValueError(
                    f"view={self.size!r} shows nothing but padding of {int(lost.sum())} of {len(lost)} sequences "
                    "(they are padded on the left, or shorter than where it begins): pad on the right, "
                    "or pass view=lambda batch: … that returns a batch of shorter samples"
                )
        pairs = mask_of(batch)
        return _changed(batch, lambda leaf: _part(leaf, length, first, end, masks=leaf is pairs))


_WAYS = (
    "give a number of positions or pixels from 1, (first, end) of the positions, or a function "
    "view(batch) -> batch"
)


def check_seen(
    view: View, call: Call, batch: Any, seen: Any, *, parts: Sequence[Part] = ()
) -> None:
    """Raise where a view hides the labels of most samples, which would all score alike.

    Args:
        parts: what is predicted. Where a label is predicted from the position before it, the first
            that is seen does not count.
    """
    known = {part.labels: part for part in parts}
    whole = call.labels_of(batch)
    for name, value in call.labels_of(seen).items():
        before = whole.get(name)
        if before is None or value.ndim < 2 or value.is_floating_point():
            continue
        had_B, has_B = (_labelled(known.get(name), labels) for labels in (before, value))
        if int(has_B.sum()) * 2 < int(had_B.sum()):
            raise ValueError(
                f"view={view!r} shows no label of {int((had_B & ~has_B).sum())} of {int(had_B.sum())} samples "
                f"({name}), which would all score 0: show more of them, or pass view=lambda batch: … that "
                "returns the part with labels"
            )


def _labelled(part: Part | None, labels: Tensor) -> Tensor:
    """Which samples have a label at some position."""
    return (labels.flatten(1) >= 0 if part is None else part.labelled(labels)).any(dim=1)


def _changed(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A batch of the same type with its tensors changed."""
    if is_leaf(batch):
        return change(batch)
    return rebuild(batch, lambda member, _: _changed(member, change))


def _versions(batch: Any) -> list[int | None]:
    """How often the tensors of a batch were written to; None for what does not tell."""
    return [
        leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else None
        for leaf in leaves(batch)
    ]


def _is_image(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor) or leaf.is_nested or leaf.ndim != 4:
        return False
    byte = not leaf.is_floating_point() and leaf.element_size() == 1
    # masks of attention, (B, 1, T, T), are no pictures
    return (leaf.is_floating_point() or byte) and min(leaf.shape[1], leaf.shape[3]) <= 4


def _channels_last(image: Tensor) -> bool:
    return image.shape[3] <= 4 < image.shape[1]


def _is_tokens(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor) or leaf.is_nested or leaf.ndim != 2 or leaf.shape[1] < 2:
        return False
    return not leaf.is_floating_point() and not leaf.is_complex()


def _lengths(call: Call, batch: Any) -> set[int]:
    """How many positions a batch's token sequences have, by its inputs alone."""
    labels = {id(value) for value in call.labels_of(batch).values()}
    return {leaf.shape[1] for leaf in leaves(batch) if _is_tokens(leaf) and id(leaf) not in labels}


def _by_position(value: Tensor, length: int) -> bool:
    return value.ndim >= 2 and value.shape[1] == length


def _part(leaf: Any, length: int, first: int, end: int, *, masks: bool = False) -> Any:
    """A stretch of what has an entry for each position; masks of all pairs along both.

    Args:
        masks: whether it is the batch's attention mask, of whatever shape.
    """
    if not isinstance(leaf, Tensor) or leaf.is_nested or leaf.ndim < 2:
        return leaf
    if leaf.ndim > 2 and (masks or (leaf.ndim == 4 and leaf.shape[2:] == (length, length))):
        for dim in (-2, -1):
            if leaf.shape[dim] == length:
                leaf = leaf.narrow(dim, first, min(end, length) - first)
        return leaf.contiguous()
    # contiguous, since models reshape their inputs by `view`
    return leaf[:, first:end].contiguous() if leaf.shape[1] == length else leaf
