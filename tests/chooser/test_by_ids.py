"""Choosing by the samples' IDs alone, before anything of them is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sifting import MemoryExit, Sifter
from sifting.chooser.by_ids import IdChooser
from sifting.exits.base import TrainedBatch
from sifting.model.call import Call
from tests.helpers.models import Net


def chooser_of(net: Net, **options: Any) -> IdChooser:
    """One whose memory knows the losses of samples 0 to 7: their own numbers."""
    exit = MemoryExit(8)
    sifter = Sifter(net, exit=exit, keep=0.5, **options)
    exit.observe(TrainedBatch(Call(), None, ids=list(range(8))), torch.arange(8.0))
    exit.end_step()
    return sifter.chooser.of_ids


def test_the_highest_losses_are_kept_and_nothing_is_run(net: Net) -> None:
    ran: list[int] = []
    net.embed.register_forward_hook(lambda *_: ran.append(1))
    chooser = chooser_of(net)
    made = chooser.choose([3, 7, 0, 5], 2)
    assert made.ids == [7, 5]
    assert made.indices.tolist() == [1, 3]
    assert ran == []
    assert chooser.meter.seconds["scoring"] > 0


def test_the_step_is_made_once_its_samples_are_read(net: Net) -> None:
    chooser = chooser_of(net)
    made = chooser.choose([3, 7, 0, 5], 2)
    batch = (torch.randn(2, 8), torch.tensor([1, 2]))
    step = chooser.read(made, batch, candidates=None)
    assert (step.size, step.ids) == (2, [7, 5])
    assert step.selection is not None
    assert step.selection.batch is batch
    assert chooser.meter.counts["selections"] == 1


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_where_all_candidates_are_read_the_choice_is_audited(net: Net) -> None:
    chooser = chooser_of(net, audit_every=1)
    ids = [3, 7, 0, 5]
    made = chooser.choose(ids, 2)
    batch = (torch.randn(4, 8), torch.tensor([0, 1, 2, 3]))
    step = chooser.read(made, batch, candidates=4, drawn=ids)
    assert chooser.meter.counts["audits"] == 1
    assert step.selection is not None
    assert step.selection.batch[1].tolist() == [1, 3]


def test_what_a_sampler_draws_may_be_more_than_an_id(net: Net) -> None:
    chooser = chooser_of(net)
    drawn = [(3, "left"), (7, "right"), (0, "left"), (5, "left")]
    made = chooser.choose(drawn, 2, name=lambda found: [one for one, _ in found])
    assert made.ids == [drawn[1], drawn[3]]
    batch = (torch.randn(2, 8), torch.tensor([1, 2]))
    step = chooser.read(made, batch, candidates=None, name=lambda found: [one for one, _ in found])
    assert step.ids == [7, 5]


def test_a_random_policy_needs_no_scores(net: Net) -> None:
    sifter = Sifter(net, policy="random", keep=0.5)
    made = sifter.chooser.of_ids.choose(list("abcdef"), 3)
    assert len(set(made.ids)) == 3
    assert not made.scores.any()


class Pair:
    """The second of two ranks; the first has samples of lower losses."""

    rank = 1

    def gather(self, value: Any) -> list[Any]:
        ids, scores = value
        return [([10, 11], torch.tensor([-5.0, 99.0])), (ids, scores)]


def test_ranks_that_choose_together_train_as_many_each(net: Net) -> None:
    chooser = chooser_of(net)
    chooser.together = Pair()  # type: ignore[assignment]
    made = chooser.choose([3, 7], 1)
    assert (made.kept, made.first) == (2, 2)
    assert made.chosen is not None
    assert made.chosen.tolist() == [1, 3], "the highest of both"
    assert made.ids == [7]
