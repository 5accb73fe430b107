"""Which words were capitalised, and what stood after them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sifting.bench.tasks.rows import TaskRows
from sifting.bench.tasks.tagging import (
    TAGGING,
    TAGS,
    UNKNOWN,
    losses,
    measure,
    read_texts,
    tagged,
    windows,
    written_out,
)
from sifting.training.recipe import DataError


def test_words_lose_what_their_tags_say() -> None:
    assert list(tagged("Yes; Ann's dog-sitter left! why?")) == [
        ("yes", 3),
        ("ann's", 1),
        ("dog-sitter", 0),
        ("left", 4),
        ("why", 4),
    ]
    assert max(tag for _, tag in tagged("A. b, C; d: E! f?")) < TAGS


def test_texts_without_capitals_or_with_loose_punctuation_are_left_out() -> None:
    assert written_out("It rains. It pours. The old man snores.")
    assert not written_out("it rains. it pours. the old man snores.")
    assert not written_out("It rains . It pours . The Old man snores .")


def test_texts_are_cut_into_windows_and_words_that_are_rare_are_one() -> None:
    rows = windows(["A b c d e", "f g"], {"a": 1, "b": 2, "d": 3}, words=2)
    ids, tags = rows.tensors_N
    assert ids.tolist() == [[1, 2], [UNKNOWN, 3], [UNKNOWN, UNKNOWN]]
    assert tags.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert len(windows(["too short"], {}, words=5)) == 0


class Always(nn.Module):
    """Says the same tag of every word."""

    def __init__(self, tag: int) -> None:
        super().__init__()
        self.tag = tag

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, TAGS)
        logits[..., self.tag] = 9.0
        return logits


def test_f1_is_of_the_tags_that_say_something() -> None:
    rows = TaskRows(torch.zeros(1, 4).long(), torch.tensor([[0, 3, 3, 1]]))
    found = measure(Always(3), rows)
    assert found["f1"] == pytest.approx(2 * 2 / (4 + 3))
    assert found["word_accuracy"] == 0.5
    assert measure(Always(0), rows)["f1"] == 0.0
    batch = rows.__getitems__([0])
    assert losses(Always(3), batch).shape == (1,)


def test_prose_without_any_written_out_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("all small letters here, and nothing else at all")
    monkeypatch.setenv("SIFT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="has no text with capitals and punctuation"):
        read_texts(TAGGING.presets["full"])
