"""Do samples lie along the second dimension? Asked of the model, where shapes do not tell.

Shapes: B samples, T positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.tree import describe
from sifting.model.call import Call, logits_of

HALF = (torch.float16, torch.bfloat16)


def refuse_time_first(call: Call, model: nn.Module, batch: Any, given: dict[str, Tensor]) -> None:
    """Raise where rows that are taken for samples are steps of time.

    A recurrent network that is not `batch_first` takes (T, B) and is compared with labels (T, B). To
    choose among rows would drop time steps. There, what the model puts out for a row depends on the
    other rows, and what it puts out for a column does not depend on the other columns; for samples
    along the first dimension, the first is not so.

    Args:
        call: how the model is called.
        model: in eval mode, without gradients.
        batch: a few samples.
        given: the logits that it gave for them.
    """
    size, samples = call.samples.size(batch), call.samples
    names = [n for n, z in given.items() if z.ndim > 2 and len(z) == size and z.shape[1] > 1]
    if size < 2 or not names or samples.take_with is not None:
        return
    name, last = names[0], torch.tensor([size - 1])
    try:
        row = logits_of(call.run(model, samples.take(batch, last, size=size)))[name]
        if _alike(row[0], given[name][-1]):
            return
        length = given[name].shape[1]
        columns = [_first_column(one, length) for one in samples.columns(batch, size=size)]
        column = logits_of(call.run(model, samples.with_columns(batch, columns, size=size)))[name]
        if not _alike(column[:, 0], given[name][:, 0]):
            return
    except (
        RuntimeError,
        ValueError,
        IndexError,
        KeyError,
    ):  # what cannot be divided says so itself
        return
    raise ValueError(
        f"what the model outputs for an entry of the batch's first dimension depends on the other entries, "
        f"and along the second dimension it does not ({describe(batch)}): samples lie along the second "
        "(time first), and only the first is divided. Let the collate function put samples first "
        "(batch_first=True), or pass batch_size=lambda batch: …, take=lambda batch, indices: … and "
        "losses=lambda model, batch: … that returns one loss per sample"
    )


def _first_column(member: Any, length: int) -> Any:
    along = isinstance(member, Tensor) and member.ndim > 1 and member.shape[1] == length
    return member[:, :1] if along else member


def _alike(one: Tensor, other: Tensor) -> bool:
    """The same but for rounding, which differs with the shape of what is multiplied."""
    if one.shape != other.shape:
        return False
    far = float((one.float() - other.float()).abs().max())
    return far <= (0.05 if one.dtype in HALF else 1e-3) * float(other.float().abs().max())
