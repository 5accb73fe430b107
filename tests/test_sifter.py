from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Selection, Sifter, SiftingWarning
from tests.helpers.models import SMALL, Net, candidates, token_batch
from tests.helpers.states import same


def train(model: nn.Module, batches: Any, lr: float = 0.1) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def snapshot(model: nn.Module) -> dict[str, Any]:
    return {
        "parameters": {n: p.detach().clone() for n, p in model.named_parameters()},
        "buffers": {n: b.clone() for n, b in model.named_buffers()},
        "grads": {
            n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()
        },
        "modes": [m.training for m in model.modules()],
        "hooks": [
            (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks))
            for m in model.modules()
        ],
        "modules": [id(m) for m in model.modules()],
        "forwards": ["forward" in m.__dict__ for m in model.modules()],
        "rng": torch.get_rng_state(),
    }


@pytest.mark.parametrize("exit", [1, "last", "tuned"])
@pytest.mark.parametrize("kind", ["net", "bert"])
def test_scoring_leaves_no_trace(exit: Any, kind: str) -> None:
    if kind == "net":
        model: nn.Module = Net()
        batch: Any = candidates(1)[0]
        F.cross_entropy(model(batch[0]), batch[1]).backward()
    else:
        model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
        batch = token_batch()
        model(**batch).loss.backward()
    next(model.children()).eval()
    before = snapshot(model)
    sifter = Sifter(model, exit=exit, score="loss", audit_every=1)
    sifter.score(batch)
    sifter.select(batch)
    after = snapshot(model)
    for what in before:
        assert same(before[what], after[what]), what
    assert torch.is_grad_enabled()


def test_scoring_leaves_no_trace_when_it_raises(net: Net) -> None:
    batch = candidates(1)[0]
    before = snapshot(net)
    sifter = Sifter(net, exit=1, score=lambda logits, labels: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sifter.score(batch)
    after = snapshot(net)
    for what in before:
        assert same(before[what], after[what]), what
    assert not sifter.scoring


def test_keep_one_trains_bit_for_bit_as_the_plain_loop(net: Net) -> None:
    data = candidates()
    plain, sifted = copy.deepcopy(net), copy.deepcopy(net)
    torch.manual_seed(7)
    want = train(plain, data)
    torch.manual_seed(7)
    sifter = Sifter(sifted, keep=1.0)
    got = train(sifted, sifter(data))
    assert got == want
    assert same(dict(plain.state_dict()), dict(sifted.state_dict()))
    assert sifter.stats().seconds_scoring == 0


def test_top_keeps_the_highest_scores(net: Net) -> None:
    batch = candidates(1)[0]
    sifter = Sifter(net, exit=2, score="loss", keep=0.25)
    scores = sifter.score(batch)
    selection = sifter.select(batch)
    assert isinstance(selection, Selection)
    assert torch.equal(selection.scores, scores)
    assert selection.indices.tolist() == sorted(scores.topk(3).indices.tolist())
    assert torch.equal(selection.batch[0], batch[0][selection.indices])
    assert torch.equal(selection.weights, torch.ones(3))


def test_dict_batches_keep_their_type_and_keys() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    batch = hf.BatchEncoding(token_batch())
    (kept,) = Sifter(model, exit=1, score="loss", draws="batch")([batch])
    assert isinstance(kept, hf.BatchEncoding)
    assert list(kept) == list(batch)
    assert len(kept["labels"]) == 3
    assert model(**kept).loss.isfinite()


def test_same_seed_same_choices(net: Net) -> None:
    data = candidates()

    def choices(seed: int) -> list[list[int]]:
        sifter = Sifter(net, exit=1, score="loss", policy="percentile", explore=0.5, seed=seed)
        return [sifter.select(batch).indices.tolist() for batch in data]

    assert choices(1) == choices(1)
    assert choices(1) != choices(2)


def test_regression_and_multilabel_through_loss_fn() -> None:
    model = nn.Sequential(nn.Linear(4, 6), *[nn.Linear(6, 6) for _ in range(2)], nn.Linear(6, 3))
    x = torch.randn(8, 4)
    with torch.no_grad():
        out = model(x)
    y = torch.randn(8, 3)
    got = Sifter(model, exit="last", score="loss", loss_fn=nn.MSELoss()).score((x, y))
    torch.testing.assert_close(got, (out - y).square().mean(1))
    got = Sifter(model, exit="last", score="loss", loss_fn=F.smooth_l1_loss).score((x, y))
    torch.testing.assert_close(got, F.smooth_l1_loss(out, y, reduction="none").mean(1))
    bits = (y > 0).float()
    got = Sifter(model, exit="last", score="loss", loss_fn=nn.BCEWithLogitsLoss()).score((x, bits))
    torch.testing.assert_close(
        got, F.binary_cross_entropy_with_logits(out, bits, reduction="none").mean(1)
    )

    def only_reduced(prediction: Tensor, target: Tensor) -> Tensor:
        return (prediction - target).abs().max()

    got = Sifter(model, exit="last", score="loss", loss_fn=only_reduced).score((x, y))
    torch.testing.assert_close(got, (out - y).abs().amax(1))
    tuned = Sifter(model, exit="tuned", score="loss", loss_fn=nn.MSELoss())
    assert tuned.select((x, y)).scores.shape == (8,)


def test_hugging_face_regression_and_multilabel_heads_are_recognised() -> None:
    ids = token_batch()["input_ids"]
    for problem, labels in (
        ("regression", torch.randn(6, 3)),
        ("multi_label_classification", (torch.rand(6, 3) > 0.5).float()),
    ):
        config = hf.BertConfig(**SMALL, num_labels=3, problem_type=problem)
        model = hf.BertForSequenceClassification(config).eval()
        scores = Sifter(model, exit="last", score="loss").score(
            {"input_ids": ids, "labels": labels}
        )
        want = torch.stack(
            [model(input_ids=ids[i : i + 1], labels=labels[i : i + 1]).loss for i in range(6)]
        )
        torch.testing.assert_close(scores, want.detach(), rtol=1e-4, atol=1e-5)


def test_custom_forward_and_labels(net: Net) -> None:
    class Box:
        def __init__(self, x: Tensor, y: Tensor) -> None:
            self.x, self.y = x, y

    x, y = candidates(1)[0]
    batch = [x, y, torch.ones(12)]
    with pytest.raises(ValueError, match=r"a batch of 3 members is not a pair.*forward="):
        Sifter(net, exit=1, score="entropy").score(batch)
    sifter = Sifter(
        net,
        exit=1,
        score="loss",
        forward=lambda model, batch: model(batch[0]),
        labels=lambda batch: batch[1],
    )
    want = Sifter(net, exit=1, score="loss").score((x, y))
    assert torch.equal(sifter.score(batch), want)
    with pytest.raises(ValueError, match="cannot tell"):
        Sifter(net, exit=1).score(Box(x, y))


def test_entropy_needs_no_labels_but_loss_does(net: Net) -> None:
    x, _ = candidates(1)[0]
    assert Sifter(net, exit=1, score="entropy").score(x).shape == (12,)
    with pytest.raises(ValueError, match=r"score='loss' needs labels.*yield \(inputs, labels\)"):
        Sifter(net, exit=1, score="loss").score(x)


def test_what_is_trained_without_labels_is_not_guessed() -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(8, 3), nn.Linear(3, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(self.encode(x))

    model, x = Autoencoder(), torch.randn(6, 8)
    with pytest.raises(ValueError, match=r"no labels .*\(6, 8\).* losses=lambda model, batch"):
        Sifter(model, exit="last").score(x)
    with torch.no_grad():
        wanted = (model(x) - x).square().mean(1)
    sifter = Sifter(model, exit="last", losses=lambda m, x: (m(x) - x).square().mean(1))
    assert torch.allclose(sifter.score(x), wanted)


def test_several_labels_that_are_not_all_classes_are_sent_to_losses() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kind, self.age = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.body(x).relu()
            return {"kind_logits": self.kind(h), "age_logits": self.age(h)}

    batch = (torch.randn(6, 8), {"kind": torch.arange(6) % 4, "age": torch.rand(6)})
    for options in ({}, {"loss_fn": nn.MSELoss()}):
        with pytest.raises(ValueError, match=r"age.*losses=lambda model, batch"):
            Sifter(Tasks(), exit="last", **options).score(batch)


def test_labels_that_fit_nothing_are_described(net: Net) -> None:
    with pytest.raises(
        ValueError,
        match=r"labels \(B, 7\) of int64 fit none of the model's outputs: logits \(B, 5\)",
    ):
        Sifter(net, exit=1, score="loss").score((torch.randn(12, 8), torch.zeros(12, 7).long()))
    with pytest.raises(ValueError, match=r"cross-entropy does not apply: pass loss_fn=nn.MSELoss"):
        Sifter(nn.Sequential(nn.Linear(8, 1)), exit="last", score="loss").score(
            (torch.randn(12, 8), torch.randn(12))
        )


class TestKnowing:
    def test_stats_count_and_time(self, net: Net) -> None:
        sifter = Sifter(net, exit=1, score="loss", warmup_steps=2, audit_every=2)
        train(net, sifter(candidates(6)))
        stats = sifter.stats()
        assert (stats.steps, stats.selections) == (6, 4)
        assert (stats.candidates_seen, stats.samples_trained) == (2 * 12 + 4 * 24, 72)
        assert stats.audits == 2
        assert stats.seconds_scoring > 0
        assert stats.seconds_between > 0
        assert stats["rho_approx"] == stats.rho_approx
        assert set(dict(stats)) >= {"recall", "rank_correlation", "rho_approx"}
        assert "rho_approx" in str(stats)

    def test_the_exact_exit_has_perfect_recall(self, net: Net) -> None:
        sifter = Sifter(net, exit="last", score="loss", audit_every=2)
        for batch in candidates(4):
            sifter.select(batch)
        stats = sifter.stats()
        assert stats.recall == 1
        assert stats.rank_correlation == pytest.approx(1)
        assert stats.rho_approx is not None
        assert stats.rho_approx > 1

    def test_audits_are_seldom_by_default(self, net: Net) -> None:
        sifter = Sifter(net, exit=1, score="loss")
        batch = candidates(1)[0]
        for _ in range(140):
            sifter.select(batch)
        assert sifter.stats().audits == 2

    def test_worse_than_random_warns_once_and_says_what_to_try(self, net: Net) -> None:
        exact = Sifter(net, exit="last", score="loss")
        sifter = Sifter(
            net,
            exit="last",
            score=lambda z, y: -F.cross_entropy(z, y, reduction="none"),
            audit_every=1,
        )
        data = candidates(8)
        with pytest.warns(
            SiftingWarning, match=r"worse than random: rho_approx is 0\.\d+.*explore"
        ) as seen:
            for batch in data:
                chosen = sifter.select(batch)
                assert exact.score(batch)[chosen.indices].mean() < exact.score(batch).mean()
        assert len(seen) == 1

    def test_top_loss_on_misclassified_samples_warns(self, net: Net) -> None:
        with pytest.warns(SiftingWarning, match=r"of the kept samples are misclassified.*entropy"):
            sifter = Sifter(net, exit="last", score="loss", audit_every=1)
            for batch in candidates(5):
                sifter.select(batch)
        assert sifter.stats().misclassified is not None

    def test_random_picks_do_not_warn(self, net: Net, recwarn: pytest.WarningsRecorder) -> None:
        sifter = Sifter(net, exit=1, score="loss", policy="random", audit_every=1)
        for batch in candidates(20):
            sifter.select(batch)
        stats = sifter.stats()
        assert stats.rho_approx == pytest.approx(1, abs=0.3)
        assert not recwarn.list

    def test_explored_picks_measure_rho_in_the_training_step(self, net: Net) -> None:
        net.eval()  # no dropout, so that training losses are the exact ones
        data = candidates(200, size=16)
        sifter = Sifter(net, exit="last", score="loss", explore=0.5, audit_every=1)
        with pytest.warns(SiftingWarning, match="misclassified"):
            for x, _ in sifter(data):
                net(x)
        stats = sifter.stats()
        assert stats.rho_explored == pytest.approx(stats.rho_approx, rel=0.1)

    def test_audit_log_is_appended(self, net: Net, tmp_path: Any) -> None:
        sifter = Sifter(
            net, exit=1, score="loss", audit_every=1, audit_log=tmp_path / "audits.jsonl"
        )
        for batch in candidates(2):
            sifter.select(batch)
        lines = (tmp_path / "audits.jsonl").read_text().splitlines()
        assert len(lines) == 2
        assert set(json.loads(lines[0])) == {"step", "early", "exact", "scores", "kept"}


class TestAutocast:
    def test_scoring_runs_under_the_autocast_of_the_training_step(self, net: Net) -> None:
        dtypes: list[torch.dtype] = []
        net.head.register_forward_hook(lambda m, a, out: dtypes.append(out.dtype))
        sifter = Sifter(net, exit=1, score="loss", audit_every=0)
        for x, _ in sifter(candidates(3)):
            dtypes.append(torch.float64)  # marks where the user's step begins
            with torch.autocast("cpu", dtype=torch.bfloat16):
                net(x)
        scoring = [d for d, nxt in itertools.pairwise(dtypes) if nxt == torch.float64]
        assert scoring[0] == torch.float32  # nothing was known of the user's step yet
        assert scoring[1:] == [torch.bfloat16] * 2
        again = Sifter(net, exit=1, score="loss")
        again.load_state_dict(sifter.state_dict())
        again.score(candidates(1)[0])
        assert dtypes[-1] == torch.bfloat16

    def test_an_open_autocast_is_respected(self, net: Net, pair: tuple[Tensor, Tensor]) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = Sifter(net, exit=1, score="loss").score(pair)
        assert scores.dtype == torch.float32
        assert not torch.equal(scores, Sifter(net, exit=1, score="loss").score(pair))


def test_compiled_models_are_scored_through_the_original(net: Net) -> None:
    compiled = torch.compile(net, backend="eager")
    batch = candidates(1)[0]
    assert torch.equal(
        Sifter(compiled, exit=2, score="loss").score(batch),
        Sifter(net, exit=2, score="loss").score(batch),
    )


def test_warnings_point_at_the_users_own_line(net: Net) -> None:
    with pytest.warns(SiftingWarning) as seen:
        sifter = Sifter(net, exit="last", score="loss", audit_every=1)
        for batch in candidates(5):
            sifter.select(batch)
    assert seen[0].filename == __file__


def test_a_model_compiled_in_place_is_scored_and_stays_compiled(net: Net) -> None:
    batch = candidates(1)[0]
    want = Sifter(net, exit=2, score="loss").score(batch)
    net.compile(backend="eager")
    call = net._compiled_call_impl
    assert torch.equal(Sifter(net, exit=2, score="loss").score(batch), want)
    assert net._compiled_call_impl is call


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_scoring_on_cuda_leaves_the_devices_random_stream_alone(net: Net) -> None:
    net.cuda()
    batch = candidates(1)[0]  # on the CPU, as loaders give them
    before = torch.cuda.get_rng_state()
    sifter = Sifter(net, exit="tuned", audit_every=1)
    kept = sifter.select(batch)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert kept.batch[0].device.type == "cpu"
    assert sifter.stats().seconds_scoring > 0


def test_without_classes_the_default_score_is_the_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    sifter = Sifter(model, keep=0.5, loss_fn=nn.MSELoss())
    assert len(sifter.select((torch.randn(8, 4), torch.randn(8, 1))).indices) == 4
    assert sifter.settings()["score"] == "loss"


def test_the_objective_is_said_once(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="sifting"):
        sifter = Sifter(net, exit=1, score="loss")
        for batch in candidates(3):
            sifter.select(batch)
    (line,) = [record.message for record in caplog.records if record.name == "sifting"]
    assert "logits → labels by cross-entropy" in line
    assert "cross-entropy" in repr(sifter)
