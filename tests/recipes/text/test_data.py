from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sifting.recipes.bert import PRESETS
from sifting.recipes.text.corpus import content_hash
from sifting.recipes.text.data import read_text
from sifting.training.progress import reading_bar
from sifting.training.recipe import DataError
from tests.helpers.text import prose

TINY = replace(PRESETS["smoke"], vocabulary_size=200, dev_share=0.2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    for i in range(30):
        (tmp_path / "text" / f"{i}.txt").write_text(prose(i))
    return tmp_path / "text"


def test_no_document_is_on_both_sides(folder: Path) -> None:
    data = read_text(replace(TINY, data=str(folder)), "wordpiece")
    assert sorted([*data.train, *data.dev]) == list(range(30))
    hashes = data.tokens.hashes_D
    assert {int(h) for h in hashes} == {content_hash(prose(i)) for i in range(30)}
    assert not set(hashes[data.train].tolist()) & set(hashes[data.dev].tolist())
    again = read_text(replace(TINY, data=str(folder)), "wordpiece")
    assert np.array_equal(again.dev, data.dev)


def test_what_was_read_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty.txt").write_text("")
    (folder / "short.txt").write_text("One sentence alone.")
    config = replace(TINY, data=str(folder))
    data = read_text(config, "wordpiece")
    said = capsys.readouterr().err
    assert f"31 documents of {len(data.tokens.tokens_T):,} tokens, {len(data.dev)} held out" in said
    assert ", 1 empty and left out, 1 of one sentence and without a pair" in said
    assert (
        "of one sentence" not in read_text(replace(config, vocabulary_size=300), "bpe").describe()
    )


def test_a_vocabulary_of_the_users_own(folder: Path) -> None:
    config = replace(TINY, data=str(folder))
    made = read_text(config, "wordpiece").vocabulary
    made.tokenizer.save(str(folder.parent / "tokenizer.json"))
    own = replace(config, vocabulary=str(folder.parent / "tokenizer.json"))
    assert read_text(own, "wordpiece").vocabulary.fingerprint == made.fingerprint
    with pytest.raises(DataError, match="is a wordpiece vocabulary, and bpe is needed here"):
        read_text(own, "bpe")


def test_a_rank_that_tokenises_for_all_shows_the_bar(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sifting.recipes.text.data.rank_and_world", lambda: (1, 2))
    read_text(replace(TINY, data=str(folder)), "wordpiece")
    shown = capsys.readouterr().err
    assert "tokenising" in shown
    assert "documents of" not in shown


def test_the_bar_shows_bytes_and_is_silent_without_any(capsys: pytest.CaptureFixture[str]) -> None:
    with reading_bar("tokenising a"):
        pass
    assert capsys.readouterr().err == ""
    with reading_bar("tokenising b") as progress:
        progress(1_000_000, None)
        progress(3_000_000, 2_000_000)
    assert "tokenising b" in (shown := capsys.readouterr().err)
    assert "3.0/3.0 MB" in shown
