from __future__ import annotations

import copy
import io
import itertools
import json
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Selection, Sifter, SiftingWarning, Trial, TunedExit
from tests.helpers.models import SMALL, Net, token_batch


def candidates(count: int = 6, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 8), torch.randint(0, 5, (size,))) for _ in range(count)]


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


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


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


def test_scores_that_are_not_finite(net: Net) -> None:
    x, y = candidates(1)[0]
    x[3] = torch.nan
    x[7] = torch.inf
    with pytest.raises(
        ValueError, match=r"2 of 12 candidates are not finite \(rows 3, 7\).*nonfinite='drop'"
    ):
        Sifter(net, exit=1, score="loss").select((x, y))
    kept = Sifter(net, exit=1, score="loss", nonfinite="drop").select((x, y)).indices.tolist()
    assert len(kept) == 6
    assert not {3, 7} & set(kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit": 0}, r"exit=0: blocks are counted from 1"),
        ({"exit": 9}, r"exit=9 is out of range.*choose 1 to 4, or 'last'"),
        ({"exit": "nowhere"}, r"exit='nowhere' names no module"),
        ({"exit": 1, "stack": "nowhere"}, r"stack='nowhere' names no module"),
        ({"keep": 0}, r"keep=0 is not in \(0, 1\]"),
        ({"keep": 1.01}, r"keep=1.01 is not in \(0, 1\]"),
        ({"score": "novelty"}, r"score='novelty' is unknown: choose one of loss, entropy"),
        ({"policy": "bottom"}, r"policy='bottom' is unknown"),
        ({"trim": 0.6}, r"trim=0.6 leaves less than half, which keep='auto' keeps at most"),
        ({"keep": "auto", "policy": "random"}, r"policy='top' and not with 'random'"),
        ({"keep": "auto", "draws": "batch"}, r"draws='samples' and not with 'batch'"),
        ({"keep": 0.5, "trial": Trial()}, r"keep=0.5 is fixed"),
        ({"keep": 0.5, "trim": 0.6}, r"trim=0.6 and keep=0.5 add up to more than all"),
        ({"nonfinite": "skip"}, r"nonfinite='skip'"),
        ({"score_batch_size": 0}, r"score_batch_size=0"),
        ({"audit_every": -1}, r"audit_every=-1"),
        ({"audit_log": "no/such/folder/log"}, r"the folder 'no/such/folder' does not exist"),
    ],
)
def test_bad_settings_are_named_at_construction(
    net: Net, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sifter(net, **options)


def test_wrong_types_are_named_at_construction(net: Net) -> None:
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        Sifter(lambda x: x)
    with pytest.raises(TypeError, match=r"exit=1.5"):
        Sifter(net, exit=1.5)
    with pytest.raises(TypeError, match=r"loss_fn='mse' is not callable"):
        Sifter(net, loss_fn="mse")
    with pytest.raises(ValueError, match="no stack of repeated blocks found in Linear"):
        Sifter(nn.Linear(2, 2), exit=1)


def test_too_few_candidates(net: Net) -> None:
    with pytest.raises(ValueError, match="a candidate batch of 1 leaves nothing to choose"):
        list(Sifter(net, exit=1, draws="batch")([(torch.randn(1, 8), torch.tensor([0]))]))
    data = [*candidates(2), (torch.randn(1, 8), torch.tensor([0]))]
    sifter = Sifter(net, exit=1, score="loss", draws="batch")
    assert [len(y) for _, y in sifter(data)] == [6, 6, 1]
    assert [len(y) for _, y in Sifter(net, exit=1, score="loss")(data)] == [12, 12, 1]


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
            SiftingWarning, match=r"worse than at random: rho_approx is 0\.\d+.*explore"
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


class TestResume:
    @pytest.mark.parametrize("stop_after", [1, 3, 5, 8])
    @pytest.mark.parametrize("exit", [1, "tuned"])
    def test_state_round_trip_continues_identically_mid_epoch(
        self, stop_after: int, exit: Any
    ) -> None:
        data = TensorDataset(torch.randn(96, 8), torch.randint(0, 5, (96,)))

        def run(stop: int | None, state: bytes | None = None) -> tuple[list[list[int]], bytes]:
            torch.manual_seed(11)
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            sifter = Sifter(net, exit=exit, score="entropy", warmup_steps=3, explore=0.3)
            loader = DataLoader(data, batch_size=12, shuffle=True)
            if state is not None:
                saved = torch.load(io.BytesIO(state), weights_only=True)
                sifter.load_state_dict(saved["sifter"])
                net.load_state_dict(saved["net"])
                torch.set_rng_state(saved["rng"])
            seen: list[list[int]] = []
            for _epoch in range(2):
                for x, y in sifter(loader):
                    F.cross_entropy(net(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    seen.append((x[:, 0] * 1000).long().tolist())
                    if len(seen) == stop:
                        buffer = io.BytesIO()
                        torch.save(
                            {
                                "sifter": sifter.state_dict(),
                                "net": net.state_dict(),
                                "rng": torch.get_rng_state(),
                            },
                            buffer,
                        )
                        return seen, buffer.getvalue()
            return seen, b""

        whole, _ = run(None)
        first, state = run(stop_after)
        rest, _ = run(None, state)
        # the resumed run goes through the rest of epoch one and the whole of epoch two
        assert first + rest == whole

    def test_state_is_plain_tensors_and_numbers(self, net: Net) -> None:
        sifter = Sifter(net, exit="tuned", audit_every=1)
        for _ in sifter(candidates(3)):
            state = sifter.state_dict()

        def leaves(node: Any) -> Iterator[Any]:
            for value in node.values() if isinstance(node, dict) else node:
                if isinstance(value, dict | list | tuple):
                    yield from leaves(value)
                else:
                    yield value

        assert all(v is None or isinstance(v, Tensor | int | float | str) for v in leaves(state))

    def test_a_state_of_another_kind_is_refused(self, net: Net) -> None:
        state = Sifter(net, exit="tuned").state_dict()
        with pytest.raises(ValueError, match="has version 9"):
            Sifter(net, exit="tuned").load_state_dict({**state, "version": 9})
        trained = Sifter(net, exit="tuned")
        trained.select(candidates(1)[0])
        with pytest.raises(ValueError, match=r"weights of a learned exit .* is a BlockExit"):
            Sifter(net, exit=1).load_state_dict(trained.state_dict())

    @pytest.mark.parametrize(
        ("before", "now", "message"),
        [
            (
                {"exit": 1, "keep": 0.5},
                {},
                r"saved with keep=0.5, .* an autopilot .*pass the keep=",
            ),
            (
                {},
                {"exit": "tuned", "keep": 0.5},
                r"exit=AutoExit.*'s is TunedExit\(.*make the sifter",
            ),
            ({"exit": "input"}, {"exit": "tuned"}, r"with exit=InputExit\(\), and .* is TunedExit"),
        ],
    )
    def test_what_another_sifter_has_learned_is_refused_by_name(
        self, net: Net, before: dict[str, Any], now: dict[str, Any], message: str
    ) -> None:
        """It is not damaged: it was saved with other settings."""
        saved = Sifter(net, **before)
        saved.select(candidates(1)[0])
        with pytest.raises(ValueError, match=message):
            Sifter(net, **now).load_state_dict(saved.state_dict())

    @pytest.mark.parametrize(
        ("asked", "changed"),
        [
            ({}, {"keep": 0.25}),
            ({"exit": "input", "loss_fn": nn.BCEWithLogitsLoss()}, {"score": "loss"}),
            ({"loss_fn": nn.BCEWithLogitsLoss()}, {"exit": TunedExit("2")}),
            ({"exit": "last", "losses": lambda m, b: m(b[0]).sum(dim=1)}, {"explore": 0.5}),
        ],
    )
    def test_what_a_first_batch_shows_is_no_other_setting(
        self, asked: dict[str, Any], changed: dict[str, Any]
    ) -> None:
        """The place of an exit, and the score that suits, are found on it; nobody changed them."""
        model = nn.Sequential(
            nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)
        )
        labels = (torch.rand(12, 4) if "loss_fn" in asked else torch.arange(12) % 4).round()
        saved = Sifter(model, **{"keep": 0.5, **asked})
        saved.select((torch.randn(12, 8), labels))
        state = saved.state_dict()
        Sifter(model, **{"keep": 0.5, **asked}).load_state_dict(state)  # a warning is an error
        with pytest.warns(SiftingWarning, match=f"other settings: {next(iter(changed))}="):
            Sifter(model, **{"keep": 0.5, **asked, **changed}).load_state_dict(state)


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


def test_the_default_of_a_fixed_ratio_is_entropy_at_a_tuned_exit_with_exploration(net: Net) -> None:
    sifter = Sifter(net, keep=0.5)
    assert isinstance(sifter.exit, TunedExit)
    assert (sifter.settings()["score"], sifter.rule.explore) == ("entropy", 0.25)
    assert Sifter(net, exit=1).rule.explore == 0


def test_samples_that_are_not_finite_are_kept_by_no_policy(net: Net) -> None:
    x, y = candidates(1)[0]
    x[3] = torch.nan
    for policy in ("top", "percentile", "proportional"):
        sifter = Sifter(net, exit=1, policy=policy, explore=0.5, nonfinite="drop", audit_every=0)
        for _ in range(40):
            assert 3 not in sifter.select((x, y)).indices.tolist()


def test_trimmed_samples_have_nobody_to_speak_for_them(net: Net) -> None:
    sifter = Sifter(net, exit="last", score="loss", explore=0.5, trim=0.2, audit_every=0)
    for x, _ in sifter(candidates(10)):
        net(x)
    assert sifter.stats().rho_explored is None


def test_a_loop_of_ones_own_is_counted(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss", keep=lambda step: 0.5 if step < 2 else 0.25)
    assert [len(sifter.select(batch).indices) for batch in candidates(3)] == [6, 6, 3]
    stats = sifter.stats()
    assert (stats.steps, stats.candidates_seen, stats.samples_trained) == (3, 36, 15)


def test_random_picks_alone_can_condemn_a_choice(net: Net) -> None:
    net.eval()
    worst = Sifter(
        net,
        exit="last",
        score=lambda z, y: -F.cross_entropy(z, y, reduction="none"),
        explore=0.5,
        audit_every=0,
    )
    with pytest.warns(SiftingWarning, match="worse than at random"):
        for x, _ in worst(candidates(310)):
            net(x)


def test_warnings_point_at_the_users_own_line(net: Net) -> None:
    with pytest.warns(SiftingWarning) as seen:
        sifter = Sifter(net, exit="last", score="loss", audit_every=1)
        for batch in candidates(5):
            sifter.select(batch)
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "half"}, "keep='half': give a number"),
        ({"trial": 3}, r"trial=3: give a sifting.Trial"),
        ({"keep": True}, "keep=True"),
        ({"explore": "some"}, "explore='some': give a number"),
        ({"forward": 3}, "forward=3 is not callable"),
        ({"labels": "y"}, "labels='y' is not callable"),
    ],
)
def test_wrong_types_name_the_value(net: Net, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Sifter(net, **options)


def test_repr_tells_what_was_found_out(net: Net, pair: tuple[Tensor, Tensor]) -> None:
    sifter = Sifter(net, exit=2, score="loss")
    assert "BlockExit(2 of blocks)" in repr(sifter)
    assert "found on the first batch" in repr(sifter)
    sifter.score(pair)
    assert "logits → labels by cross-entropy; assumed" in repr(sifter)


def test_a_model_compiled_in_place_is_scored_and_stays_compiled(net: Net) -> None:
    batch = candidates(1)[0]
    want = Sifter(net, exit=2, score="loss").score(batch)
    net.compile(backend="eager")
    call = net._compiled_call_impl
    assert torch.equal(Sifter(net, exit=2, score="loss").score(batch), want)
    assert net._compiled_call_impl is call


def test_batches_without_any_label_are_kept_at_random_and_reported() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    batch = {**token_batch(), "labels": torch.full((6, 10), -100)}
    sifter = Sifter(model, exit=1, score="loss")
    with pytest.warns(SiftingWarning, match="10 batches had no sample with a label"):
        kept = {tuple(sifter.select(batch).indices.tolist()) for _ in range(12)}
    assert len(kept) > 1


def test_an_audit_without_labels_among_the_kept_does_not_break_the_others() -> None:
    net = Net()
    sifter = Sifter(net, exit="last", score="loss", audit_every=1)
    with pytest.warns(SiftingWarning, match="misclassified"):
        for i in range(5):
            x, y = candidates(1)[0]
            sifter.select((x, torch.full_like(y, -100) if i == 2 else y))
    assert sifter.stats().misclassified is not None


def test_the_random_control_needs_no_exit() -> None:
    model = nn.Sequential(nn.Linear(8, 5))
    assert len(Sifter(model, policy="random").select(candidates(1)[0]).indices) == 6


def test_observe_wants_a_loss_for_each_sample(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss", explore=0.5)
    sifter.select(candidates(1)[0])
    with pytest.raises(ValueError, match=r"each of the 6 samples handed out last, got .*\(\)"):
        sifter.observe(torch.tensor(1.0))


def test_the_audit_log_holds_losses_whatever_the_score(net: Net, tmp_path: Any) -> None:
    log = tmp_path / "audits.jsonl"
    x, y = candidates(1)[0]
    x[4] = torch.nan
    sifter = Sifter(net, exit=1, score="entropy", audit_every=1, audit_log=log, nonfinite="drop")
    sifter.select((x, y))
    line = json.loads(log.read_text())
    sound = torch.arange(12) != 4
    early = Sifter(net, exit=1, score="loss").score((x[sound], y[sound]))
    assert line["early"] == pytest.approx(early.tolist(), rel=1e-4)
    assert len(line["exact"]) == len(line["scores"]) == 11
    assert "Infinity" not in log.read_text()


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


def test_what_keeps_everything_or_picks_at_random_needs_no_exit() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    data = [(torch.randn(4, 4), torch.arange(4)) for _ in range(2)]
    for options in ({"keep": 1.0}, {"policy": "random"}):
        kept = list(Sifter(Odd(), exit=1, **options)(data))
        assert [len(y) for _, y in kept] == [4, 4]


def test_a_loss_that_is_not_the_one_scored_is_warned_of(net: Net) -> None:
    def trained(loss_fn: Any) -> None:
        sifter = Sifter(net, exit=1, score="loss", audit_every=0)
        for x, y in sifter(candidates(3)):
            loss_fn(net(x), y).backward()

    trained(nn.CrossEntropyLoss())  # a warning would be an error
    trained(lambda z, y: 3 * F.cross_entropy(z, y))
    with pytest.warns(SiftingWarning, match="is not the one that is scored|agrees by"):
        trained(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0, 1.0, 5.0, 1.0])))


def test_what_is_trimmed_has_no_part_in_the_judgement(net: Net) -> None:
    x, y = torch.randn(40, 8), torch.arange(40) % 5
    trimmed = Sifter(net, exit="last", score="loss", keep=0.5, trim=0.25, audit_every=1)
    trimmed.select((x, y))
    assert trimmed.stats().rho_approx > 1.0  # of those that were not trimmed, the highest
    assert trimmed.stats().recall == 1.0


def test_a_warning_advises_what_would_help_this_sifter(net: Net) -> None:
    assert "exit='tuned'" not in Sifter(net, exit="last").auditor.advice.remedy
    assert "exit='tuned'" in Sifter(net, exit=1).auditor.advice.remedy
    assert "TunedExit" in Sifter(net, keep=0.5).auditor.advice.remedy
    assert "later" not in Sifter(net, exit=4).auditor.advice.remedy  # of 4 blocks
    assert "earlier" not in Sifter(net, exit=1).auditor.advice.cheaper
    assert "earlier" not in Sifter(net, exit="input").auditor.advice.cheaper


@pytest.mark.parametrize(
    ("asked", "said", "unsaid"),
    [
        ({}, "larger explore= (0.5), trim=0.1, or", "nothing"),
        ({"trim": 0.2}, "larger explore= (0.5), or", "trim=0.1"),
        ({"explore": 0.5}, "score='entropy', trim=0.1, or", "explore"),
    ],
)
def test_a_warning_does_not_advise_what_is_done_already(
    net: Net, asked: dict[str, Any], said: str, unsaid: str
) -> None:
    sifter = Sifter(net, exit="last", score="loss", audit_every=1, **asked)
    with pytest.warns(SiftingWarning, match="misclassified") as heard:
        for batch in candidates(20):
            sifter.select(batch)
    (message,) = [str(one.message) for one in heard if "misclassified" in str(one.message)]
    assert said in message
    assert unsaid not in message


@pytest.mark.parametrize(
    ("exit", "cheaper"), [("last", "exit='tuned', or exit=MemoryExit"), (2, r"exit=1\), or")]
)
def test_choosing_that_outweighs_training_is_said_once(net: Net, exit: Any, cheaper: str) -> None:
    """Also where nothing is audited; with the cheaper exit to take."""
    sifter = Sifter(net, exit=exit, score="loss", audit_every=0)
    sifter.meter.seconds.update(between=1000.0, scoring=900.0)
    for x, y in sifter(candidates(101)):  # a warning would be an error
        F.cross_entropy(net(x), y).backward()
    sifter.meter.seconds["scoring"] = 1100.0
    with pytest.warns(
        SiftingWarning, match=rf"choosing takes 5\d% of the time .*{cheaper}"
    ) as heard:
        for x, y in sifter(candidates(202)):
            F.cross_entropy(net(x), y).backward()
    assert len(heard) == 1


@pytest.mark.parametrize(("scoring", "said"), [(25.0, False), (31.0, True)])
def test_training_need_not_be_long_where_choosing_is(net: Net, scoring: float, said: bool) -> None:
    """Where it takes ten times as long, ten seconds of training would be two minutes."""
    sifter = Sifter(net, exit="last", score="loss", audit_every=0)
    sifter.meter.seconds.update(between=3.0, scoring=scoring)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for x, y in sifter(candidates(101)):
            F.cross_entropy(net(x), y).backward()
    assert ["choosing takes 9" in str(one.message) for one in heard] == [True] * said


def test_the_objective_is_said_once(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="sifting"):
        sifter = Sifter(net, exit=1, score="loss")
        for batch in candidates(3):
            sifter.select(batch)
    (line,) = [record.message for record in caplog.records if record.name == "sifting"]
    assert "logits → labels by cross-entropy" in line
    assert "cross-entropy" in repr(sifter)


def test_labels_out_of_range_are_named_on_the_first_batch(net: Net) -> None:
    x, y = torch.randn(12, 8), torch.arange(12) % 5
    y[7] = 11
    with pytest.raises(ValueError, match=r"11"):
        list(Sifter(net, exit=1, score="entropy")([(x, y)] * 2))
