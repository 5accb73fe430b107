from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from sifting.recipes.text.corpus import Corpus, read_corpus
from sifting.recipes.text.vocabulary import SPECIAL, Vocabulary, load_vocabulary, train_vocabulary
from sifting.training.recipe import DataError
from tests.helpers.text import prose


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "text").mkdir()
    for i in range(20):
        (tmp_path / "text" / f"{i:02d}.txt").write_text(prose(i))
    return read_corpus(str(tmp_path / "text"))


def trained(kind: str, corpus: Corpus, tmp_path: Path, **options: Any) -> Vocabulary:
    return train_vocabulary(
        kind, corpus, **{"size": 400, "dev_share": 0.2, "cache": tmp_path / "cache", **options}
    )


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_one_is_trained_once_and_found_again(kind: str, corpus: Corpus, tmp_path: Path) -> None:
    first = trained(kind, corpus, tmp_path)
    assert len(first) <= 400
    assert (
        first.tokenizer.decode(first.encode(["The cat sees"])[0]).strip().lower() == "the cat sees"
    )
    files = list((tmp_path / "cache" / "vocabularies").glob("*.json"))
    before = files[0].stat().st_mtime_ns
    assert trained(kind, corpus, tmp_path).fingerprint == first.fingerprint
    assert [f.stat().st_mtime_ns for f in files] == [before]
    trained(kind, corpus, tmp_path, size=350)
    assert len(list((tmp_path / "cache" / "vocabularies").glob("*.json"))) == 2


def test_a_damaged_one_is_made_again(corpus: Corpus, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = train_vocabulary("bpe", corpus, size=300, dev_share=0.2, cache=cache)
    (file,) = (cache / "vocabularies").glob("*.json")
    for damaged in (b"", file.read_bytes().replace(b'"a"', b'"b"', 1)):
        file.write_bytes(damaged)
        again = train_vocabulary("bpe", corpus, size=300, dev_share=0.2, cache=cache)
        assert again.fingerprint == first.fingerprint


def test_training_gives_the_same_everywhere(corpus: Corpus, tmp_path: Path) -> None:
    one, two = (trained("wordpiece", corpus, tmp_path / name) for name in ("a", "b"))
    assert one.fingerprint == two.fingerprint


def test_special_tokens_have_their_numbers_and_stay_out_of_the_text(
    corpus: Corpus, tmp_path: Path
) -> None:
    words = trained("wordpiece", corpus, tmp_path)
    assert [words.id(token) for token in SPECIAL["wordpiece"]] == [0, 1, 2, 3, 4]
    assert set(words.ordinary) == set(range(5, len(words)))
    assert words.id("[MASK]") not in words.encode(["a [MASK] spelled out"])[0]
    pieces = trained("bpe", corpus, tmp_path)
    assert pieces.end == 0
    assert 0 not in pieces.encode(["an <|endoftext|> spelled out"])[0]
    with pytest.raises(KeyError):
        pieces.id("[MASK]")


def test_bytes_of_tokens_are_those_of_the_text(corpus: Corpus, tmp_path: Path) -> None:
    text = "The cat  sees\n the 猫, naïvely."
    pieces = trained("bpe", corpus, tmp_path)
    assert pieces.bytes_V[pieces.encode([text])[0]].sum() == len(text.encode())
    assert pieces.bytes_V[pieces.end] == 0
    # as Llama's: spaces written as ▁, letters it does not know byte by byte
    words = {"</s>": 0, "▁": 1, "c": 2, "a": 3, "▁ca": 4, "▁c": 5, "ï": 6}
    words |= {f"<0x{byte:02X}>": 7 + byte for byte in range(256)}
    model = models.BPE(words, [("▁", "c"), ("▁c", "a")], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(["</s>"])
    own = Vocabulary(tokenizer, "bpe", "own")
    assert own.bytes_V[own.encode([" ca aï猫"])[0]].sum() == len(" ca aï猫".encode())


def test_held_out_documents_are_not_looked_at(tmp_path: Path) -> None:
    """A letter that only a held-out document has is not in the vocabulary."""
    (tmp_path / "text").mkdir()
    for i in range(40):
        (tmp_path / "text" / f"{i:02d}.txt").write_text(f"document {chr(0x3B1 + i % 24)}{i}")
    corpus = read_corpus(str(tmp_path / "text"))
    from sifting.recipes.text.vocabulary import _training_texts

    kept = set(_training_texts(corpus, 0.5))
    assert 0 < len(kept) < 40
    letters = set("".join(kept))
    words = trained("wordpiece", corpus, tmp_path, dev_share=0.5).tokenizer.get_vocab()
    greek = {c for token in words for c in token if ord(c) >= 0x3B1}
    assert greek <= letters


def test_files_and_folders_are_read(corpus: Corpus, tmp_path: Path) -> None:
    words = trained("wordpiece", corpus, tmp_path)
    words.tokenizer.save(str(tmp_path / "tokenizer.json"))
    order = sorted(words.tokenizer.get_vocab().items(), key=lambda item: item[1])
    (tmp_path / "vocab.txt").write_text("\n".join(token for token, _ in order) + "\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "vocab.txt").write_bytes((tmp_path / "vocab.txt").read_bytes())
    text = "The teacher keeps Café number 7."
    for name in ("tokenizer.json", "vocab.txt", "folder"):
        assert load_vocabulary("wordpiece", str(tmp_path / name)).encode([text]) == words.encode(
            [text]
        )
    pieces = trained("bpe", corpus, tmp_path)
    (tmp_path / "bpe").mkdir()
    pieces.tokenizer.model.save(str(tmp_path / "bpe"))
    loaded = load_vocabulary("bpe", str(tmp_path / "bpe"))
    assert loaded.encode([text]) == pieces.encode([text])
    assert loaded.end == pieces.end


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("wordpiece", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"has no \[MASK\]"),
        ("bpe", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", "is a wordpiece vocabulary, and bpe"),
    ],
)
def test_what_a_vocabulary_lacks_is_named(
    kind: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        load_vocabulary(kind, str(tmp_path / "vocab.txt"))


def test_what_cannot_be_read_is_named(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no tokenizer\.json"):
        load_vocabulary("bpe", str(tmp_path / "empty"))
    with pytest.raises(DataError, match="cannot read the vocabulary 'no/such'"):
        load_vocabulary("bpe", "no/such")
    with pytest.raises(DataError, match="a wordpiece vocabulary of 9 is too small"):
        trained("wordpiece", corpus, tmp_path, size=9)


def test_a_full_disk_is_told_with_the_way_out(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"vocabularies.*No space left.*set SIFT_CACHE"):
            trained("bpe", corpus, tmp_path)
    assert len(trained("bpe", corpus, tmp_path)) > 0
