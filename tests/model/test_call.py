from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter


class OneArgument(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class TwoArguments(OneArgument):
    def forward(self, image: Tensor, scale: Tensor) -> Tensor:
        return self.head(image) * scale


X, Y = torch.randn(6, 3), torch.arange(6) % 4


@pytest.mark.parametrize(
    "batch",
    [
        {"image": X, "label": Y},
        {"x": X, "label": Y, "path": [f"{i}.png" for i in range(6)]},
        {"x": X, "label": Y, "weight": torch.ones(6)},
        {"image": X, "label": Y, "path": [f"{i}.png" for i in range(6)]},
    ],
)
def test_what_the_model_does_not_take_is_left_out(batch: dict[str, object]) -> None:
    model = OneArgument()
    got = Sifter(model, exit="last", score="loss").score(batch)
    with torch.no_grad():
        torch.testing.assert_close(got, F.cross_entropy(model(X), Y, reduction="none"))


def test_members_of_which_none_is_the_argument_are_refused() -> None:
    sifter = Sifter(OneArgument(), exit="last", score="loss")
    with pytest.raises(
        ValueError, match=r"OneArgument.forward takes \(x\), .*'image', 'mask': pass forward="
    ):
        sifter.score({"image": X, "mask": X, "label": Y})


def test_an_argument_that_the_batch_does_not_have() -> None:
    sifter = Sifter(TwoArguments(), exit="last", score="loss")
    with pytest.raises(ValueError, match=r"takes \(image, scale\), and the batch holds 'image'"):
        sifter.score({"image": X, "label": Y})
    remedy = Sifter(
        TwoArguments(),
        exit="last",
        score="loss",
        forward=lambda model, batch: model(batch["image"], torch.ones(())),
    )
    assert remedy.score({"image": X, "label": Y}).shape == (6,)
