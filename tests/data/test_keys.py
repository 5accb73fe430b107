from __future__ import annotations

import datetime
import enum
import io
import math
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
import torch

from sifting.data.keys import as_ids, plain_key, plain_keys


class Place(NamedTuple):
    file: str
    line: int


class Side(enum.Enum):
    LEFT = 1


KEYS: list[Any] = [
    *(3, 2**70, -5, 1.5, "a", b"a", None, (0, "left"), Place("a", 3), Side.LEFT, UUID(int=7)),
    *(frozenset("abc"), Path("a/b"), datetime.date(2020, 1, 2), np.str_("b"), np.int64(4)),
    (UUID(int=7), Side.LEFT),
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)  # a set's order is chance
def test_a_key_has_one_plain_form_that_a_file_holds(key: Any) -> None:
    plain = plain_key(key)
    assert plain_key(plain) == plain
    file = io.BytesIO()
    torch.save([plain], file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == [plain]


def test_different_keys_have_different_forms() -> None:
    assert len(set(map(plain_key, KEYS))) == len(KEYS)
    assert plain_keys(torch.tensor([2, 1])) == [2, 1]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ([1], r"\[1\] is a list, which cannot be the key of a dict"),
        (torch.arange(2), r"tensor\(\[0, 1\]\) is a Tensor, which cannot be the key"),
        (object(), "is known by its place in memory"),
        (math.nan, "nan is not equal to itself"),
    ],
)
def test_what_would_not_be_found_again_is_refused(key: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_key(key)
    with pytest.raises(ValueError, match=rf"ids='name': the ID .*{message}.*: give whole numbers"):
        as_ids(["a", key], asked="name")


@pytest.mark.parametrize("given", [[3, 1], (3, 1), np.array([3, 1]), torch.tensor([3, 1])])
def test_whole_numbers_are_a_tensor(given: Any) -> None:
    assert as_ids(given, asked="index").tolist() == [3, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [[2**70, 1], ["a", 1], np.array(["a", "b"]), [1.5, 2.5]])
def test_anything_else_is_a_list(given: Any) -> None:
    assert as_ids(given, asked="index") == list(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.rand(2), "gave a tensor of torch.float32"),
        (torch.zeros(2, 2).long(), r"shape \(2, 2\): a whole number"),
        ([True, False], "gave True, …: True and False cannot tell"),
        ("ab", "gave 'ab': a tensor or a list"),
        (7, "gave 7: a tensor or a list"),
    ],
)
def test_what_is_no_list_of_ids_is_named(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"ids='index' .*{message}"):
        as_ids(given, asked="index")
