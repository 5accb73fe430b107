"""Whether less of a metric is better, where nobody says so: by its name."""

from __future__ import annotations

import re

from sifting.log import say

LESS = "loss error err mse mae rmse mape wer cer ter nll ppl bpc bpb"
MORE = "acc accuracy f1 auc auroc precision recall score bleu rouge map iou dice r2"


def less_is_better(metric: str) -> bool:
    """Whether a metric's name says that less of it is better.

    >>> less_is_better("eval_wer"), less_is_better("val/perplexity"), less_is_better("accuracy")
    (True, True, False)
    """
    return any(
        word in LESS.split() or word.endswith(("loss", "error", "plexity"))
        for word in _words(metric)
    )


def say_direction(metric: str, *, greater: bool, how: str) -> None:
    """Say which way a metric is taken to be better, where its name says otherwise, or nothing.

    Args:
        metric: its name.
        greater: whether more of it is taken to be better.
        how: how to say otherwise.
    """
    less = less_is_better(metric)
    more = any(
        word in MORE.split() or word.endswith(("acc", "accuracy", "score"))
        for word in _words(metric)
    )
    if (greater and not less and more) or (less and not greater):
        return
    side, name = ("more", "less") if greater else ("less", "more")
    why = f", though its name reads as if {name} were" if less or more else ""
    say(f"of {metric}, {side} is taken to be better{why}: if it is not, {how}")


def _words(metric: str) -> list[str]:
    return re.findall("[a-z0-9]+", metric.lower())
