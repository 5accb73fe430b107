from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from sifting import Sifter
from sifting.model.call import Call, logits_of, mask_of


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


class Detector(nn.Module):
    """Pictures of any size in a list; losses while it trains, as torchvision's detectors give them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, images: Any, targets: Any = None) -> Any:
        assert not isinstance(images, Tensor)
        logits = self.out(torch.stack([self.conv(i[None]).mean((2, 3))[0] for i in images]))
        if targets is None:
            return [{"scores": row.softmax(0)} for row in logits]
        kinds = torch.stack([target["labels"][0] for target in targets])
        return {"classes": F.cross_entropy(logits, kinds), "boxes": logits.square().mean()}


def detection_losses(model: nn.Module, batch: Any) -> Tensor:
    return torch.stack([sum(model([x], [y]).values()) for x, y in zip(*batch, strict=True)])


def pictures(size: int = 6) -> Any:
    samples = [
        (torch.randn(3, 8 + i % 3, 9), {"boxes": torch.rand(2, 4), "labels": torch.tensor([i % 2])})
        for i in range(size)
    ]
    return tuple(zip(*samples, strict=True))


@pytest.mark.parametrize("exit", ["last", "tuned"])
def test_pictures_and_boxes_as_torchvision_collates_them(exit: str) -> None:
    model, batch = Detector().eval(), pictures()
    sifter = Sifter(model, exit=exit, losses=detection_losses)
    chosen = sifter.select(batch)
    images, targets = chosen.batch
    assert all(a is batch[0][i] for a, i in zip(images, chosen.indices.tolist(), strict=True))
    assert all(a is batch[1][i] for a, i in zip(targets, chosen.indices.tolist(), strict=True))
    if exit == "last":
        with torch.no_grad():
            torch.testing.assert_close(chosen.scores, detection_losses(model, batch))
    with pytest.raises(
        ValueError, match=r"batch\[1\] is a tuple of 2 \(dict each\).*losses=lambda"
    ):
        Sifter(model, exit=exit).select(batch)


def test_a_list_of_raw_samples_needs_to_be_put_together() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = [(torch.randn(8), i % 3) for i in range(6)]
    with pytest.raises(ValueError, match=r"a list of 2 raw samples.*pass forward=lambda model"):
        Sifter(model).select(batch)
    given = {
        "forward": lambda model, batch: model(torch.stack([x for x, _ in batch])),
        "labels": lambda batch: torch.tensor([y for _, y in batch]),
    }
    got = Sifter(model, exit="last", score="loss", **given).score(batch)
    with torch.no_grad():
        x, y = torch.stack([x for x, _ in batch]), torch.tensor([y for _, y in batch])
        torch.testing.assert_close(got, F.cross_entropy(model(x), y, reduction="none"))


def test_a_packed_sequence_is_one_argument() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Any) -> Tensor:
            return self.out(self.lstm(x)[1][0][-1])

    model, lengths = Last().eval(), [2, 5, 3, 4]
    sequences, labels = [torch.randn(n, 4) for n in lengths], torch.tensor([0, 2, 1, 1])
    batch = (pack_sequence(sequences, enforce_sorted=False), labels)
    with torch.no_grad():
        logits = torch.cat([model(sequence[None]) for sequence in sequences])
    got = Sifter(model, exit="last", score="loss").score(batch)
    torch.testing.assert_close(got, F.cross_entropy(logits, labels, reduction="none"))
    assert len(Sifter(model, exit="tuned", keep=0.5).select(batch).batch[1]) == 2


def test_samples_along_another_dimension_are_not_taken_for_fewer() -> None:
    model = nn.Linear(4, 3)
    times = torch.randn(5, 8, 4)  # time first, and no labels that could tell
    given = {"exit": "last", "score": "entropy", "forward": lambda m, batch: m(batch.mean(0))}
    with pytest.raises(ValueError, match=r"holds 5 samples.*make 8 scores.*batch_size=.*take="):
        Sifter(model, **given).score(times)
    taken = {"batch_size": lambda batch: batch.shape[1], "take": lambda batch, i: batch[:, i]}
    assert Sifter(model, **given, **taken).select(times).batch.shape == (5, 4, 4)


def test_labels_are_found_by_their_names_and_in_pairs() -> None:
    x, y = torch.zeros(4, 3), torch.arange(4)
    assert set(Call().labels_of((x, y))) == {"labels"}
    named = {"x": x, "labels": y, "next_sentence_label": y}
    assert set(Call().labels_of(named)) == {"labels", "next_sentence_label"}
    own = Call(labels=lambda batch: batch["x"][:, 0])
    assert torch.equal(own.labels_of(named)["labels"], x[:, 0])
    assert Call().labels_of(x) == {}


def test_ids_are_taken_out_before_the_model_is_called() -> None:
    batch = {"x": torch.zeros(2, 3), "row": torch.tensor([7, 9])}
    call = Call(ids="row")
    assert list(call.ids_of(batch)) == [7, 9]
    assert set(call.without_ids(batch)) == {"x"}
    assert set(batch) == {"x", "row"}


def test_outputs_of_every_kind_are_read() -> None:
    z, loss = torch.zeros(4, 5), torch.tensor(2.0)
    for output in (z, {"logits": z}, (z,), {"loss": loss, "logits": z}, (loss, z)):
        assert any(torch.equal(found, z) for found in logits_of(output).values())
    mask = torch.ones(4, 6)
    assert mask_of({"attention_mask": mask}) is mask
    assert mask_of(z) is None
