from __future__ import annotations

import pytest
import torch
import transformers as hf

from sifting import Sifter
from sifting.model.own_loss import loss_of


def experts(weight: float, *, told: bool) -> hf.MixtralForCausalLM:
    """A small mixture of experts whose outputs tell the router's choices, and so have its term."""
    torch.manual_seed(0)
    config = hf.MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=told,
        router_aux_loss_coef=weight,
        initializer_range=0.3,
    )
    return hf.MixtralForCausalLM(config).eval()


def rows() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 32, (6, 9), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:3, :4] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def test_outputs_of_every_kind_have_a_loss_or_none() -> None:
    z, loss = torch.zeros(4, 5), torch.tensor(2.0)
    assert loss_of({"loss": loss, "logits": z}) is loss
    assert loss_of((z, loss)) is loss
    assert loss_of(z) is None
    assert loss_of({"loss": loss, "aux_loss": loss}, torch.nn.Linear(1, 1)) is loss


@pytest.mark.parametrize("weight", [0.001, 0.5])
@pytest.mark.parametrize("exit", [1, "last"])
def test_what_balances_experts_is_in_no_samples_score(weight: float, exit: int | str) -> None:
    plain = Sifter(experts(weight, told=False), exit=exit, score="loss", keep=0.5).score(rows())
    found = Sifter(experts(weight, told=True), exit=exit, score="loss", keep=0.5).score(rows())
    torch.testing.assert_close(found, plain)
    model = experts(weight, told=True)
    own = loss_of(model(**rows()), model)
    assert own is not None
    torch.testing.assert_close(own, experts(weight, told=False)(**rows()).loss)
