"""One member of a batch: how many samples it holds, and some of them.

Shapes: N samples, K of them taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from sifting.data.tree import index_on, is_array, is_graph, is_tensordict, leading

_INDEXED = (torch.strided, torch.sparse_coo, torch.jagged)


def own_size(leaf: Any) -> int | None:
    """How many samples a leaf says that it holds; None where it does not say.

    >>> own_size(torch.zeros(4, 7)), own_size(torch.tensor(3.0)), own_size("text")
    (4, None, None)
    """
    if is_array(leaf):
        return leading(leaf) if leaf.ndim else None
    if isinstance(leaf, PackedSequence):
        return int(leaf.batch_sizes[0])
    if is_tensordict(leaf):
        return int(leaf.batch_size[0]) if leaf.batch_size else None
    if is_graph(leaf):
        count = getattr(leaf, "num_graphs", None)
        if count is None or getattr(leaf, "batch", count) is None:
            # DGL counts its graphs in `batch_size`; one graph alone is not a batch
            count = getattr(leaf, "batch_size", None) if hasattr(leaf, "batch_num_nodes") else None
        return count if isinstance(count, int) else None
    return None


def indivisible(leaf: Any, size: int) -> str | None:
    """Why samples cannot be taken from a leaf, and what helps; None where they can.

    >>> indivisible({1, 2, 3}, 3)
    'is a set of 3 entries, a type that cannot be divided'
    """
    kind = type(leaf).__name__
    if isinstance(leaf, Tensor):
        if leaf.layout not in _INDEXED and leading(leaf) == size:
            return (
                f"is a tensor of layout {leaf.layout}, which cannot be indexed by sample: "
                "use .to_sparse_coo()"
            )
        return None
    if is_graph(leaf):
        if own_size(leaf) != size:
            return f"is a {kind} that does not hold one graph per sample"
        if not callable(getattr(leaf, "index_select", None)) or not hasattr(leaf, "from_data_list"):
            return f"is a {kind}, whose graphs cannot be chosen from here"
        return None
    if isinstance(leaf, PackedSequence):
        count = own_size(leaf)
        return None if count == size else f"is a PackedSequence of {count} sequences"
    if is_tensordict(leaf):
        return None if own_size(leaf) == size else f"is a {kind} of batch size {leaf.batch_size}"
    return None if is_array(leaf) or leaf is None else _opaque(leaf, kind, size)


def _opaque(leaf: Any, kind: str, size: int) -> str | None:
    """An object that we know nothing about may go along only if it can hold no samples."""
    if isinstance(leaf, str | bytes | int | float | complex | type) or callable(leaf):
        return None
    try:
        if len(leaf) == size:
            return f"is a {kind} of {size} entries, a type that cannot be divided"
    except TypeError:
        pass
    if tuple(getattr(leaf, "shape", None) or ())[:1] == (size,):
        return f"is a {kind} of {size} rows, a type that cannot be divided"
    if any(is_array(value) for value in getattr(leaf, "__dict__", {}).values()):
        return f"is a {kind}, which holds tensors where they cannot be divided"
    return None


def pick(column: Any, indices_K: Tensor, *, shared: dict[int, Tensor] | None = None) -> Any:
    """Some samples of a member that has one entry per sample.

    >>> pick(["a", "b", "c"], torch.tensor([2, 0]))
    ['c', 'a']

    Args:
        column: a tensor, an array, a list or tuple of entries, or a batch of graphs.
        indices_K: which, in the order wanted.
        shared: what ragged tensors of one batch share, filled here: those with the same offsets
            must have the same offsets afterwards, or they no longer add up.
    """
    if isinstance(column, Tensor):
        if column.is_nested:
            return _pick_nested(column, indices_K, {} if shared is None else shared)
        return column.index_select(0, index_on(indices_K, column))
    if is_array(column):
        return column[indices_K.cpu().numpy()]
    if isinstance(column, PackedSequence):
        return _pick_packed(column, indices_K)
    if is_tensordict(column):
        return column[indices_K]
    if is_graph(column):
        return _collated(column, list(column.index_select(indices_K.cpu())))
    entries = [column[i] for i in indices_K.tolist()]
    return entries if isinstance(column, list) else tuple(entries)


def put_together(batches: Sequence[Any]) -> Any:
    """One batch of the graphs of several."""
    graphs = [
        graph for one in batches for graph in one.index_select(torch.arange(own_size(one) or 0))
    ]
    return _collated(batches[0], graphs)


def _collated(like: Any, graphs: list[Any]) -> Any:
    # the class that collates: the batch's own is made from it and from the graphs' class
    named: list[Any] = [kind for kind in type(like).__mro__ if kind.__name__ == "Batch"]
    return (named or [type(like)])[0].from_data_list(graphs)


def _pick_nested(column: Tensor, indices_K: Tensor, shared: dict[int, Tensor]) -> Tensor:
    ragged: Any = column
    plain = column.layout == torch.jagged and ragged._ragged_idx == 1 and ragged.lengths() is None
    if not plain:
        parts = column.unbind()
        chosen = [parts[i] for i in indices_K.tolist()]
        return torch.nested.as_nested_tensor(chosen, layout=column.layout)
    offsets = ragged.offsets()
    starts_K = offsets[indices_K.to(offsets.device)]
    lengths_K = offsets.diff()[indices_K.to(offsets.device)]
    key = id(offsets)
    if key not in shared:
        shared[key] = torch.cat([offsets.new_zeros(1), lengths_K.cumsum(0).to(offsets.dtype)])
    new = shared[key]
    within = torch.arange(int(new[-1]), device=offsets.device)
    rows = within + torch.repeat_interleave(starts_K - new[:-1], lengths_K)
    return torch.nested.nested_tensor_from_jagged(ragged.values().index_select(0, rows), new)


def _pick_packed(column: PackedSequence, indices_K: Tensor) -> PackedSequence:
    padded_NT, lengths_N = pad_packed_sequence(column, batch_first=True)
    lengths_K = lengths_N[indices_K.cpu()]
    chosen_KT = padded_NT.index_select(0, index_on(indices_K, padded_NT))
    in_order = column.sorted_indices is None and bool((lengths_K.diff() <= 0).all())
    return pack_padded_sequence(chosen_KT, lengths_K, batch_first=True, enforce_sorted=in_order)
