"""Files and datasets as documents, and what is said of those that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from sifting.recipes.text.readers import digest, file_part, find_files
from sifting.training.recipe import DataError
from tests.helpers.text import json_lines, parquet, texts


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


def deep(folder: Path) -> Path:
    path = folder / "a.jsonl"
    path.write_text('{"text": "one"}\n' + "[" * 200_000 + "\n")
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
        (
            lambda p: p / "missing",
            r"is not a file or folder here, and cannot be read as a dataset of the Hub",
        ),
        (undecodable, r"a\.txt is not UTF-8: byte 5 is 0xff"),
        (undecodable_lines, r"a\.jsonl is not UTF-8: byte 26 is 0xe9"),
        (no_json, r"a\.jsonl, line 2, is not JSON"),
        (deep, r"a\.jsonl, line 2, is not JSON"),
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


def test_parts_are_told_apart_by_content_and_by_how_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("One.\n\nTwo.")
    whole, parts = file_part(file, None, False), file_part(file, None, True)
    assert (list(whole.read()), list(parts.read())) == (["One.\n\nTwo."], ["One.\n", "Two."])
    assert whole.fingerprint != parts.fingerprint
    before = whole.fingerprint
    file.write_text("One.\n\nTwo!")
    assert file_part(file, None, False).fingerprint != before
    assert digest("a", "b") != digest("ab")


def test_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("")
    with pytest.raises(DataError, match=r"has no \.parquet, \.jsonl"):
        find_files(tmp_path)
    with pytest.raises(DataError, match=r"a\.pdf is none of"):
        find_files(tmp_path / "a.pdf")
