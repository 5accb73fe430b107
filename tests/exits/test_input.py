"""The exit before the model: what it looks at, that it learns, that nothing of the model is run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from sifting import InputExit, Sifter
from sifting.exits.input import ALWAYS
from sifting.exits.tuned import TunedExit
from sifting.model.features import pooled_input


def image_batch(size: int = 12) -> tuple[Tensor, Tensor]:
    y = torch.arange(size) % 3
    x = torch.randn(size, 1, 8, 8) * 0.1
    x[torch.arange(size), 0, y] += 3.0  # the row that is bright tells the class
    x[0] = 0  # and one has none
    return x, y


def test_it_learns_to_tell_the_ambiguous_and_runs_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    ran: list[int] = []
    sifter = Sifter(model, exit=InputExit(), keep=0.5, explore=0.0)
    batch = image_batch()
    sifter.select(batch)
    model[0].register_forward_hook(lambda *_: ran.append(1))
    for _ in range(60):
        selection = sifter.select(image_batch())
    assert not ran
    assert int(selection.scores.argmax()) == 0
    assert repr(sifter.exit) == "InputExit()"


def test_tokens_are_looked_at_as_they_are_embedded() -> None:
    config = hf.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, num_labels=3,
    )  # fmt: skip
    model = hf.BertForSequenceClassification(config)
    ran: list[int] = []
    model.bert.encoder.layer[0].register_forward_hook(lambda *_: ran.append(1))
    sifter = Sifter(model, exit=InputExit(), keep=0.5)
    ids = torch.randint(1, 40, (8, 6))
    batch = {"input_ids": ids, "attention_mask": ids > 3, "labels": torch.arange(8) % 3}
    sifter.select(batch)
    ran.clear()
    sifter.auditor.every = 0
    assert sifter.select(batch).scores.shape == (8,)
    assert not ran
    assert sifter.exit.runs  # its embedding


def test_it_needs_one_prediction_a_sample() -> None:
    config = hf.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16)
    ids = torch.randint(0, 50, (4, 8))
    with pytest.raises(ValueError, match=r"at every position: choose a TunedExit"):
        Sifter(hf.GPT2LMHeadModel(config), exit=InputExit(), keep=0.5).select(
            {"input_ids": ids, "labels": ids}
        )


def test_it_goes_on_from_its_state() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    one, other = InputExit(), InputExit()
    sifter = Sifter(model, exit=one, keep=0.5)
    for _ in range(5):
        sifter.select(image_batch())
    again = Sifter(model, exit=other, keep=0.5)
    again.load_state_dict(sifter.state_dict())
    batch = image_batch()
    assert torch.equal(sifter.score(batch), again.score(batch))
    assert other.state_dict()["batches scored"] == 5
    with pytest.raises(ValueError, match="in use by another sifter"):
        Sifter(model, exit=one, keep=0.5)


def test_once_it_knows_it_learns_from_one_batch_in_four(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    learned: list[bool] = []
    score = TunedExit.score

    def noting(self, plan, model, batch, by, learn):  # type: ignore[no-untyped-def]
        learned.append(learn)
        return score(self, plan, model, batch, by, learn)

    monkeypatch.setattr(TunedExit, "score", noting)
    sifter = Sifter(model, exit=InputExit(), keep=0.5, audit_every=0)
    for _ in range(ALWAYS + 8):
        sifter.select(image_batch(4))
    assert sum(learned[-8:]) == 2
    assert sum(learned) == ALWAYS + 2


def test_images_come_in_every_layout() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8 * 8 * 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.float().flatten(1))

    y = torch.arange(6) % 3
    for x in (
        torch.randint(0, 255, (6, 8, 8, 3), dtype=torch.uint8),
        torch.randn(6, 8, 8, 3),
        torch.randn(6, 192),
    ):
        sifter = Sifter(Last(), exit="input", keep=0.5)
        assert sifter.select((x, y)).scores.shape == (6,)


class Gallery(nn.Module):
    """Takes a list of pictures of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.head = nn.AdaptiveAvgPool2d(2), nn.Linear(12, 3)

    def forward(self, pictures: list[Tensor]) -> Tensor:
        return self.head(torch.stack([self.pool(picture) for picture in pictures]).flatten(1))


def pictures_batch(size: int) -> tuple[tuple[Tensor, ...], Tensor]:
    return tuple(torch.randn(3, 4 + i % 3, 5) for i in range(size)), torch.arange(size) % 3


def test_colour_channels_are_not_samples() -> None:
    """A list of pictures reaches the model as tensors of three rows, as many as are tried first."""
    asked = {"keep": 0.5, "forward": lambda model, batch: model(batch[0])}
    with pytest.raises(ValueError, match=r"a row for each sample, and 2 samples come as \(3, "):
        Sifter(Gallery(), exit="input", labels=lambda batch: batch[1], **asked).select(
            pictures_batch(8)
        )
    for exit in ("tuned", "auto"):
        sifter = Sifter(Gallery(), exit=exit, labels=lambda batch: batch[1], **asked)
        for size in (8, 8, 6):
            chosen = sifter.select(pictures_batch(size))
            assert chosen.scores.shape == (size,)


def test_what_it_looks_at_is_found_beside_lists_of_any_length() -> None:
    """A member is found by its place in the batch, whatever lists of tensors stand before it."""
    model = nn.Linear(5, 3)
    asked = {"forward": lambda model, batch: model(batch[1]), "labels": lambda batch: batch[2]}
    beside = Sifter(model, exit="input", keep=0.5, audit_every=0, **asked)
    alone = Sifter(model, exit="input", keep=0.5, audit_every=0)
    for size in (8, 6, 12):
        x, y = torch.randn(size, 5), torch.arange(size) % 3
        boxes = [torch.randn(1 + i % 3, 4) for i in range(size)]
        assert torch.equal(beside.select((boxes, x, y)).scores, alone.select((x, y)).scores)


class Masked(nn.Module):
    """A classifier of vectors at positions, of which a mask tells those that count."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        weighed = torch.relu(self.inner(x)) * attention_mask[..., None]
        found: Tensor = self.outer(weighed.sum(1) / attention_mask.sum(1, keepdim=True))
        return found


def test_scores_are_of_what_a_batch_is_now() -> None:
    """The same tensors with another mask, or written to in a way that torch does not count."""
    masked = Sifter(
        Masked(),
        exit="input",
        keep=0.5,
        forward=lambda model, batch: model(batch["x"], batch["attention_mask"]),
    )
    x, y = torch.randn(12, 6, 8), torch.arange(12) % 3
    short = torch.ones(12, 6)
    short[:, 2:] = 0
    batch = {"x": x, "attention_mask": torch.ones(12, 6), "labels": y}
    for _ in range(4):
        masked.select(batch)
    whole = masked.score(batch)
    found = masked.score({**batch, "attention_mask": short})
    assert torch.equal(found, masked.score({**batch, "x": x.clone(), "attention_mask": short}))
    assert not torch.equal(found, whole)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    sifter = Sifter(model, exit="input", keep=0.5)
    images, labels = image_batch()
    for _ in range(4):
        sifter.select((images, labels))
    sifter.score((images, labels))
    images.numpy()[:] = images.flip(0).numpy()
    assert torch.equal(sifter.score((images, labels)), sifter.score((images.clone(), labels)))


def test_another_score_of_the_same_batch_pools_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    exit, batch = InputExit(), image_batch()
    sifter = Sifter(model, exit=exit, keep=0.5)
    sifter.select(batch)
    pooled: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        pooled.append(1)
        return pooled_input(*args, **kwargs)

    monkeypatch.setattr("sifting.exits.input.pooled_input", counted)
    sifter.score(batch)
    plan = sifter._scorer.plan
    assert plan is not None
    found = exit.score_again(plan, model, batch, "loss")
    assert len(pooled) == 1
    assert torch.equal(exit.score_again(plan, model, batch, "loss"), found)
    assert len(pooled) == 2, "what came before is not kept"
