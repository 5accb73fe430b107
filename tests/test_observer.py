"""The batch that is being trained, and what its forward tells."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import MemoryExit, Sifter, SiftingWarning, Trial
from sifting.observer import Listener, Observer
from tests.helpers.models import Net, candidates


def test_weights_reach_the_loop_and_make_the_loss_unbiased(net: Net) -> None:
    net.eval()
    batch = candidates(1, size=16)[0]
    sifter = Sifter(net, exit="last", score="loss", policy="proportional", audit_every=0)
    want = F.cross_entropy(net(batch[0]), batch[1]).item()
    estimates = []
    for _ in range(400):
        for x, y in sifter([batch]):
            losses = F.cross_entropy(net(x), y, reduction="none")
            estimates.append((sifter.weights * losses).mean().item())
    values = torch.tensor(estimates)
    assert abs(values.mean().item() - want) < 4 * values.std().item() / math.sqrt(400) + 1e-6


def test_trimmed_samples_have_nobody_to_speak_for_them(net: Net) -> None:
    sifter = Sifter(net, exit="last", score="loss", explore=0.5, trim=0.2, audit_every=0)
    for x, _ in sifter(candidates(10)):
        net(x)
    assert sifter.stats().rho_explored is None


def test_random_picks_alone_can_condemn_a_choice(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sifting.measure.audit.SETTLED", math.inf)  # on a busy machine all is dear
    net.eval()
    worst = Sifter(
        net,
        exit="last",
        score=lambda z, y: -F.cross_entropy(z, y, reduction="none"),
        explore=0.5,
        audit_every=0,
    )
    with pytest.warns(SiftingWarning, match="worse than random"):
        for x, _ in worst(candidates(310)):
            net(x)


def test_observe_wants_a_loss_for_each_sample(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss", explore=0.5)
    sifter.select(candidates(1)[0])
    with pytest.raises(ValueError, match=r"each of the 6 samples handed out last, got .*\(\)"):
        sifter.observe(torch.tensor(1.0))


def test_a_loss_that_is_not_the_one_scored_is_warned_of(net: Net) -> None:
    def trained(loss_fn: Any) -> None:
        sifter = Sifter(net, exit=1, score="loss", audit_every=0)
        for x, y in sifter(candidates(3)):
            loss_fn(net(x), y).backward()

    trained(nn.CrossEntropyLoss())  # a warning would be an error
    trained(lambda z, y: 3 * F.cross_entropy(z, y))
    with pytest.warns(SiftingWarning, match="is not the one that is scored|agrees by"):
        trained(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0, 1.0, 5.0, 1.0])))


def test_the_first_forward_of_a_step_is_read_and_no_other(net: Net) -> None:
    net.eval()
    sifter = Sifter(net, exit=MemoryExit(128), ids=lambda batch: batch[0][:, 0].long(), keep=0.5)
    heard: list[Tensor] = []
    sifter.exit.observe = lambda trained, losses: heard.append(losses)  # type: ignore[method-assign]
    data = [(torch.randn(12, 8), y) for _, y in candidates(2)]
    for x, _ in data:
        x[:, 0] = torch.arange(12)
    for x, y in sifter(data):
        wanted = F.cross_entropy(net(x), y, reduction="none")
        net(-x)
        with torch.no_grad():
            net(x)
        torch.testing.assert_close(heard[-1], wanted)
    assert len(heard) == 2


def test_weights_are_of_the_batch_that_is_trained_not_of_the_one_fetched(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss", policy="proportional")
    with pytest.raises(RuntimeError, match="no batch was handed out yet"):
        _ = sifter.weights
    steps = []
    for batch in candidates(2):  # two are fetched before the first is trained
        selection = sifter.select(batch)
        steps.append(sifter.observer.current)
        assert sifter.weights is selection.weights
    with sifter.observer.training(net, steps[0]):
        assert sifter.weights is steps[0].selection.weights
    with sifter.observer.training(net, steps[1]):
        assert sifter.weights is steps[1].selection.weights


def test_a_model_copied_in_the_middle_of_a_step_takes_no_observer_along(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    read: list[Any] = []
    sifter.observer.read = read.append  # type: ignore[method-assign]
    for x, _ in sifter(candidates(1)):
        twin = copy.deepcopy(net)
        twin(x)
        assert read == []
        net(x)
    assert len(read) == 1
    assert not net._forward_hooks
    twin(x)
    assert len(read) == 1


def test_the_precision_of_the_training_step_is_noted(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    noted = []
    for x, _ in sifter(candidates(2)):
        with torch.autocast("cpu", torch.bfloat16):
            net(x)
        noted.append(sifter.state_dict()["autocast"])
    assert noted[0] != 0, "the next batch is scored in it"


def test_a_listener_keeps_nobody_alive_and_is_mute_when_pickled(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    assert isinstance(sifter.observer, Observer)
    listener = Listener(sifter.observer)
    read: list[Any] = []
    sifter.observer.read = read.append  # type: ignore[method-assign]
    listener(net, (), "output")
    pickle.loads(pickle.dumps(listener))(net, (), "other")
    copy.deepcopy(listener)(net, (), "other")
    assert read == ["output"]
    del sifter
    gc.collect()
    listener(net, (), "nobody hears")
    assert read == ["output"]


class Sink(torch.autograd.Function):
    """Hands outputs on as DDP does where parameters may be unused: of what nobody uses there is no gradient."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(one.view_as(one) for one in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return gradients


class Wrapped(nn.Module):
    """A model with a loss of its own, behind a sink."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, labels)
        return dict(zip(("loss", "logits"), Sink.apply(loss, logits), strict=True))


def test_logits_that_no_gradient_reaches_tell_nothing() -> None:
    model = Wrapped()
    batches = [{"x": torch.randn(4, 4), "labels": torch.arange(4) % 3} for _ in range(4)]
    sifter = Sifter(model, exit="last", score="loss", keep=0.5)
    for batch in sifter(batches):
        model(**batch)["loss"].backward()
    assert sifter.stats().steps == 4


@pytest.mark.parametrize("setting", [{"keep": 1.0}, {"policy": "random"}, {"warmup_steps": 99}])
def test_a_label_that_the_users_loss_failed_on_is_named(net: Net, setting: dict[str, Any]) -> None:
    x, y = candidates(1, size=8)[0]
    sifter = Sifter(net, **{"exit": "last", "draws": "batch", **setting})
    spoilt = torch.full_like(y, -3)
    with (
        pytest.warns(SiftingWarning, match=r"labels\[0\] is -3.* classes from 0 to 4"),
        pytest.raises(IndexError, match="Target -3"),
    ):
        for kept, labels in sifter([(x, y), (x, spoilt)]):
            F.cross_entropy(net(kept), labels)


@pytest.mark.parametrize("value", [-100, -1, 255, 9])
def test_a_label_that_the_users_loss_ignores_is_not_spoken_of(net: Net, value: int) -> None:
    x, y = candidates(1, size=8)[0]
    y[3] = value
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for kept, labels in Sifter(net, keep=1.0)([(x, y)] * 3):
            F.cross_entropy(net(kept), labels, ignore_index=value).backward()
            optimizer.step()
            break
    assert [str(one.message) for one in warned if one.category is SiftingWarning] == []


def test_errors_of_a_step_that_no_label_explains_are_left_alone(net: Net) -> None:
    x, y = candidates(1, size=8)[0]
    y[3] = 255
    observer = Sifter(net, keep=1.0).observer
    with (
        pytest.raises(RuntimeError, match="of 255 bytes"),
        observer.training(net, batch=(x, y)),
    ):
        F.cross_entropy(net(x), y, ignore_index=255)
        raise RuntimeError("no room for a tensor of 255 bytes")


def test_a_model_that_makes_its_own_loss_fails_with_the_label_named() -> None:
    class Own(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            logits = super().forward(x)
            return {
                "loss": None if labels is None else F.cross_entropy(logits, labels),
                "logits": logits,
            }

    model, batch = Own(), {"x": torch.randn(4, 8), "labels": torch.tensor([0, 1, 12, 3])}
    ends = []
    for named in (False, True):
        torch.manual_seed(0)
        expected = (ValueError, r"labels\[2\] is 12, .* \(4, 5\)") if named else (IndexError, "12")
        step = Sifter(model, keep=1.0).observer.training(model, batch=batch)
        with pytest.raises(expected[0], match=expected[1]), step if named else nullcontext():
            model(**batch)
        ends.append((torch.get_rng_state(), model.training))
    assert torch.equal(ends[0][0], ends[1][0])  # to ask for the classes leaves no trace
    assert ends[1][1]


@pytest.mark.parametrize("reports", [False, True])
def test_an_autopilot_that_hears_no_losses_says_so_once(
    reports: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss of one's own is not to be found in what the model puts out."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    sifter = Sifter(
        model,
        losses=lambda model, batch: (model(batch[0]) - batch[0]).square().mean(dim=1),
        trial=Trial(cost=0.01),
    )
    loader = DataLoader(TensorDataset(torch.randn(640, 8)), batch_size=16)
    with caplog.at_level("INFO", logger="sifting"):
        for (x,) in sifter(loader):
            losses = (model(x) - x).square().mean(dim=1)
            if reports:
                sifter.observe(losses.detach())
            losses.mean().backward()
            model.zero_grad()
    said = [one for one in caplog.messages if "did not reach the autopilot" in one]
    assert len(said) == (not reports)
    assert (sifter.stats().kept_loss is not None) is reports
