"""Sentence pairs with masked tokens: what BERT is trained on.

A document is cut into chunks of whole sentences that fill a sequence. A pair splits a chunk at
random: its first sentences, then either the rest of it or, half of the time, sentences of another
document. Of a document with one sentence there is no next one to predict, so that it gives no
pair of its own; it may stand as the other document of one. Where a chunk's rest is replaced, it
is not used in that pass (BERT's own script starts the next chunk with it); each pass splits again.
Shapes: B pairs, L tokens of a sequence, N chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sifting.recipes.batches import uniforms
from sifting.recipes.text.masking import Masking
from sifting.recipes.text.tokens import Integers, TokenizedText
from sifting.recipes.text.vocabulary import Vocabulary
from sifting.training.recipe import DataError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SentenceSpan:
    """Sentences `start` to `stop` of the corpus, all of one document."""

    document: int
    start: int
    stop: int


def cut_chunks(tokens: TokenizedText, documents: Integers, room: int) -> Integers:
    """Chunks of at least two sentences that fill `room` tokens, as rows of document, start, stop.

    All documents are cut at once, a chunk of each in every round. A sentence that would be left
    alone at the end of a document goes with the chunk before it.
    """
    offsets_S = np.asarray(tokens.sentences_S)
    start, last = tokens.documents_D[documents], tokens.documents_D[documents + 1]
    rows: list[Integers] = []
    while len(documents := documents[(more := last - start >= 2)]):
        start, last = start[more], last[more]
        full = np.searchsorted(offsets_S, offsets_S[start] + room, side="left")
        stop = np.minimum(np.maximum(full, start + 2), last)
        stop = np.where(last - stop == 1, last, stop)
        rows.append(np.stack([documents, start, stop], axis=1))
        start = stop
    if not rows:
        return np.zeros((0, 3), dtype=np.int64)
    chunks = np.concatenate(rows)
    return chunks[np.argsort(chunks[:, 1], kind="stable")]


class SentencePairs:
    """Masked sentence pairs of some documents of a corpus.

    Every example is a function of its index and the epoch's seed.

    Args:
        tokens: the corpus, tokenised sentence by sentence.
        documents: indices of those to take; the random sentences are of them, too.
        vocabulary: WordPiece.
        length: tokens of a sequence, special ones and padding included.
        masked: share of the tokens to predict.
    """

    def __init__(
        self,
        tokens: TokenizedText,
        documents: Integers,
        vocabulary: Vocabulary,
        *,
        length: int,
        masked: float = 0.15,
    ) -> None:
        if length < 8:
            raise DataError(f"length={length} leaves no room for a pair: give at least 8")
        self.tokens, self.documents, self.length = tokens, documents, length
        self.cls, self.sep, self.pad = (
            vocabulary.id(f"[{name}]") for name in ("CLS", "SEP", "PAD")
        )
        self.masking = Masking(vocabulary, masked)
        counts = tokens.documents_D[documents + 1] - tokens.documents_D[documents]
        self.passed_over = int((counts == 1).sum())  # documents of one sentence
        self.chunks = cut_chunks(tokens, documents, length - 3)
        if len(documents) < 2 or not len(self.chunks):
            raise DataError(
                f"{len(documents)} documents, {self.passed_over} of them of one sentence, give no pair: "
                "two are needed, one of them with two sentences"
            )

    def __len__(self) -> int:
        return len(self.chunks)

    def spans(self, index: int, *, seed: int) -> tuple[SentenceSpan, SentenceSpan, bool]:
        """First and second part of a pair, and whether the second is from another document."""
        return self._spans(index, uniforms(np.array([index]), 6, seed=seed)[0])

    def _spans(self, index: int, u: Floats) -> tuple[SentenceSpan, SentenceSpan, bool]:
        document, start, stop = (int(n) for n in self.chunks[index])
        middle = start + 1 + int(u[0] * (stop - start - 1))
        first = SentenceSpan(document, start, middle)
        if u[1] < 0.5:
            return first, SentenceSpan(document, middle, stop), False
        own = int(np.searchsorted(self.documents, document))
        place = int(u[2] * (len(self.documents) - 1))
        other = int(self.documents[place + (place >= own)])
        low, high = self.tokens.documents_D[other : other + 2]
        begin = int(low) + int(u[3] * (int(high) - int(low)))
        offsets_S = self.tokens.sentences_S
        room = self.length - 3 - int(offsets_S[middle] - offsets_S[start])
        end = begin + 1
        while end < high and offsets_S[end] - offsets_S[begin] < room:
            end += 1
        return first, SentenceSpan(other, begin, end), True

    def _cut(
        self, first: SentenceSpan, second: SentenceSpan, u: Floats
    ) -> list[npt.NDArray[np.int64]]:
        """The tokens of both parts, the longer one cut at either end until they fit."""
        offsets_S = self.tokens.sentences_S
        bounds = [(int(offsets_S[s.start]), int(offsets_S[s.stop])) for s in (first, second)]
        sizes = [stop - start for start, stop in bounds]
        room = self.length - 3
        half = room // 2
        if sum(sizes) > room:
            a = max(min(sizes[0], room - half), room - sizes[1])
            keep = [a, room - a]
        else:
            keep = sizes
        pieces = []
        for (start, _), size, kept, chance in zip(bounds, sizes, keep, u, strict=True):
            start += int(chance * (size - kept + 1))
            pieces.append(self.tokens.tokens_T[start : start + kept].astype(np.int64))
        return pieces

    def batch(self, indices_B: Integers, *, seed: int) -> dict[str, Tensor]:
        """Pairs as `BertForPreTraining` takes them, and their ids as "index".

        The second label is 1 for a random next.
        """
        size, length = len(indices_B), self.length
        ids_BL = np.full((size, length), self.pad, dtype=np.int64)
        types_BL = np.zeros((size, length), dtype=np.int64)
        attended_BL = np.zeros((size, length), dtype=np.int64)
        plain_BL = np.zeros((size, length), dtype=np.bool_)  # neither special nor padding
        next_B = np.zeros(size, dtype=np.int64)
        chances = uniforms(indices_B, 6, seed=seed)
        for row, index in enumerate(indices_B):
            first, second, random = self._spans(int(index), chances[row])
            a, b = self._cut(first, second, chances[row, 4:])
            middle, end = len(a) + 1, len(a) + len(b) + 2
            ids_BL[row, 0], ids_BL[row, middle], ids_BL[row, end] = self.cls, self.sep, self.sep
            ids_BL[row, 1:middle], ids_BL[row, middle + 1 : end] = a, b
            types_BL[row, middle + 1 : end + 1] = 1
            attended_BL[row, : end + 1] = 1
            plain_BL[row, 1:end] = True
            plain_BL[row, middle] = False
            next_B[row] = random
        ids_BL, labels_BL = self.masking(ids_BL, plain_BL, indices_B, seed=seed)
        arrays = {
            "input_ids": ids_BL,
            "token_type_ids": types_BL,
            "attention_mask": attended_BL,
            "labels": labels_BL,
            "next_sentence_label": next_B,
            "index": np.array(indices_B),
        }
        return {name: torch.from_numpy(value) for name, value in arrays.items()}
