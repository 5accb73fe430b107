"""Choosing among a batch; how often it waits for the device, counted on tensors that pretend."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, SiftingWarning
from sifting.chooser.choosing import Chooser
from sifting.data.tree import leaves
from sifting.exits.scoring import Scorer
from sifting.model.trained_loss import TrainedLoss
from tests.helpers.models import SMALL, Net, candidates, token_batch

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

# What cannot be answered before the device is done with all that it was given.
READS = (
    *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__int__),
    *(Tensor.__float__, Tensor.__index__, Tensor.nonzero, torch.nonzero, Tensor.masked_select),
    *(torch.masked_select, Tensor.unique, torch.unique, Tensor.equal, torch.equal),
    *(torch.allclose, Tensor.allclose),
)
WORDS = 1200  # a vocabulary: classes by the dozen are looked at one by one as they come


class OnDevice(Tensor):
    """A tensor of the CPU that counts what would make the host wait, were it on another device."""

    waits: ClassVar[Counter[tuple[str, str]]] = Counter()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        inputs = [leaf for leaf in leaves(list(args)) if isinstance(leaf, Tensor)]
        masked = func is Tensor.__getitem__ and any(leaf.dtype == torch.bool for leaf in inputs[1:])
        if func in READS or masked:
            cls.waits[threading.current_thread().name[:7], func.__name__] += 1
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found.as_subclass(Tensor) if func is Tensor.cpu else found


def counted(
    monkeypatch: pytest.MonkeyPatch,
    sifter: Sifter,
    loader: Any,
    loss: Callable[[Any], Tensor],
) -> tuple[Counter[str], Counter[str]]:
    """Waits of one step, of the loop and of the thread beside it: from one batch to the next."""
    moved = Scorer.moved

    def pretend(self: Scorer, batch: Any) -> Any:
        found = moved(self, batch)
        if isinstance(found, dict):
            return {name: value.as_subclass(OnDevice) for name, value in found.items()}
        return tuple(value.as_subclass(OnDevice) for value in found)

    monkeypatch.setattr(Scorer, "moved", pretend)
    optimizer = torch.optim.SGD(sifter.model.parameters(), lr=0.1)
    for step, batch in enumerate(sifter(loader)):
        sifter.wait()
        if step == 6:
            break
        OnDevice.waits.clear()
        sifter.observer._check = TrainedLoss(compares=False)  # of its own: some of the first 256
        loss(batch).backward()
        optimizer.step()
    else:
        raise AssertionError("the loader ended before the step that is looked at")
    loop, beside = Counter[str](), Counter[str]()
    for (thread, name), count in OnDevice.waits.items():
        (beside if thread == "sifting" else loop)[name] += count
    return loop, beside


def waits(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Counter[str], Counter[str]]:
    """Those of a classifier."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 5, (64,)))
    net = Net()
    sifter = Sifter(net, audit_every=0, **options)
    return counted(
        monkeypatch, sifter, DataLoader(data, 8), lambda b: F.cross_entropy(net(b[0]), b[1])
    )


class Reader(nn.Module):
    """A causal language model without anything of its own that a device would be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, WORDS)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> SimpleNamespace:
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = hidden + block(hidden).tanh()
        logits = self.head(hidden)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


def read(
    monkeypatch: pytest.MonkeyPatch, *, packed: bool, **options: Any
) -> tuple[Counter[str], Counter[str]]:
    """Those of a language model, of which a part of the tokens is labelled."""
    torch.manual_seed(0)
    model, batches = Reader(), []
    for _ in range(16):
        ids = torch.randint(0, WORDS, (1, 36) if packed else (8, 12))
        batch = {"input_ids": ids, "labels": torch.where(torch.rand(ids.shape) < 0.7, ids, -100)}
        if packed:
            batch["position_ids"] = torch.cat([torch.arange(n) for n in (7, 12, 9, 8)])[None]
        else:
            batch["attention_mask"] = torch.ones_like(ids)
        batches.append(batch)
    sifter = Sifter(model, audit_every=0, **options)
    return counted(monkeypatch, sifter, batches, lambda batch: model(**batch).loss)


@pytest.mark.parametrize(
    "options", [{"exit": 1, "score": "loss"}, {"exit": "last"}, {"exit": "tuned"}], ids=str
)
def test_how_often_a_step_waits_for_the_device(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, _ = waits(monkeypatch, **options)
    assert loop == {"cpu": 1}  # the scores


@pytest.mark.parametrize("options", [{"exit": 1, "score": "loss"}, {"exit": "tuned"}], ids=str)
def test_beside_the_step_the_loop_never_waits(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, beside = waits(monkeypatch, ahead=1, **options)
    assert loop == {}
    assert beside == {"cpu": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"exit": 1, "score": "loss"},
        {"exit": "tuned"},
        {"exit": "last", "tokens": "hardest"},
        {"exit": 1, "rows": 3},
        {"exit": "tuned", "rows": "labelled"},
        {"exit": 1, "view": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_where_labels_are_is_not_asked_of_the_device(
    options: dict[str, Any], packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packed and "view" in options:  # of packed rows is refused
        options = {"exit": 1, "score": "entropy"}
    loop, _ = read(monkeypatch, packed=packed, **options)
    assert loop == {"cpu": 1}
    loop, beside = read(monkeypatch, packed=packed, ahead=1, **options)
    assert loop == {}
    assert beside == {"cpu": 1}


def test_a_step_holds_the_highest_scores_and_what_is_known_of_them(net: Net) -> None:
    x, y = candidates(1)[0]
    sifter = Sifter(net, exit="last", score="loss", policy="top", explore=0, audit_every=0)
    chooser: Chooser = sifter.chooser
    step = chooser((x, y), 12, count=3)
    net.eval()
    with torch.no_grad():
        exact = F.cross_entropy(net(x), y, reduction="none")
    assert step.selection is not None
    assert step.selection.indices.tolist() == sorted(exact.topk(3).indices.tolist())
    torch.testing.assert_close(step.selection.scores, exact)
    assert torch.equal(step.selection.batch[0], x[step.selection.indices])
    assert (step.size, step.kept, step.explored) == (3, 3, 0)
    assert chooser.meter.counts["selections"] == 1


def test_too_few_candidates(net: Net) -> None:
    with pytest.raises(ValueError, match="a candidate batch of 1 leaves nothing to choose"):
        list(Sifter(net, exit=1, draws="batch")([(torch.randn(1, 8), torch.tensor([0]))]))
    data = [*candidates(2), (torch.randn(1, 8), torch.tensor([0]))]
    sifter = Sifter(net, exit=1, score="loss", draws="batch")
    assert [len(y) for _, y in sifter(data)] == [6, 6, 1]
    assert [len(y) for _, y in Sifter(net, exit=1, score="loss")(data)] == [12, 12, 1]


def test_samples_that_are_not_finite_are_kept_by_no_policy(net: Net) -> None:
    x, y = candidates(1)[0]
    x[3] = torch.nan
    for policy in ("top", "percentile", "proportional"):
        sifter = Sifter(net, exit=1, policy=policy, explore=0.5, nonfinite="drop", audit_every=0)
        for _ in range(40):
            assert 3 not in sifter.select((x, y)).indices.tolist()


def test_batches_without_any_label_are_kept_at_random_and_reported() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    batch = {**token_batch(), "labels": torch.full((6, 10), -100)}
    sifter = Sifter(model, exit=1, score="loss")
    with pytest.warns(SiftingWarning, match="10 batches had no sample with a label"):
        kept = {tuple(sifter.select(batch).indices.tolist()) for _ in range(12)}
    assert len(kept) > 1


def test_labels_out_of_range_are_named_on_the_first_batch(net: Net) -> None:
    x, y = torch.randn(12, 8), torch.arange(12) % 5
    y[7] = 11
    with pytest.raises(ValueError, match=r"11"):
        list(Sifter(net, exit=1, score="entropy")([(x, y)] * 2))
