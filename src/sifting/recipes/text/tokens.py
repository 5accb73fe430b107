"""Text to token ids, once: a memory-mapped cache under a hash of the text and the vocabulary.

    $SIFT_CACHE/tokens/KEY/
      tokens.npy       all tokens, one after the other, 16 or 32 bits each
      sentences.npy    where each sentence starts in them, and the end
      documents.npy    where each document starts in the sentences, and the end
      hashes.npy       64 bits of each document's content, which decide what is held out
      report.json      counts, and the checksums of the others

While it is made, finished shards are in `KEY.part`; an interrupted run continues after the last one.
Shapes: T tokens, S sentences, D documents.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sifting.checksums import Damaged
from sifting.files import put_in_place, replacing
from sifting.recipes.cache import alone, cache_folder, drop_damaged, read_record, write_record
from sifting.recipes.text import sentences as splitter
from sifting.recipes.text.corpus import Corpus, CorpusPlace, content_hash, held_out
from sifting.recipes.text.readers import digest
from sifting.recipes.text.vocabulary import Vocabulary
from sifting.training.recipe import DataError

Integers = npt.NDArray[np.int64]
TextProgress = Callable[[int, int | None], None]
FILES = ("tokens", "sentences", "documents", "hashes")
BATCH = 1 << 20  # bytes of text that are tokenised at once
STRETCH = 1 << 22  # tokens that are copied at once


@dataclass(frozen=True)
class TokenizedText:
    """A tokenised corpus; the arrays are read from the disk as they are used.

    Attributes:
        tokens_T: ids of all tokens.
        sentences_S: offsets into the tokens, one more than there are sentences.
        documents_D: offsets into the sentences, one more than there are documents.
        hashes_D: of the documents' content.
        report: counts, for the user.
        path: folder that they are in, where they are in one.
    """

    tokens_T: npt.NDArray[Any]
    sentences_S: Integers
    documents_D: Integers
    hashes_D: npt.NDArray[np.uint64]
    report: dict[str, int]
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.hashes_D)

    def __reduce__(self) -> Any:
        # restarted workers open the files again instead of being sent them
        if self.path is not None:
            return open_tokens, (self.path,)
        return TokenizedText, tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def split(self, dev_share: float) -> tuple[Integers, Integers]:
        """Documents to train on and documents held out, by their content.

        Raises:
            DataError: where one side has fewer than two.
        """
        out_D = held_out(np.asarray(self.hashes_D), dev_share)
        train, dev = np.nonzero(~out_D)[0], np.nonzero(out_D)[0]
        if len(train) < 2 or len(dev) < 2:
            raise DataError(
                f"of {len(self)} documents, {len(train)} are for training and {len(dev)} held out at "
                f"dev_share={dev_share}; each side needs two. Give more documents (of one long text "
                "file, --paragraphs makes many), or another share"
            )
        return train, dev


def open_tokens(path: Path) -> TokenizedText:
    """The tokens in a folder, memory-mapped; `tokenise` has held them against their checksums."""
    tokens, sentences, documents, hashes = (
        np.load(path / f"{name}.npy", mmap_mode="r") for name in FILES
    )
    report = json.loads((path / "report.json").read_text(encoding="utf-8"))
    return TokenizedText(tokens, sentences, documents, hashes, report, path)


def tokenise(
    corpus: Corpus,
    vocabulary: Vocabulary,
    *,
    sentences: bool,
    cache: Path | None = None,
    shard_megabytes: float = 16.0,
    progress: TextProgress | None = None,
) -> TokenizedText:
    """Tokenise a corpus, or find it tokenised.

    Args:
        corpus: documents.
        vocabulary: text to token ids; batches are encoded on all cores.
        sentences: whether to split documents into sentences; else each is one.
        cache: folder; see `cache_folder`.
        shard_megabytes: of text, after which what is done is safe from an interruption.
        progress: called with the bytes done and their number, None where it is not known.
    """
    # workers are forked later and tokenise nothing: without this, each of them says it might
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    split = f"sentences {splitter.VERSION}" if sentences else "documents"
    key = digest(corpus.fingerprint, vocabulary.fingerprint, split, "2")
    path = cache_folder(cache) / "tokens" / key
    with alone(path):
        if path.exists():
            try:
                read_record(path, "report.json")
            except Damaged as error:
                drop_damaged(path, error)
        if not path.exists():
            part = path.with_name(f"{key}.part")
            try:
                part.mkdir(exist_ok=True)
                _write_shards(corpus, vocabulary, sentences, part, shard_megabytes * 1e6, progress)
                _join(part, corpus.name)
                put_in_place(part, path)
                _drop_shards(path)
            except OSError as error:
                raise DataError(
                    f"tokenising {corpus.name} into {part} failed: {error}. What is done is kept: free some "
                    "space and start again, or set SIFT_CACHE to another disk"
                ) from error
    return open_tokens(path)


class _Shard:
    """Documents that are not on the disk yet."""

    def __init__(self) -> None:
        self.tokens = array("I")  # four bytes each, where the integers of a list take thirty
        self.lengths: list[int] = []  # of sentences
        self.counts: list[int] = []  # of documents
        self.hashes: list[int] = []
        self.empty = 0

    def add(self, texts: list[list[str]], hashes: list[int], vocabulary: Vocabulary) -> None:
        encoded = iter(vocabulary.encode([s for document in texts for s in document]))
        for document, content in zip(texts, hashes, strict=True):
            lengths = []
            for _ in document:
                ids = next(encoded)
                if ids:
                    self.tokens.extend(ids)
                    lengths.append(len(ids))
            if not lengths:
                self.empty += 1
                continue
            self.lengths += lengths
            self.counts.append(len(lengths))
            self.hashes.append(content)

    def write(self, path: Path, dtype: Any, place: CorpusPlace) -> None:
        part = path.with_name(f".{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        _save(part / "tokens.npy", np.array(self.tokens, dtype=dtype))
        _save(part / "sentences.npy", np.array(self.lengths, dtype=np.int64))
        _save(part / "documents.npy", np.array(self.counts, dtype=np.int64))
        _save(part / "hashes.npy", np.array(self.hashes, dtype=np.uint64))
        record = {"place": asdict(place), "empty": self.empty}
        write_record(part, "shard.json", record, [f"{name}.npy" for name in FILES])
        put_in_place(part, path)


def _write_shards(
    corpus: Corpus,
    vocabulary: Vocabulary,
    sentences: bool,
    folder: Path,
    shard_bytes: float,
    progress: TextProgress | None,
) -> None:
    done = _sound_shards(folder)
    place = CorpusPlace(**done[-1]["place"]) if done else CorpusPlace()
    dtype = np.uint16 if len(vocabulary) <= 2**16 else np.uint32
    number, written = len(done), place.bytes
    shard, encoded = _Shard(), place.bytes
    texts: list[list[str]] = []
    hashes: list[int] = []
    for text, after in corpus.documents(place):
        place = after
        texts.append(splitter.split_sentences(text) if sentences else [text] * bool(text.strip()))
        hashes.append(content_hash(text))
        if place.bytes - encoded >= BATCH or place.bytes - written >= shard_bytes:
            shard.add(texts, hashes, vocabulary)
            texts, hashes, encoded = [], [], place.bytes
            if progress is not None:
                progress(place.bytes, corpus.size)
        if place.bytes - written >= shard_bytes:
            shard.write(folder / f"shard-{number:06d}", dtype, place)
            number, written, shard = number + 1, place.bytes, _Shard()
    shard.add(texts, hashes, vocabulary)
    if shard.hashes or shard.empty:
        shard.write(folder / f"shard-{number:06d}", dtype, place)
    if progress is not None:
        progress(place.bytes, place.bytes)


def _sound_shards(folder: Path) -> list[dict[str, Any]]:
    """What the shards say that are as they were written; those from the first damaged one on are dropped."""
    records: list[dict[str, Any]] = []
    shards = sorted(folder.glob("shard-*"))
    for number, shard in enumerate(shards):
        try:
            if shard.name != f"shard-{number:06d}":
                raise Damaged(f"{folder} is damaged: shard {number} is missing")
            records.append(read_record(shard, "shard.json"))
        except Damaged as error:
            for later in shards[number:]:
                drop_damaged(later, error)
            break
    return records


def _join(folder: Path, name: str) -> None:
    """Put the shards together: the tokens as they are, lengths as offsets from the start."""
    shards, records = sorted(folder.glob("shard-*")), _sound_shards(folder)
    arrays = {
        file: [np.load(shard / f"{file}.npy", mmap_mode="r") for shard in shards] for file in FILES
    }
    empty = sum(record["empty"] for record in records)
    if not sum(len(a) for a in arrays["hashes"]):
        shutil.rmtree(folder)
        raise DataError(
            f"the corpus {name} holds no text: "
            + (f"all of its {empty} documents are empty" if empty else "it has no documents")
        )
    count = _save_joined(folder / "tokens.npy", arrays["tokens"])
    for file in ("sentences", "documents"):
        lengths = np.concatenate(arrays[file])
        _save(folder / f"{file}.npy", np.concatenate([[0], np.cumsum(lengths)]))
    _save(folder / "hashes.npy", np.concatenate(arrays["hashes"]))
    counts = np.concatenate(arrays["documents"])
    report = {
        "documents": len(counts),
        "empty_documents": empty,
        "documents_of_one_sentence": int((counts == 1).sum()),
        "sentences": int(counts.sum()),
        "tokens": count,
        "bytes": int(records[-1]["place"]["bytes"]),
    }
    made = {**report, "made": round(time.time())}
    write_record(folder, "report.json", made, [f"{file}.npy" for file in FILES])


def _drop_shards(folder: Path) -> None:
    """Only from an entry that has its name: a process that is killed here leaves all of the text."""
    for shard in folder.glob("shard-*"):
        shutil.rmtree(shard, ignore_errors=True)


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    with replacing(path) as file:
        np.save(file, array)


def _save_joined(path: Path, pieces: Sequence[npt.NDArray[Any]]) -> int:
    """Save vectors one after the other as one; returns how long it is.

    Piece by piece, since all of them may not fit into memory; and not through a memory map, since on
    a full disk a process that writes to one is killed without a word.
    """
    count, dtype = sum(len(piece) for piece in pieces), pieces[0].dtype
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (count,),
    }
    with replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            for start in range(0, len(piece), STRETCH):
                file.write(piece[start : start + STRETCH].astype(dtype, copy=False).tobytes())
    return count
