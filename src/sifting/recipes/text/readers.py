"""Files and datasets as documents, and what to say of those that cannot be read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sifting.training.recipe import DataError

COLUMNS = ("text", "content", "sentence", "document", "article", "body")
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".txt")


@dataclass(frozen=True)
class TextPart:
    """One file, or one dataset, of a corpus.

    Attributes:
        name: for messages.
        fingerprint: of its content and of how it is read.
        size: bytes of text, estimated; None where it cannot be determined.
        read: gives its documents in order.
    """

    name: str
    fingerprint: str
    size: int | None
    read: Callable[[], Iterator[str]]


def digest(*parts: str) -> str:
    """One short hash of several strings."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def find_files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise DataError(f"{path} is none of {', '.join(SUFFIXES)}: convert or rename it")
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in SUFFIXES)
    if not found:
        raise DataError(f"the folder {path} has no {', '.join(SUFFIXES)} file in it")
    return found


def file_part(path: Path, column: str | None, paragraphs: bool) -> TextPart:
    content = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                content.update(chunk)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error
    read: Callable[[], Iterator[str]]
    size: int | None = path.stat().st_size
    if path.suffix == ".txt":
        read = lambda: _text(path, paragraphs)  # noqa: E731
    elif path.suffix == ".parquet":
        size = _parquet_size(path, column)
        read = lambda: _parquet(path, column)  # noqa: E731
    else:
        read = lambda: _json_lines(path, column)  # noqa: E731
    how = f"{path.suffix} {column} {paragraphs}"
    return TextPart(str(path), digest(content.hexdigest(), how), size, read)


def _decoded(data: bytes, path: Path, offset: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = offset + error.start
        raise DataError(
            f"{path} is not UTF-8: byte {place} is 0x{data[error.start]:02x}. convert or leave out the file"
        ) from error


def _text(path: Path, paragraphs: bool) -> Iterator[str]:
    if not paragraphs:
        yield _decoded(path.read_bytes(), path, 0).removeprefix("\ufeff")
        return
    lines: list[str] = []
    offset = 0
    with path.open("rb") as file:
        for raw in file:
            line = _decoded(raw, path, offset)
            offset += len(raw)
            if line.strip():
                lines.append(line)
            elif lines:
                yield "".join(lines)
                lines = []
    if lines:
        yield "".join(lines)


def _json_lines(path: Path, column: str | None) -> Iterator[str]:
    offset = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = _decoded(raw, path, offset)
            offset += len(raw)
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}, is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number}, holds no JSON object")
            where = f"{path}, line {number},"
            yield _string(record[_column(list(record), column, where)], where)


def _open_parquet(path: Path) -> Any:
    from pyarrow import parquet  # type: ignore[import-untyped]

    try:
        return parquet.ParquetFile(path)
    except Exception as error:
        raise DataError(f"{path} is not a parquet file, or is damaged: {error}") from error


def _parquet_size(path: Path, column: str | None) -> int:
    file = _open_parquet(path)
    name = _column(list(file.schema_arrow.names), column, str(path))
    meta = file.metadata
    places = [i for i in range(meta.num_columns) if meta.schema.column(i).name == name]
    groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
    return sum(group.column(i).total_uncompressed_size for group in groups for i in places)


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    file = _open_parquet(path)
    name = _column(list(file.schema_arrow.names), column, str(path))
    row = 0
    try:
        for batch in file.iter_batches(batch_size=256, columns=[name]):
            for value in batch.column(0):
                yield _string(value.as_py(), f"{path}, row {row},")
                row += 1
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, row {row}, is not UTF-8: byte {error.start} of its text is "
            f"0x{error.object[error.start]:02x}. convert or leave out the file"
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read after row {row}: {error}") from error


def dataset_part(source: str, column: str | None, streaming: bool) -> TextPart:
    import datasets

    name, _, config = source.partition(":")
    try:
        builder = datasets.load_dataset_builder(name, config or None)
        loaded: Any = datasets.load_dataset(name, config or None, streaming=streaming)
    except Exception as error:
        raise DataError(
            f"{source!r} is not a file or folder here, and cannot be read as a dataset of the Hub: {error}"
        ) from error
    split = "train" if "train" in loaded else next(iter(loaded))
    rows = loaded[split]
    names = rows.column_names or list(next(iter(rows)))
    chosen = _column(names, column, source)
    size = (builder.info.splits or {}).get(split)
    how = f"{source} {split} {chosen}"

    def read() -> Iterator[str]:
        for row, record in enumerate(rows):
            yield _string(record[chosen], f"{source}, row {row},")

    return TextPart(source, digest(str(builder.hash), how), size and size.num_bytes, read)


def shipped_part() -> TextPart:
    try:
        from pydoc_data.topics import topics  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise DataError(
            "this Python comes without pydoc_data.topics: give --data a text file or a folder"
        ) from error
    texts = [str(topics[name]) for name in sorted(topics)]
    size = sum(len(text) for text in texts)
    return TextPart("the topics of pydoc", digest(*texts), size, lambda: iter(texts))


def _column(names: list[str], wanted: str | None, where: str) -> str:
    if wanted is not None:
        if wanted in names:
            return wanted
        raise DataError(f"{where} has no column {wanted!r}: it has {', '.join(names)}")
    for name in COLUMNS:
        if name in names:
            return name
    raise DataError(
        f"{where} has the columns {', '.join(names)}, and none is called {', '.join(COLUMNS)}: "
        "say which with --column"
    )


def _string(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise DataError(
        f"{where} holds {type(value).__name__} where text is needed: name another column"
    )
