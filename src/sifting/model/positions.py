"""Where the positions are that are scored: found where the labels are, best before they are on a device.

Which positions have a label decides how many rows a head is given, and a host that asks a device for
that has to wait for all it was given before. So it is asked of the batch as the loader gave it.

Shapes: B rows of T positions, N positions that count.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sifting.selection.tokens import Layout


@dataclass(frozen=True, eq=False)
class Places:
    """The positions of one term of an objective that count in a batch.

    >>> import torch
    >>> places = Places.of(torch.tensor([[True, False, True]]), torch.tensor([[0, 0, 1]]))
    >>> places.t_N, places.layout.documents
    (tensor([0, 2]), 2)

    Attributes:
        mask_BT: which they are.
        b_N, t_N: the row and the place of each, in row-major order.
        documents_BT: where rows hold several samples each, which of them a position belongs to.
        layout: then, how they are laid out by sample.
    """

    mask_BT: Tensor
    b_N: Tensor
    t_N: Tensor
    documents_BT: Tensor | None = None
    layout: Layout | None = None

    @classmethod
    def of(cls, mask_BT: Tensor, documents_BT: Tensor | None = None) -> Places:
        """Of a mask, looked up where it is."""
        b_N, t_N = mask_BT.nonzero(as_tuple=True)
        layout = None if documents_BT is None else Layout.of(documents_BT, b_N, t_N)
        return cls(mask_BT, b_N, t_N, documents_BT, layout)

    def to(self, like: Tensor) -> Places:
        """The same on the device of another tensor; nothing is waited for."""
        device = like.device
        if self.mask_BT.device == device:
            return self

        def moved(value: Tensor) -> Tensor:
            return value.to(device, non_blocking=True)

        return Places(
            moved(self.mask_BT),
            moved(self.b_N),
            moved(self.t_N),
            None if self.documents_BT is None else moved(self.documents_BT),
            None if self.layout is None else self.layout.each(moved),
        )
