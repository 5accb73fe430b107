"""Handing what scoring has computed of a frozen prefix to the training forward."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from sifting import Sifter, SiftingWarning
from sifting.exits.best import BestExit
from sifting.exits.economy import Economy
from sifting.exits.reuse import compiled
from tests.helpers.models import Net, candidates


def frozen() -> Net:
    torch.manual_seed(0)
    net = Net()
    net.norm = nn.LayerNorm(16)  # type: ignore[assignment]
    for part in (net.embed, net.blocks[0], net.blocks[1]):
        part.requires_grad_(False)
    for block in net.blocks[:2]:
        block.dropout.p = 0.0
    return net


def ran(net: Net, **options: object) -> list[int]:
    """How often the first block runs in each step's training forward."""
    sifter = Sifter(net, **{"exit": 2, "score": "loss", "keep": 0.5, "reuse": True, **options})
    calls = [0]
    net.blocks[0].register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    found = []
    for x, _ in sifter(candidates(3)):
        before = calls[0]
        net(x)
        found.append(calls[0] - before)
    return found


def test_the_frozen_blocks_are_not_run_again() -> None:
    assert ran(frozen()) == [0, 0, 0]
    assert ran(frozen(), reuse=False) == [1, 1, 1]


def test_where_it_cannot_be_it_says_so_once_and_training_is_as_without() -> None:
    net = frozen()
    net.blocks[0].requires_grad_(True)
    with pytest.warns(
        SiftingWarning, match="reuse=True has no effect: .*Training is as without it"
    ) as said:
        assert ran(net) == [1, 1, 1]
    assert len([w for w in said if "reuse=True" in str(w.message)]) == 1


def test_an_exit_that_is_no_block_has_nothing_to_hand_on() -> None:
    with pytest.warns(SiftingWarning, match="is not at one module of the model"):
        assert ran(frozen(), exit="input") == [1, 1, 1]


def _gpt() -> nn.Module:
    torch.manual_seed(0)
    none = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    config = hf.GPT2Config(vocab_size=60, n_embd=32, n_layer=3, n_head=2, n_positions=32, **none)
    model = hf.GPT2LMHeadModel(config)
    for part in (model.transformer.wte, model.transformer.wpe, *model.transformer.h[:2]):
        part.requires_grad_(False)
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["tuned", "tuned, rows=6", "tuned, view=12", "exit 1"])
def test_what_a_way_saw_only_a_part_of_is_not_trained_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """exit="auto" leaves out parts of candidates by itself."""
    monkeypatch.setattr("sifting.exits.best.FIRST", 2)
    monkeypatch.setattr(Economy, "measure", lambda self, *_, **__: setattr(self, "low", False))

    def decide(self: BestExit) -> None:
        self.used = next(way for way in self.ways if way.name == name)

    monkeypatch.setattr(BestExit, "_decide", decide)
    ids = torch.randint(0, 60, (5, 16, 24), generator=torch.Generator().manual_seed(0))
    model = _gpt()
    sifter = Sifter(model, exit="auto", keep=0.5, score="loss", reuse=True, audit_every=0)
    plain, calls = copy.deepcopy(model), [0]
    model.transformer.h[0].register_forward_hook(  # type: ignore[union-attr, index, operator]
        lambda *_: calls.__setitem__(0, calls[0] + (not sifter.scoring))
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in sifter([{"input_ids": row, "labels": row} for row in ids]):
            torch.testing.assert_close(model(**batch).loss, plain(**batch).loss)
    said = [str(w.message) for w in caught if "reuse=True" in str(w.message)]
    if "," in name:
        assert calls == [5]
        assert len(said) == 1
        assert f"BestExit({name}) looks at less of candidates than is trained" in said[0]
    else:
        assert calls == [2], "of the look alone"
        assert not said


def test_outside_a_loop_and_with_a_budget_it_says_so() -> None:
    sifter = Sifter(frozen(), exit=2, score="loss", keep=0.5, reuse=True)
    with pytest.warns(SiftingWarning, match=r"no effect: what select\(\) gives is trained outside"):
        sifter.select(candidates(1)[0])

    def costs(batch: tuple[torch.Tensor, torch.Tensor]) -> list[int]:
        return [1] * len(batch[1])

    with pytest.warns(SiftingWarning, match="no effect: it does not go with budget="):
        assert ran(frozen(), budget=costs) == [1, 1, 1]


def test_asking_for_scores_hands_nothing_on() -> None:
    net = frozen()
    sifter = Sifter(net, exit=2, score="loss", keep=0.5, reuse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sifter.score(candidates(1)[0])
    assert sifter._scorer.reuse is not None
    assert sifter._scorer.reuse._last is None


def test_what_is_compiled_is_known() -> None:
    net = Net()
    assert not compiled(net)
    assert compiled(torch.compile(net, backend="eager"))
    net.head.compile(backend="eager")
    assert compiled(net)


def fed(steps: list[int]) -> Any:
    """A forward hook that counts how often the first block is run for training."""

    def count(module: nn.Module, args: Any, output: Any) -> None:
        steps.append(1) if torch.is_grad_enabled() else None

    return count


@pytest.mark.parametrize("kind", ["Trainer", "TRL", "TRL accumulating"])
def test_a_trainers_words_about_the_loss_are_no_hindrance(tmp_path: Path, kind: str) -> None:
    """The Trainer tells a language model by what to divide its loss, TRL to keep no logits."""

    def trained(reuse: bool) -> tuple[list[float], int]:
        sift = {"exit": 1, "score": "loss", "keep": 0.5, "reuse": reuse}
        if kind == "Trainer":
            from tests.helpers import hf_trainer
            from tests.helpers.trainer_models import Texts, causal

            model: Any = causal().requires_grad_(False)
            model.model.layers[-1].requires_grad_(True)
            run, given = hf_trainer.run, {"model": model, "data": Texts(labels="tokens")}
        else:
            pytest.importorskip("trl", reason="TRL needs Python 3.11")
            from tests.helpers import trl_sft

            model = trl_sft.llama().requires_grad_(False)
            model.model.layers[-1].requires_grad_(True)
            given = {"model": model, "gradient_accumulation_steps": 1 + ("acc" in kind)}
            run = trl_sft.run
        steps: list[int] = []
        model.model.layers[0].mlp.register_forward_hook(fed(steps))
        found = run(tmp_path, sift=sift, **given)
        return found.losses, len(steps)

    with_it, without = trained(True), trained(False)
    assert with_it[0] == pytest.approx(without[0], rel=1e-5)
    assert without[1] == len(without[0])
    assert with_it[1] <= 2 < without[1]  # the check before the first use
