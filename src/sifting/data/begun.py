"""An iteration that a loader began before it was iterated: torchdata's, when asked for its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sifting.data.generators import generators_of


@dataclass(frozen=True)
class Begun:
    """The batches of indices that the loader's next epoch will have.

    Attributes:
        indices: what is left to iterate; all of them, since none was read yet.
        generators: the loader's, as they were before the order was drawn.
    """

    indices: Iterator[Any]
    generators: Mapping[str, Tensor]


def take_begun(loader: Any) -> Begun | None:
    """Take over the iteration that a `StatefulDataLoader` has begun; None where it has not.

    `state_dict` begins one, which draws the seed of workers and, by torchdata's own samplers, the
    order; Accelerate asks for it when it prepares a loader. A plain loop then goes on with that, and
    so does whoever takes it over. With worker processes, which have been told the first batches
    by then, it cannot be: see `begun_by_workers`.
    """
    base = _inside(loader)
    if not _has_begun(base) or base.num_workers > 0:
        return None
    iterator = base.__dict__["_iterator"]
    base.__dict__.update(_initial_iter_for_state_dict=False, _iterator=None)
    indices = iterator._sampler_iter
    # torchdata's own samplers have drawn their order already, and remember from what
    order = getattr(indices, "sampler_iter", None)
    drawn_from = getattr(getattr(order, "sampler", None), "generator", None)
    before = getattr(order, "generator_state", None)
    states = {
        name: before
        if generator is drawn_from and isinstance(before, Tensor)
        else generator.get_state()
        for name, generator in generators_of(loader).items()
    }
    return Begun(indices, states)


def begun_by_workers(loader: Any) -> bool:
    """Whether a loader's worker processes are reading an epoch already, so that it must be iterated
    as it is to be trained in its own order."""
    base = _inside(loader)
    return _has_begun(base) and base.num_workers > 0


def _inside(loader: Any) -> Any:
    """The loader itself, where Accelerate has wrapped it."""
    return getattr(loader, "__dict__", {}).get("base_dataloader", loader)


def _has_begun(base: Any) -> bool:
    return bool(getattr(base, "__dict__", {}).get("_initial_iter_for_state_dict"))
