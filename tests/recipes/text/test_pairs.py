from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sifting.recipes.text.masking import IGNORED
from sifting.recipes.text.pairs import SentencePairs, cut_chunks
from sifting.recipes.text.tokens import TokenizedText
from sifting.training.recipe import DataError
from tests.helpers.text import numbered, wordpiece

CLS, SEP, MASK, PAD = 2, 3, 4, 0


def corpus(documents: int = 30, seed: int = 0) -> TokenizedText:
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 15, size=rng.integers(1, 40)).tolist() for _ in range(documents)]
    return numbered(lengths)


def make(tokens: TokenizedText, length: int = 48, **options: Any) -> SentencePairs:
    documents = options.pop("documents", np.arange(len(tokens)))
    return SentencePairs(tokens, documents, wordpiece(2000), length=length, **options)


def document_of(tokens: TokenizedText, sentence: int) -> int:
    return int(np.searchsorted(tokens.documents_D, sentence, side="right")) - 1


def originals(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Tokens before they were masked."""
    return torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])


def parts(row: torch.Tensor) -> tuple[list[int], list[int], int]:
    """Sentence numbers of both parts, and the tokens in use."""
    ids = row.tolist()
    assert ids[0] == CLS
    first = ids.index(SEP)
    second = ids.index(SEP, first + 1)
    assert all(i == PAD for i in ids[second + 1 :])
    return [i - 10 for i in ids[1:first]], [i - 10 for i in ids[first + 1 : second]], second + 1


def test_chunks_are_whole_sentences_of_one_document_and_cover_it() -> None:
    tokens = corpus()
    chunks = cut_chunks(tokens, np.arange(len(tokens)), 45)
    counts = np.diff(tokens.documents_D)
    for document in range(len(tokens)):
        own = chunks[chunks[:, 0] == document]
        if counts[document] < 2:
            assert len(own) == 0
            continue
        assert own[0, 1] == tokens.documents_D[document]
        assert own[-1, 2] == tokens.documents_D[document + 1]
        assert (own[1:, 1] == own[:-1, 2]).all()
        assert (own[:, 2] - own[:, 1] >= 2).all()
        sizes = tokens.sentences_S[own[:, 2]] - tokens.sentences_S[own[:, 1]]
        assert (sizes[:-1] >= 45).all()


def test_a_next_follows_or_is_of_another_document() -> None:
    tokens = corpus()
    pairs = make(tokens)
    seen = {False: 0, True: 0}
    for seed in range(5):
        for index in range(len(pairs)):
            first, second, random = pairs.spans(index, seed=seed)
            for span in (first, second):
                assert tokens.documents_D[span.document] <= span.start < span.stop
                assert span.stop <= tokens.documents_D[span.document + 1]
            if random:
                assert second.document != first.document
            else:
                assert (second.document, second.start) == (first.document, first.stop)
            seen[random] += 1
    total = sum(seen.values())
    assert abs(seen[True] / total - 0.5) < 3 * 0.5 / total**0.5


def test_batches_hold_what_the_spans_say() -> None:
    tokens = corpus()
    pairs = make(tokens)
    batch = pairs.batch(np.arange(len(pairs)), seed=1)
    whole = originals(batch)
    for index in range(len(pairs)):
        first, second, random = pairs.spans(index, seed=1)
        a, b, used = parts(whole[index])
        assert a == sorted(a)
        assert b == sorted(b)
        assert set(a) <= set(range(first.start, first.stop))
        assert set(b) <= set(range(second.start, second.stop))
        assert a
        assert b
        assert {document_of(tokens, s) for s in a} == {first.document}
        assert int(batch["next_sentence_label"][index]) == random
        types = batch["token_type_ids"][index].tolist()
        assert types == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (48 - used)
        assert batch["attention_mask"][index].tolist() == [1] * used + [0] * (48 - used)


def test_sequences_are_filled() -> None:
    tokens = numbered([[7] * 100] * 4)
    pairs = make(tokens)
    batch = pairs.batch(np.arange(len(pairs)), seed=0)
    assert (batch["attention_mask"].sum(dim=1) == 48).float().mean() > 0.8


def test_a_sentence_longer_than_the_sequence_is_cut() -> None:
    tokens = numbered([[500, 3, 400, 2], [300, 300], [1, 1]])
    pairs = make(tokens, length=16)
    for seed in range(20):
        whole = originals(pairs.batch(np.arange(len(pairs)), seed=seed))
        for row in whole:
            a, b, used = parts(row)
            assert used <= 16
            assert a
            assert b


def test_masks_are_as_in_bert() -> None:
    pairs = make(numbered([[9] * 200] * 20), length=64)
    batch = pairs.batch(np.arange(len(pairs)), seed=5)
    whole, ids, labels = originals(batch), batch["input_ids"], batch["labels"]
    chosen = labels != IGNORED
    special = (whole == CLS) | (whole == SEP) | (whole == PAD)
    assert not (chosen & special).any()
    assert torch.equal(ids[special], whole[special])
    plain = (~special).sum(dim=1)
    assert torch.equal(chosen.sum(dim=1), (0.15 * plain).round().long().clamp_min(1))
    total = int(chosen.sum())
    masked = float((ids[chosen] == MASK).sum()) / total
    kept = float((ids[chosen] == labels[chosen]).sum()) / total
    tolerance = 3 * (0.8 * 0.2 / total) ** 0.5
    assert abs(masked - 0.8) < tolerance
    assert abs(kept - 0.1) < tolerance
    other = ids[chosen & (ids != MASK) & (ids != labels)]
    assert len(other.unique()) > 50
    assert int(other.min()) >= 5  # never a special token
    # every position is as likely as any other
    middle = chosen[:, 2:-2].float().mean(dim=0)
    assert 0.05 < float(middle.min()) < float(middle.max()) < 0.30


def test_every_sequence_has_at_least_one_mask() -> None:
    pairs = make(numbered([[1, 1]] * 50), length=8)
    batch = pairs.batch(np.arange(len(pairs)), seed=0)
    assert ((batch["labels"] != IGNORED).sum(dim=1) == 1).all()


def test_each_pass_has_new_pairs_and_masks_and_the_same_seed_the_same() -> None:
    pairs = make(corpus())
    indices = np.arange(len(pairs))
    one, again, other = (pairs.batch(indices, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["labels"], other["labels"])
    assert not torch.equal(one["next_sentence_label"], other["next_sentence_label"])
    alone = pairs.batch(indices[7:8], seed=1)
    assert all(torch.equal(one[k][7:8], alone[k]) for k in one)


def test_no_held_out_document_is_ever_trained_on() -> None:
    tokens = corpus(60)
    train, dev = np.arange(0, 60, 2), np.arange(1, 60, 2)
    pairs = make(tokens, documents=train)
    held_out = {s for d in dev for s in range(tokens.documents_D[d], tokens.documents_D[d + 1])}
    for seed in range(10):
        whole = originals(pairs.batch(np.arange(len(pairs)), seed=seed))
        used = set((whole[whole >= 10] - 10).unique().tolist())
        assert used
        assert not used & held_out


def test_a_document_of_one_sentence_only_serves_as_the_other() -> None:
    tokens = numbered([[5], [6, 6, 6], [4], [3, 3]])
    pairs = make(tokens)
    assert pairs.passed_over == 2
    assert set(pairs.chunks[:, 0]) == {1, 3}
    seconds = {pairs.spans(0, seed=seed)[1].document for seed in range(60)}
    assert {0, 2} <= seconds


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ([[5], [5]], {}, "2 documents, 2 of them of one sentence, give no pair"),
        ([[5, 5]], {}, "1 documents, 0 of them of one sentence, give no pair"),
        ([[5, 5], [5]], {"length": 7}, "length=7 leaves no room"),
        ([[5, 5], [5]], {"masked": 0.0}, "masked=0.0 is not between 0 and 1"),
    ],
)
def test_what_cannot_be_paired_is_refused(
    documents: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make(numbered(documents), **options)
