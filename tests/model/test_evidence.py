from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter
from sifting.model.evidence import MOST_CHECKS, CheckedClasses, telling
from tests.helpers.plans import plan_of


class Weighted(nn.Module):
    """As many classes as rows of pixels, so that shapes do not tell which dimension is which."""

    def __init__(self, ignore: int = -100) -> None:
        super().__init__()
        self.scale, self.ignore = nn.Parameter(torch.ones(())), ignore

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.scale * x
        if labels is None:
            return {"logits": z}
        weight = torch.tensor([0.3, 1.1])
        loss = F.cross_entropy(z, labels, weight=weight, ignore_index=self.ignore)
        return {"logits": z, "loss": loss}


@pytest.mark.filterwarnings("ignore:the model's loss cannot be computed:sifting.SiftingWarning")
def test_weights_of_classes_are_refused_when_they_first_show() -> None:
    """Samples with the same shares of classes have a mean in which their weights do not show."""
    sifter = Sifter(Weighted(), exit="last", score="loss")
    alike = torch.tensor([[[0, 1], [0, 0]], [[0, 0], [1, 0]]])
    unlike = torch.tensor([[[1, 0], [0, 0]], [[0, 1], [1, 0]]])
    x = torch.randn(2, 2, 2, 2)
    sifter.score({"x": x, "labels": alike})
    with pytest.raises(ValueError, match="class weights"):
        sifter.score({"x": x, "labels": unlike})


@pytest.mark.filterwarnings("ignore:the model's loss cannot be computed:sifting.SiftingWarning")
def test_a_number_that_means_no_label_is_no_class_that_tells() -> None:
    """With 255 for a class, the first batch would seem to have shown that there are no weights."""
    sifter = Sifter(Weighted(ignore=255), exit="last", score="loss")
    alike = torch.tensor([[[0, 1], [0, 1]], [[0, 255], [1, 255]]])
    unlike = torch.tensor([[[0, 0], [255, 1]], [[0, 0], [0, 255]]])
    x = torch.randn(2, 2, 2, 2)
    sifter.score({"x": x, "labels": alike})
    with pytest.raises(ValueError, match="class weights"):
        sifter.score({"x": x, "labels": unlike})


class Shifted(nn.Module):
    """Predicts the next token's class; its classes have weights, and its labels may be smoothed."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.scale, self.smoothing = nn.Parameter(torch.ones(())), smoothing

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.scale * x
        if labels is None:
            return {"logits": z}
        rows, wanted = z[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        weight = torch.tensor([0.3, 1.1])
        return {
            "logits": z,
            "loss": F.cross_entropy(rows, wanted, weight=weight, label_smoothing=self.smoothing),
        }


@pytest.mark.filterwarnings("ignore:the model's loss cannot be computed:sifting.SiftingWarning")
@pytest.mark.parametrize(
    ("smoothing", "alike", "unlike"),
    [
        (0.2, [[1, 0], [0, 0]], [[1, 1], [0, 0]]),
        (0.0, [[1, 1, 0], [1, 1, 0], [0, 1, 0]], [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),
    ],
)
def test_a_label_that_a_shift_leaves_out_is_no_class_that_tells(
    smoothing: float, alike: list[list[int]], unlike: list[list[int]]
) -> None:
    """With its first label, the first batch would seem to have shown that there are no weights."""
    sifter = Sifter(Shifted(smoothing), exit="last", score="loss")
    torch.manual_seed(0)
    x = torch.randn(len(alike), len(alike[0]), 2)
    sifter.score({"x": x, "labels": torch.tensor(alike)})
    with pytest.raises(ValueError, match="class weights"):
        sifter.score({"x": x, "labels": torch.tensor(unlike)})


class Segmenting(nn.Module):
    def __init__(self, ignore: int) -> None:
        super().__init__()
        self.scale, self.ignore = nn.Parameter(torch.ones(())), ignore

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.scale * x
        loss = None if labels is None else F.cross_entropy(z, labels, ignore_index=self.ignore)
        return {"logits": z} if loss is None else {"logits": z, "loss": loss}


@pytest.mark.parametrize("ignore", [255, -1])
def test_a_number_that_means_no_label_may_be_met_late(ignore: int) -> None:
    """After batches that have shown all there is to show of the classes."""
    sifter = Sifter(Segmenting(ignore), exit="last", score="loss")
    for number in range(40):
        x, labels = torch.randn(6, 3, 2, 4), torch.randint(0, 3, (6, 2, 4))
        if number > 36:
            labels[4, 1, 1:] = ignore
        got = sifter.score({"x": x, "labels": labels})
        losses = F.cross_entropy(x, labels, ignore_index=ignore, reduction="none").flatten(1)
        counted = (labels != ignore).flatten(1).sum(dim=1)
        torch.testing.assert_close(got, losses.sum(dim=1) / counted)


@pytest.mark.parametrize(
    ("shows", "message"),
    [(True, r"labels\[4, 1\] is 77, and logits .* loss_fn="), (False, r"row 4, .*77.* loss_fn=")],
)
@pytest.mark.filterwarnings("ignore:the model's loss cannot be computed:sifting.SiftingWarning")
def test_a_label_of_no_class_is_named_where_only_the_model_knows_its_loss(
    shows: bool, message: str
) -> None:
    class Smoothed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            z = self.scale * x
            found = {"logits": z} if shows else {}
            if labels is None:
                return found
            loss = F.cross_entropy(z.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
            return {**found, "loss": loss}

    labels = torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1], [1, 1]])
    wrong = torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1], [1, 77]])
    x = torch.randn(5, 2, 2)
    with pytest.raises(ValueError, match=message):
        Sifter(Smoothed(), exit="last", score="loss").score({"x": x, "labels": wrong})
    late = Sifter(Smoothed(), exit="last", score="loss")
    late.score({"x": x, "labels": labels})
    with pytest.raises(ValueError, match=message):
        late.score({"x": x, "labels": wrong})


def test_a_class_is_known_once_samples_differed_in_it() -> None:
    labels = torch.tensor([[0], [1], [1]])
    assert telling(labels, labels >= 0, 3).tolist() == [True, True, False]
    assert telling(labels[1:], labels[1:] >= 0, 3).tolist() == [False] * 3, "all alike tell nothing"
    nothing = torch.full((2, 1), -100)
    assert telling(nothing, nothing >= 0, 3).tolist() == [False] * 3


def test_what_has_no_class_in_common_with_what_is_known_is_not_added() -> None:
    x = torch.randn(4, 3)
    plan = plan_of(nn.Linear(3, 6), (x, torch.tensor([0, 1, 2, 3])))
    evidence = CheckedClasses()
    assert not evidence.suffices(plan, (x, torch.tensor([0, 1, 0, 1])))
    evidence.add(plan, (x, torch.tensor([0, 1, 0, 1])))
    assert evidence.suffices(plan, (x, torch.tensor([1, 0, 0, 1])))
    evidence.add(plan, (x, torch.tensor([2, 3, 2, 3])))
    assert not evidence.suffices(plan, (x, torch.tensor([2, 3, 2, 3])))
    evidence.add(plan, (x, torch.tensor([1, 2, 3, 3])))
    assert evidence.suffices(plan, (x, torch.tensor([2, 3, 0, 1])))
    evidence.checks = MOST_CHECKS
    assert evidence.suffices(plan, (x, torch.tensor([5, 5, 5, 5]))), "at some point it is enough"
