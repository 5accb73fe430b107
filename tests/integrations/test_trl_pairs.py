"""TRL's preference trainers, with real runs of a tiny Llama: pairs are chosen, and stay pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sifting import MemoryExit, Sifter, TunedExit
from sifting.integrations.trainer import SiftMixin

trl = pytest.importorskip("trl", reason="TRL is not installed")

from sifting.integrations.pairs import fold  # noqa: E402
from sifting.integrations.trl_pairs import SiftPairsMixin, check_mean  # noqa: E402
from tests.helpers.trl_pairs import (  # noqa: E402
    SiftedDPO,
    SiftedReward,
    WatchedDPO,
    WatchedReward,
    judge,
    make,
    pairs,
    reference,
    run,
)
from tests.helpers.trl_sft import llama  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # of TRL and datasets, not ours
    pytest.mark.filterwarnings("error::sifting.SiftingWarning"),
]


def lora() -> dict[str, Any]:
    peft = pytest.importorskip("peft")
    made = peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, init_lora_weights=False
    )  # differs from the base
    return {"peft_config": made}


OPTIONS: dict[str, dict[str, Any]] = {
    "dpo": {},
    "ipo": {"loss_type": ["ipo"]},
    "precomputed": {"precompute_ref_log_probs": True},
    "lora": {"extra": lora},
    "accumulation": {"gradient_accumulation_steps": 2},
}


def options(name: str) -> dict[str, Any]:
    found = dict(OPTIONS[name])
    if "extra" in found:
        torch.manual_seed(3)  # of the adapters' weights
        found["extra"] = found["extra"]()
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_keeping_all_is_trls_own_run_bit_for_bit(tmp_path: Path, name: str) -> None:
    plain = run(tmp_path, WatchedDPO, **options(name))
    sifted = run(tmp_path, sift={"keep": 1.0}, **options(name))
    assert sifted.losses == plain.losses
    assert sifted.seen == plain.seen
    for a, b in zip(plain.model.parameters(), sifted.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_so_it_is_of_a_reward_model(tmp_path: Path) -> None:
    plain = run(tmp_path, WatchedReward)
    sifted = run(tmp_path, SiftedReward, sift={"keep": 1.0})
    assert (sifted.losses, sifted.seen) == (plain.losses, plain.seen)


def alone(trainer: Any, examples: list[Any]) -> torch.Tensor:
    """TRL's own loss of each pair, in a batch of its own."""
    kind = trl.RewardTrainer if isinstance(trainer, trl.RewardTrainer) else trl.DPOTrainer
    model = trainer.model.eval()
    with torch.no_grad():
        losses = [
            kind.compute_loss(trainer, model, trainer.data_collator([one])) for one in examples
        ]
    return torch.stack(losses)


LOSSES = ["sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "apo_zero", "discopop", "sft"]


@pytest.mark.parametrize("loss", [*LOSSES, "reward", "lora", "precomputed", "weighted"])
def test_a_pairs_score_is_trls_loss_of_it_alone(tmp_path: Path, loss: str) -> None:
    given: dict[str, Any] = {"loss_type": [loss]} if loss in LOSSES else {}
    given |= options(loss) if loss in OPTIONS else {}
    given |= {"use_weighting": True} if loss == "weighted" else {}
    trainer = make(tmp_path, SiftedReward if loss == "reward" else SiftedDPO, **given)
    examples = [trainer.train_dataset[i] for i in range(6)]
    before = dict(trainer._metrics["train"]), dict(trainer._metrics["eval"])
    scores = trainer.sifter.score(fold(trainer.data_collator(examples)))
    assert (dict(trainer._metrics["train"]), dict(trainer._metrics["eval"])) == before
    torch.testing.assert_close(scores, alone(trainer, examples), rtol=1e-4, atol=1e-5)
    assert scores.unique().numel() == 6


def test_an_early_exit_cuts_the_reference_where_it_cuts_the_model(tmp_path: Path) -> None:
    trainer = make(tmp_path, sift={"exit": 1})
    examples = [trainer.train_dataset[i] for i in range(6)]
    scores = trainer.sifter.score(fold(trainer.data_collator(examples)))
    for model in (trainer.model, trainer.ref_model):
        model.model.layers = model.model.layers[:1]
    torch.testing.assert_close(scores, alone(trainer, examples), rtol=1e-4, atol=1e-5)


def test_adapters_that_are_switched_off_are_cut_too(tmp_path: Path) -> None:
    trainer = make(tmp_path, sift={"exit": 2}, **options("lora"))
    examples = [trainer.train_dataset[i] for i in range(4)]
    scores = trainer.sifter.score(fold(trainer.data_collator(examples)))
    inside = trainer.model.get_base_model().model
    inside.layers = inside.layers[:2]
    torch.testing.assert_close(scores, alone(trainer, examples), rtol=1e-4, atol=1e-5)


def prompts(row: list[int]) -> tuple[int, ...]:
    return tuple(row[:2])  # every prompt has two words at least


@pytest.mark.parametrize("kind", [SiftedDPO, SiftedReward])
def test_both_of_a_pair_are_trained_and_the_hardest_are(tmp_path: Path, kind: type[Any]) -> None:
    trainer = run(tmp_path, kind, sift={"audit_every": 1})
    for rows in trainer.seen:
        assert len(rows) == 8
        assert list(map(prompts, rows[:4])) == list(map(prompts, rows[4:]))
    stats = trainer.sifter.stats()
    assert (stats.candidates_seen, stats.samples_trained) == (32, 16)
    assert stats.recall == pytest.approx(1.0)  # exact losses: the highest were kept
    assert stats.rho_approx is not None
    assert stats.rho_approx > 1.05
    assert 0.4 < stats.tokens_trained / stats.tokens_seen < 0.6  # type: ignore[operator]
    assert any("sifting/tokens_trained" in entry for entry in trainer.state.log_history)


def test_a_budget_of_tokens_counts_both_of_a_pair(tmp_path: Path) -> None:
    trainer = run(tmp_path, sift={"budget": "tokens"}, max_steps=6)
    stats = trainer.sifter.stats()
    assert stats.tokens_trained == pytest.approx(stats.tokens_seen / 2, abs=16)


def test_a_memory_hears_of_every_pair_that_was_trained(tmp_path: Path) -> None:
    trainer = make(tmp_path, sift={"exit": MemoryExit()}, max_steps=20)
    told: list[Any] = []
    observe = trainer.sifter.observe
    trainer.sifter.observe = lambda losses: (told.append(losses), observe(losses))
    trainer.train()
    assert [len(losses) for losses in told] == [4] * 20
    means = torch.stack([losses.mean() for losses in told])
    torch.testing.assert_close(means, torch.tensor(trainer.losses), rtol=1e-4, atol=1e-5)
    assert trainer.sifter.stats().selections > 0


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    given |= {"sift": {"explore": 0.25}, "extra": {"eval_dataset": pairs(8)}}
    whole = run(tmp_path, **given)
    again = run(tmp_path, resume=str(tmp_path / "checkpoint-2"), **given)
    assert again.seen[-2:] == whole.seen[2:]
    assert again.losses == whole.losses[2:]
    plain = make(tmp_path, WatchedDPO, model=whole.model, extra=given["extra"])
    assert plain.evaluate()["eval_loss"] == pytest.approx(whole.evaluate()["eval_loss"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss_type": ["aot"]}, "loss_type='aot' compares the pairs of a batch"),
        ({"sift": {"keep": "auto"}}, "keep='auto': the autopilot knows samples"),
        ({"sift": {"score": "entropy"}}, "score='entropy': pairs are scored by their loss"),
        ({"sift": {"exit": TunedExit()}}, "scores by logits and labels"),
        ({"sift": {"ahead": 1}}, "ahead= and reuse= do not go with pairs"),
        (
            {"sift": {"exit": 1}, "precompute_ref_log_probs": True},
            "exit=1 with precompute_ref_log_probs=True",
        ),
    ],
)
def test_what_has_no_meaning_for_pairs_is_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **given)


def test_a_shorter_reference_is_refused_where_the_exit_is_beyond_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exit=3, and the reference has 2 blocks"):
        make(tmp_path, sift={"exit": 3}, extra={"ref_model": llama(layers=2)})


def test_a_sifter_of_ones_own_knows_nothing_of_pairs(tmp_path: Path) -> None:
    model = llama()
    made = Sifter(model, exit="last", score="loss", keep=0.5)
    with pytest.raises(TypeError, match="sift= is a Sifter, which knows nothing of pairs"):
        SiftedDPO(
            model=model,
            ref_model=reference(),
            args=trl.DPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False),
            train_dataset=pairs(),
            processing_class=make(tmp_path).processing_class,
            sift=made,
        )


def test_a_loss_that_is_no_mean_of_its_pairs_is_refused() -> None:
    check_mean(2.0, torch.tensor([1.0, 3.0]))
    with pytest.raises(ValueError, match=r"TRL's loss of 2 pairs is 2\.5, and 2 on average"):
        check_mean(2.5, torch.tensor([1.0, 3.0]))


def test_other_mixins_and_trainers_are_told_apart() -> None:
    class NoPairs(SiftPairsMixin, trl.SFTTrainer):  # type: ignore[misc]
        pass

    with pytest.raises(TypeError, match=r"NoPairs has SiftPairsMixin but is neither a trl\.DPO"):
        NoPairs(model=llama())

    class Rows(SiftMixin, trl.RewardTrainer):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="Rows is a RewardTrainer of TRL, whose batches are pairs"):
        Rows(model=judge())
