"""The label that a training step failed on, by its row and its value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sifting.model.call import Call
from sifting.model.wrong_labels import wrong_label


def failed(logits: Tensor, labels: Tensor, how: Any = F.cross_entropy) -> Exception:
    """What a loss says of labels."""
    try:
        how(logits, labels)
    except (IndexError, RuntimeError) as error:
        return error
    raise AssertionError("it took them")


def gathered(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(-1).gather(-1, labels[..., None])


def indexed(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(-1)[torch.arange(len(labels)), labels]


def hot(logits: Tensor, labels: Tensor) -> Tensor:
    return (F.one_hot(labels, logits.shape[-1]) - logits).square()


@pytest.mark.parametrize("loss", [F.cross_entropy, gathered, indexed, hot])
def test_what_losses_say_is_understood(loss: Any) -> None:
    logits, labels = torch.randn(6, 10), torch.tensor([1, 2, 3, 12, 5, 14])
    error = failed(logits, labels, loss)
    found = wrong_label(Call(), {"logits": (6, 10)}, (logits, labels), error)
    assert found is not None
    assert "labels[3] is 12" in str(found) or "labels[5] is 14" in str(found)
    assert "classes from 0 to 9" in str(found)


def test_the_label_that_is_named_is_the_one_that_failed() -> None:
    """Not the first that is of no class: the loss may have been told to ignore that one."""
    logits, labels = torch.randn(4, 3), torch.tensor([7, 7, -3, 1])
    error = failed(logits, labels, lambda z, y: F.cross_entropy(z, y, ignore_index=7))
    found = wrong_label(Call(), {"logits": (4, 3)}, (logits, labels), error)
    assert "labels[2] is -3" in str(found)


def test_positions_of_a_text_are_named_by_row_and_place() -> None:
    logits, labels = torch.randn(2, 5, 10), torch.full((2, 5), 3)
    labels[1, 4] = 11
    error = failed(logits.flatten(0, 1), labels.flatten())
    batch = {"input_ids": torch.zeros(2, 5), "labels": labels}
    found = wrong_label(Call(), {"logits": (2, 5, 10)}, batch, error)
    assert "labels[1, 4] is 11" in str(found)


@pytest.mark.parametrize(
    "error",
    [IndexError("index out of range in self"), RuntimeError("size 12 must match"), KeyError("12")],
)
def test_other_errors_are_no_matter_of_labels(error: Exception) -> None:
    batch = (torch.randn(2, 3), torch.tensor([0, 12]))
    assert wrong_label(Call(), {"logits": (2, 3)}, batch, error) is None


def test_where_nothing_was_said_numbers_that_mean_none_are_passed_over() -> None:
    shapes = {"logits": (4, 3)}
    usual = (torch.randn(4, 2), torch.tensor([-1, 255, -100, 2]))
    assert wrong_label(Call(), shapes, usual) is None
    odd = (torch.randn(4, 2), torch.tensor([-1, 255, -3, 2]))
    assert "labels[2] is -3" in str(wrong_label(Call(), shapes, odd))
    numbers = (torch.randn(4, 2), torch.tensor([-1.0, 255.0, -3.0, 2.0]))
    assert wrong_label(Call(), shapes, numbers) is None
