from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter


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
