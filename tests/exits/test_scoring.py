"""Scoring batches at an exit, and examining them by the whole model."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

from sifting import Sifter
from sifting.exits.reference import ReferenceTable
from sifting.exits.scoring import DTYPES, Scorer
from tests.helpers.models import Net, candidates


@pytest.fixture
def scorer(net: Net) -> Scorer:
    return Sifter(net, exit=2, score="loss", score_batch_size=5)._scorer


def test_scores_are_those_of_the_exit_piece_by_piece(net: Net, scorer: Scorer) -> None:
    batch = candidates(1)[0]
    sizes: list[int] = []
    net.embed.register_forward_hook(lambda m, a, out: sizes.append(len(out)))
    scorer.check(batch)
    sizes.clear()
    found = scorer.scores(batch, learn=False)
    assert sizes == [5, 5, 2]
    net.eval()
    with torch.no_grad():
        wanted = F.cross_entropy(net.logits_at(batch[0], 2), batch[1], reduction="none")
    torch.testing.assert_close(found, wanted)


def test_examining_gives_exact_losses_what_is_wrong_and_the_exits_own(
    net: Net, scorer: Scorer
) -> None:
    x, y = candidates(1)[0]
    pieces = scorer.examine((x, y), early=True)
    assert pieces is not None
    exact, wrong, early, _ = (torch.cat([p[i] for p in pieces]) for i in range(4))
    net.eval()
    with torch.no_grad():
        z = net(x)
        torch.testing.assert_close(exact, F.cross_entropy(z, y, reduction="none"))
        torch.testing.assert_close(early, F.cross_entropy(net.logits_at(x, 2), y, reduction="none"))
    assert torch.equal(wrong.bool(), z.argmax(1) != y)


def test_of_batches_without_labels_nothing_is_examined(net: Net) -> None:
    scorer = Sifter(net, exit=2, score="entropy")._scorer
    assert scorer.examine(torch.randn(6, 8), early=False) is None


def test_a_users_forward_gives_its_losses_for_free(net: Net, scorer: Scorer) -> None:
    x, y = candidates(1)[0]
    assert scorer.losses(net(x), (x, y)) is None, "nobody knows yet what they are made of"
    scorer.check((x, y))
    output = net(x)
    found = scorer.losses(output, (x, y))
    torch.testing.assert_close(found, F.cross_entropy(output, y, reduction="none").detach())


def test_while_it_runs_forwards_are_not_the_users_in_this_thread_alone(
    net: Net, scorer: Scorer
) -> None:
    seen: list[bool] = []
    elsewhere: list[bool] = []
    net.embed.register_forward_hook(lambda *_: seen.append(scorer.active))
    scorer.scores(candidates(1)[0], learn=False)
    assert set(seen) == {True}
    assert not scorer.active
    with scorer.busy():
        thread = threading.Thread(target=lambda: elsewhere.append(scorer.active))
        thread.start()
        thread.join()
        with scorer.busy():
            pass
        assert scorer.active, "the inner one ends for itself"
    assert elsewhere == [False]


def test_the_autocast_of_training_is_mirrored(net: Net, scorer: Scorer) -> None:
    assert scorer.autocasts is None
    with torch.autocast("cpu", torch.bfloat16):
        scorer.note_autocast()
    assert scorer.autocasts is torch.bfloat16
    assert DTYPES[scorer.autocast] is torch.bfloat16
    dtypes: list[torch.dtype] = []
    net.head.register_forward_hook(lambda m, a, out: dtypes.append(out.dtype))
    scorer.scores(candidates(1)[0], learn=False)
    assert set(dtypes) == {torch.bfloat16}
    scorer.note_autocast()
    assert scorer.autocasts is None


def test_a_reference_is_taken_off(net: Net) -> None:
    batch = candidates(1)[0]
    table = ReferenceTable(torch.arange(12.0), about="made up")
    plain = Sifter(net, exit="last", score="loss")
    less = Sifter(net, exit="last", score="reducible", reference=table, keep=0.5)
    ids = list(range(12))
    found = less._scorer.scores(batch, learn=False, ids=ids)
    wanted = plain.score(batch) - torch.arange(12.0)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    pieces = less._scorer.examine(batch, early=False, ids=ids)
    assert pieces is not None
    torch.testing.assert_close(pieces[0][0], wanted, atol=1e-5, rtol=1e-5)
