from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from sifting.recipes.text.corpus import Cursor, content_hash, held_out, read_corpus
from sifting.training.recipe import DataError


def texts(source: object, **options: Any) -> list[str]:
    return [text for text, _ in read_corpus(str(source), **options).documents()]


def parquet(path: Path, **columns: list[Any]) -> Path:
    datasets.Dataset.from_dict(columns).to_parquet(str(path))
    return path


def json_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


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


def test_paragraphs_of_a_text_file_are_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\nmore of one\n\n \ntwo\n")
    assert texts(path, paragraphs=True) == ["one\nmore of one\n", "two\n"]


def test_the_column_may_be_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", text=["one"], title=["two"])
    assert texts(path, column="title") == ["two"]


def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    rows = datasets.Dataset.from_dict({"sentence": ["one", "two"]})

    class Builder:
        hash = "abc"
        info = datasets.DatasetInfo()

    def load(name: str, config: str | None, *, streaming: bool) -> Any:
        asked.append((name, config, streaming))
        return {"train": rows.to_iterable_dataset() if streaming else rows}

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda name, config: Builder)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert texts("someone/texts:small") == ["one", "two"]
    assert texts("someone/texts", streaming=True) == ["one", "two"]
    assert asked == [("someone/texts", "small", False), ("someone/texts", None, True)]


def test_python_ships_with_prose() -> None:
    found = texts("python")
    assert len(found) > 50
    assert sum(len(text) for text in found) > 300_000


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
    assert whole[-1][1] == Cursor(1, 4, 800)


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


def undecodable(folder: Path) -> Path:
    path = folder / "a.txt"
    path.write_bytes(b"good \xff bad")
    return path


def undecodable_lines(folder: Path) -> Path:
    path = folder / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n{"text": "\xe9t\xe9"}\n')
    return path


def no_json(folder: Path) -> Path:
    path = folder / "a.jsonl"
    path.write_text('{"text": "one"}\nnonsense\n')
    return path


def damaged(folder: Path) -> Path:
    path = folder / "a.parquet"
    path.write_bytes(b"nonsense")
    return path


def strange(folder: Path) -> Path:
    path = folder / "a.pdf"
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p, r"the folder .* has no \.parquet, \.jsonl"),
        (lambda p: p / "missing", r"is no file or folder here, and as a dataset of the Hub"),
        (undecodable, r"a\.txt is not UTF-8: byte 5 is 0xff"),
        (undecodable_lines, r"a\.jsonl is not UTF-8: byte 26 is 0xe9"),
        (no_json, r"a\.jsonl, line 2, is not JSON"),
        (lambda p: json_lines(p / "a.jsonl", [1]), r"line 1, holds no JSON object"),
        (lambda p: json_lines(p / "a.jsonl", {"text": 3}), r"line 1, holds int where text"),
        (lambda p: json_lines(p / "a.jsonl", {"x": "a"}), r"has the columns x, and none is called"),
        (lambda p: parquet(p / "a.parquet", x=["a"]), r"has the columns x, and none is called"),
        (lambda p: parquet(p / "a.parquet", text=[3]), r"row 0, holds int where text is needed"),
        (damaged, r"a\.parquet is not a parquet file, or is damaged"),
        (strange, r"a\.pdf is none of \.parquet"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the Hub's client, offline
def test_what_cannot_be_read_is_named(make: Any, message: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError, match=message):
        texts(path)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", text=["a"])
    with pytest.raises(DataError, match="has no column 'body': it has text"):
        texts(path, column="body")
    with pytest.raises(DataError, match="megabytes=0 leaves no text"):
        texts(path, megabytes=0)
