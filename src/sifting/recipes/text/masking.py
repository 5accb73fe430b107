"""Masked tokens: which of a sequence are to be predicted, and what stands in their place.

Shapes: B sequences, L tokens of a sequence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sifting.recipes.batches import uniforms
from sifting.recipes.text.blocks import Blocks
from sifting.recipes.text.tokens import Integers, TokenizedText
from sifting.recipes.text.vocabulary import Vocabulary
from sifting.training.recipe import DataError

IGNORED = -100  # the label of a token that is not to be predicted


class Masking:
    """BERT's rule: of the chosen, 80 % are hidden behind [MASK], 10 % become another token, 10 % stay.

    Args:
        vocabulary: WordPiece.
        share: of the ordinary tokens of a sequence that is chosen; at least one is.
    """

    def __init__(self, vocabulary: Vocabulary, share: float) -> None:
        if not 0 < share < 1:
            raise DataError(f"masked={share} is not between 0 and 1: it is a share of the tokens")
        self.share, self.ordinary = share, vocabulary.ordinary
        self.mask = vocabulary.id("[MASK]")

    def __call__(
        self, ids_BL: Integers, plain_BL: npt.NDArray[np.bool_], indices_B: Integers, *, seed: int
    ) -> tuple[Integers, Integers]:
        """What the model reads, and the labels.

        Args:
            ids_BL: the tokens.
            plain_BL: which of them may be chosen: those that are neither special nor padding.
            indices_B: of the sequences; what is chosen follows from them and the seed.
            seed: of the epoch.
        """
        length = ids_BL.shape[1]
        order_BL, how_BL, other_BL = (
            uniforms(indices_B, length, seed=seed, stream=stream) for stream in (1, 2, 3)
        )
        order_BL[~plain_BL] = 2.0  # after all others
        rank_BL = order_BL.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        wanted_B = np.maximum(1, np.rint(self.share * plain_BL.sum(axis=1)))
        chosen_BL = (rank_BL < wanted_B[:, None]) & plain_BL
        labels_BL = np.where(chosen_BL, ids_BL, IGNORED)
        random_BL = self.ordinary[(other_BL * len(self.ordinary)).astype(np.int64)]
        changed_BL = np.where(how_BL < 0.8, self.mask, np.where(how_BL < 0.9, random_BL, ids_BL))
        return np.where(chosen_BL, changed_BL, ids_BL), labels_BL


class Passages:
    """Masked passages of running text: what encoders without a next sentence are trained on.

    Documents stand one after the other, each with [SEP] behind it, and are cut into passages of
    one length. Every example is a function of its index and the epoch's seed.

    Args:
        tokens: the corpus.
        documents: indices of those to take.
        vocabulary: WordPiece.
        length: tokens of a passage.
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
        self.sep = vocabulary.id("[SEP]")
        self.blocks = Blocks(tokens, documents, end=self.sep, length=length)
        self.documents, self.masking = documents, Masking(vocabulary, masked)

    def __len__(self) -> int:
        return len(self.blocks)

    def batch(self, indices_B: Integers, *, seed: int) -> dict[str, Tensor]:
        """Passages as masked language models take them, and their ids as "index"."""
        ids_BL = np.stack([self.blocks.block(int(index)) for index in indices_B])
        ids_BL, labels_BL = self.masking(ids_BL, ids_BL != self.sep, indices_B, seed=seed)
        arrays = {"input_ids": ids_BL, "labels": labels_BL, "index": np.array(indices_B)}
        return {name: torch.from_numpy(value) for name, value in arrays.items()}
