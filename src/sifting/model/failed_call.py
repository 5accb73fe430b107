"""A model that fails when it is called as the batch suggests: what was tried, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sifting.data.tree import describe, is_array

FAILURES = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, AssertionError)
_NOTE = "When scoring, sifting called "


def note_call(
    error: Exception, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Note on an error how a model was called, and what to pass where it is called otherwise.

    >>> error = TypeError("forward() takes 2 positional arguments but 3 were given")
    >>> note_call(error, nn.Linear(8, 2), [torch.zeros(4, 8), torch.zeros(4, 2)], {})
    >>> error.__notes__[0].partition(":")[0]
    'When scoring, sifting called the model as Linear((4, 8), (4, 2))'

    Args:
        error: that was raised. One of this library's own says itself what helps, and a device that is
            full is not helped by another call.
        function: the model, or the user's `forward=`.
        args, kwargs: what it was called with.
    """
    if isinstance(error, torch.OutOfMemoryError) or _ours(error):
        return
    if isinstance(function, nn.Module):
        given = [*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())]
        error.add_note(
            f"{_NOTE}the model as {type(function).__name__}({', '.join(given)}): if your step calls it "
            "otherwise, pass forward=lambda model, batch: …, which returns the logits, and "
            "labels=lambda batch: …; where no loss can be made of logits, losses=lambda model, batch: … "
            "that returns one loss a sample, with exit='last' or exit=MemoryExit()"
        )
    else:
        error.add_note(
            f"{_NOTE}forward=, which you passed, with the model and {describe(args[1])}: let it return the "
            "logits of such a batch"
        )


@contextmanager
def failed_calls() -> Iterator[None]:
    """While open, an error of a model that was called in our way is a ValueError that says so.

    >>> def call():
    ...     try:
    ...         nn.Linear(8, 2)(None)
    ...     except TypeError as error:
    ...         note_call(error, nn.Linear(8, 2), [None], {})
    ...         raise
    >>> with failed_calls():
    ...     call()
    Traceback (most recent call last):
    ValueError: TypeError: linear(): argument 'input' (position 1) must be Tensor, not NoneType. When scoring, ...
    """
    try:
        yield
    except FAILURES as error:
        told = _told(error)
        if told is None:
            raise
        raise ValueError(f"{type(error).__name__}: {str(error).rstrip('.')}. {told}") from error


def model_error(error: BaseException | None) -> BaseException | None:
    """What a model itself has raised, where that is what an error comes from; else None."""
    while error is not None and _told(error) is None:
        error = error.__cause__
    return error


def _told(error: BaseException) -> str | None:
    """What was noted on an error of how a model was called."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if note.startswith(_NOTE)), None)


def _ours(error: Exception) -> bool:
    """Whether an error was raised by this library: in a hook, say."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "sifting"


def _shown(value: Any) -> str:
    """An argument as an error shows it."""
    if is_array(value) or not hasattr(value, "__len__") or isinstance(value, str):
        return describe(value)
    return f"{type(value).__name__} of {len(value)}"
