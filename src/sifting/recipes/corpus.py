"""Documents of any text: files, a folder of them, a dataset of the Hub, or what ships with Python.

A document is a row of a parquet file or dataset, a line of a JSON lines file, or a whole text file
(with `paragraphs`, whatever stands between blank lines of one). Which documents are held out is
decided by a hash of their text, so that no document, and no copy of it, is on both sides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

COLUMNS = ("text", "content", "sentence", "document", "article", "body")
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".txt")
SHIPPED = "python"  # the name of the text that needs no file and no network


class CorpusError(ValueError):
    """Text that cannot be trained on; the message names the file, row or byte."""


@dataclass(frozen=True)
class Part:
    """One file, or one dataset, of a corpus.

    Attributes:
        name: for messages.
        fingerprint: of its content and of how it is read.
        size: bytes of text, estimated; None where it cannot be told.
        read: gives its documents in order.
    """

    name: str
    fingerprint: str
    size: int | None
    read: Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Place:
    """Where in a corpus to go on: part, documents of it, and bytes of text so far."""

    part: int = 0
    document: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order.

    >>> corpus = read_corpus("python")
    >>> next(corpus.documents())[0][:6]
    'The "as'

    Attributes:
        name: as the user gave it.
        parts: files or datasets.
        limit: bytes of text after which to stop; None for all.
    """

    name: str
    parts: tuple[Part, ...]
    limit: int | None = None

    @property
    def fingerprint(self) -> str:
        """Hash of the content: another byte in any file, another fingerprint."""
        return digest(*(part.fingerprint for part in self.parts), str(self.limit))

    @property
    def size(self) -> int | None:
        """Bytes of text, estimated."""
        sizes = [part.size for part in self.parts if part.size is not None]
        if len(sizes) < len(self.parts):
            return self.limit
        return sum(sizes) if self.limit is None else min(sum(sizes), self.limit)

    def documents(self, start: Place | None = None) -> Iterator[tuple[str, Place]]:
        """Each document, with the place after it; parts before `start` are not opened."""
        start = Place() if start is None else start
        done = start.bytes
        for number in range(start.part, len(self.parts)):
            passed = start.document if number == start.part else 0
            for index, text in enumerate(self.parts[number].read()):
                if index < passed:
                    continue
                if self.limit is not None and done >= self.limit:
                    return
                done += len(text.encode("utf-8", "surrogatepass"))
                yield text, Place(number, index + 1, done)


def digest(*parts: str) -> str:
    """One short hash of several strings."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def content_hash(text: str) -> int:
    """64 bits of a document's content, spaces around it aside.

    >>> content_hash("one") == content_hash(" one\\n") != content_hash("two")
    True
    """
    data = text.strip().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def held_out(hashes_D: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Which documents are for validation, from their content alone.

    >>> held_out(np.array([0, 2**63], dtype=np.uint64), 0.1).tolist()
    [True, False]
    """
    if not 0 < share < 1:
        raise CorpusError(f"dev_share={share} is not between 0 and 1: it is the share held out")
    kept: npt.NDArray[np.bool_] = hashes_D < np.uint64(int(share * 2**64))
    return kept


def read_corpus(
    data: str,
    *,
    column: str | None = None,
    paragraphs: bool = False,
    streaming: bool = False,
    megabytes: float | None = None,
) -> Corpus:
    """Find the documents of one or several sources; nothing is read yet but to hash it.

    >>> read_corpus("python").parts[0].name
    'the topics of pydoc'

    Args:
        data: a file, a folder (searched through and through), a name on the Hugging Face Hub as
            "name" or "name:config", or "python", the language reference that ships with Python.
            Several are joined with " + ".
        column: of parquet files, JSON lines and datasets; by default the first of `COLUMNS`.
        paragraphs: take what stands between blank lines of a text file as a document each.
        streaming: read datasets of the Hub as they come, without storing them first.
        megabytes: stop after this much text.
    """
    if megabytes is not None and not megabytes > 0:
        raise CorpusError(f"megabytes={megabytes} leaves no text: give a number above 0")
    parts: list[Part] = []
    for source in data.split(" + "):
        path = Path(source.strip()).expanduser()
        if source.strip() == SHIPPED:
            parts.append(_shipped())
        elif path.exists():
            parts += [_file(each, column, paragraphs) for each in _files(path)]
        else:
            parts.append(_dataset(source.strip(), column, streaming))
    return Corpus(data, tuple(parts), None if megabytes is None else round(megabytes * 1e6))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise CorpusError(f"{path} is none of {', '.join(SUFFIXES)}: convert or rename it")
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in SUFFIXES)
    if not found:
        raise CorpusError(f"the folder {path} has no {', '.join(SUFFIXES)} file in it")
    return found


def _file(path: Path, column: str | None, paragraphs: bool) -> Part:
    content = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                content.update(chunk)
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error}") from error
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
    return Part(str(path), digest(content.hexdigest(), how), size, read)


def _decoded(data: bytes, path: Path, offset: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = offset + error.start
        raise CorpusError(
            f"{path} is not UTF-8: byte {place} is 0x{data[error.start]:02x}. Convert the file or leave it out"
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
            except ValueError as error:
                raise CorpusError(f"{path}, line {number}, is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise CorpusError(f"{path}, line {number}, holds no JSON object")
            where = f"{path}, line {number},"
            yield _string(record[_column(list(record), column, where)], where)


def _open_parquet(path: Path) -> Any:
    from pyarrow import parquet  # type: ignore[import-untyped]

    try:
        return parquet.ParquetFile(path)
    except Exception as error:
        raise CorpusError(f"{path} is not a parquet file, or is damaged: {error}") from error


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
        raise CorpusError(
            f"{path}, row {row}, is not UTF-8: byte {error.start} of its text is "
            f"0x{error.object[error.start]:02x}. Convert the file or leave it out"
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, CorpusError):
            raise
        raise CorpusError(f"{path} cannot be read after row {row}: {error}") from error


def _dataset(source: str, column: str | None, streaming: bool) -> Part:
    import datasets

    name, _, config = source.partition(":")
    try:
        builder = datasets.load_dataset_builder(name, config or None)
        loaded: Any = datasets.load_dataset(name, config or None, streaming=streaming)
    except Exception as error:
        raise CorpusError(
            f"{source!r} is no file or folder here, and as a dataset of the Hub it cannot be read: {error}"
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

    return Part(source, digest(str(builder.hash), how), size and size.num_bytes, read)


def _shipped() -> Part:
    try:
        from pydoc_data.topics import topics  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise CorpusError(
            "this Python comes without pydoc_data.topics: give --data a text file or a folder"
        ) from error
    texts = [str(topics[name]) for name in sorted(topics)]
    size = sum(len(text) for text in texts)
    return Part("the topics of pydoc", digest(*texts), size, lambda: iter(texts))


def _column(names: list[str], wanted: str | None, where: str) -> str:
    if wanted is not None:
        if wanted in names:
            return wanted
        raise CorpusError(f"{where} has no column {wanted!r}: it has {', '.join(names)}")
    for name in COLUMNS:
        if name in names:
            return name
    raise CorpusError(
        f"{where} has the columns {', '.join(names)}, and none is called {', '.join(COLUMNS)}: "
        "say which with --column"
    )


def _string(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise CorpusError(
        f"{where} holds {type(value).__name__} where text is needed: name another column"
    )
