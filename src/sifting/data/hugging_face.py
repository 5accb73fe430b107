"""Streams of Hugging Face's `datasets`, and what is special about how they continue from a state."""

from __future__ import annotations

from typing import Any


def is_stream(data: Any) -> bool:
    """Whether a data set is one of their `IterableDataset`s.

    >>> is_stream([1, 2, 3])
    False
    """
    return any(
        kind.__name__ == "IterableDataset" and kind.__module__.split(".")[0] == "datasets"
        for kind in type(data).__mro__
    )


def loses_samples(data: Any) -> bool:
    """Whether a stream that continues from its state leaves samples out: what a shuffle's buffer held."""
    found = [getattr(data, "_ex_iterable", None)] if is_stream(data) else []
    while found:
        node = found.pop()
        if type(node).__name__ == "BufferShuffledExamplesIterable":
            return True
        inside = [getattr(node, "ex_iterable", None), *(getattr(node, "ex_iterables", None) or ())]
        found += [one for one in inside if one is not None]
    return False


def begin_whole(data: Any) -> None:
    """Let a stream's next iterations begin at the beginning.

    One that was given a state begins each of them there, until it is told another epoch.
    """
    if is_stream(data):
        data.load_state_dict({})
