from __future__ import annotations

import copy
import random
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter, SiftingWarning
from sifting.budget import Budget, make_budget, tokens_in
from sifting.selection.choice import Rule
from sifting.selection.tokens import MEAN, HardestTokens
from tests.helpers.documents import TokenModel, documents, packed, padded, token_losses


def lengths(count: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randint(8, 120) for _ in range(count)]


def loader(count: int = 192, batch: int = 8, collate=padded) -> DataLoader:
    found = documents(lengths(count))
    generator = torch.Generator().manual_seed(0)
    return DataLoader(found, batch, shuffle=True, collate_fn=collate, generator=generator)


def test_a_step_keeps_its_budget_and_the_average_is_exact():
    sifter = Sifter(TokenModel(), exit="last", score="loss", keep=0.5, budget="tokens")
    before, trained = 0, 0
    for batch in sifter(loader(batch=16)):
        counts = sifter.meter.counts
        seen, before = counts["tokens_seen"] - before, counts["tokens_seen"]
        tokens = int(batch["attention_mask"].sum())
        trained += tokens
        assert tokens == pytest.approx(seen / 2, rel=0.02)
        assert batch["input_ids"].shape[1] - int(batch["attention_mask"].sum(1).max()) == 0
    stats = sifter.stats()
    assert stats.tokens_trained == trained
    assert stats.tokens_trained == pytest.approx(stats.tokens_seen / 2, abs=120)
    assert stats.tokens_trained + sifter.budget.carry == pytest.approx(stats.tokens_seen / 2)


@pytest.mark.parametrize("explore", [0, 0.25])
@pytest.mark.parametrize("policy", ["top", "percentile", "random"])
def test_each_choice_is_within_two_percent_of_what_it_was_given(policy: str, explore: float):
    sifter = Sifter(
        TokenModel(),
        exit="last",
        score="loss",
        keep=0.4,
        budget="tokens",
        policy=policy,
        explore=explore,
    )
    for seed in range(12):
        found = documents(lengths(32, seed), seed)
        budget = 0.4 * sum(map(len, found))
        kept = sifter.select(packed(found)).indices.tolist()
        assert sum(len(found[i]) for i in kept) == pytest.approx(budget, rel=0.02)
        assert 0 <= sifter.budget.carry <= 0.02 * budget  # so that the average holds


def test_documents_are_chosen_by_loss_per_token_paid():
    torch.manual_seed(0)
    model = TokenModel()
    found = documents([40] * 8)
    batch = padded(found)
    batch["labels"][:4, :36] = -100  # of these only a few tokens have a label, and all cost
    kept = Sifter(model, exit="last", score="loss", keep=0.5, budget="tokens").select(batch)
    worth = [token_losses(model, one).sum() / 40 for one in found[4:]]
    assert kept.indices.tolist() == [4, 5, 6, 7]
    assert torch.allclose(kept.scores[4:], torch.stack(worth), atol=1e-5)


@pytest.mark.parametrize("tokens", ["mean", "sum", HardestTokens(0.2)])
def test_packed_or_not_the_same_documents_are_kept(tokens: object):
    model, found = TokenModel(), documents(lengths(24))
    kept = [
        Sifter(model, exit=1, score="loss", keep=0.5, budget="tokens", tokens=tokens).select(batch)  # type: ignore[arg-type]
        for batch in (padded(found), packed(found))
    ]
    assert kept[0].indices.tolist() == kept[1].indices.tolist()
    wanted = torch.cat([found[i] for i in kept[1].indices.tolist()])
    assert torch.equal(kept[1].batch["input_ids"][0], wanted)  # packed again


def test_one_prediction_a_sample_is_worth_its_score_for_its_length():
    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(40, 4), torch.nn.Linear(4, 3)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.head((self.embed(input_ids) * attention_mask[..., None]).sum(1))

    found = documents(lengths(12))
    batch = {**padded(found), "labels": torch.arange(12) % 3}
    options = {"exit": "last", "score": "loss", "keep": 0.5}
    model = Classifier()
    kept = Sifter(model, budget="tokens", **options).select(batch)  # type: ignore[arg-type]
    losses = Sifter(model, **options).score(batch)  # type: ignore[arg-type]
    assert torch.allclose(kept.scores, losses / torch.tensor([len(one) for one in found]))


def test_what_is_left_over_is_part_of_the_state():
    torch.manual_seed(0)
    model = TokenModel()

    def sifter() -> Sifter:
        return Sifter(model, exit="last", score="loss", keep=0.5, budget="tokens", explore=0.25)

    whole, batches, state = sifter(), [], {}
    for number, batch in enumerate(whole(loader())):
        batches.append(batch["input_ids"])
        if number == 5:
            state = copy.deepcopy(whole.state_dict())
    resumed = sifter()
    resumed.load_state_dict(state)
    assert resumed.budget.carry == state["budget"]["carry"] != 0
    rest = [batch["input_ids"] for batch in resumed(loader())]
    assert len(rest) == len(batches) - 6
    assert all(torch.equal(a, b) for a, b in zip(rest, batches[6:], strict=True))
    with pytest.raises(ValueError, match="'carry' of the budget"):
        resumed.load_state_dict({**state, "budget": {"carry": "much"}})


def test_a_document_longer_than_the_budget_is_passed_over_and_said_once():
    sifter = Sifter(TokenModel(), exit="last", score="loss", keep=0.2, budget="tokens")
    found = documents([400, 20, 20, 20, 20, 20])
    with pytest.warns(
        SiftingWarning, match="a sample costs 400, and the budget of its step is 100"
    ):
        assert 0 not in sifter.select(padded(found)).indices.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SiftingWarning)
        sifter.select(padded(found))
    alone = Sifter(TokenModel(), exit="last", score="loss", keep=0.2, budget="tokens")
    with pytest.warns(SiftingWarning):
        kept = alone.select(padded(documents([400, 300])))
    assert kept.indices.tolist() == [1]  # all are too long: the cheapest
    assert alone.budget.carry == -140  # at most one step's budget is owed


def test_costs_of_ones_own_and_what_is_refused():
    model, found = TokenModel(), documents(lengths(8))
    by_square = Sifter(
        model,
        exit="last",
        score="loss",
        keep=0.5,
        budget=lambda batch: batch["attention_mask"].sum(1) ** 2,
    )
    squares = torch.tensor([len(one) ** 2 for one in found])
    kept = by_square.select(padded(found)).indices
    assert float(squares[kept].sum()) <= 1.02 * float(squares.sum()) / 2
    wrong = Sifter(model, exit="last", score="loss", keep=0.5, budget=lambda batch: torch.zeros(3))
    with pytest.raises(ValueError, match=r"gave \[0.0, 0.0, 0.0\] for 8 samples"):
        wrong.select(padded(found))
    for arguments, message in (
        ({"budget": "bytes"}, "budget='bytes': choose 'samples', 'tokens'"),
        ({"budget": "tokens", "policy": "proportional"}, "policy='proportional' chooses a number"),
        ({"budget": "tokens", "keep": "auto"}, "goes with a fixed keep="),
        ({"tokens": "sum", "keep": "auto"}, "tokens='sum' goes with a fixed keep="),
    ):
        with pytest.raises(ValueError, match=message):
            Sifter(model, **{"exit": "last", "keep": 0.5, **arguments})  # type: ignore[arg-type]
    images = Sifter(torch.nn.Linear(4, 3), exit="last", keep=0.5, budget="tokens")
    with pytest.raises(ValueError, match="tokens of 8 samples cannot be counted"):
        images.select((torch.randn(8, 4), torch.randint(0, 3, (8,))))


def test_a_memory_chooses_within_a_budget_once_samples_are_read():
    torch.manual_seed(0)
    model = TokenModel()
    sifter = Sifter(model, exit=MemoryExit(), keep=0.5, budget="tokens")
    for _ in range(2):
        for batch in sifter(loader(96)):
            model(**batch)
    stats = sifter.stats()
    assert stats.tokens_trained == pytest.approx(stats.tokens_seen / 2, abs=120)
    assert len(sifter.exit.table) == 96  # type: ignore[attr-defined]


def test_keeping_all_is_the_plain_loop_and_counts_tokens():
    sifter = Sifter(TokenModel(), keep=1.0, budget="tokens")
    plain = [batch["input_ids"] for batch in loader()]
    sifted = [batch["input_ids"] for batch in sifter(loader())]
    assert all(torch.equal(a, b) for a, b in zip(plain, sifted, strict=True))
    assert sifter.stats().tokens_trained == sifter.stats().tokens_seen == sum(lengths(192))


def test_batches_that_make_one_update_keep_their_budgets_each_and_together():
    """Choices of an update are all made by the weights before it, and paid for batch by batch."""
    every = 3
    kept: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for updates in (True, False):
        torch.manual_seed(0)
        model = TokenModel()
        sifter = Sifter(model, exit="last", score="loss", keep=0.5, budget="tokens")
        optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
        seen = trained = 0
        for step, batch in enumerate(sifter(loader(batch=16)), start=1):
            kept[updates].append(batch["input_ids"])
            model(**batch)["loss"].backward()
            if updates and step % every == 0:
                optimizer.step()
                optimizer.zero_grad()
                counts = sifter.meter.counts
                paid = counts["tokens_trained"] - trained
                given = (counts["tokens_seen"] - seen) / 2
                assert paid == pytest.approx(given, rel=0.02)
                seen, trained = counts["tokens_seen"], counts["tokens_trained"]
    same = [torch.equal(a, b) for a, b in zip(kept[True], kept[False], strict=True)]
    assert all(same[:every])
    assert not all(same[every : 2 * every])


def test_what_a_step_leaves_over_is_the_next_ones() -> None:
    budget = Budget("tokens", MEAN)
    costs = torch.tensor([3.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    kept = []
    for _ in range(6):
        found = budget.choose(torch.arange(4.0), costs, 0.375, rule=Rule(), generator=generator)
        kept.append(len(found.indices_K))
    assert sum(kept) == 9, "4.5 of 12 each time, on average"
    assert set(kept) == {1, 2}
    again = Budget("tokens", MEAN)
    again.load_state_dict(budget.state_dict())
    assert again.carry == budget.carry


def test_documents_too_coarse_for_a_step_still_keep_the_average() -> None:
    """Three of four are too many for 0.7 and two are too few: the steps before decide which."""
    budget, kept = Budget("tokens", MEAN), []
    costs = torch.full((4,), 510.0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        found = budget.choose(torch.rand(4), costs, 0.7, rule=Rule(), generator=generator)
        kept.append(len(found.indices_K))
    assert set(kept) == {2, 3}
    assert sum(kept) == 0.7 * 4 * 20


def test_a_document_beyond_the_budget_does_not_come_in_by_an_exchange() -> None:
    """3,000 is closer to a budget of 2,403 than all the others together, and does not fit."""
    budget = Budget("tokens", MEAN)
    costs = torch.tensor([3000.0, *[30.0] * 15], dtype=torch.float64)
    with pytest.warns(SiftingWarning, match="such samples are passed over"):
        found = budget.choose(
            torch.ones(16), costs, 0.7, rule=Rule(), generator=torch.Generator().manual_seed(0)
        )
    assert found.indices_K.tolist() == list(range(1, 16))


def test_what_the_argument_stands_for() -> None:
    assert make_budget("samples", MEAN) is None
    assert repr(make_budget(len, MEAN)) == "len"
    with pytest.raises(ValueError, match="budget='words': choose 'samples', 'tokens'"):
        make_budget("words", MEAN)


def test_tokens_are_counted_without_padding() -> None:
    batch = {
        "input_ids": torch.zeros(2, 4),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]),
    }
    assert tokens_in(batch) == 4
    assert tokens_in((torch.zeros(3, 8), torch.zeros(3))) == 0
