"""Plain PyTorch loops with what people put around their models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from sifting import Sifter
from tests.helpers.models import Net
from tests.helpers.trainer_models import Texts, causal, classifier

PAPER = {"exit": 1, "score": "loss", "keep": 0.5}


def pairs(count: int = 8, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(size, 8, generator=generator),
            torch.randint(0, 5, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def train(
    model: nn.Module, batches: Any, *, after: Callable[[], None] | None = None
) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if after is not None:
            after()
    return losses


class Compiler:
    """Counts graphs; "eager" itself keeps no count of its own."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")  # random labels: nothing to learn
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"warmup_steps": 5},
        {"exit": "tuned", "score": "entropy"},
        {"score": "entropy", "audit_every": 2},
    ],
    ids=str,
)
def test_a_compiled_model_is_not_compiled_again(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    compiler, graphs = Compiler(), []
    model = torch.compile(Net(), backend=compiler)
    sifter = Sifter(model, **{**PAPER, **options})
    train(model, sifter(pairs()), after=lambda: graphs.append(compiler.graphs))
    assert graphs[0] >= 1
    # nothing after the second step that is scored: the shapes never change
    second = options.get("warmup_steps", 0) + 1
    assert len(graphs) > second + 1
    assert set(graphs[second:]) == {graphs[second]}
    assert set(graphs[:second]) <= {graphs[0]}
    torch._dynamo.reset()


def kept_by(sifter: Sifter) -> list[int]:
    step = sifter.observer.current
    assert step is not None
    assert step.selection is not None
    kept: list[int] = step.selection.indices.tolist()
    return kept


def test_a_compiled_model_makes_the_choices_of_the_plain_one() -> None:
    torch._dynamo.reset()
    seen = []
    for compiled in (False, True):
        torch.manual_seed(1)
        net: nn.Module = Net()
        net.eval()  # dropout of a compiled graph draws its own numbers
        model: Any = torch.compile(net, backend="eager") if compiled else net
        sifter = Sifter(model, **PAPER)
        kept: list[list[int]] = []
        train(model, sifter(pairs()), after=lambda s=sifter, k=kept: k.append(kept_by(s)))
        seen.append(kept)
    assert seen[0] == seen[1]
    torch._dynamo.reset()


@pytest.mark.parametrize("where", ["model", "loop"])
def test_gradient_checkpointing(where: str) -> None:
    """Blocks are run again in the backward pass; scoring must not be in the way."""

    def losses(checkpointed: bool, keep: float) -> list[float]:
        model = classifier(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
        if checkpointed and where == "model":
            model.gradient_checkpointing_enable()  # type: ignore[operator]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        sifter, found = Sifter(model, **{**PAPER, "keep": keep}), []
        model.train()
        for batch in sifter(loader()):
            if checkpointed and where == "loop":
                loss = checkpoint(lambda b: model(**b).loss, batch, use_reentrant=False)
            else:
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    assert losses(True, 0.5) == pytest.approx(losses(False, 0.5), rel=1e-5)
    assert len(losses(True, 1.0)) == 4


def loader(labels: str = "class") -> DataLoader[Any]:
    data = [{k: v for k, v in sample.items() if k != "unused"} for sample in Texts(labels=labels)]
    return DataLoader(data, batch_size=16)  # type: ignore[arg-type]


@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_and_grad_scaler(enabled: bool) -> None:
    def run(batches: Callable[[nn.Module], Any]) -> tuple[list[float], list[torch.dtype]]:
        torch.manual_seed(1)
        model = Net()
        kinds: list[torch.dtype] = []
        model.head.register_forward_hook(lambda m, a, out: kinds.append(out.dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        losses = []
        torch.manual_seed(2)
        for x, y in batches(model):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, kinds

    plain, _ = run(lambda model: pairs())
    kept_all, _ = run(lambda model: Sifter(model, keep=1.0)(pairs()))
    assert kept_all == plain
    losses, kinds = run(lambda model: Sifter(model, **PAPER, audit_every=0)(pairs()))
    assert len(losses) == 8
    # the first batch is scored before any training forward told of its autocast
    assert set(kinds[-4:]) == {torch.bfloat16 if enabled else torch.float32}


@pytest.mark.parametrize("kind", ["classifier", "causal"])
@pytest.mark.parametrize("exit", [1, "tuned"])
def test_lora_adapters_are_trained_and_scored(kind: str, exit: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = classifier() if kind == "classifier" else causal()
    target = ["query", "value"] if kind == "classifier" else ["q_proj", "v_proj"]
    task = "SEQ_CLS" if kind == "classifier" else "CAUSAL_LM"
    model = peft.get_peft_model(base, peft.LoraConfig(task, r=2, target_modules=target))
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    sifter = Sifter(model, exit=exit, score="loss", keep=0.5)
    seen = []
    for batch in sifter(loader("class" if kind == "classifier" else "tokens")):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(len(batch["labels"]))
    assert seen == [16] * 4
    for name, value in model.named_parameters():
        if name in frozen:
            assert torch.equal(value, frozen[name])
            assert value.grad is None
    # scored with the adapters: an exit's exact loss is the model's own
    batch = next(iter(loader("class" if kind == "classifier" else "tokens")))
    exact = Sifter(model, exit="last", score="loss").score(batch)
    model.eval()
    with torch.no_grad():
        assert exact.mean().item() == pytest.approx(model(**batch).loss.item(), rel=1e-4)
