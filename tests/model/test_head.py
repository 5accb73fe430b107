from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter
from sifting.model.call import logits_of
from sifting.model.head import find_head
from tests.helpers.models import SMALL, token_batch


def test_the_head_sees_only_labelled_positions() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    batch = token_batch()
    rows: list[int] = []
    sifter = Sifter(model, exit=1, score="loss")
    sifter.score(batch)
    model.cls.predictions.decoder.register_forward_hook(
        lambda m, a, out: rows.append(out[..., 0].numel())
    )
    sifter.score(batch)
    assert rows == [int((batch["labels"] != -100).sum())]


def test_a_head_is_taken_whole_where_it_works_by_position() -> None:
    model = hf.RobertaForMaskedLM(hf.RobertaConfig(**SMALL, max_position_embeddings=64)).eval()
    ids = token_batch()["input_ids"]
    with torch.no_grad():
        head = find_head(
            model, lambda: logits_of(model(input_ids=ids)), "logits", torch.Size((6, 10, 150))
        )
    assert head is not None
    assert head.module is model.lm_head  # the transform with the decoder, not the decoder alone
    assert head.width == 150


def test_a_head_that_mixes_positions_is_left_alone() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8)
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
            self.head = nn.Sequential(nn.Linear(8, 20), _Centre())

        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.table(input_ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    class _Centre(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(dim=-2, keepdim=True)

    model = Mixing()
    ids = torch.randint(0, 20, (4, 6))
    with torch.no_grad():
        assert (
            find_head(model, lambda: logits_of(model(ids)), "logits", torch.Size((4, 6, 20)))
            is None
        )
    labels = torch.randint(0, 20, (4, 6))
    got = Sifter(model, exit="last", score="loss").score((ids, labels))
    with torch.no_grad():
        want = nn.functional.cross_entropy(
            model(ids).transpose(1, 2), labels, reduction="none"
        ).mean(1)
    torch.testing.assert_close(got, want)


def test_logits_that_are_worked_on_after_the_head_are_scored_as_they_come_out() -> None:
    config = hf.Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.5, pad_token_id=0
    )
    model = hf.Gemma2ForCausalLM(config).eval()
    batch = token_batch(size=4)
    got = Sifter(model, exit="last", score="loss").score(batch)
    with torch.no_grad():
        want = torch.stack(
            [model(**{k: v[i : i + 1] for k, v in batch.items()}).loss for i in range(4)]
        )
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["softcap", "scale", "cast"])
def test_a_cap_a_scale_or_a_cast_after_the_head_is_understood(kind: str) -> None:
    if kind == "softcap":
        model: nn.Module = hf.Gemma2ForCausalLM(
            hf.Gemma2Config(
                **SMALL,
                num_key_value_heads=2,
                head_dim=8,
                final_logit_softcapping=0.5,
                pad_token_id=0,
            )
        )
    elif kind == "scale":
        model = hf.CohereForCausalLM(
            hf.CohereConfig(**SMALL, num_key_value_heads=2, logit_scale=0.3)
        )
    else:
        model = hf.BertForMaskedLM(hf.BertConfig(**SMALL)).bfloat16()
        plain = model.forward

        def forward(**inputs: Tensor) -> dict[str, Tensor]:
            return {k: v.float() for k, v in plain(**inputs).items() if isinstance(v, Tensor)}

        model.forward = forward  # as Accelerate does with mixed precision
    sifter = Sifter(model, exit="tuned", score="entropy")
    batch = token_batch()
    sifter.select(batch)
    assert "only where labels are" in repr(sifter)
    exact = Sifter(model, exit="last", score="loss").score(batch)
    model.eval()
    with torch.no_grad():
        whole = model(**batch)
    loss = whole["loss"] if isinstance(whole, dict) else whole.loss
    shift = int(kind != "cast")
    counts = (batch["labels"][:, shift:] >= 0).sum(dim=1)
    torch.testing.assert_close(
        (exact * counts).sum() / counts.sum(), loss.float(), rtol=5e-3, atol=1e-4
    )


def test_a_cap_is_found_though_an_untrained_models_logits_do_not_show_it() -> None:
    config = hf.Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=8, final_logit_softcapping=30.0, pad_token_id=0
    )
    model = hf.Gemma2ForCausalLM(config).eval()
    batch = token_batch(size=4)
    sifter = Sifter(model, exit="last", score="loss")
    sifter.score(batch)  # the plan is made while all logits are small
    with torch.no_grad():
        model.model.norm.weight.fill_(2000.0)
        want = torch.stack(
            [model(**{k: v[i : i + 1] for k, v in batch.items()}).loss for i in range(4)]
        )
    torch.testing.assert_close(sifter.score(batch), want, rtol=1e-3, atol=1e-3)
