from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sifting.recipes.text import tokens
from sifting.recipes.text.corpus import Corpus, content_hash, read_corpus
from sifting.recipes.text.sentences import split_sentences
from sifting.recipes.text.tokens import TokenizedText, tokenise
from sifting.recipes.text.vocabulary import Vocabulary, train_vocabulary
from sifting.training.recipe import DataError
from tests.helpers.text import numbered, prose


def write(folder: Path, count: int = 12) -> Corpus:
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i:02d}.txt").write_text(prose(i))
    return read_corpus(str(folder))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("vocabulary")
    corpus = write(folder / "text", 20)
    return train_vocabulary("wordpiece", corpus, size=300, dev_share=0.2, cache=folder)


def same(a: TokenizedText, b: TokenizedText) -> bool:
    names = ("tokens_T", "sentences_S", "documents_D", "hashes_D")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_sentences_and_documents_keep_their_boundaries(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    corpus = write(tmp_path / "text")
    tokens = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)
    assert tokens.tokens_T.dtype == np.uint16
    assert isinstance(tokens.tokens_T, np.memmap)
    for number, (text, _) in enumerate(corpus.documents()):
        low, high = tokens.documents_D[number : number + 2]
        got = [
            tokens.tokens_T[tokens.sentences_S[s] : tokens.sentences_S[s + 1]].tolist()
            for s in range(low, high)
        ]
        assert got == vocabulary.encode(split_sentences(text))
        assert tokens.hashes_D[number] == content_hash(text)
    assert tokens.report["documents"] == 12
    assert tokens.report["bytes"] == sum(len(prose(i)) for i in range(12))
    whole = tokenise(corpus, vocabulary, sentences=False, cache=tmp_path)
    assert len(whole.sentences_S) == len(whole.documents_D) == 13
    assert np.array_equal(whole.tokens_T, tokens.tokens_T)


def test_it_is_done_once(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "text")
    first = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)
    monkeypatch.setattr(Vocabulary, "encode", lambda self, texts: pytest.fail("done again"))
    assert same(first, tokenise(corpus, vocabulary, sentences=True, cache=tmp_path))


@pytest.mark.parametrize("name", ["tokens.npy", "documents.npy", "report.json"])
@pytest.mark.parametrize("how", ["flipped", "shortened", "deleted"])
def test_a_damaged_cache_is_named_and_made_again(
    name: str, how: str, vocabulary: Vocabulary, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write(tmp_path / "text", 4)
    tokens = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)
    assert tokens.path is not None
    expected = tokens.tokens_T.tolist()
    file = tokens.path / name
    source = bytearray(file.read_bytes())
    source[-20] ^= 1
    if how == "deleted":
        file.unlink()
    else:
        file.write_bytes(source if how == "flipped" else source[:-20])
    with caplog.at_level("INFO", logger="sifting"):
        again = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)
    assert again.tokens_T.tolist() == expected
    assert name in caplog.text
    assert "it is made again" in caplog.text


def test_a_damaged_shard_is_made_again_with_those_after_it(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "text")
    whole = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path / "whole")

    def stop(folder: Path, name: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tokens, "_join", stop)
        tokenise(corpus, vocabulary, sentences=True, cache=tmp_path / "cut", shard_megabytes=0.001)
    (part,) = (tmp_path / "cut" / "tokens").glob("*.part")
    shards = sorted(part.glob("shard-*"))
    assert len(shards) > 3
    (shards[1] / "tokens.npy").write_bytes(b"")
    again = tokenise(
        corpus, vocabulary, sentences=True, cache=tmp_path / "cut", shard_megabytes=0.001
    )
    assert same(whole, again)


def test_one_other_byte_is_another_entry(vocabulary: Vocabulary, tmp_path: Path) -> None:
    first = tokenise(write(tmp_path / "text"), vocabulary, sentences=True, cache=tmp_path)
    path = tmp_path / "text" / "03.txt"
    path.write_text(path.read_text().replace("dog", "fog", 1))
    changed = read_corpus(str(tmp_path / "text"))
    second = tokenise(changed, vocabulary, sentences=True, cache=tmp_path)
    assert first.path != second.path
    assert not same(first, second)


def test_shards_of_any_size_give_the_same(vocabulary: Vocabulary, tmp_path: Path) -> None:
    corpus = write(tmp_path / "text")
    calls: list[Any] = []
    made = [
        tokenise(
            corpus,
            vocabulary,
            sentences=True,
            cache=tmp_path / str(size),
            shard_megabytes=size,
            progress=lambda done, total: calls.append((done, total)),
        )
        for size in (0.0001, 0.0015, 16.0)
    ]
    assert same(made[0], made[1])
    assert same(made[0], made[2])
    assert calls[-1] == (corpus.size, corpus.size)
    assert [p.name for p in made[0].path.parent.iterdir() if p.name.endswith(".part")] == []


KILLED = """
import os, signal, sys
from pathlib import Path
from sifting.recipes.text import tokens
from sifting.recipes.text.corpus import read_corpus
from sifting.recipes.text.vocabulary import load_vocabulary
folder, write = Path(sys.argv[1]), tokens._Shard.write
def killed(self, path, dtype, place):
    if path.name == "shard-000003":
        (path.parent / ".shard-000003.part").mkdir()  # half-written
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, path, dtype, place)
tokens._Shard.write = killed
tokens.tokenise(
    read_corpus(str(folder / "text")), load_vocabulary("wordpiece", str(folder / "v.json")),
    sentences=True, cache=folder / "cache", shard_megabytes=0.0008,
)
"""


def test_a_killed_process_is_gone_on_with_after_its_last_shard(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "text")
    vocabulary.tokenizer.save(str(tmp_path / "v.json"))
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    parts = list((tmp_path / "cache" / "tokens").glob("*.part"))
    assert len(list(parts[0].glob("shard-*"))) == 3
    encoded: list[str] = []
    encode = Vocabulary.encode

    def counting(self: Vocabulary, texts: list[str]) -> list[list[int]]:
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(Vocabulary, "encode", counting)
    resumed = tokenise(
        corpus, vocabulary, sentences=True, cache=tmp_path / "cache", shard_megabytes=0.0008
    )
    whole = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path / "other")
    assert same(resumed, whole)
    again = resumed.documents_D[-1] - (len(encoded) - whole.documents_D[-1])
    assert again >= 3 * 12  # the sentences of three documents at least were not encoded again


def test_a_process_killed_while_it_tidies_up_loses_nothing(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "text")
    whole = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path / "whole")
    remove = tokens.shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if path.name == "shard-000001":
            raise KeyboardInterrupt
        remove(path, ignore_errors=ignore_errors)

    options: dict[str, Any] = {"sentences": True, "cache": tmp_path, "shard_megabytes": 0.0008}
    with monkeypatch.context() as patch:
        patch.setattr(tokens.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            tokenise(corpus, vocabulary, **options)
    assert same(whole, tokenise(corpus, vocabulary, **options))


def test_workers_open_the_files_themselves(vocabulary: Vocabulary, tmp_path: Path) -> None:
    tokens = tokenise(write(tmp_path / "text"), vocabulary, sentences=True, cache=tmp_path)
    sent = pickle.dumps(tokens)
    assert len(sent) < 1000
    assert same(pickle.loads(sent), tokens)
    bare = numbered([[3, 4], [5]])
    assert same(pickle.loads(pickle.dumps(bare)), bare)


def test_empty_documents_are_left_out_and_counted(vocabulary: Vocabulary, tmp_path: Path) -> None:
    corpus = write(tmp_path / "text", 3)
    (tmp_path / "text" / "01.txt").write_text(" \n")
    (tmp_path / "text" / "zz.txt").write_text("One sentence alone.")
    corpus = read_corpus(str(tmp_path / "text"))
    tokens = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)
    assert tokens.report["documents"] == 3
    assert tokens.report["empty_documents"] == 1
    assert tokens.report["documents_of_one_sentence"] == 1


@pytest.mark.parametrize(
    ("contents", "message"),
    [(["", " \n"], "holds no text: all of its 2 documents are empty")],
)
def test_an_empty_corpus_is_refused(
    contents: list[str], message: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    for i, content in enumerate(contents):
        (tmp_path / "text" / f"{i}.txt").write_text(content)
    corpus = read_corpus(str(tmp_path / "text"))
    for _ in range(2):  # nothing is left behind that would look finished
        with pytest.raises(DataError, match=message):
            tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)


def test_a_full_disk_is_reported_and_nothing_done_is_lost(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "text")
    save, calls = np.save, []

    def full(file: Any, array: Any) -> None:
        calls.append(file)
        if len(calls) > 10:
            raise OSError(28, "No space left on device")
        save(file, array)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"No space left on device.*\. What is done is kept"):
        tokenise(corpus, vocabulary, sentences=True, cache=tmp_path, shard_megabytes=0.0008)
    monkeypatch.undo()
    assert len(list((tmp_path / "tokens").glob("*.part/shard-*"))) == 2
    resumed = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path, shard_megabytes=0.0008)
    assert same(resumed, tokenise(corpus, vocabulary, sentences=True, cache=tmp_path / "other"))


def test_joining_follows_no_planted_link_and_a_full_disk_is_told_not_died_of(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "text")
    (tmp_path / "other").write_text("precious")
    join, places = tokens._join, []

    def planted(folder: Path, name: str) -> None:
        places.append(folder)
        (folder / "tokens.npy").symlink_to(tmp_path / "other")
        join(folder, name)

    mapped = np.lib.format.open_memmap

    def read_only(path: Any, mode: str = "r+", **more: Any) -> Any:
        assert mode == "r", "a process that writes to a map of a full disk is killed"
        return mapped(path, mode=mode, **more)

    monkeypatch.setattr(tokens, "_join", planted)
    monkeypatch.setattr(np.lib.format, "open_memmap", read_only)
    monkeypatch.setattr(tokens, "STRETCH", 100)
    options: dict[str, Any] = {"sentences": True, "shard_megabytes": 0.0008}
    made = tokenise(corpus, vocabulary, cache=tmp_path, **options)
    monkeypatch.undo()
    assert len(places) == 1
    assert (tmp_path / "other").read_text() == "precious"
    assert same(made, tokenise(corpus, vocabulary, sentences=True, cache=tmp_path / "another"))


def test_no_documents_at_all(vocabulary: Vocabulary, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    corpus = read_corpus(str(tmp_path / "a.jsonl"))
    with pytest.raises(DataError, match="holds no text: it has no documents"):
        tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)


def test_the_split_is_by_content_and_copies_stay_together(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    write(tmp_path / "text", 40)
    for i in range(40):
        (tmp_path / "text" / f"copy{i}.txt").write_text(prose(i))
    corpus = read_corpus(str(tmp_path / "text"))
    tokens = tokenise(corpus, vocabulary, sentences=True, cache=tmp_path)
    train, dev = tokens.split(0.3)
    assert sorted([*train, *dev]) == list(range(80))
    assert not set(tokens.hashes_D[train]) & set(tokens.hashes_D[dev])
    assert len(dev) % 2 == 0


def test_a_corpus_too_small_to_split_is_refused() -> None:
    with pytest.raises(DataError, match=r"of 3 documents, 0 are for training and 3 held out at"):
        numbered([[3], [4], [5]]).split(0.5)
