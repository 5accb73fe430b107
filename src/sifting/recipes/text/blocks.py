"""Blocks of running text: what a causal language model is trained on.

Documents stand one after the other, each with an end token behind it, and are cut into blocks of
one length; what is left at the end is not used. Shapes: B blocks of L tokens, D documents.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sifting.recipes.text.tokens import Integers, TokenizedText
from sifting.training.recipe import DataError


class Blocks:
    """Blocks of some documents of a corpus; nothing is copied before it is asked for.

    Args:
        tokens: the corpus.
        documents: indices of those to take.
        end: token that stands behind each.
        length: tokens of a block.
    """

    def __init__(
        self, tokens: TokenizedText, documents: Integers, *, end: int, length: int
    ) -> None:
        if length < 2:
            raise DataError(f"length={length} leaves nothing to predict: give at least 2")
        self.tokens, self.end, self.length = tokens, end, length
        bounds = np.asarray(tokens.sentences_S[tokens.documents_D])
        self.starts_D, stops_D = bounds[documents], bounds[documents + 1]
        # where each document starts in the running text, and the end
        self.offsets_D = np.concatenate([[0], np.cumsum(stops_D - self.starts_D + 1)])
        if not len(self):
            raise DataError(
                f"{len(documents)} documents of {self.offsets_D[-1]} tokens in all do not fill a block of "
                f"{length}: give more text, or a shorter length"
            )

    def __len__(self) -> int:
        return int(self.offsets_D[-1]) // self.length

    def block(self, index: int) -> Integers:
        """Tokens of one block."""
        out_L = np.full(self.length, self.end, dtype=np.int64)
        place, stop = index * self.length, (index + 1) * self.length
        document = int(np.searchsorted(self.offsets_D, place, side="right")) - 1
        while place < stop:
            begin, after = int(self.offsets_D[document]), int(self.offsets_D[document + 1])
            until = min(stop, after - 1)  # the end token is there already
            if until > place:
                start = int(self.starts_D[document]) + place - begin
                piece = self.tokens.tokens_T[start : start + until - place]
                out_L[place - stop + self.length : until - stop + self.length] = piece
            place, document = after, document + 1
        return out_L

    def batch(self, indices_B: Integers, *, seed: int) -> dict[str, Tensor]:
        """Blocks as causal models take them, which shift the labels, and their ids as "index"."""
        ids_BL = torch.from_numpy(np.stack([self.block(int(index)) for index in indices_B]))
        index_B = torch.from_numpy(np.array(indices_B))
        return {"input_ids": ids_BL, "labels": ids_BL.clone(), "index": index_B}
