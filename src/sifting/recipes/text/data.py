"""The text of a recipe: a corpus that is read, tokenised, and split in two."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sifting.recipes.text.corpus import read_corpus
from sifting.recipes.text.presets import TextConfig
from sifting.recipes.text.tokens import Integers, TokenizedText, tokenise
from sifting.recipes.text.vocabulary import TRAIN, Vocabulary, load_vocabulary, train_vocabulary
from sifting.training.launch import rank_and_world


@dataclass(frozen=True)
class TextData:
    """A tokenised corpus in two parts."""

    tokens: TokenizedText
    vocabulary: Vocabulary
    train: Integers
    """Documents to train on."""
    dev: Integers
    """Documents held out."""

    def describe(self) -> str:
        """One line of counts."""
        counts = self.tokens.report
        left_out = {
            "empty and left out": counts["empty_documents"],
            "of one sentence and without a pair": counts["documents_of_one_sentence"]
            if self.vocabulary.kind == "wordpiece"
            else 0,
        }
        notes = "".join(f", {count:,} {what}" for what, count in left_out.items() if count)
        return (
            f"{counts['documents']:,} documents of {counts['tokens']:,} tokens, "
            f"{len(self.dev):,} held out{notes}"
        )


def read_text(config: TextConfig, kind: str) -> TextData:
    """Read, tokenise and split a corpus; what was done before is found in the cache.

    Args:
        config: what to read.
        kind: of the vocabulary: "wordpiece" (sentence by sentence) or "bpe".
    """
    from sifting.training.progress import reading_bar

    corpus = read_corpus(
        config.data,
        column=config.column,
        paragraphs=config.paragraphs,
        streaming=config.streaming,
        megabytes=config.megabytes,
    )
    if config.vocabulary == TRAIN:
        vocabulary = train_vocabulary(
            kind, corpus, size=config.vocabulary_size, dev_share=config.dev_share
        )
    else:
        vocabulary = load_vocabulary(kind, config.vocabulary)
    # only the rank that tokenises has anything to show, and it may be any
    with reading_bar(f"tokenising {config.data}") as progress:
        tokens = tokenise(corpus, vocabulary, sentences=kind == "wordpiece", progress=progress)
    data = TextData(tokens, vocabulary, *tokens.split(config.dev_share))
    if rank_and_world()[0] == 0:
        print(data.describe(), file=sys.stderr)
    return data
