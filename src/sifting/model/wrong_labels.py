"""The label that a training step failed on, by its row and its value.

A loss knows which labels it takes, and what it does with the others; nothing is refused in its place. But
what it says of one that it cannot take has no row, and on a GPU not even a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sifting.model.call import Call
from sifting.model.matching import match_parts
from sifting.model.parts import first_wrong

FAILURES = (IndexError, RuntimeError)  # what losses raise on labels that they cannot take
NAMED = re.compile(r"(?:Target|index) (-?\d{1,18}) is out of bounds")
UNNAMED = ("device-side assert", "Class values must be")  # messages without the label's value
MEAN_NONE = (-1, 255)  # beside −100, numbers that losses are often told to ignore


def wrong_label(
    call: Call,
    shapes: Mapping[str, Sequence[int]],
    batch: Any,
    error: BaseException | None = None,
) -> ValueError | None:
    """An error with the row and the value of the label that a loss failed on; None where it was another cause.

    >>> batch = (torch.zeros(3, 2), torch.tensor([4, 9, -3]))
    >>> error = IndexError("Target -3 is out of bounds.")
    >>> print(wrong_label(Call(), {"logits": (3, 10)}, batch, error))
    labels[2] is -3, and logits of shape (3, 10) have classes from 0 to 9: correct that label, or ...

    Labels on a GPU are not looked at: it may not answer any more.

    Args:
        call: knows where a batch has its labels.
        shapes: of the model's outputs, by name.
        batch: that was trained.
        error: of the loss; None where nobody knows whether there was one.
    """
    said = "" if error is None else str(error)
    values = [int(number) for number in NAMED.findall(said)]
    unnamed = error is None or any(part in said for part in UNNAMED)
    if not unnamed and not values:
        return None
    labels = {name: value for name, value in call.labels_of(batch).items() if not value.is_cuda}
    outputs = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    for part in (ways[0] for ways in match_parts(outputs, labels) if ways[0].has_classes):
        given = labels[str(part.labels)]
        # those that the message is about; or, where it names none, those that mean nothing usual
        others = torch.isin(given, torch.tensor(MEAN_NONE if unnamed else values))
        found = first_wrong(
            part, shapes[part.logits], given.masked_fill(others == unnamed, part.ignore)
        )
        if found is not None:
            place, value, classes = found
            return ValueError(
                f"{part.labels}[{', '.join(map(str, place))}] is {value}, and logits of shape "
                f"{tuple(shapes[part.logits])} have classes from 0 to {classes - 1}: correct that label, or have "
                f"your loss ignore it (ignore_index={value})"
            )
    return None
