"""Candidates that are drawn and scored before their turn."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import nn

from sifting.exits.drawn_ahead import (
    DrawnAhead,
    check_copy,
    check_repeatable,
    check_unwritten,
    versions_of,
)
from sifting.rng import RandomState


def test_what_was_scored_ahead_comes_back_without_its_candidates() -> None:
    future: Future[Any] = Future()
    future.set_result((torch.tensor([1.0, 2.0]), {"batches": 1}))
    ahead = DrawnAhead("candidates", RandomState.now(), future=future)
    again = DrawnAhead.from_plain(ahead.to_plain(), {"batches": 7})
    assert again is not None
    assert again.batch is None
    assert again.scores is not None
    assert again.scores.tolist() == [1.0, 2.0]
    assert again.lessons == {"batches": 1}
    assert again.streams.same_as(ahead.streams)
    assert DrawnAhead.from_plain(None, {}) is None


def test_what_failed_is_not_part_of_a_state() -> None:
    future: Future[Any] = Future()
    future.set_exception(KeyError("in the thread"))
    plain = DrawnAhead("candidates", RandomState.now(), future=future).to_plain()
    assert (plain["scores"], plain["lessons"]) == (None, {})


def test_a_damaged_state_is_refused() -> None:
    with pytest.raises(ValueError, match="what was scored ahead has no 'streams'"):
        DrawnAhead.from_plain({"scores": None, "lessons": {}}, {})
    plain = DrawnAhead("candidates", RandomState.now(), lessons={"batches": 1}).to_plain()
    with pytest.raises(ValueError, match="'batches', which the exit has not learned"):
        DrawnAhead.from_plain(plain, {})


def test_a_parameter_that_is_written_meanwhile_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    versions = versions_of(model)
    check_unwritten(model, versions)
    with torch.no_grad():
        model[1].bias += 1
    with pytest.raises(RuntimeError, match=r"parameter '1\.bias' was written .* sifter\.wait\(\)"):
        check_unwritten(model, versions)


def test_what_could_not_be_repeated_is_refused() -> None:
    check_repeatable(False, [])
    with pytest.raises(ValueError, match="scoring draws random numbers"):
        check_repeatable(True, [])
    with pytest.raises(ValueError, match="a forward hook on 'head' changes what passes"):
        check_repeatable(False, ["'head'"])


def test_a_copy_has_to_score_alike_and_by_itself() -> None:
    scores = torch.tensor([1.0, torch.nan, 3.0])
    check_copy([], scores, scores.clone(), exact=True)
    near = scores + 1e-6
    check_copy([], near, scores, exact=False)
    with pytest.raises(ValueError, match=r"a copy of the model scores row \d"):
        check_copy([], near, scores, exact=True)
    with pytest.raises(ValueError, match=r"still runs 'blocks\.0' of the model itself"):
        check_copy(["blocks.0"], scores, scores, exact=True)
