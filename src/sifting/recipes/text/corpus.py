"""Documents of any text: files, a folder of them, a dataset of the Hub, or what ships with Python.

A document is a row of a parquet file or dataset, a line of a JSON lines file, or a whole text file
(with `paragraphs`, whatever stands between blank lines of one). Which documents are held out is
decided by a hash of their text, so that no document, and no copy of it, is on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sifting.recipes.text.readers import (
    TextPart,
    dataset_part,
    digest,
    file_part,
    find_files,
    shipped_part,
)
from sifting.training.recipe import DataError

SHIPPED = "python"  # the name of the text that needs no file and no network


@dataclass(frozen=True)
class CorpusPlace:
    """Where in a corpus to go on: part, documents of it, and bytes of text so far."""

    part: int = 0
    document: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order.

    >>> corpus = read_corpus("python")
    >>> next(corpus.documents())[0][:3]
    'The'

    Attributes:
        name: as the user gave it.
        parts: files or datasets.
        limit: bytes of text after which to stop; None for all.
    """

    name: str
    parts: tuple[TextPart, ...]
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

    def documents(self, start: CorpusPlace | None = None) -> Iterator[tuple[str, CorpusPlace]]:
        """Each document, with the place after it; parts before `start` are not opened."""
        start = CorpusPlace() if start is None else start
        done = start.bytes
        for number in range(start.part, len(self.parts)):
            passed = start.document if number == start.part else 0
            for index, text in enumerate(self.parts[number].read()):
                if index < passed:
                    continue
                if self.limit is not None and done >= self.limit:
                    return
                done += len(text.encode("utf-8", "surrogatepass"))
                yield text, CorpusPlace(number, index + 1, done)


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
        raise DataError(f"dev_share={share} is not between 0 and 1: it is the share held out")
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
        raise DataError(f"megabytes={megabytes} leaves no text: give a number above 0")
    parts: list[TextPart] = []
    for source in data.split(" + "):
        path = Path(source.strip()).expanduser()
        if source.strip() == SHIPPED:
            parts.append(shipped_part())
        elif path.exists():
            parts += [file_part(each, column, paragraphs) for each in find_files(path)]
        else:
            parts.append(dataset_part(source.strip(), column, streaming))
    return Corpus(data, tuple(parts), None if megabytes is None else round(megabytes * 1e6))
