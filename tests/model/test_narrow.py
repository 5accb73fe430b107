"""The exit's block only where predictions are wanted: the same scores, on every architecture."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter
from sifting.model.narrow import Narrow, find_narrow, narrowed
from tests.helpers.models import SMALL, token_batch


def _bert() -> nn.Module:
    return hf.BertForPreTraining(hf.BertConfig(**SMALL))


def _llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL))


def _gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=4, n_head=4, vocab_size=150))


def _batch(model: nn.Module) -> dict[str, Tensor]:
    batch = token_batch(size=6, length=24)
    batch["labels"][torch.rand(6, 24) < 0.5] = -100
    batch["labels"][:, 1] = batch["input_ids"][:, 1]
    if isinstance(model, hf.BertForPreTraining):
        batch["next_sentence_label"] = torch.randint(0, 2, (6,))
    return batch


CASES = {
    _bert: {"0.intermediate", "0.output", "0.attention.output", "0.attention.self.query"},
    _llama: {"0.mlp", "0.self_attn.q_proj", "0.self_attn.o_proj"},
    _gpt2: {"0.mlp", "0.attn.c_proj"},
}


@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("score", ["loss", "entropy"])
def test_scores_are_those_of_the_whole_block(make, score: str) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = make().train()
    batch = _batch(model)
    plain = Sifter(model, exit=1, score=score, keep=0.5)
    narrow = Sifter(model, exit=1, score=score, keep=0.5, rows="labelled")
    torch.testing.assert_close(narrow.score(batch), plain.score(batch), rtol=1e-5, atol=1e-5)
    (found,) = narrow.exit._narrow.values()  # type: ignore[attr-defined]
    assert set(found.layers) == CASES[make]
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert model.training


def test_fewer_positions_go_through_the_layers() -> None:
    torch.manual_seed(0)
    model = _llama()
    batch = _batch(model)
    seen: list[int] = []
    layer = model.model.layers[0].mlp.gate_proj  # type: ignore[union-attr,index]
    layer.register_forward_hook(lambda m, a, o: seen.append(o.shape[:-1].numel()))  # type: ignore[operator,union-attr]
    sifter = Sifter(model, exit=1, score="loss", keep=0.5, rows="labelled")
    sifter.score(batch)
    seen.clear()
    sifter.score(batch)
    assert seen == [int((batch["labels"][:, 1:] != -100).sum())]


class Mixing(nn.Module):
    """A block whose MLP is followed by an average over positions: nothing of it can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(16, 16)
        self.gain = nn.Parameter(torch.zeros(()))  # so that the average changes nothing at first

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(x)
        return x + y.tanh() + self.gain * y.mean(dim=1, keepdim=True)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Mixing() for _ in range(3)])
        self.head = nn.Linear(16, 50)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_a_layer_that_reaches_other_positions_runs_whole_though_its_weight_is_zero_yet() -> None:
    torch.manual_seed(0)
    model = Tagger()
    batch = {"input_ids": torch.randint(0, 50, (6, 12)), "labels": torch.full((6, 12), -100)}
    batch["labels"][:, 2:5] = 7
    narrow = Sifter(model, exit=1, score="loss", keep=0.5, rows="labelled")
    narrow.score(batch)
    assert list(narrow.exit._narrow.values()) == [None]  # type: ignore[attr-defined]
    nn.init.constant_(model.blocks[0].gain, 3.0)  # type: ignore[arg-type]
    plain = Sifter(model, exit=1, score="loss", keep=0.5)
    torch.testing.assert_close(narrow.score(batch), plain.score(batch))


def test_a_position_that_something_else_is_predicted_from_is_kept() -> None:
    """The pooled first position is labelled in the first batch by chance, and not in the second."""
    torch.manual_seed(0)
    model = _bert().eval()
    first, second = _batch(model), _batch(model)
    first["labels"][:, 0] = 5
    second["labels"][:, 0] = -100
    narrow = Sifter(model, exit=1, score="loss", keep=0.5, rows="labelled")
    narrow.score(first)
    plain = Sifter(model, exit=1, score="loss", keep=0.5)
    torch.testing.assert_close(narrow.score(second), plain.score(second), rtol=1e-5, atol=1e-5)


def test_a_stack_that_cannot_run_in_part_has_no_narrow_way() -> None:
    from sifting.model.find import find_stack
    from tests.helpers.plans import plan_of

    model = nn.Sequential(nn.Linear(3, 4), *[nn.Linear(4, 4) for _ in range(3)], nn.Linear(4, 5))
    batch = (torch.randn(4, 3), torch.arange(4))
    plan = plan_of(model, batch)
    with torch.no_grad():
        found = find_narrow(find_stack(model), 1, plan, model, batch)
    assert found is None or isinstance(found, Narrow)
    with narrowed(None, plan) as opened:
        assert opened is None, "nothing is narrowed"
