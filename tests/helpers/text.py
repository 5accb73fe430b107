"""Tiny texts and tokens that the tests of the text recipes share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from tokenizers import Tokenizer, models

from sifting.recipes.text.corpus import read_corpus
from sifting.recipes.text.tokens import TokenizedText
from sifting.recipes.text.vocabulary import SPECIAL, Vocabulary

NOUNS = ["cat", "dog", "house", "river", "stone", "child", "teacher", "garden", "window", "letter"]
VERBS = ["sees", "finds", "likes", "leaves", "keeps", "hears", "takes", "builds"]


def prose(document: int, sentences: int = 12) -> str:
    """Sentences that differ from document to document, the same every time."""
    lines = []
    for i in range(sentences):
        a, b = NOUNS[(document * 3 + i) % 10], NOUNS[(document * 7 + 2 * i + 1) % 10]
        lines.append(f"The {a} {VERBS[(document + i) % 8]} the {b} number {document * 100 + i}.")
    return " ".join(lines)


def wordpiece(size: int = 5000) -> Vocabulary:
    """A vocabulary of bare numbers behind the special tokens."""
    words = {token: i for i, token in enumerate(SPECIAL["wordpiece"])}
    words |= {f"w{i}": i for i in range(len(words), size)}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL["wordpiece"]))
    return Vocabulary(tokenizer, "wordpiece", "numbers")


def numbered(documents: list[list[int]]) -> TokenizedText:
    """A corpus from the lengths of its sentences; the tokens of sentence s are all 10 + s."""
    lengths = [n for document in documents for n in document]
    tokens = np.repeat(np.arange(len(lengths)) + 10, lengths).astype(np.uint16)
    return TokenizedText(
        tokens,
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([[0], np.cumsum([len(document) for document in documents])]),
        np.arange(len(documents), dtype=np.uint64) << np.uint64(40),
        {},
    )


def texts(source: object, **options: Any) -> list[str]:
    return [text for text, _ in read_corpus(str(source), **options).documents()]


def parquet(path: Path, **columns: list[Any]) -> Path:
    datasets.Dataset.from_dict(columns).to_parquet(str(path))
    return path


def json_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
