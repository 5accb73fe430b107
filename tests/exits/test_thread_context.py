"""What torch keeps for each thread, as scoring in a thread needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sifting.exits.thread_context import Context, prepare_thread


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_gradients_are_off_and_the_precision_is_that_of_training() -> None:
    context = Context(torch.device("cpu"), torch.bfloat16, torch.device("cpu"), None)
    layer = nn.Linear(2, 2)

    def work() -> tuple[bool, torch.dtype, bool]:
        prepare_thread()
        with context.open():
            out = layer(torch.ones(1, 2))
        return out.requires_grad, out.dtype, torch.is_grad_enabled()

    assert in_thread(work) == (False, torch.bfloat16, True)
    assert not torch.is_autocast_enabled("cpu")


def test_an_autocast_that_is_open_already_stays() -> None:
    context = Context(torch.device("cpu"), torch.bfloat16, torch.device("cpu"), None)
    with torch.autocast("cpu", torch.float16), context.open():
        assert torch.get_autocast_dtype("cpu") == torch.float16


def test_new_tensors_are_where_the_users_are() -> None:
    context = Context(torch.device("cpu"), None, torch.device("meta"), None)
    assert in_thread(lambda: made_in(context)).type == "meta"
    assert torch.zeros(1).device.type == "cpu"


def made_in(context: Context) -> torch.device:
    with context.open():
        return torch.zeros(1).device


def test_weights_cast_there_do_not_reach_the_forward_that_trains() -> None:
    """Autocast keeps cast weights in one cache for all threads; without gradients they have no use here."""
    layer = nn.Linear(2, 2)
    context = Context(torch.device("cpu"), torch.bfloat16, torch.device("cpu"), None)

    def work() -> None:
        prepare_thread()
        with context.open():
            layer(torch.ones(1, 2))

    with torch.autocast("cpu", torch.bfloat16):
        in_thread(work)
        layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.any()
