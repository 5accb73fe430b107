"""One term of an objective: logits against labels, position by position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sifting.model import parts
from sifting.model.parts import (
    Part,
    check_labels,
    of_documents,
    part_losses,
    reduced_loss,
    row_scores,
    rows_of,
    score_rows,
    unpadded,
)
from sifting.model.positions import Places
from sifting.selection.tokens import find_tokens

CLASSES = Part("logits", "labels", "classes")
SHIFTED = Part("logits", "labels", "classes", shift=1)
LABELS = torch.tensor([[0, 1, -100, 2], [-100, -100, 2, 1]])
LOGITS = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


def test_positions_without_a_label_do_not_count() -> None:
    wanted = [F.cross_entropy(LOGITS[i], LABELS[i]) for i in range(2)]
    torch.testing.assert_close(
        score_rows(rows_of(CLASSES, LOGITS, LABELS), "loss"), torch.stack(wanted)
    )
    assert CLASSES.count(LABELS) == 5
    assert reduced_loss(CLASSES, LOGITS, LABELS).item() == pytest.approx(
        F.cross_entropy(LOGITS.flatten(0, 1), LABELS.flatten()).item()
    )


def test_shifted_positions_predict_what_comes_next() -> None:
    wanted = [F.cross_entropy(LOGITS[i, :-1], LABELS[i, 1:]) for i in range(2)]
    torch.testing.assert_close(
        score_rows(rows_of(SHIFTED, LOGITS, LABELS), "loss"), torch.stack(wanted)
    )
    assert SHIFTED.labelled(LABELS).tolist() == [[True, False, True], [False, True, True]]


def test_classes_may_be_the_second_dimension() -> None:
    part = Part("logits", "labels", "classes_first")
    found = score_rows(rows_of(part, LOGITS.movedim(-1, 1), LABELS), "loss")
    torch.testing.assert_close(found, score_rows(rows_of(CLASSES, LOGITS, LABELS), "loss"))


def test_probabilities_are_labels_too() -> None:
    part, target = Part("logits", "labels", "soft"), torch.rand(2, 3).softmax(-1)
    found = score_rows(rows_of(part, LOGITS[:, 0], target), "loss")
    torch.testing.assert_close(found, F.cross_entropy(LOGITS[:, 0], target, reduction="none"))
    assert part.count(target) == 2


def test_few_logits_are_held_at_a_time_and_the_scores_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = rows_of(CLASSES, LOGITS, LABELS)
    whole = row_scores(rows, "entropy")
    monkeypatch.setattr(parts, "CHUNK", 6)
    assert [len(logits) for logits, _ in rows.chunks()] == [5], "a product of few rows is slow"
    monkeypatch.setattr(parts, "ROWS", 1)
    pieces = list(rows.chunks())
    assert [len(logits) for logits, _ in pieces] == [2, 2, 1]
    torch.testing.assert_close(row_scores(rows, "entropy"), whole)


def test_a_head_is_run_where_labels_are() -> None:
    head = torch.nn.Linear(3, 5, bias=False)
    rows = rows_of(CLASSES, LOGITS, LABELS)
    seen: list[int] = []
    rows = parts.replace(rows, head=lambda x: (seen.append(len(x)), head(x))[1])
    with torch.no_grad():
        found = row_scores(rows, "loss", width=5)
        wanted = F.cross_entropy(
            head(LOGITS)[LABELS != -100], LABELS[LABELS != -100], reduction="none"
        )
    torch.testing.assert_close(found, wanted)
    assert seen == [5]


def test_samples_with_one_prediction_and_no_label_score_nothing() -> None:
    found = score_rows(rows_of(CLASSES, LOGITS[:, 0], torch.tensor([-100, 1])), "loss")
    assert found[0] == 0
    assert found[1].item() == pytest.approx(
        F.cross_entropy(LOGITS[1:, 0], torch.tensor([1])).item()
    )


def test_positions_may_be_looked_up_beforehand() -> None:
    rows = rows_of(CLASSES, LOGITS, LABELS)
    some = rows.among(Places.of(torch.tensor([[True] + [False] * 3, [False] * 3 + [True]])))
    assert len(row_scores(some, "loss")) == 2
    assert rows.located().b_N.tolist() == [0, 0, 0, 1, 1]


def test_tokens_are_weighed_as_asked() -> None:
    rows = rows_of(CLASSES, LOGITS, LABELS)
    mean, total = (score_rows(rows, "loss", tokens=find_tokens(t)) for t in ("mean", "sum"))
    torch.testing.assert_close(total, mean * torch.tensor([3.0, 2.0]))


def test_packed_documents_are_samples_and_padding_belongs_to_none() -> None:
    documents = torch.tensor([[0, 0, 1, 1], [2, 2, -1, -1]])
    rows = of_documents(CLASSES, rows_of(CLASSES, LOGITS, LABELS.clamp_min(0)), documents)
    assert score_rows(rows, "loss").shape == (3,)
    assert rows.mask_BT[1].tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match=r"packed \(3 documents in 2 rows\).*losses="):
        of_documents(CLASSES, rows_of(CLASSES, LOGITS[:, :2], LABELS[:, :2]), documents)


def test_without_labels_padding_does_not_count() -> None:
    rows = rows_of(Part("logits", None, "classes"), LOGITS, None)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    assert unpadded(rows, mask).mask_BT.sum() == 4
    assert unpadded(rows, None) is rows
    labelled = rows_of(CLASSES, LOGITS, LABELS)
    assert unpadded(labelled, mask) is labelled


def test_parts_without_classes_have_one_loss_a_sample() -> None:
    values, target = torch.randn(3, 2), torch.randint(0, 2, (3, 2)).float()
    squares = part_losses(Part("z", "y", "squares"), values, target)
    torch.testing.assert_close(squares, (values - target).square().mean(1))
    binary = part_losses(Part("z", "y", "binary"), values, target)
    wanted = F.binary_cross_entropy_with_logits(values, target, reduction="none").mean(1)
    torch.testing.assert_close(binary, wanted)


def test_it_says_what_it_is() -> None:
    part = Part("logits", "labels", "classes_first", weight=0.5, ignore=255)
    assert str(part) == "logits → labels by cross-entropy, class second, 255 is no label, times 0.5"
    assert str(Part("logits", None, "classes")) == "logits → no labels"


@pytest.mark.parametrize(
    ("part", "labels", "message"),
    [
        (
            CLASSES,
            torch.tensor([0, 3]),
            r"labels\[1\] is 3, .* classes from 0 to 2.*ignore_index=3",
        ),
        (SHIFTED, torch.tensor([[9, 1], [0, -2]]), r"labels\[1, 1\] is -2"),
        (Part("z", "y", "binary"), torch.tensor([0, 2]), r"y\[1\] is 2, .* can only tell 0 from 1"),
    ],
)
def test_a_label_of_no_class_is_named(part: Part, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_labels(part, (2, 3), labels)


def test_labels_that_mean_none_or_are_no_classes_are_fine() -> None:
    check_labels(CLASSES, (3, 3), torch.tensor([-100, 0, 2]))
    check_labels(SHIFTED, (1, 3, 3), torch.tensor([[77, 0, 2]]))  # nothing predicts the first
    check_labels(Part("z", "y", "squares"), (2,), torch.tensor([99, -5]))
    check_labels(Part("z", "y", "binary"), (2,), torch.tensor([True, False]))
