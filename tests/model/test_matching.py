"""Which logits could belong to which labels, and which way reproduces the model's own loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sifting.model.matching import match_parts, one_each, reproducing, tolerances, usual
from sifting.model.parts import Part


def test_one_output_is_trained_on_one_set_of_labels() -> None:
    fine, coarse, labels, other = (
        Part(name, of, "classes")
        for name, of in (
            ("z", "fine_label"),
            ("z", "coarse_label"),
            ("z", "labels"),
            ("y", "domain"),
        )
    )
    assert one_each([fine, other]) == (fine, other)
    assert one_each([fine, labels, other]) == (labels, other)
    with pytest.raises(
        ValueError, match=r"'fine_label', 'coarse_label'.*labels=lambda batch: batch\['fine"
    ):
        one_each([fine, coarse])


def ways(logits: torch.Tensor, labels: torch.Tensor) -> list[tuple[str, int]]:
    found = match_parts({"logits": logits}, {"labels": labels})
    return [(part.kind, part.shift) for options in found for part in options]


@pytest.mark.parametrize(
    ("logits", "labels", "found"),
    [
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), [("classes", 0)]),
        (torch.zeros(2, 5, 3), torch.ones(2, 5).long(), [("classes", 0), ("classes", 1)]),
        (torch.zeros(2, 3, 4, 4), torch.ones(2, 4, 4).long(), [("classes_first", 0)]),
        (
            torch.zeros(2, 3),
            torch.tensor([[0.5, 0.5, 0.0]] * 2),
            [("soft", 0), ("binary", 0), ("squares", 0)],
        ),
        (torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 0.0]] * 2), [("binary", 0), ("squares", 0)]),
        (torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]), [("binary", 0), ("squares", 0)]),
        (torch.zeros(4), torch.tensor([True, False, True, True]), [("binary", 0)]),
        (torch.zeros(4, 3), torch.zeros(5).long(), []),
        (torch.zeros(4, 3), torch.tensor(1), []),
    ],
)
def test_shapes_say_what_could_belong_together(logits, labels, found) -> None:
    assert ways(logits, labels) == found


def test_names_that_begin_alike_belong_together() -> None:
    logits = {"start_logits": torch.zeros(2, 9), "end_logits": torch.zeros(2, 9)}
    labels = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
    found = match_parts(logits, labels)
    assert [[part.logits for part in options] for options in found] == [
        ["start_logits"],
        ["end_logits"],
    ]


def test_without_a_loss_to_compare_with_classes_come_first() -> None:
    classes, soft = Part("z", "y", "classes"), Part("z", "y", "soft")
    assert usual([soft, classes], torch.tensor([1])) is classes
    first = Part("z", "y", "classes_first")
    assert usual([classes, first], torch.tensor([1])) is None, "as many positions as classes"
    assert usual([Part("z", "y", "squares")], torch.tensor([3])) is None


def test_the_way_that_gives_the_models_own_loss_is_found() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(4, 6, 5), torch.randint(0, 5, (4, 6))
    options = match_parts({"logits": z}, {"labels": y})
    for shift in (0, 1):
        own = F.cross_entropy(z[:, : 6 - shift].flatten(0, 1), y[:, shift:].flatten())
        parts, exact = reproducing(own, options, {"logits": z}, {"labels": y}, nn.Linear(1, 1))
        assert ([part.shift for part in parts], exact) == ([shift], True)
    parts, exact = reproducing(
        torch.tensor(9.0), options, {"logits": z}, {"labels": y}, nn.Linear(1, 1)
    )
    assert parts == ()


def test_other_numbers_may_mean_none() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(4, 6, 5), torch.randint(1, 5, (4, 6))
    y[:, 3:] = 0
    own = F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=0)
    options = match_parts({"logits": z}, {"labels": y})
    (part,), exact = reproducing(own, options, {"logits": z}, {"labels": y}, nn.Linear(1, 1))
    assert (part.ignore, exact) == (0, True)


def test_several_terms_are_added_or_averaged() -> None:
    torch.manual_seed(0)
    logits = {"a_logits": torch.randn(4, 3), "b_logits": torch.randn(4, 3)}
    labels = {"a_labels": torch.randint(0, 3, (4,)), "b_labels": torch.randint(0, 3, (4,))}
    terms = [F.cross_entropy(logits[f"{n}_logits"], labels[f"{n}_labels"]) for n in "ab"]
    options = match_parts(logits, labels)
    for own, weight in ((sum(terms), 1.0), (sum(terms) / 2, 0.5)):
        parts, exact = reproducing(own, options, logits, labels, nn.Linear(1, 1))
        assert [part.weight for part in parts] == [weight, weight]
        assert exact


def test_half_precision_is_given_more_room() -> None:
    fine = tolerances(torch.tensor(2.0), nn.Linear(1, 1))
    coarse = tolerances(torch.tensor(2.0), nn.Linear(1, 1).bfloat16())
    assert fine[0] < fine[1] < coarse[0] < coarse[1]
