from __future__ import annotations

import math

import pytest
import torch

from sifting import MemoryExit, Sifter, TunedExit
from sifting.selection import HardestTokens, MeanOfTokens, ShareOfTokens, SumOfTokens
from sifting.selection.tokens import find_tokens
from tests.helpers.documents import TokenModel, documents, packed, padded, token_losses
from tests.helpers.models import Net

LENGTHS = (31, 5, 12, 22, 8, 3)

WAYS = {
    "mean": lambda losses: losses.mean(),
    "sum": lambda losses: losses.sum(),
    "share": lambda losses: (losses > 1).float().mean(),
    "hardest": lambda losses: (
        losses.sort(descending=True).values[: math.ceil(len(losses) / 10)].mean()
    ),
}


@pytest.fixture
def model() -> TokenModel:
    torch.manual_seed(0)
    found = TokenModel()
    with torch.no_grad():
        found.head.weight.mul_(8)  # losses on both sides of 1
    return found


@pytest.mark.parametrize("tokens", WAYS)
def test_a_documents_score_weighs_its_tokens_padded_and_packed(model: TokenModel, tokens: str):
    found = documents(LENGTHS)
    wanted = torch.stack([WAYS[tokens](token_losses(model, one)) for one in found])
    sifter = Sifter(model, exit="last", score="loss", keep=0.5, tokens=tokens)
    assert torch.allclose(sifter.score(padded(found)), wanted, atol=1e-5)
    sifter = Sifter(model, exit="last", score="loss", keep=0.5, tokens=tokens)
    assert torch.allclose(sifter.score(packed(found)), wanted, atol=1e-5)


@pytest.mark.parametrize("exit", [1, "last", "tuned"])
@pytest.mark.parametrize("tokens", [SumOfTokens(), ShareOfTokens(2.0), HardestTokens(0.2)])
def test_packed_or_not_the_same_documents_are_chosen(
    model: TokenModel, exit: object, tokens: object
):
    found = documents(LENGTHS)
    made = [
        Sifter(model, exit=exit, score="loss", keep=0.5, tokens=tokens, explore=0).select(batch)  # type: ignore[arg-type]
        for batch in (padded(found), packed(found))
    ]
    assert made[0].indices.tolist() == made[1].indices.tolist()
    assert torch.allclose(made[0].scores, made[1].scores, atol=1e-5)


def test_audits_judge_by_the_same_weighing_and_count_the_loss_per_token(model: TokenModel):
    found = documents(LENGTHS)
    sifter = Sifter(model, exit="last", score="loss", keep=0.5, tokens="sum", audit_every=1)
    kept = sifter.select(padded(found)).indices
    stats = sifter.stats()
    assert (stats.recall, stats.rank_correlation) == (1.0, 1.0)
    sums = torch.stack([token_losses(model, one).sum() for one in found])
    lengths = torch.tensor(LENGTHS, dtype=torch.float)
    wanted = (sums[kept].sum() / lengths[kept].sum()) / (sums.sum() / lengths.sum())
    assert stats.rho_tokens == pytest.approx(float(wanted), rel=1e-5)
    assert (stats.tokens_seen, stats.tokens_trained) == (sum(LENGTHS), int(lengths[kept].sum()))
    assert stats.scalars()["sifting/tokens_trained"] == stats.tokens_trained
    assert "loss per token of the kept" in str(stats)


def test_a_memory_remembers_losses_as_they_are_weighed(model: TokenModel):
    found = documents(LENGTHS)
    batch = {**padded(found), "ids": torch.arange(len(found))}
    exit = MemoryExit()
    sifter = Sifter(model.eval(), exit=exit, keep=0.5, tokens="hardest", ids="ids")
    for given in sifter([batch, batch]):
        model(**{k: v for k, v in given.items() if k != "ids"})
        trained = given["ids"].tolist()
    hardest = [WAYS["hardest"](token_losses(model, found[i])) for i in trained]
    remembered = exit.table.read(torch.tensor(trained))[0]
    assert torch.allclose(remembered, torch.stack(hardest), atol=1e-5)


def test_functions_and_names():
    assert isinstance(find_tokens("mean"), MeanOfTokens)
    with pytest.raises(
        ValueError, match="tokens='max': give a name \\(mean, sum, share, hardest\\)"
    ):
        find_tokens("max")
    with pytest.raises(TypeError, match="tokens=3: give a name"):
        find_tokens(3)
    with pytest.raises(ValueError, match=r"portion=0 is not in \(0, 1\]"):
        HardestTokens(0)
    with pytest.raises(ValueError, match=r"gave \(2, 3\) for 2 documents"):
        find_tokens(lambda scores, mask: scores).weigh(torch.zeros(2, 3), torch.ones(2, 3).bool())
    highest = find_tokens(lambda scores, mask: scores.amax(dim=1))
    assert highest.weigh(torch.tensor([[1.0, 4.0]]), torch.ones(1, 2).bool()).tolist() == [4.0]


@pytest.mark.parametrize("way", [SumOfTokens(), ShareOfTokens(), HardestTokens()])
def test_a_document_without_tokens_is_worth_nothing_and_what_is_broken_stays_so(way: SumOfTokens):
    scores = torch.tensor([[0.0, 0.0], [float("nan"), 3.0]])
    found = way.weigh(scores, torch.tensor([[False, False], [True, True]]))
    assert found[0] == 0
    assert math.isnan(found[1])


def test_what_has_no_tokens_to_weigh_is_refused():
    batch = (torch.randn(6, 8), torch.randint(0, 5, (6,)))
    with pytest.raises(ValueError, match="one prediction per sample: leave tokens= out"):
        Sifter(Net(), exit="last", score="loss", keep=0.5, tokens="sum").select(batch)
    texts = padded(documents(LENGTHS))
    own = Sifter(
        TokenModel(),
        exit="last",
        keep=0.5,
        tokens="sum",
        losses=lambda model, batch: model(batch["input_ids"])["logits"].mean(dim=(1, 2)),
    )
    with pytest.raises(ValueError, match="losses= gives one value per sample: weigh them there"):
        own.select(texts)


def test_a_tuned_exit_weighs_what_it_predicts(model: TokenModel):
    sifter = Sifter(model, exit=TunedExit(1), score="loss", keep=0.5, tokens="sum", explore=0)
    found = documents((30, 30, 4, 4, 4, 4))
    assert sifter.select(padded(found)).indices.tolist()[:2] == [0, 1]
