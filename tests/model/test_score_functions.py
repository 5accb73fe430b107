"""Which scores an objective can give, and score functions of users."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter
from sifting.model.parts import Part, rows_of, score_rows
from sifting.model.score_functions import check_score, takes_rows
from tests.helpers.models import SMALL
from tests.helpers.plans import Language, plan_of, text


@pytest.mark.parametrize("exit", [1, "last", "tuned"])
def test_a_score_function_of_rows_on_a_language_model(exit: Any) -> None:
    net = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    ids = torch.randint(5, 150, (6, 8))
    labels = torch.where(torch.arange(8) < 3, ids, -100)

    def unsure(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        assert logits_NC.ndim == 2 or len(logits_NC) == len(labels_N)
        return 1 - logits_NC.softmax(-1).amax(-1)

    selection = Sifter(net, exit=exit, score=unsure).select({"input_ids": ids, "labels": labels})
    assert selection.scores.shape == (6,)
    assert ((selection.scores > 0) & (selection.scores < 1)).all()


X, Y = torch.randn(8, 3), torch.arange(8) % 4


def unsure(logits_NC: Tensor, labels_N: Tensor | None) -> Tensor:
    return 1 - logits_NC.softmax(-1).max(-1).values


def whole(logits: Tensor, labels: Tensor) -> Tensor:
    return unsure(logits, labels).mean(dim=1)


def test_score_functions_of_rows_and_of_whole_samples_are_told_apart() -> None:
    model, batch = Language(), text()
    plan = plan_of(model, batch)
    with torch.no_grad():
        assert plan.for_score(unsure, model, batch).by_rows
        assert not plan.for_score(whole, model, batch).by_rows
        assert not plan.for_score("entropy", model, batch).by_rows
        assert not plan.for_score(lambda z, y: z[0], model, batch).by_rows

        def said(z: Tensor, y: Tensor) -> Tensor:
            return whole(z, y)

        said.of_rows = True  # type: ignore[attr-defined]
        assert plan.for_score(said, model, batch).by_rows
        values: list[Tensor] = []
        plan.each_part(
            model, batch, lambda part, found, y: values.append(plan.score(part, found, y, unsure))
        )
        z = model(batch["ids"])["logits"]
    torch.testing.assert_close(values[0], whole(z[:, :-1], batch["labels"]))


def test_a_score_function_of_rows_must_give_one_a_row() -> None:
    part = plan_of(nn.Linear(3, 4), (X, Y)).parts[0]
    with pytest.raises(
        ValueError, match=r"gave \(8, 4\) for 8 rows: return a tensor of shape \(8,\)"
    ):
        score_rows(rows_of(part, torch.zeros(8, 4), Y), lambda z, y: z)


CLASSES, SQUARES = Part("logits", "labels", "classes"), Part("logits", "labels", "squares")


@pytest.mark.parametrize(
    ("score", "parts", "message"),
    [
        (
            "entropy",
            [SQUARES],
            "needs class logits, but the objective is logits → labels by squared",
        ),
        ("margin", [], "needs logits that fit the labels"),
        (
            "loss",
            [Part("logits", None, "classes")],
            "needs labels in a tensor, and the batch has none",
        ),
    ],
)
def test_scores_that_cannot_be_had_are_named(score: str, parts: list[Part], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_score(score, parts, from_parts=True)


def test_scores_that_can_be_had_are_taken() -> None:
    check_score("loss", [SQUARES], from_parts=True)
    check_score("loss", [], from_parts=False)
    check_score("entropy", [Part("logits", None, "classes")], from_parts=True)
    check_score(lambda z, y: z[:, 0], [SQUARES], from_parts=True)


def test_a_function_may_say_what_it_is_of() -> None:
    def score(z: Tensor, y: Tensor) -> Tensor:
        raise AssertionError("it is not tried")

    for said in (True, False):
        score.of_rows = said  # type: ignore[attr-defined]
        assert takes_rows(score, [CLASSES], {}, {}) is said


def test_tokens_can_be_weighed_only_where_they_have_scores() -> None:
    net, batch = nn.Linear(3, 4), (torch.randn(6, 3), torch.arange(6) % 4)
    with pytest.raises(ValueError, match="one prediction per sample: leave tokens= out"):
        Sifter(net, exit="last", tokens="sum").score(batch)
    losses = {"losses": lambda model, batch: model(batch[0])[:, 0]}
    with pytest.raises(ValueError, match="losses= gives one value per sample: weigh them there"):
        Sifter(net, exit="last", score="loss", tokens="sum", **losses).score(batch)
