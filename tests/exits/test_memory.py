from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sifting import MemoryExit, Sifter, SiftingWarning, TunedExit
from sifting.exits.memory import MISSED, scores_of
from sifting.loader import SiftedLoader
from tests.helpers.models import Net


class Numbered(TensorDataset):
    """Samples with their numbers."""

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), index


def numbered(count: int = 48) -> Numbered:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 8, generator=generator)
    return Numbered(x, torch.randint(0, 5, (count,), generator=generator))


def loader(count: int = 48, size: int = 12, seed: int = 0) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(seed)
    return DataLoader(numbered(count), size, shuffle=True, generator=order)


def memory(model: nn.Module, size: int = 48, **options: Any) -> Sifter:
    revisit = options.pop("revisit", 0.1)
    exit = MemoryExit(size, revisit=revisit)
    options = {"exit": exit, "ids": 2, "score": "loss", "draws": "batch", **options}
    return Sifter(model, **options)


def train(model: nn.Module, batches: Any, steps: int | None = None) -> list[Tensor]:
    """Train, and give the numbers of what was trained in each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for x, y, index in batches:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(index)
        if len(seen) == steps:
            break
    return seen


def test_it_remembers_the_loss_of_the_training_step_itself(net: Net) -> None:
    sifter = memory(net)
    for x, y, index in sifter(loader()):
        losses = F.cross_entropy(net(x), y, reduction="none")
        losses.mean().backward()
        net.embed.weight.data.add_(0.01)  # what is remembered is the loss before the update
        remembered = sifter.exit.state_dict()["losses"]
        assert torch.allclose(remembered[index], losses.detach())


def test_it_keeps_the_highest_losses_as_last_trained(net: Net) -> None:
    sifter = memory(net, warmup_steps=8, revisit=0.0)  # two epochs of halves: all of them once
    train(net, sifter(loader()))
    state = sifter.exit.state_dict()
    assert not state["losses"].isnan().any()
    batch = next(iter(loader(seed=9)))
    known_B = state["losses"][batch[2]]
    selection = sifter.select(batch)
    assert torch.equal(selection.scores, known_B)
    assert set(selection.indices.tolist()) == set(known_B.topk(6).indices.tolist())


def test_scoring_runs_nothing(net: Net) -> None:
    sifter = memory(net, audit_every=0)
    calls = []
    sifter.chooser.check(next(iter(loader())))  # how the model is called is found out once
    net.register_forward_hook(lambda *_: calls.append(sifter.scoring))
    steps = len(train(net, sifter(loader())))
    assert calls == [False] * steps


def test_samples_never_trained_come_first(net: Net) -> None:
    sifter = memory(net)
    first = torch.cat(train(net, sifter(loader())))
    assert len(first.unique()) == 24
    x, y = numbered().tensors
    fresh = torch.tensor([i for i in range(48) if i not in set(first.tolist())])
    mixed = torch.cat([first[:6], fresh[:6]])
    selection = sifter.select((x[mixed], y[mixed], mixed))
    assert set(selection.batch[2].tolist()) == set(fresh[:6].tolist())
    assert selection.scores.isfinite().all()


def trained_times(revisit: float) -> Tensor:
    """How often each of 16 samples, of which a half stays hard, is trained in 40 epochs."""
    exit, times = MemoryExit(16, revisit=revisit), torch.zeros(16)
    sifter = Sifter(nn.Linear(2, 2), exit=exit, ids=2, score="loss", audit_every=0)
    for _ in range(40):
        order = torch.randperm(16)
        batch = (torch.zeros(16, 2), torch.zeros(16).long(), order)
        chosen = sifter.select(batch).batch[2]
        sifter.observe(torch.where(chosen < 8, 2.0, 0.1))
        times[chosen] += 1
    return times


def test_what_was_easy_once_is_looked_at_again() -> None:
    never, again = trained_times(0.0), trained_times(0.1)
    assert never[8:].max() == 1  # stale for ever
    assert again[8:].min() >= 2
    assert again[:8].min() > again[8:].max()  # the hard ones still come first


def test_scores_rise_up_to_the_highest_loss_and_no_further() -> None:
    losses_B, passed_B = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([3, 1000, 7])
    found = scores_of(losses_B, passed_B, mean=2.0, highest=5.0, revisit=0.1)
    assert torch.allclose(found, torch.tensor([0.6, 5.0, 5.0]))


@pytest.mark.parametrize("warmup", [0, 6], ids=["sifting", "in warm-up"])
def test_it_resumes_identically(warmup: int) -> None:
    def fresh() -> tuple[Net, Sifter]:
        torch.manual_seed(0)
        model = Net()
        return model, memory(model, warmup_steps=warmup, explore=0.25)

    model, sifter = fresh()
    whole = train(model, sifter(loader())) + train(model, sifter(loader(seed=1)))

    model, sifter = fresh()
    data = loader()
    begun = train(model, sifter(data), steps=3)
    buffer = io.BytesIO()
    rng = torch.get_rng_state()
    torch.save({"model": model.state_dict(), "sifter": sifter.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    model, other = fresh()
    model.load_state_dict(saved["model"])
    other.load_state_dict(saved["sifter"])
    torch.set_rng_state(rng)
    rest = train(model, other(loader())) + train(model, other(loader(seed=1)))
    found = begun + rest
    assert len(found) == len(whole)
    assert all(torch.equal(a, b) for a, b in zip(found, whole, strict=True))


class Keyed(nn.Module):
    """A model that is called with the batch's keys and knows no others."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_a_key_that_the_model_does_not_take_is_left_out_in_scoring_and_audits() -> None:
    model = Keyed()
    data = [{"x": x, "labels": y, "index": i} for x, y, i in loader()]
    sifter = memory(model, ids="index", audit_every=1)
    for batch in sifter(data):
        batch.pop("index")  # as a user would: the memory has its own
        model(**batch)["loss"].backward()
    assert sifter.stats().audits == 4
    assert int((~sifter.exit.state_dict()["losses"].isnan()).sum()) == 24
    other = Sifter(model, exit="last", score="loss", ids="index")  # any exit leaves it out
    assert other.score(data[0]).shape == (12,)


def test_numbers_by_a_function_of_the_batch(net: Net) -> None:
    x, y, index = next(iter(loader()))
    batch = {"x": x, "y": y, "meta": {"row": index.tolist()}}
    sifter = memory(
        net,
        ids=lambda batch: batch["meta"]["row"],
        forward=lambda model, batch: model(batch["x"]),
        labels=lambda batch: batch["y"],
    )
    selection = sifter.select(batch)
    sifter.observe(torch.arange(6.0))
    kept = torch.tensor(selection.batch["meta"]["row"])
    assert torch.equal(sifter.exit.state_dict()["losses"][kept], torch.arange(6.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "entropy"}, "score='entropy': a MemoryExit remembers losses"),
        ({"trim": 0.1}, "trim=0.1 leaves out the highest scores"),
    ],
)
def test_what_does_not_go_with_it_is_said_at_construction(
    net: Net, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        memory(net, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0"),
        ({"size": 2.5}, "size=2.5"),
        ({"size": 3, "revisit": -1}, "revisit=-1"),
        ({"size": 3, "revisit": float("nan")}, "revisit=nan"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryExit(**options)


def test_bad_numbers_are_named(net: Net) -> None:
    x, y, index = next(iter(loader()))
    with pytest.raises(
        ValueError, match=r"the ID \d+ is not one of a MemoryExit\(5\), .* go from 0 to 4"
    ):
        memory(net, size=5).select((x, y, index + 5))
    with pytest.raises(ValueError, match="the ID -1"):
        memory(net).select((x, y, torch.full((12,), -1)))
    with pytest.raises(ValueError, match=r"ids='row' is not in the batch \(\['labels', 'x'\]\)"):
        memory(Keyed(), ids="row").select({"x": x, "labels": y})
    with pytest.raises(ValueError, match=r"torch\.float32 and shape \(2,\): a whole number"):
        memory(net).select((x, y, index.float()))
    with pytest.raises(TypeError, match=r"ids=1\.5: give the key or the position"):
        memory(net, ids=1.5)


def test_one_exit_serves_one_sifter_and_one_size(net: Net) -> None:
    sifter = memory(net)
    with pytest.raises(ValueError, match="in use by another sifter"):
        memory(net, exit=sifter.exit)
    with pytest.raises(ValueError, match=r"remembers 48 samples, and this is a MemoryExit\(47\)"):
        memory(net, size=47).load_state_dict(sifter.state_dict())
    tuned = Sifter(net, exit=TunedExit(1))
    with pytest.raises(ValueError, match="not the losses of a MemoryExit"):
        memory(net).load_state_dict(tuned.state_dict())


def test_losses_that_never_arrive_are_reported(net: Net) -> None:
    sifter = memory(net, audit_every=0)
    with pytest.warns(SiftingWarning, match="did not reach the MemoryExit"):
        for _ in range(-(-MISSED // 4)):
            for x, _, _ in sifter(loader()):
                net(x[:2])  # in smaller pieces, which cannot be told apart


def test_a_loss_that_is_not_finite_is_not_remembered(net: Net) -> None:
    sifter = memory(net)
    batch = next(iter(loader()))
    kept = sifter.select(batch).batch[2]
    sifter.observe(torch.tensor([1.0, 2.0, float("nan"), float("inf"), 3.0, 4.0]))
    remembered = sifter.exit.state_dict()["losses"][kept]
    assert remembered.isnan().tolist() == [False, False, True, True, False, False]
    assert sifter.score(batch).isfinite().all()


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_it_holds_where_the_models_own_early_exit_decays() -> None:
    """On data seen many times, what was remembered still says what the model finds hard."""

    def rho(exit: Any) -> float:
        torch.manual_seed(0)
        model = Net(width=32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        sifter = Sifter(model, exit=exit, score="loss", ids=2, audit_every=4)
        for epoch in range(60):
            for x, y, _ in sifter(loader(96, 24, seed=epoch)):
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return float(sifter.stats().rho_approx)

    assert rho(1) < 0.8
    assert rho(MemoryExit(96, revisit=0.0)) < 1.0  # stale losses rot too
    assert rho(MemoryExit(96)) > 1.05


class Ahead(SiftedLoader):
    """Batches for a loop that draws many before it trains the first, as Hugging Face's Trainer."""

    def _step(self, batch: Any) -> Any:
        return nullcontext()


def test_batches_drawn_ahead_are_not_losses_gone_missing(net: Net) -> None:
    sifter = memory(net, audit_every=0)
    epochs = -(-MISSED // 4)
    drawn = [
        (batch, sifter.observer.current) for _ in range(epochs) for batch in Ahead(sifter, loader())
    ]
    assert len(drawn) > MISSED  # and no warning, which would be an error here
    for (x, y, index), step in drawn:
        with sifter.observer.training(net, step):
            losses = F.cross_entropy(net(x), y, reduction="none")
        assert torch.allclose(sifter.exit.state_dict()["losses"][index], losses.detach())


def test_a_batch_drawn_ahead_is_counted_by_its_own_choice(net: Net) -> None:
    x, y, _ = next(iter(loader()))
    sifter = Sifter(net, exit="last", score="loss", explore=0.5, audit_every=0)
    sifter.select((x, y))
    step = sifter.observer.current
    sifter.select((x[:4], y[:4]))  # the last of an epoch is smaller
    with sifter.observer.training(net, step):
        sifter.observe(torch.ones(6))
        assert len(sifter.weights) == 6
    assert sifter.meter.observed == 1


def test_of_several_forwards_in_a_step_the_first_is_remembered(net: Net) -> None:
    sifter = memory(net)
    for x, y, index in sifter(loader()):
        losses = F.cross_entropy(net(x), y, reduction="none").detach()
        with torch.no_grad():
            net.embed.weight.mul_(1.5)  # as sharpness-aware optimizers climb before they descend
        F.cross_entropy(net(x), y).backward()
        assert torch.allclose(sifter.exit.state_dict()["losses"][index], losses)


def test_numbers_deep_in_a_batch_may_be_taken_out_of_it(net: Net) -> None:
    data = [({"x": x, "index": index}, y) for x, y, index in loader()]
    sifter = memory(
        net,
        ids=lambda batch: batch[0]["index"],
        forward=lambda model, batch: model(batch[0]["x"]),
        labels=lambda batch: batch[1],
    )
    for inputs, y in sifter(data):
        inputs.pop("index")
        F.cross_entropy(net(**inputs), y).backward()
    assert int((~sifter.exit.state_dict()["losses"].isnan()).sum()) == 24


def test_to_be_passed_over_raises_a_score_also_where_losses_are_negative() -> None:
    exit = MemoryExit(4)
    exit.load_state_dict({"losses": -torch.arange(4.0) - 1, "passed": torch.zeros(4)})
    sifter = Sifter(nn.Linear(2, 2), exit=exit, ids=2, score="loss", audit_every=0)
    batch = (torch.zeros(4, 2), torch.zeros(4).long(), torch.arange(4))
    before = sifter.score(batch)
    sifter.select(batch)
    assert (sifter.score(batch)[1:] > before[1:]).all()


@pytest.mark.filterwarnings("ignore:.*are misclassified:sifting.SiftingWarning")
def test_what_is_chosen_by_index_can_be_audited_into_a_log(net: Net, tmp_path: Path) -> None:
    log = tmp_path / "audits.jsonl"
    sifter = Sifter(net, exit=MemoryExit(), audit_every=4, audit_log=log)
    data = TensorDataset(*numbered().tensors)
    for x, y in sifter(DataLoader(data, 12)):
        F.cross_entropy(net(x), y).backward()
    assert len(log.read_text().splitlines()) == sifter.stats().audits == 1


class Paths(TensorDataset):
    """Samples by their names."""

    def __getitem__(self, name: Any) -> Any:
        return super().__getitem__(int(name.removeprefix("sample-")))


def test_a_sampler_may_draw_any_keys(net: Net) -> None:
    data = numbered()
    names: Any = [f"sample-{i}" for i in range(48)]
    batches = DataLoader(Paths(*data.tensors), 12, sampler=names)
    sifter = Sifter(net, exit=MemoryExit(), keep=0.5)
    for x, y in sifter(batches):
        F.cross_entropy(net(x), y).backward()
    assert sifter.exit.state_dict()["keys"] == names
    assert not sifter.exit.remembered(names[:12])[0].isnan().all()  # type: ignore[attr-defined]


def test_where_the_sifter_draws_by_index_other_names_are_not_asked_for(net: Net) -> None:
    named: dict[str, Any] = {
        "ids": lambda batch: [f"sample-{one}" for one in batch[2].tolist()],
        "forward": lambda model, batch: model(batch[0]),
        "labels": lambda batch: batch[1],
    }
    sifter = Sifter(net, exit=MemoryExit(), keep=0.5, **named)
    train(net, sifter(loader()))
    assert "keys" not in sifter.exit.state_dict()


def test_audits_read_one_per_cent_more_by_default(net: Net) -> None:
    read: list[int] = []

    class Read(Dataset[Any]):
        def __len__(self) -> int:
            return 1200

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            read.append(index)
            return torch.full((8,), index / 1200), index % 5

    sifter = Sifter(net, exit=MemoryExit(), keep=0.25)
    for x, y in sifter(DataLoader(Read(), batch_size=4, shuffle=True)):
        F.cross_entropy(net(x), y).backward()
    assert sifter.stats().audits == 1
    assert len(read) == 1200 + 12


def test_ids_of_any_kind_are_remembered_and_saved(net: Net) -> None:
    x, y = torch.randn(12, 8), torch.randint(0, 5, (12,))
    names = [UUID(int=i) for i in range(12)]
    batches = [{"x": x[i : i + 4], "y": y[i : i + 4], "id": names[i : i + 4]} for i in (0, 4, 8)]
    own: dict[str, Any] = {
        "forward": lambda model, batch: model(batch["x"]),
        "labels": lambda batch: batch["y"],
        "ids": "id",
    }
    sifter = Sifter(net, exit=MemoryExit(), keep=0.5, **own)
    for batch in sifter(batches):
        F.cross_entropy(net(batch["x"]), batch["y"]).backward()
    file = io.BytesIO()
    torch.save(sifter.state_dict(), file)
    file.seek(0)
    again = Sifter(net, exit=MemoryExit(), keep=0.5, **own)
    again.load_state_dict(torch.load(file, weights_only=True))
    for one in (sifter, again):
        losses = one.exit.remembered(names)[0]  # type: ignore[attr-defined]
        assert not losses.isnan().all()
        assert one.exit.state_dict()["keys"][0] == ("UUID", repr(names[0]))
