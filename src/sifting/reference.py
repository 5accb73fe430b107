"""References of score="reducible"; their losses, computed once for every sample of a data set.

Shapes: B samples of a batch, N samples of the data set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.by_index import IndexDraws, OwnStreams, namer
from sifting.data.stream import plain_indices
from sifting.exits.held_out import HeldOutReference
from sifting.exits.reference import MANY, Reference, ReferenceTable, label_marks
from sifting.measure.audit import warn_user
from sifting.rng import RandomState
from sifting.selection.tokens import described
from sifting.sifter import Sifter

__all__ = ["HeldOutReference", "Reference", "ReferenceTable", "reference_losses"]


def reference_losses(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    about: str = "",
    watch: Callable[[int], None] | None = None,
    **options: Any,
) -> ReferenceTable:
    """The loss of every sample of a loader by a model as it is, for `score="reducible"`.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
    >>> reference_losses(nn.Linear(4, 3), DataLoader(data, batch_size=8)).of_ids([0, 23]).shape
    torch.Size([2])

    The model may be a smaller one, one trained on other data, or the one to be trained as it is
    before. Of a `DataLoader` over a map-style data set all samples are read once, in their order,
    whatever its sampler draws; their IDs are their indices. A data set that is read by more than an
    index (a pair with a seed) is read as the sampler draws it, once, and its `sample_id(drawn)` names
    the samples. Of any other loader, `ids=` finds them. What a loader leaves out is warned of.
    Model, loader and random streams stay as they were.

    Args:
        model: the reference.
        loader: of the data that is to be trained.
        about: what the reference is, for people.
        watch: told, after each batch, how many samples are done.
        options: arguments of `Sifter` that say how a sample's loss is made: forward, labels, ids,
            loss_fn, losses, batch_size, take, tokens, score_batch_size.
    """
    sifter = Sifter(model, exit="last", score="loss", keep=0.5, audit_every=0, **options)
    ids: list[Any] = []
    losses: list[Tensor] = []
    marks: list[Tensor | None] = []
    streams = RandomState.now()
    parts = ("dataset", "sampler", "batch_sampler")
    held = [loader, *(getattr(loader, name, None) for name in parts)]
    own = [OwnStreams(one) for one in held]
    try:
        for batch, found in _read(sifter, loader):
            losses.append(_losses(sifter, batch, len(found)))
            marks.append(label_marks(sifter._scorer.call, batch))
            ids += found
            if watch is not None:
                watch(len(ids))
        known = [mark for mark in marks if mark is not None]
        marks_N = torch.cat(known) if ids and len(known) == len(marks) else None
        if marks_N is not None and not _steady(sifter, loader, ids, marks_N):
            marks_N = None
    finally:
        for kept in own:
            kept.restore()
        streams.restore()
    if not ids:
        raise ValueError("the loader gives no batch, so there is nothing to compute losses of")
    _say_what_is_missing(loader, ids)
    return _table(
        ids,
        torch.cat(losses),
        marks_N=marks_N,
        about=about or type(model).__name__,
        tokens=described(sifter.tokens),
    )


def _read(sifter: Sifter, loader: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Batches with the IDs of their samples: every sample of a data set, whatever is drawn of it."""
    call, draws = sifter._scorer.call, IndexDraws.of(loader)
    if draws is None or not isinstance(loader.dataset, Sized):
        if call.ids is None:
            raise ValueError(
                f"a {type(loader).__name__} does not say which sample is which: give a DataLoader over a "
                "map-style data set, or pass ids=, the key of the batch that holds the samples' IDs"
            )
        yield from _as_drawn(sifter, loader)
        return
    size = getattr(loader.batch_sampler, "batch_size", None) or 32
    for start in range(0, len(loader.dataset), size):
        indices = list(range(start, min(start + size, len(loader.dataset))))
        try:
            batch = draws.read(indices)
        except Exception:
            if start or _draws_numbers(loader):
                raise
            yield from _as_drawn(sifter, loader)  # the data set is read by more than an index
            return
        yield batch, indices if call.ids is None else plain_indices(call.ids_of(batch))


def _draws_numbers(loader: Any) -> bool:
    """Whether a loader's sampler draws indices and nothing else."""
    first: Any = next(iter(loader.batch_sampler), [])
    return all(isinstance(one, int) for one in plain_indices(first))


def _as_drawn(sifter: Sifter, loader: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Batches of one pass of the loader's own order."""
    call, draws = sifter._scorer.call, IndexDraws.of(loader)
    if draws is None:
        for batch in loader:
            yield batch, plain_indices(call.ids_of(batch))
        return
    name = namer(loader)
    for drawn in loader.batch_sampler:
        batch = draws.read(drawn)
        yield batch, name(drawn) if call.ids is None else plain_indices(call.ids_of(batch))


def _say_what_is_missing(loader: Any, ids: Sequence[Any]) -> None:
    """Warn of samples that a loader did not give, which therefore have no reference."""
    there = getattr(loader, "dataset", None)
    if not isinstance(there, Sized) or len(set(ids)) >= len(there):
        return
    warn_user(
        f"{len(there) - len(set(ids))} of {len(there)} samples have no loss of the reference, since the loader "
        "did not give them (drop_last=True, or a sampler that draws a part): a run that draws one of them "
        "is refused. Make the reference with a loader that gives every sample once"
    )


def _losses(sifter: Sifter, batch: Any, count: int) -> Tensor:
    losses_B = sifter._scorer.scores(batch, learn=False)
    if losses_B is None:
        raise ValueError(
            "a batch has no sample with a label, so that there is no loss: pass labels="
        )
    if len(losses_B) != count:
        raise ValueError(
            f"{count} IDs for {len(losses_B)} samples: rows hold several documents, and a sifter that draws rows "
            "knows none of them. Leave out packing here and in training (TRL: packing=False, padding_free=False), "
            "pack running text (packing_strategy='wrapped'), or pass ids= with one for each document"
        )
    return losses_B.cpu()


def _steady(sifter: Sifter, loader: Any, ids: list[Any], marks_N: Tensor) -> bool:
    """Whether samples that are read again, as in training, have the same labels: not where masks are drawn."""
    if isinstance(loader, Iterator):
        return False  # there is no second time
    batch, found = next(_as_drawn(sifter, loader), (None, []))
    again_B = label_marks(sifter._scorer.call, batch) if found else None
    places = {one: place for place, one in enumerate(ids)}
    if again_B is None or not all(one in places for one in found):
        return False
    return torch.equal(marks_N[[places[one] for one in found]], again_B)


def _table(
    ids: Sequence[Any], losses_N: Tensor, *, marks_N: Tensor | None, about: str, tokens: str
) -> ReferenceTable:
    told = {"about": about, "tokens": tokens}
    if len(set(ids)) != len(ids):
        raise ValueError(
            f"{len(ids)} samples have {len(set(ids))} different IDs: give each its own"
        )
    whole = all(isinstance(one, int) and 0 <= one < MANY for one in ids)
    if not whole:
        if not all(isinstance(one, str) for one in ids):
            odd = next(one for one in ids if not isinstance(one, str))
            raise ValueError(
                f"the ID {odd!r}: give whole numbers from 0, or strings; where a sampler draws more than an "
                "index, let the data set have a method sample_id(drawn)"
            )
        return ReferenceTable(losses_N, ids=list(ids), marks_N=marks_N, **told)
    places = torch.tensor(ids)
    room = int(places.max()) + 1
    all_N = torch.full((room,), float("nan")).index_copy(0, places, losses_N.float())
    if marks_N is not None:
        marks_N = torch.zeros(room, dtype=torch.long).index_copy(0, places, marks_N)
    return ReferenceTable(all_N, marks_N=marks_N, **told)
