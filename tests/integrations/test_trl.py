"""TRL's SFTTrainer, with real runs of a tiny Llama."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf

from sifting import MemoryExit, Sifter
from sifting.integrations.trainer import SiftMixin
from sifting.selection.tokens import BY_NAME

trl = pytest.importorskip("trl", reason="TRL needs Python 3.11")

from sifting.integrations.trl import (  # noqa: E402
    SiftSFTMixin,
    check_sft,
    dft_losses,
    fused_losses,
)
from tests.helpers.trl_sft import (  # noqa: E402
    PAPER,
    Sifted,
    Watched,
    data,
    documents_of,
    llama,
    make,
    run,
)

pytestmark = [
    pytest.mark.filterwarnings("default"),  # of TRL and datasets, not ours
    pytest.mark.filterwarnings("error::sifting.SiftingWarning"),
]

OPTIONS: dict[str, dict[str, Any]] = {
    "completion": {},
    "whole": {"completion_only_loss": False},
    "assistant": {"rows": lambda: data(chat=True), "assistant_only_loss": True},
    "bfd": {"packing": True},
    "wrapped": {"packing": True, "packing_strategy": "wrapped"},
    "padding_free": {"padding_free": True, "max_length": None},
    "neftune": {"neftune_noise_alpha": 5.0},
    "dft": {"loss_type": "dft"},
    "smoothing": {"label_smoothing_factor": 0.1},
    "packed smoothing": {"label_smoothing_factor": 0.1, "packing": True},
    "accumulation": {"gradient_accumulation_steps": 2},
    "checkpointing": {"gradient_checkpointing": True},
}


def options(name: str) -> dict[str, Any]:
    found = dict(OPTIONS[name])
    if "rows" in found:
        found["rows"] = found["rows"]()
    return found


def lora(**more: Any) -> dict[str, Any]:
    peft = pytest.importorskip("peft")
    return {"peft_config": peft.LoraConfig(task_type="CAUSAL_LM", r=2, **more)}


@pytest.mark.parametrize("name", OPTIONS)
def test_keeping_all_is_trls_own_run_bit_for_bit(tmp_path: Path, name: str) -> None:
    plain = run(tmp_path, Watched, **options(name))
    sifted = run(tmp_path, sift={"keep": 1.0}, **options(name))
    assert sifted.losses == plain.losses
    assert sifted.seen == plain.seen
    for a, b in zip(plain.model.parameters(), sifted.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_so_it_is_before_the_first_selection(tmp_path: Path) -> None:
    plain = run(tmp_path, Watched, **options("bfd"))
    sifted = run(tmp_path, sift={"warmup_steps": 99}, **options("bfd"))
    assert (sifted.losses, sifted.seen) == (plain.losses, plain.seen)


@pytest.mark.parametrize("name", [*(n for n in OPTIONS if n != "neftune"), "lora", "all-linear"])
def test_every_way_of_training_is_sifted(tmp_path: Path, name: str) -> None:
    given = options(name) if name in OPTIONS else {}
    if name in ("lora", "all-linear"):  # every linear layer, as for quantised models
        given["extra"] = lora(target_modules=["q_proj"] if name == "lora" else "all-linear")
    trainer = run(tmp_path, sift={"audit_every": 1}, **given)
    stats = trainer.sifter.stats()
    assert stats.selections == len(trainer.seen)
    # of an odd number of documents, the larger half
    assert (
        0
        <= 2 * stats.samples_trained - stats.candidates_seen
        <= (4 if name in ("bfd", "packed smoothing") else 0)
    )
    assert stats.rho_approx is not None
    assert stats.rho_approx > 1.0  # harder ones than at random
    if name != "wrapped":
        sizes = [len(documents_of(rows)) for rows in trainer.seen]
        assert sum(sizes) == stats.samples_trained
    logged = trainer.state.log_history
    assert any("sifting/rho_approx" in entry for entry in logged)


def test_a_quantised_base_is_scored_and_left_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    llama().save_pretrained(tmp_path)
    config = hf.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )

    def trained(kind: type[Any] = Sifted, **more: Any) -> Any:
        model = hf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)
        torch.manual_seed(
            0
        )  # of the adapters, which are above the exit, so that reuse=True has an effect
        adapters = lora(target_modules=["q_proj", "down_proj"], layers_to_transform=[1, 2])
        return run(tmp_path, kind, model=model, extra=adapters, **more)

    def base(trainer: Any) -> list[Any]:
        return [p for p in trainer.model.parameters() if hasattr(p, "quant_state")]

    plain, whole = trained(Watched), trained(sift={"keep": 1.0})
    assert whole.losses == plain.losses
    assert base(plain)
    for sift in ({"audit_every": 1}, {"exit": "tuned"}, {"reuse": True}):
        sifted = trained(sift=sift)
        assert sifted.sifter.stats().selections == 4
        for mine, other in zip(base(sifted), base(plain), strict=True):
            assert mine.quant_state.nested  # as loaded, not packed for inference
            assert torch.equal(mine, other)


@pytest.mark.parametrize("name", ["completion", "padding_free"])
def test_a_seed_gives_the_choices_of_the_plain_loop(tmp_path: Path, name: str) -> None:
    given = {**options(name), "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    plain = make(tmp_path, Watched, **given)
    model, seen = plain.model, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in Sifter(model, **PAPER)(plain.get_train_dataloader()):
        seen.append(batch["input_ids"].tolist())
        model.train()
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if len(seen) == 4:
            break
    model = llama()
    own = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = run(tmp_path, model=model, extra={"optimizers": (own, None)}, **given)
    assert trainer.seen == seen


def test_packed_and_padded_candidates_are_chosen_alike(tmp_path: Path) -> None:
    padded = make(tmp_path)
    free = make(tmp_path, model=padded.model, padding_free=True, max_length=None)
    examples = [padded.train_dataset[i] for i in range(8)]
    batches = [trainer.data_collator(examples) for trainer in (padded, free)]
    one, other = (Sifter(padded.model, **PAPER) for _ in range(2))
    torch.testing.assert_close(one.score(batches[0]), other.score(batches[1]))
    kept = [sifter.select(batch) for sifter, batch in zip((one, other), batches, strict=True)]
    rows = [documents_of(selection.batch["input_ids"].tolist()) for selection in kept]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 4


@pytest.mark.parametrize("name", ["completion", "bfd", "dft"])
def test_scoring_beside_the_step_chooses_the_same_where_nothing_is_learned(
    tmp_path: Path, name: str
) -> None:
    still = {**options(name), "learning_rate": 0.0, "max_steps": 6}
    assert run(tmp_path, sift={"ahead": 1}, **still).seen == run(tmp_path, **still).seen


def test_noise_on_embeddings_does_not_reach_the_scores(tmp_path: Path) -> None:
    plain = run(tmp_path, max_steps=1)
    noisy = run(tmp_path, max_steps=1, neftune_noise_alpha=50.0)
    assert noisy.seen == plain.seen
    assert noisy.losses != plain.losses


@pytest.mark.parametrize("name", ["completion", "padding_free", "dft"])
def test_losses_read_from_the_fused_head_are_exact(tmp_path: Path, name: str) -> None:
    trainer = make(tmp_path, **options(name))
    if not hasattr(trl.trainer.utils, "add_fused_lm_head"):
        pytest.skip("this TRL has no fused head")
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(5)])
    output = trainer.model(**batch, fused_lm_head=True)
    found = fused_losses(output.log_probs, batch, dft=name == "dft")
    if name == "dft":
        torch.testing.assert_close(dft_losses(trainer.model, batch), found)
    for i in range(5):
        one = trainer.data_collator([trainer.train_dataset[i]])
        want = trainer.model(**one).loss
        if name == "dft":
            logits = trainer.model(**{k: v for k, v in one.items() if k != "labels"}).logits
            wanted = one["labels"][0, 1:]
            chance = logits[0, :-1].softmax(dim=-1)[wanted != -100, wanted[wanted != -100]]
            want = -(chance * chance.log()).mean()
        torch.testing.assert_close(found[i], want, rtol=1e-4, atol=1e-5)


def test_a_memory_hears_of_every_sample_that_was_trained(tmp_path: Path) -> None:
    def ids(batch: Any) -> torch.Tensor:  # which no two samples share
        return batch["input_ids"][:, :4].prod(dim=1)

    trainer = run(tmp_path, sift={"exit": MemoryExit(), "ids": ids}, max_steps=20)
    state = trainer.sifter.exit.state_dict()
    assert trainer.sifter.stats().selections > 0
    assert any(isinstance(v, torch.Tensor) and len(v) > 32 for v in state.values() if v is not None)


def test_evaluation_and_a_resumed_run(tmp_path: Path) -> None:
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
    given |= {"eval_strategy": "steps", "eval_steps": 2, "extra": {"eval_dataset": data(8)}}
    whole = run(tmp_path, sift={"exit": "tuned", "score": "entropy"}, **given)
    again = run(
        tmp_path,
        sift={"exit": "tuned", "score": "entropy"},
        resume=str(tmp_path / "checkpoint-2"),
        **given,
    )
    assert again.seen == whole.seen[2:]
    assert again.losses == whole.losses[2:]
    evaluated = [e["eval_loss"] for e in whole.state.log_history if "eval_loss" in e]
    assert len(evaluated) in (2, 3)  # newer transformers make one at the end too
    plain = make(tmp_path, Watched, **given, model=whole.model)
    assert plain.evaluate()["eval_loss"] == pytest.approx(whole.evaluate()["eval_loss"])


class WithoutLogits(hf.LlamaForCausalLM):  # type: ignore[misc]
    """As a fused cross-entropy patches a model: where it is trained, there are no logits."""

    def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
        output = super().forward(*args, labels=labels, **kwargs)
        if labels is not None and self.training:
            output.logits = None
        return output


def test_a_loss_that_never_gives_logits_in_training_is_scored(tmp_path: Path) -> None:
    if not hasattr(trl.trainer.utils, "add_fused_lm_head"):
        pytest.skip("this TRL wants logits for its own figures")
    plain = run(tmp_path)
    fused = run(tmp_path, model=llama(WithoutLogits))
    assert fused.seen == plain.seen
    assert fused.losses == plain.losses


@pytest.mark.parametrize("packing", [False, True])
def test_experts_are_trained_with_their_routers_term_and_scored_without(
    tmp_path: Path, packing: bool
) -> None:
    def model() -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_local_experts": 4}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3}
        told = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
        config = hf.MixtralConfig(vocab_size=65, pad_token_id=0, **sizes, **heads, **told)
        return hf.MixtralForCausalLM(config)

    plain = run(tmp_path, Watched, model=model(), packing=packing)
    whole = run(tmp_path, model=model(), packing=packing, sift={"keep": 1.0})
    assert whole.losses == plain.losses
    sifted = run(tmp_path, model=model(), packing=packing)
    assert sifted.sifter.stats().selections == 4


def test_trainers_of_other_things_are_refused_by_name() -> None:
    class Pairs(SiftMixin, trl.DPOTrainer):  # type: ignore[misc]
        pass

    with pytest.raises(
        ValueError, match="Pairs is a DPOTrainer of TRL, whose batches are pairs: name SiftPairs"
    ):
        Pairs(model=llama())

    class Groups(SiftMixin, trl.GRPOTrainer):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="Groups is a GRPOTrainer of TRL, whose batches are not"):
        Groups(model=llama())

    class NoSFT(SiftSFTMixin, hf.Trainer):
        pass

    with pytest.raises(TypeError, match=r"NoSFT has SiftSFTMixin but is not a trl\.SFTTrainer"):
        NoSFT(model=llama())


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"_is_vision_dataset": True}, "the data has images"),
        (
            {"accelerator": SimpleNamespace(parallelism_config=SimpleNamespace(cp_size=2))},
            "cp_size=2 divides a sequence",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(trainer: dict[str, Any], message: str) -> None:
    accelerator = SimpleNamespace(parallelism_config=None)
    with pytest.raises(ValueError, match=message):
        check_sft(SimpleNamespace(**{"accelerator": accelerator, **trainer}))


@pytest.mark.parametrize(("name", "accumulate"), [("bfd", 1), ("completion", 1), ("completion", 2)])
def test_a_budget_of_tokens_is_kept(tmp_path: Path, name: str, accumulate: int) -> None:
    sift = {**PAPER, "tokens": "hardest", "budget": "tokens"}
    options = {**OPTIONS[name], "max_length": 16} if name == "bfd" else OPTIONS[name]
    trainer = make(tmp_path, sift=sift, gradient_accumulation_steps=accumulate, **options)
    trainer.train()
    assert trainer.sifter.stats().steps == accumulate * trainer.state.global_step
    stats = trainer.sifter.stats()
    assert stats.selections > 2
    assert stats.tokens_trained == pytest.approx(stats.tokens_seen / 2, abs=16)
    assert trainer.state.log_history[-1]["sifting/tokens_trained"] == stats.tokens_trained


def test_losses_of_the_fused_head_weigh_tokens_as_scores_do() -> None:
    log_probs = -torch.tensor([[1.0, 3.0, 5.0, 2.0, 7.0]])
    labels = torch.tensor([[-100, 4, 4, 4, -100, 4]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1]])
    found = {
        name: fused_losses(
            log_probs, {"labels": labels, "position_ids": positions}, tokens=BY_NAME[name]
        ).tolist()
        for name in ("mean", "sum", "hardest")
    }
    assert found == {"mean": [3.0, 7.0], "sum": [9.0, 7.0], "hardest": [5.0, 7.0]}
    assert fused_losses(log_probs, {"labels": labels}, tokens=BY_NAME["sum"]).tolist() == [16.0]


def test_a_memory_of_packed_documents_is_refused_with_remedies_that_work(tmp_path: Path) -> None:
    sift: dict[str, Any] = {"exit": MemoryExit(), "keep": 0.5, "score": "loss"}
    with pytest.raises(ValueError, match=r"documents, .*packing=False.*'wrapped'.*exit='tuned'"):
        run(tmp_path, sift=sift, packing=True)
    remedies: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({**sift, "exit": MemoryExit()}, {"packing": False}),
        ({**sift, "exit": MemoryExit()}, options("wrapped")),
        ({**sift, "exit": "tuned"}, options("bfd")),
    ]
    for asked, how in remedies:
        trainer = run(tmp_path, sift=asked, **how)
        assert trainer.sifter.stats().steps > 0
