"""Vocabularies: WordPiece for BERT and byte-level BPE for GPT, by name, from files, or trained."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sifting import checksums
from sifting.recipes.cache import alone, cache_folder, drop_damaged
from sifting.recipes.text.corpus import Corpus, content_hash, held_out
from sifting.recipes.text.readers import digest
from sifting.training.recipe import DataError

SPECIAL = {"wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "bpe": ("<|endoftext|>",)}
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>")
Texts = Callable[[], Iterator[str]]
TRAIN = "train"  # the name of a vocabulary made from the corpus itself


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and the ids of its special tokens.

    Attributes:
        tokenizer: text to ids; special tokens that are spelled out in a text stay text.
        kind: "wordpiece" or "bpe".
        name: as the user gave it.
    """

    tokenizer: Any
    kind: str
    name: str

    def __post_init__(self) -> None:
        if self.kind == "wordpiece":
            lacking = [t for t in SPECIAL[self.kind] if self.tokenizer.token_to_id(t) is None]
            if lacking:
                raise DataError(f"the vocabulary {self.name} has no {', '.join(lacking)}")
        elif all(self.tokenizer.token_to_id(t) is None for t in ENDS):
            raise DataError(f"the vocabulary {self.name} has none of {', '.join(ENDS)}")
        self.tokenizer.encode_special_tokens = True

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def id(self, token: str) -> int:
        """Id of a token.

        Raises:
            KeyError: where the vocabulary does not have it.
        """
        number = self.tokenizer.token_to_id(token)
        if number is None:
            raise KeyError(token)
        return int(number)

    @property
    def end(self) -> int:
        """The token that ends a document of a causal language model."""
        return self.id(next(t for t in ENDS if self.tokenizer.token_to_id(t) is not None))

    @cached_property
    def ordinary(self) -> npt.NDArray[np.int64]:
        """Ids of all tokens but the special ones."""
        special = {self.tokenizer.token_to_id(t) for t in (*SPECIAL[self.kind], *ENDS)}
        added = self.tokenizer.get_added_tokens_decoder()
        special |= {number for number, token in added.items() if token.special}
        return np.array([i for i in range(len(self)) if i not in special], dtype=np.int64)

    @cached_property
    def bytes_V(self) -> npt.NDArray[np.int64]:
        """Bytes of text that each token stands for; special ones stand for none."""
        counts = np.zeros(len(self), dtype=np.int64)
        alphabet = set(pre_tokenizers.ByteLevel.alphabet())
        words = {int(i): str(self.tokenizer.id_to_token(int(i))) for i in self.ordinary}
        by_byte = all(set(word) <= alphabet for word in words.values())  # a letter for each byte
        for number, word in words.items():
            if not by_byte:  # a space is written as ▁, a lone byte as <0x0A>
                word = " " if re.fullmatch("<0x[0-9A-F]{2}>", word) else word.replace("▁", " ")
            counts[number] = len(word) if by_byte else len(word.encode())
        return counts

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides how text becomes ids."""
        return digest(self.kind, self.tokenizer.to_str())

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, on all cores; no special token is added."""
        encode = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)
        return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]


def load_vocabulary(kind: str, source: str) -> Vocabulary:
    """A vocabulary that is there already.

    Args:
        kind: "wordpiece" or "bpe".
        source: a `vocab.txt` (WordPiece, lower case), a `tokenizer.json`, a folder with either or
            with `vocab.json` and `merges.txt` (BPE), or a name on the Hugging Face Hub.
    """
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            found = [path / n for n in ("tokenizer.json", "vocab.txt", "vocab.json")]
            there = [each for each in found if each.is_file()]
            if not there:
                raise DataError(
                    f"the folder {path} has no tokenizer.json, no vocab.txt and no vocab.json"
                )
            path = there[0]
        if path.name.endswith(".txt") and path.is_file():
            tokenizer = _wordpiece(models.WordPiece.read_file(str(path)))
        elif path.name == "vocab.json" and path.is_file():
            tokenizer = _bpe(*models.BPE.read_file(str(path), str(path.with_name("merges.txt"))))
        elif path.is_file():
            tokenizer = Tokenizer.from_file(str(path))
        else:
            tokenizer = Tokenizer.from_pretrained(source)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"cannot read the vocabulary {source!r}: {error}. Give a name of the Hub, a path, or "
            f'"{TRAIN}" to make one from the corpus'
        ) from error
    model = type(tokenizer.model).__name__.lower()
    if model != kind:
        raise DataError(f"{source} is a {model} vocabulary, and {kind} is needed here")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return Vocabulary(tokenizer, kind, source)


def train_vocabulary(
    kind: str, corpus: Corpus, *, size: int, dev_share: float, cache: Path | None = None
) -> Vocabulary:
    """Make a vocabulary from a corpus, its held-out documents aside; made once, then cached.

    Args:
        kind: "wordpiece" or "bpe".
        corpus: the text.
        size: tokens at most.
        dev_share: share of the documents that is held out.
        cache: folder; see `cache_folder`.
    """
    least = 300 if kind == "bpe" else 100
    if size < least:
        raise DataError(f"a {kind} vocabulary of {size} is too small: give at least {least}")
    key = digest(corpus.fingerprint, kind, str(size), str(dev_share), "3")
    path = cache_folder(cache) / "vocabularies" / f"{key}.json"
    name = f"{kind} of {size} from {corpus.name}"
    with alone(path):
        if path.exists():
            try:
                checksums.read_json(path)
            except (checksums.Damaged, OSError) as error:
                drop_damaged(path, error)
        if not path.exists():
            make = _trained_wordpiece if kind == "wordpiece" else _trained_bpe
            tokenizer = make(lambda: _training_texts(corpus, dev_share), size)
            checksums.write_json(path, json.loads(tokenizer.to_str()))
        made = json.dumps(checksums.read_json(path))
    return Vocabulary(Tokenizer.from_str(made), kind, name)


def _training_texts(corpus: Corpus, dev_share: float) -> Iterator[str]:
    for text, _ in corpus.documents():
        if not held_out(np.array([content_hash(text)], dtype=np.uint64), dev_share)[0]:
            yield text


def _trained_bpe(texts: Texts, size: int) -> Any:
    tokenizer = _bpe({}, [])
    trainer: Any = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL["bpe"]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer=trainer)
    return tokenizer


def _trained_wordpiece(texts: Texts, size: int) -> Any:
    """The same vocabulary for the same text, which the trainer alone does not give.

    It numbers the pieces "##a", "##b", … in the order of a hash map, and settles ties by number
    (huggingface/tokenizers#1794). So the letters are counted first, and their pieces are handed
    to it with numbers of their own. Letters beyond a quarter of the size, as of Chinese, are left
    out by how rare they are, so that words have some room.
    """
    special = list(SPECIAL["wordpiece"])
    tokenizer = _wordpiece({token: i for i, token in enumerate(special)})
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(tokenizer.normalizer.normalize_str(text))
    common = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    letters = sorted(common[: min(1000, size // 4)])
    trainer: Any = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*special, *(f"##{c}" for c in letters if not _stands_alone(c))],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer=trainer)
    return _wordpiece(tokenizer.get_vocab(with_added_tokens=False))


def _stands_alone(letter: str) -> bool:
    """Whether BERT splits a character off, so that it never continues a word."""
    return letter in string.punctuation or unicodedata.category(letter).startswith("P")


def _wordpiece(words: dict[str, int]) -> Any:
    """As `bert-base-uncased`: lower case, accents stripped, punctuation split off."""
    tokenizer: Any = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([t for t in SPECIAL["wordpiece"] if t in words])
    return tokenizer


def _bpe(words: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """As `gpt2`: bytes, spaces kept at the front of words."""
    tokenizer: Any = Tokenizer(models.BPE(words, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([t for t in SPECIAL["bpe"] if t in words])
    return tokenizer
