"""Samples in tensors: batches by index in one look-up."""

from __future__ import annotations

import torch

from sifting.bench.tasks.rows import TaskRows, loader, shuffled

ROWS = TaskRows(torch.arange(10.0), torch.arange(10), ready=lambda x, y: (2 * x, y))


def test_a_loader_reads_a_batch_at_once_in_the_order_of_its_seed() -> None:
    first, again, other = (list(loader(ROWS, 4, seed)) for seed in (0, 0, 1))
    assert [len(y) for _, y in first] == [4, 4], "the incomplete one is left out"
    for (x, y), (z, _) in zip(first, again, strict=True):
        assert torch.equal(x, z)
        assert torch.equal(x, 2.0 * y)
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(first, other, strict=True))


def test_one_sample_is_a_row_of_each() -> None:
    x, y = ROWS[3]
    assert (float(x), int(y)) == (6.0, 3)


def test_parts_of_them_keep_what_makes_them_ready_or_have_their_own() -> None:
    some = ROWS.some(torch.tensor([7, 1]))
    assert [t.tolist() for t in some.__getitems__([0, 1])] == [[14.0, 2.0], [7, 1]]
    own = ROWS.some(torch.tensor([7]), ready=lambda x, y: x)
    assert own.__getitems__([0]).tolist() == [7.0]
    assert len(ROWS.first(3)) == 3
    assert len(ROWS.first(99)) == 10


def test_all_come_in_order_and_none_is_left_out() -> None:
    assert [y.tolist() for _, y in ROWS.in_order(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_seed_alone_decides_an_order() -> None:
    state = torch.get_rng_state()
    assert torch.equal(shuffled(50, seed=3), shuffled(50, seed=3))
    assert not torch.equal(shuffled(50, seed=3), shuffled(50, seed=4))
    assert torch.equal(torch.get_rng_state(), state)
