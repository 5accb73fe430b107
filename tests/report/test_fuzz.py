"""A short part of the hostile folders; `python -m tests.report.fuzz` runs as many as asked for."""

from __future__ import annotations

import os

import pytest

from tests.report.fuzz import check

CASES = int(os.environ.get("SIFT_FUZZ", "40"))


@pytest.mark.parametrize("first", range(0, CASES, 10))
def test_hostile_folders_cost_no_page_and_run_nothing(first: int) -> None:
    for seed in range(first, min(first + 10, CASES)):
        try:
            check(seed, seconds=20)  # other work on the machine slows this one too
        except Exception as error:
            raise AssertionError(f"case {seed}: {type(error).__name__} {error}") from error
