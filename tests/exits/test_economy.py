"""Scoring less of each candidate: rows=, view= and precision= of a sifter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import MemoryExit, Sifter
from sifting.exits.economy import Economy
from sifting.model.call import Call
from sifting.model.parts import Part
from sifting.model.plan import Plan
from tests.helpers.models import SMALL, Net, token_batch


@pytest.fixture
def bert() -> nn.Module:
    torch.manual_seed(0)
    return hf.BertForMaskedLM(hf.BertConfig(**SMALL))


@pytest.fixture
def batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return token_batch(size=8, length=24)


def _cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip


class TestRows:
    @pytest.mark.parametrize("exit", [1, "tuned", "last"])
    def test_as_many_rows_of_each_reach_the_head(
        self, bert: nn.Module, batch: dict[str, Tensor], exit: Any
    ) -> None:
        seen: list[int] = []
        decoder = bert.cls.predictions.decoder
        decoder.register_forward_hook(lambda m, a, o: seen.append(o.shape[:-1].numel()))
        sifter = Sifter(bert, exit=exit, score="loss", keep=0.5, rows=2)
        sifter.score(batch)
        seen.clear()
        sifter.score(batch)
        assert sum(seen) == int((batch["labels"] != -100).sum(dim=1).clamp(max=2).sum())

    def test_they_are_drawn_anew_each_time_and_alike_for_one_seed(
        self, bert: nn.Module, batch: dict[str, Tensor]
    ) -> None:
        def run(seed: int) -> list[Tensor]:
            sifter = Sifter(bert, exit=1, score="loss", keep=0.5, rows=2, seed=seed)
            return [sifter.select(batch).scores for _ in range(3)]

        first, again, other = run(0), run(0), run(1)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first[0], other[0])

    def test_asking_for_scores_changes_no_later_draw(
        self, bert: nn.Module, batch: dict[str, Tensor]
    ) -> None:
        one, two = (Sifter(bert, exit=1, score="loss", keep=0.5, rows=2) for _ in range(2))
        two.score(batch)
        assert torch.equal(one.select(batch).scores, two.select(batch).scores)

    def test_their_mean_over_draws_is_the_whole_score(
        self, bert: nn.Module, batch: dict[str, Tensor]
    ) -> None:
        sifter = Sifter(bert, exit=1, score="loss", keep=0.5, rows=2, audit_every=0)
        drawn = torch.stack([sifter.select(batch).scores for _ in range(60)])
        whole = Sifter(bert, exit=1, score="loss", keep=0.5).score(batch)
        # strata of differing sizes count alike, so that the mean is nearly the whole's
        assert float((drawn.mean(dim=0) - whole).abs().max()) < 0.5 * float(drawn.std(dim=0).max())

    def test_a_resumed_sifter_draws_the_same(
        self, bert: nn.Module, batch: dict[str, Tensor]
    ) -> None:
        one = Sifter(bert, exit="tuned", score="loss", keep=0.5, rows=2)
        one.select(batch)
        state = one.state_dict()
        two = Sifter(bert, exit="tuned", score="loss", keep=0.5, rows=2, seed=5)
        two.load_state_dict(state)
        assert torch.equal(one.select(batch).scores, two.select(batch).scores)

    def test_documents_of_packed_rows_are_samples(self) -> None:
        torch.manual_seed(0)
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL))
        ids = torch.randint(5, 150, (1, 18))
        positions = torch.cat([torch.arange(n) for n in (7, 3, 8)])[None]
        packed = {"input_ids": ids, "position_ids": positions, "labels": ids}
        sifter = Sifter(model, exit=1, score="loss", keep=0.5, rows=2)
        assert len(sifter.score(packed)) == 3
        whole = Sifter(model, exit=1, score="loss", keep=0.5, rows=50)
        plain = Sifter(model, exit=1, score="loss", keep=0.5)
        torch.testing.assert_close(whole.score(packed), plain.score(packed), rtol=1e-5, atol=1e-5)

    def test_one_prediction_a_sample_is_refused_before_training(self) -> None:
        data = TensorDataset(torch.randn(16, 8), torch.randint(0, 5, (16,)))
        sifter = Sifter(Net(), exit=1, keep=0.5, rows=4)
        with pytest.raises(ValueError, match="rows=4 is of labelled positions"):
            next(iter(sifter(DataLoader(data, batch_size=4))))

    def test_a_loss_of_whole_samples_is_refused(
        self, bert: nn.Module, batch: dict[str, Tensor]
    ) -> None:
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        sifter = Sifter(
            bert, exit=1, score="loss", keep=0.5, rows=4, loss_fn=lambda z, y: loss(z.mT, y)
        )
        with pytest.raises(ValueError, match="rows=4 needs a score of each position by itself"):
            sifter.score(batch)


class TestView:
    def test_scores_are_those_of_the_batch_that_is_seen(
        self, bert: nn.Module, batch: dict[str, Tensor]
    ) -> None:
        short = {name: value[:, :9].contiguous() for name, value in batch.items()}
        sifter = Sifter(bert, exit=2, score="loss", keep=0.5, view=9)
        plain = Sifter(bert, exit=2, score="loss", keep=0.5)
        assert torch.equal(sifter.score(batch), plain.score(short))
        assert sifter.select(batch).batch["input_ids"].shape == (4, 24)  # trained whole

    @pytest.mark.parametrize("exit", ["tuned", "input"])
    def test_smaller_images_reach_the_exit_and_whole_ones_the_step(self, exit: str) -> None:
        sizes: list[int] = []
        model = _cnn()
        model[0].register_forward_hook(lambda m, a, o: sizes.append(a[0].shape[-1]))
        data = TensorDataset(torch.randn(32, 3, 16, 16), torch.randint(0, 4, (32,)))
        sifter = Sifter(model, exit=exit, keep=0.5, view=8, audit_every=0)
        for images, labels in sifter(DataLoader(data, batch_size=8)):
            sizes.clear()
            nn.functional.cross_entropy(model(images), labels).backward()
            assert sizes == [16]
        if exit == "tuned":
            sizes.clear()
            sifter.select((torch.randn(8, 3, 16, 16), torch.randint(0, 4, (8,))))
            assert sizes == [8]

    def test_an_audit_has_the_exact_losses_of_whole_samples(
        self, bert: nn.Module, batch: dict[str, Tensor]
    ) -> None:
        sifter = Sifter(bert, exit="last", score="loss", keep=0.5, view=9)
        exact = Sifter(bert, exit="last", score="loss", keep=0.5).score(batch)
        (found,) = sifter._scorer.examine(batch, early=True) or ()
        assert torch.equal(found[0], exact)
        assert not torch.equal(found[2], exact)

    def test_a_function_is_asked_once_where_a_batch_is_moved(self) -> None:
        """What it shows may be another part each time: labels are looked up in what is scored."""
        batch = token_batch(4, length=12)
        host = {name: value.clone() for name, value in batch.items()}
        asked: list[int] = []

        def window(batch: dict[str, Tensor]) -> dict[str, Tensor]:
            asked.append(len(asked))
            return {name: value[:, asked[-1] :][:, :6] for name, value in batch.items()}

        call, part = Call(), Part("logits", "labels", "classes")
        plan = Plan(call, (part,), shapes={"logits": (12, 150)})
        chosen, seen = Economy(view=window).placed(plan, call, batch, host)
        assert asked == [0]
        assert torch.equal(seen["labels"], batch["labels"][:, :6])
        labelled = batch["labels"][:, :6] >= 0
        assert torch.equal(chosen.places[part].b_N, labelled.nonzero()[:, 0])

    def test_a_model_that_does_not_run_on_it_is_named_before_training(self) -> None:
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 16 * 16, 4)
        )
        data = TensorDataset(torch.randn(16, 3, 16, 16), torch.randint(0, 4, (16,)))
        sifter = Sifter(model, exit="last", keep=0.5, view=8)
        with pytest.raises(ValueError, match="view=8: the model does not run on samples of that"):
            next(iter(sifter(DataLoader(data, batch_size=4))))

    @pytest.mark.parametrize("kind", [AssertionError, ValueError, IndexError])
    def test_whatever_a_model_says_of_it_is_named(self, kind: type[Exception]) -> None:
        class Fixed(nn.Sequential):
            def forward(self, images: Tensor) -> Tensor:
                if images.shape[-1] != 16:
                    raise kind("images of 16 pixels, please")
                return super().forward(images)  # type: ignore[no-any-return]

        model = Fixed(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 4))
        batch = (torch.randn(8, 3, 16, 16), torch.randint(0, 4, (8,)))
        with pytest.raises(ValueError, match=r"view=8: the model does not run .*16 pixels, please"):
            Sifter(model, exit="last", keep=0.5, view=8).select(batch)
        sifter = Sifter(model, exit="auto", keep=0.5)
        sifter.select(batch)
        refused = sifter.exit.refused["tuned, view=8"]  # type: ignore[attr-defined]
        assert "does not run on samples of that size (images of 16 pixels, please)" in refused

    def test_a_device_that_is_full_is_not_blamed_on_it(self) -> None:
        with pytest.raises(torch.OutOfMemoryError), Economy(view=8).naming():
            raise torch.OutOfMemoryError("full")


class TestPrecision:
    def test_bf16_is_of_scoring_alone(self, bert: nn.Module, batch: dict[str, Tensor]) -> None:
        seen: list[torch.dtype] = []
        bert.cls.predictions.decoder.register_forward_hook(lambda m, a, o: seen.append(o.dtype))
        low = Sifter(bert, exit=1, score="loss", keep=0.5, precision="bf16").score(batch)
        assert seen[-1] == torch.bfloat16
        bert(**batch)
        assert seen[-1] == torch.float32
        whole = Sifter(bert, exit=1, score="loss", keep=0.5).score(batch)
        torch.testing.assert_close(low, whole, rtol=0.02, atol=0.02)

    @pytest.mark.parametrize("faster", [True, False])
    def test_the_clock_decides_and_the_state_keeps_it(
        self, bert: nn.Module, batch: dict[str, Tensor], monkeypatch: Any, faster: bool
    ) -> None:
        sifter = Sifter(bert, exit=1, score="loss", keep=0.5, precision="auto")
        clock = [0.0]
        scored = type(sifter._scorer).scored

        def timed(self: Any, *args: Any, **kwargs: Any) -> Tensor:
            clock[0] += 1.0 if self.economy.low == faster else 2.0
            return scored(self, *args, **kwargs)

        monkeypatch.setattr("sifting.exits.economy.now", lambda: clock[0])
        monkeypatch.setattr(type(sifter._scorer), "scored", timed)
        assert "bf16" not in str(sifter.stats())
        sifter.select(batch)
        assert sifter._scorer.economy.low is faster
        assert ("in bf16" in str(sifter.stats())) is faster
        other = Sifter(bert, exit=1, score="loss", keep=0.5, precision="auto")
        other.load_state_dict(sifter.state_dict())
        assert other._scorer.economy.low is faster

    def test_scores_that_rank_otherwise_are_not_taken_though_faster(self, monkeypatch: Any) -> None:
        economy, clock = Economy(precision="auto"), [0.0]
        monkeypatch.setattr("sifting.exits.economy.now", lambda: clock[0])

        def run() -> Tensor:
            clock[0] += 1 if economy.low else 9
            return torch.arange(8.0) * (-1 if economy.low else 1)

        economy.measure(run, torch.device("cpu"))
        assert economy.low is False


def test_nothing_is_left_out_unless_it_is_asked_for(
    bert: nn.Module, batch: dict[str, Tensor]
) -> None:
    sifter = Sifter(bert, exit=1, score="loss", keep=0.5)
    before = sifter._generator.get_state()
    sifter.score(batch)
    assert torch.equal(before, sifter._generator.get_state())
    assert sifter._scorer.economy.shown() == {}
    assert "scored of each" not in str(sifter.stats())


def test_it_is_told_in_words(bert: nn.Module) -> None:
    sifter = Sifter(bert, exit=1, keep=0.5, rows=4, view=16, precision="bf16")
    assert "rows=4, view=16, precision='bf16'" in repr(sifter)
    told = "scored of each candidate: 4 labelled positions of each, a view of 16, in bf16"
    assert told in str(sifter.stats())
    assert sifter.settings()["rows"] == 4


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"rows": 0}, "rows=0: give how many"),
        ({"view": 0}, "view=0 shows nothing"),
        ({"precision": "fp8"}, "precision='fp8': choose 'bf16'"),
    ],
)
def test_wrong_values_are_refused_when_the_sifter_is_made(asked: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sifter(Net(), exit=1, keep=0.5, **asked)


def test_an_exit_that_looks_at_nothing_has_nothing_to_spare() -> None:
    with pytest.raises(ValueError, match=r"view=8: MemoryExit\(.*\) looks at no sample"):
        Sifter(Net(), exit=MemoryExit(), keep=0.5, view=8)
