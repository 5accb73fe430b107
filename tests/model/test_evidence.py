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

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        output = {"logits": self.scale * x}
        if labels is not None:
            weight = torch.tensor([0.3, 1.1])
            output["loss"] = F.cross_entropy(output["logits"], labels, weight=weight)
        return output


@pytest.mark.filterwarnings("ignore:the model's loss is not one:sifting.SiftingWarning")
def test_weights_of_classes_are_refused_when_they_first_show() -> None:
    """Samples with the same shares of classes have a mean in which their weights do not show."""
    sifter = Sifter(Weighted(), exit="last", score="loss")
    alike = torch.tensor([[[0, 1], [0, 0]], [[0, 0], [1, 0]]])
    unlike = torch.tensor([[[1, 0], [0, 0]], [[0, 1], [1, 0]]])
    x = torch.randn(2, 2, 2, 2)
    sifter.score({"x": x, "labels": alike})
    with pytest.raises(ValueError, match="class weights"):
        sifter.score({"x": x, "labels": unlike})


@pytest.mark.filterwarnings("ignore:the model's loss is not one:sifting.SiftingWarning")
def test_a_label_of_no_class_is_named_where_only_the_model_knows_its_loss() -> None:
    class Smoothed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            z = self.scale * x
            if labels is None:
                return {"logits": z}
            loss = F.cross_entropy(z.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
            return {"logits": z, "loss": loss}

    labels = torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1], [1, 77]])
    sifter = Sifter(Smoothed(), exit="last", score="loss")
    with pytest.raises(ValueError, match=r"row 4, .*77.* loss_fn="):
        sifter.score({"x": torch.randn(5, 2, 2), "labels": labels})


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
