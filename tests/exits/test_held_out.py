from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, TunedExit
from sifting.exits.held_out import HeldOutReference
from sifting.exits.reference import ReferenceTable
from tests.helpers.documents import TokenModel, documents, padded
from tests.helpers.models import Net

SIZE = 400


def noisy(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples whose class is the largest feature; of a third, the label is drawn again."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(SIZE, 5, generator=chance)
    wrong = torch.rand(SIZE, generator=chance) < 0.3
    drawn = (x.argmax(1) + torch.randint(1, 5, (SIZE,), generator=chance)) % 5
    return x, torch.where(wrong, drawn, x.argmax(1)), wrong


def exact(model: nn.Module, batch: object) -> torch.Tensor:
    return Sifter(model, exit="last", score="loss", keep=0.5).score(batch)


def sifter_of(model: nn.Module, **more: object) -> Sifter:
    x, y, _ = noisy(1)
    options: dict[str, object] = {"reference": HeldOutReference([(x, y)], passes=20), **more}
    return Sifter(model, exit="last", score="reducible", keep=0.5, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("exit", [None, TunedExit("embed")])
def test_wrong_labels_are_hard_and_left_out(exit: TunedExit | None):
    torch.manual_seed(0)
    x, y, wrong = noisy(0)
    held_out = noisy(1)[:2]
    model = Net(features=5)
    reference = HeldOutReference([held_out], exit=exit, passes=20)
    by_loss = Sifter(model, exit="last", score="loss", keep=0.5)
    beyond = sifter_of(model, reference=reference)
    share = [float(wrong[one.select((x, y)).indices].float().mean()) for one in (by_loss, beyond)]
    assert share[1] < 0.6 * float(wrong.float().mean()) < share[0]


def test_it_leaves_no_trace_and_is_frozen():
    torch.manual_seed(0)
    model = TokenModel()
    texts = [padded(documents([9, 12, 7, 10], seed)) for seed in range(3)]
    sifter = sifter_of(model, reference=HeldOutReference(texts))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first = sifter.score(texts[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    reference = exact(model, texts[0]) - first
    with torch.no_grad():
        model.head.weight.add_(torch.randn_like(model.head.weight))
    now = exact(model, texts[0])
    assert not torch.allclose(now, exact(TokenModel(), texts[0]))
    assert torch.allclose(now - sifter.score(texts[0]), reference, atol=1e-5)


@pytest.mark.parametrize("exit", [None, TunedExit("embed")])
def test_a_resumed_run_goes_on_with_the_same(exit: TunedExit | None):
    torch.manual_seed(0)
    x, y, _ = noisy(0)
    model = Net(features=5)
    sifter = sifter_of(model, reference=HeldOutReference([noisy(1)[:2]], exit=exit))
    for _ in sifter(DataLoader(TensorDataset(x, y), batch_size=100)):
        state = copy.deepcopy(sifter.state_dict())
    wanted = sifter.score((x, y))
    with torch.no_grad():  # a copy that is made now would be another
        model.embed.weight.mul_(2)
    other = sifter_of(model, reference=HeldOutReference([noisy(5)[:2]], exit=exit))
    other.load_state_dict(state)
    after = exact(model, (x, y)) - other.score((x, y))
    with torch.no_grad():
        model.embed.weight.div_(2)
    assert torch.allclose(after, exact(model, (x, y)) - wanted, atol=1e-4)
    with pytest.raises(ValueError, match="holds a reference that has learned"):
        sifter_of(model, reference=ReferenceTable(torch.zeros(SIZE))).load_state_dict(state)


def test_what_is_given_is_checked():
    with pytest.raises(TypeError, match="can be iterated again"):
        HeldOutReference(iter([]))
    with pytest.raises(ValueError, match="passes=0"):
        HeldOutReference([], passes=0)
    with pytest.raises(ValueError, match="holds no batch"):
        sifter_of(Net(features=5), reference=HeldOutReference([])).select(noisy(0)[:2])


@pytest.mark.parametrize(
    "options",
    [{}, {"packing": True}, {"loss_type": "dft"}, {"bf16": True}],
    ids=lambda options: "".join(options) or "plain",
)
def test_in_trls_trainer_it_is_of_a_copy_that_stays(tmp_path: Path, options: dict[str, Any]):
    """TRL and Accelerate put forwards around the model's, which hold the model itself."""
    pytest.importorskip("trl", reason="TRL needs Python 3.11")
    pytest.importorskip("datasets")
    from tests.helpers.trl_sft import Watched, data, make, run

    held_out = list(make(tmp_path, Watched, rows=data(64)).get_train_dataloader())[:8]
    reference = HeldOutReference(held_out)
    sift = {"exit": "last", "score": "reducible", "reference": reference, "audit_every": 1}
    trainer = run(tmp_path, sift=sift, **options)
    assert trainer.sifter.stats().selections == 4
    frozen = reference.state_dict()["model"]
    now = trainer.model.state_dict()
    assert any(not torch.equal(frozen[name], now[name]) for name in now)


def test_a_copy_that_runs_the_model_itself_is_refused():
    torch.manual_seed(0)
    model = TokenModel()
    batch = padded(documents([9, 12, 7, 10], 0))

    def forward(given: nn.Module, batch: Any) -> Any:
        return model(**batch)  # whichever is given

    with pytest.raises(ValueError, match="keeps a copy of the model, and that still runs"):
        sifter_of(model, reference=HeldOutReference([batch]), forward=forward).select(batch)


def test_a_loss_that_no_predictor_can_learn_is_left_to_a_table():
    torch.manual_seed(0)
    batch = padded(documents([9, 12, 7, 10], 0))

    def losses(logits_BTC: Tensor, labels_BT: Tensor) -> Tensor:
        ahead_BCT = logits_BTC[:, :-1].transpose(1, 2)
        return nn.functional.cross_entropy(ahead_BCT, labels_BT[:, 1:], reduction="none").mean(
            dim=1
        )

    sifter = sifter_of(TokenModel(), reference=HeldOutReference([batch]), loss_fn=losses)
    with pytest.raises(ValueError, match=r"cannot learn those of this model.*sift reference"):
        sifter.select(batch)
