from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sifting.recipes.text.corpus import CorpusPlace, content_hash, held_out, read_corpus
from sifting.training.recipe import DataError
from tests.helpers.text import json_lines, parquet, texts


def test_every_kind_of_file_and_a_folder_of_them(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    a = parquet(tmp_path / "a.parquet", other=[1, 2], text=["one", "two"])
    b = json_lines(tmp_path / "deep" / "b.jsonl", {"content": "three"}, {"content": "four"})
    c = tmp_path / "deep" / "er" / "c.txt"
    c.write_text("\ufefffive\nlines\n\nsix\n", encoding="utf-8")
    (tmp_path / "deep" / "picture.png").write_bytes(b"\x89PNG")
    assert texts(a) == ["one", "two"]
    assert texts(b) == ["three", "four"]
    assert texts(c) == ["five\nlines\n\nsix\n"]
    assert texts(tmp_path) == ["one", "two", "three", "four", "five\nlines\n\nsix\n"]
    assert texts(f"{b} + {a}") == ["three", "four", "one", "two"]


def test_reading_goes_on_from_any_place_and_stops_at_the_limit(tmp_path: Path) -> None:
    for name in "ab":
        parquet(tmp_path / f"{name}.parquet", text=[f"{name}{i}" * 50 for i in range(4)])
    corpus = read_corpus(str(tmp_path))
    whole = list(corpus.documents())
    for i, (_, place) in enumerate(whole):
        assert list(corpus.documents(place)) == whole[i + 1 :]
    short = read_corpus(str(tmp_path), megabytes=0.00025)
    assert list(short.documents()) == whole[:3]
    assert list(short.documents(whole[1][1])) == whole[2:3]
    assert whole[-1][1] == CorpusPlace(1, 4, 800)


def test_a_part_that_is_done_is_not_opened_again(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    corpus = read_corpus(str(tmp_path))
    place = [place for _, place in corpus.documents()][-1]
    (tmp_path / "a.txt").unlink()
    assert list(corpus.documents(place)) == []


def test_one_byte_more_is_another_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = read_corpus(str(path)).fingerprint
    assert read_corpus(str(path)).fingerprint == first
    assert read_corpus(str(path), paragraphs=True).fingerprint != first
    path.write_text("onf")
    assert read_corpus(str(path)).fingerprint != first
    copy = tmp_path / "b.txt"
    copy.write_text("one")
    assert read_corpus(str(copy)).fingerprint == first  # the content counts, not the name


def test_what_is_held_out_depends_on_the_content_alone() -> None:
    hashes = np.array([content_hash(f"document {i}") for i in range(4000)], dtype=np.uint64)
    out = held_out(hashes, 0.1)
    assert 0.08 < out.mean() < 0.12
    assert (held_out(hashes[::-1], 0.1) == out[::-1]).all()
    assert (held_out(hashes, 0.2) >= out).all()
    assert content_hash("one\n") == content_hash("one")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(DataError, match=f"dev_share={share}"):
        held_out(np.zeros(1, dtype=np.uint64), share)
