"""reuse=True: what scoring has computed of a frozen prefix is not computed again in training."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, SiftingWarning, TunedExit
from sifting.exits.scoring import Scorer
from sifting.model.call import Call
from sifting.model.cut import BlockCut
from sifting.model.find import find_stack
from sifting.model.prefix import Prefix
from sifting.model.stack import Stack
from tests.helpers.models import Net

STEPS = 6


def make_net(*, frozen: int = 2, dropout: float = 0.0) -> Net:
    torch.manual_seed(3)
    net = Net(width=32)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    for part in (net.embed, *net.blocks[:frozen]):
        part.requires_grad_(False)
    for block in net.blocks[:frozen]:
        block.dropout.p = dropout
    return net


def train(net: Net, change: Any = lambda x: x, steps: int = STEPS, **options: Any) -> Any:
    """A loop: its losses and gradients, and how often each block has run with gradients on."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(96, 8, generator=generator), torch.randint(0, 5, (96,), generator=generator)
    )
    sifter = Sifter(net, audit_every=0, **{"exit": 2, "score": "loss", **options})
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    ran: Counter[int] = Counter()
    for i, block in enumerate(net.blocks):
        block.register_forward_hook(
            lambda *_, i=i: ran.update([i]) if not sifter.scoring else None  # type: ignore[misc]
        )
    torch.manual_seed(5)
    found = []
    for step, (x, y) in enumerate(sifter(DataLoader(data, 8, shuffle=True))):
        loss = F.cross_entropy(net(change(x)), y)
        loss.backward()
        gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        found.append((x.clone(), loss.detach(), *gradients))
        optimizer.step()
        optimizer.zero_grad()
        if step == steps - 1:
            break
    return found, ran


def same(a: Any, b: Any) -> bool:
    return all(
        torch.allclose(x, y, rtol=1e-6, atol=1e-6)
        for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("exit", [{"exit": 2}, {"exit": 1}, {"exit": "blocks.1"}], ids=str)
def test_training_is_the_same_without_the_frozen_blocks(exit: dict[str, Any]) -> None:
    plain, ran_plainly = train(make_net(), **exit)
    found, ran = train(make_net(), reuse=True, **exit)
    assert same(plain, found)
    left_out = 1 if exit["exit"] == 1 else 2
    assert [ran[i] for i in range(4)] == [0] * left_out + [STEPS] * (4 - left_out)
    assert ran_plainly[0] == STEPS


def test_a_tuned_exit() -> None:
    plain, _ = train(make_net(), exit=TunedExit(2), score="entropy")
    found, ran = train(make_net(), exit=TunedExit(2), score="entropy", reuse=True)
    assert same(plain, found)
    assert ran[0] == ran[1] == 0


@pytest.mark.parametrize(
    "change",
    [lambda x: x.clone(), lambda x: x[:, :], lambda x: x.mul_(1.0), lambda x: x.flip(0)],
    ids=["copied", "viewed", "written", "turned"],
)
def test_other_tensors_than_were_handed_out_are_computed(change: Any) -> None:
    plain, _ = train(make_net(), change)
    why = "is given another tensor as 'x' than|is given was written to"
    with pytest.warns(SiftingWarning, match=f"reuse=True has no effect: .*({why})"):
        found, ran = train(make_net(), change, reuse=True)
    assert same(plain, found)
    assert ran[0] == STEPS


def test_gradients_of_the_input_are_those_of_the_whole_model() -> None:
    found = []
    for reuse in (False, True):
        net = make_net()
        sifter = Sifter(net, exit=2, keep=0.5, score="loss", reuse=reuse, audit_every=0)
        torch.manual_seed(5)
        candidates = torch.randn(16, 8), torch.randint(0, 5, (16,))
        for x, y in sifter([candidates]):
            nn.functional.cross_entropy(net(x.requires_grad_()), y).backward()
            found.append(x.grad)
    assert found[0] is not None
    assert found[1] is not None
    torch.testing.assert_close(found[1], found[0])


def test_a_step_that_moves_its_batch_to_the_device_is_given_what_was_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class There(Tensor):
        """On a pretended device."""

    def to_device(x: Any) -> Any:
        return x if isinstance(x, There) else x.clone().as_subclass(There)

    plain, _ = train(make_net(), to_device)
    monkeypatch.setattr(Scorer, "moved", lambda self, batch: tuple(map(to_device, batch)))
    found, ran = train(make_net(), to_device, reuse=True)
    assert same(plain, found)
    assert ran[0] == 0


class Decoder(nn.Module):
    """A causal language model that keeps keys and values unless it is told not to."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 20)
        self.checkpointed = checkpointed

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, use_cache: bool = True
    ) -> dict[str, Any]:
        hidden, cache = self.embed(input_ids), []
        if self.checkpointed and torch.is_grad_enabled():
            hidden = hidden.clone() if hidden.requires_grad else hidden
            hidden.requires_grad_()  # as people do, for what is trained to be reached
        for block in self.blocks:
            if use_cache:
                cache.append(hidden)
            if self.checkpointed and self.training:
                hidden = checkpoint(block, hidden, use_reentrant=True)
            else:
                hidden = block(hidden)
        logits, found = self.head(hidden), {"cache": cache}
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            return {"loss": loss, "logits": logits, **found}
        return {"logits": logits, **found}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_decoders_by_default_and_checkpointed(checkpointed: bool) -> None:
    tokens = torch.randint(0, 20, (64, 6), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    found: dict[bool, Any] = {}
    for reuse in (False, True):
        torch.manual_seed(0)
        model = Decoder(checkpointed=checkpointed)
        model.embed.requires_grad_(False)
        model.blocks[:2].requires_grad_(False)
        sifter = Sifter(model, exit=2, score="loss", keep=0.5, reuse=reuse, audit_every=0)
        ran = [0]
        model.blocks[1].register_forward_hook(
            lambda *_: ran.__setitem__(0, ran[0] + (not sifter.scoring))  # noqa: B023
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses, calls = [], []
        for batch in sifter(DataLoader(data, 8)):  # type: ignore[arg-type]
            loss = model(**batch)["loss"]
            calls.append(ran[0])  # of forwards alone: checkpoints run blocks again
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert (calls[-1] == 0) is reuse
        found[reuse] = losses, [p.detach().clone() for p in model.parameters()]
    assert found[True][0] == pytest.approx(found[False][0], abs=1e-6)
    pairs = zip(found[True][1], found[False][1], strict=True)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("where", ["block", "embedding", "model"])
def test_what_is_trained_inside_a_checkpoint_is_seen(where: str) -> None:
    model = Decoder(checkpointed=True)
    model.embed.requires_grad_(False)
    model.blocks[:2].requires_grad_(False)
    if where == "model":  # a parameter of no module that runs before
        model.scale = nn.Parameter(torch.ones(16))
        model.embed.register_forward_hook(lambda module, args, output: output * model.scale)
    else:
        (model.blocks[1] if where == "block" else model.embed).requires_grad_(True)
    prefix = Prefix(BlockCut(model, find_stack(model), 2), Call())
    tokens = torch.randint(0, 20, (4, 6))
    assert "or before them, are trained" in str(prefix.refused({"input_ids": tokens}))


def frozen_images() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            stage=nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            flat=nn.Flatten(),
            head=nn.Linear(8 * 16, 5),
        )
    )
    return model[:2].requires_grad_(False).eval() and model


@pytest.mark.parametrize("exit", ["stage", "last"])
def test_frozen_backbones_of_images(exit: str) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(64, 1, 4, 4, generator=generator)
    data = TensorDataset(images, torch.randint(0, 5, (64,), generator=generator))
    found: dict[bool, Any] = {}
    for reuse in (False, True):
        model = frozen_images()
        chosen: Any = exit if exit == "last" else TunedExit(exit)
        sifter = Sifter(model, exit=chosen, score="loss", keep=0.5, reuse=reuse, audit_every=0)
        ran: Counter[str] = Counter()
        for name, part in model.named_children():
            part.register_forward_hook(
                lambda *_, name=name: ran.update([name] * (not sifter.scoring))  # type: ignore[misc]  # noqa: B023
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for x, y in sifter(DataLoader(data, 8)):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        steps = len(losses)
        left = ["flat", "head"] if exit == "stage" else ["head"]
        assert ran == dict.fromkeys(left if reuse else ["stem", "stage", "flat", "head"], steps)
        found[reuse] = losses
    assert found[True] == pytest.approx(found[False], abs=1e-6)


def test_the_default_exit_of_a_linear_probe_is_early_and_hands_on() -> None:
    model = frozen_images()
    sifter = Sifter(model, exit="tuned", score="loss", keep=0.5, reuse=True, audit_every=0)
    data = TensorDataset(torch.randn(64, 1, 4, 4), torch.arange(64) % 5)
    for x, y in sifter(DataLoader(data, 8)):
        F.cross_entropy(model(x), y).backward()
    assert repr(sifter.exit).startswith("TunedExit(stem")
    reuse = sifter._scorer.reuse
    assert reuse is not None
    assert reuse.prefix is not None
    assert reuse.prefix.reused == sifter.step


def test_where_everything_is_trained_the_whole_model_has_nothing_to_hand_on() -> None:
    net = make_net(frozen=0).requires_grad_(True)
    with pytest.warns(SiftingWarning, match="nothing of the model comes before what is trained"):
        train(net, exit="last", reuse=True)


def normed() -> Net:
    net = make_net()
    net.blocks[0] = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 32)).requires_grad_(False)
    net.blocks[1] = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 32)).requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            lambda: make_net(dropout=0.3),
            r"first 2 blocks of 'blocks' draw random numbers .*\(dropout\)",
        ),
        (
            lambda: make_net(frozen=1),
            "parameters in the first 2 blocks of 'blocks', or before them, are trained",
        ),
    ],
)
def test_where_training_computes_something_else_it_says_so(net: Any, message: str) -> None:
    plain, _ = train(net())
    with pytest.warns(SiftingWarning, match=f"reuse=True has no effect: .*{message}"):
        found, ran = train(net(), reuse=True)
    assert same(plain, found)
    assert ran[0] == STEPS


def test_batch_norm_in_training_is_not_reused_and_its_statistics_stay() -> None:
    reused = normed()
    stack = Stack("blocks", reused.blocks, (("0",), ("1",)), reused)
    prefix = Prefix(BlockCut(reused, stack, 2), Call())
    batch = (torch.randn(6, 8), torch.arange(6) % 5)
    before = {name: value.clone() for name, value in reused.state_dict().items()}
    assert "batch norm" in str(prefix.refused(batch))
    assert all(torch.equal(before[name], value) for name, value in reused.state_dict().items())
    reused.blocks.eval()
    assert prefix.refused(batch) is None


def test_what_is_left_is_the_model_as_it_was() -> None:
    net = make_net()
    blocks = list(net.blocks)
    with pytest.raises(ZeroDivisionError):
        train(net, lambda x: 1 // 0, reuse=True)
    handles = [module._forward_pre_hooks for module in net.modules()]
    assert not any(handles)
    assert list(net.blocks) == blocks

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                raise ArithmeticError("in the middle of a forward")
            return x

    net.norm = Broken()  # type: ignore[assignment]
    with pytest.raises(ArithmeticError):
        train(net, reuse=True)
    assert list(net.blocks) == blocks


def test_what_does_not_go_together_is_named() -> None:
    with pytest.raises(ValueError, match="reuse=True does not go with ahead=1"):
        Sifter(make_net(), exit=1, ahead=1, reuse=True)
    with pytest.raises(TypeError, match="reuse='yes'"):
        Sifter(make_net(), exit=1, reuse="yes")  # type: ignore[arg-type]
