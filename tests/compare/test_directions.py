"""Which way a metric is better, by its name."""

from __future__ import annotations

import logging

import pytest

from sifting.compare.directions import less_is_better, say_direction


@pytest.mark.parametrize(
    ("metric", "less"),
    [
        ("eval_loss", True),
        ("val/rmse", True),
        ("eval_WER", True),
        ("top1_error", True),
        ("perplexity", True),
        ("hinge-loss", True),
        ("eval_accuracy", False),
        ("power", False),  # "wer" is a part of the word
        ("hits", False),
    ],
)
def test_less_is_better_of_what_reads_so(metric: str, less: bool) -> None:
    assert less_is_better(metric) is less


@pytest.mark.parametrize(
    ("metric", "greater", "said"),
    [
        ("eval_loss", False, ""),
        ("eval_accuracy", True, ""),
        ("eval_wer", True, "more is taken to be better, though its name reads as if less were"),
        ("hits", True, "of hits, more is taken to be better: if it is not, do this"),
        ("accuracy", False, "less is taken to be better, though its name reads as if more were"),
    ],
)
def test_a_guess_is_said(
    metric: str, greater: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sifting"):
        say_direction(metric, greater=greater, how="do this")
    assert said in caplog.text
    assert bool(caplog.text) is bool(said)
