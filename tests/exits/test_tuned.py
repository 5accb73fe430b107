from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter, TunedExit
from sifting.measure.quality import rank_correlation
from tests.helpers.models import SMALL, Net, token_batch


def easy_task(samples: int = 256) -> tuple[Tensor, Tensor]:
    """Half the samples can be told apart by a linear map, the other half are noise."""
    x = torch.randn(samples, 8)
    y = x[:, :5].argmax(dim=1)
    y[samples // 2 :] = torch.randint(0, 5, (samples - samples // 2,))
    return x, y


def test_it_learns_to_predict_the_labels(net: Net) -> None:
    sifter = Sifter(net, exit=TunedExit(1), score="loss", audit_every=0)
    x, y = easy_task()
    before = sifter.score((x, y))
    assert before == pytest.approx(torch.full((256,), 5.0).log(), abs=1e-6)  # alike at first
    for _ in range(100):
        sifter.select((x, y))
    after = sifter.score((x, y))
    assert after.mean() < 0.8 * before.mean()
    assert after[:128].mean() < after[128:].mean()


def test_scoring_alone_does_not_train_it(net: Net, pair: tuple[Tensor, Tensor]) -> None:
    sifter = Sifter(net, exit="tuned", score="loss")
    sifter.select(pair)
    first = sifter.score(pair)
    assert torch.equal(sifter.score(pair), first)
    sifter.select(pair)
    assert not torch.equal(sifter.score(pair), first)


def test_no_gradient_reaches_the_model() -> None:
    model = hf.BertForPreTraining(hf.BertConfig(**SMALL))
    batch = {**token_batch(), "next_sentence_label": torch.randint(0, 2, (6,))}
    weights = [p.detach().clone() for p in model.parameters()]
    sifter = Sifter(model, exit="tuned", score="loss")
    for _ in range(3):
        sifter.select(batch)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))


def test_a_translator_starts_as_the_models_own_head_and_then_improves_on_it() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    batch = token_batch(size=16)
    own = Sifter(model, exit=1, score="loss").score(batch)
    sifter = Sifter(model, exit=TunedExit(1, lr=1e-2), score="loss", audit_every=0)
    torch.testing.assert_close(sifter.score(batch), own)
    for _ in range(100):
        sifter.select(batch)
    assert sifter.score(batch).mean() < 0.93 * own.mean()


def test_a_translator_trains_on_a_bounded_number_of_positions() -> None:
    model = hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=4, n_head=4, vocab_size=150))
    seen: list[int] = []
    head = model.lm_head.forward

    def counting(inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            seen.append(inputs.shape[0])
        return head(inputs)

    model.lm_head.forward = counting
    ids = torch.randint(0, 150, (8, 30))
    sifter = Sifter(model, exit=TunedExit(1, rows=50), score="loss")
    sifter.select({"input_ids": ids, "labels": ids})
    assert seen
    assert max(seen) <= 50
    assert model.lm_head.forward is counting


def test_the_default_depth_is_a_twelfth() -> None:
    for depth, want in ((4, 1), (12, 1), (24, 2)):
        sifter = Sifter(Net(depth=depth), keep=0.5)
        assert isinstance(sifter.exit, TunedExit)
        assert sifter.exit.k == want


def test_a_cnn_gets_its_second_stage_and_any_module_can_be_named() -> None:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], num_labels=5
    )
    model = hf.ResNetForImageClassification(config)
    sifter = Sifter(model, keep=0.5)
    assert isinstance(sifter.exit, TunedExit)
    assert sifter.exit.path == "resnet.encoder.stages.1"
    ran: list[int] = []
    for i, stage in enumerate(model.resnet.encoder.stages):
        stage.register_forward_hook(lambda m, a, out, i=i: ran.append(i))
    batch = {"pixel_values": torch.randn(6, 3, 32, 32), "labels": torch.randint(0, 5, (6,))}
    sifter.select(batch)
    ran.clear()
    assert sifter.select(batch).scores.shape == (6,)
    assert ran == [0, 1]
    named = Sifter(model, exit=TunedExit("resnet.embedder"), score="loss")
    assert named.score(batch).shape == (6,)


def test_its_state_continues_identically(net: Net) -> None:
    x, y = easy_task(64)
    a = Sifter(net, exit="tuned", score="loss")
    for _ in range(5):
        a.select((x, y))
    b = Sifter(net, exit="tuned", score="loss")
    b.load_state_dict(a.state_dict())
    for _ in range(3):
        one, two = a.select((x, y)), b.select((x, y))
        assert torch.equal(one.scores, two.scores)
        assert torch.equal(one.indices, two.indices)


def test_it_outlives_the_decay_of_the_models_own_early_exit() -> None:
    """Train to fit everything; the tuned exit must still rank by exact loss better than chance."""
    net = Net(width=64)
    x, y = easy_task(512)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    sifter = Sifter(net, exit="tuned", score="loss", policy="random", audit_every=0)
    tuned = Sifter(net, exit=TunedExit(1), score="loss", audit_every=0)
    for step in range(150):
        rows = torch.arange(step * 64, step * 64 + 64) % 512
        tuned.select((x[rows], y[rows]))
        for xb, yb in sifter([(x[rows], y[rows])]):
            F.cross_entropy(net(xb), yb).backward()
            optimizer.step()
            optimizer.zero_grad()
    exact = Sifter(net, exit="last", score="loss").score((x, y))
    assert rank_correlation(tuned.score((x, y)).double(), exact.double()) > 0.3


def test_a_broken_batch_does_not_break_the_exit_for_good(net: Net) -> None:
    x, y = easy_task(32)
    sifter = Sifter(net, exit="tuned", score="loss", nonfinite="drop")
    broken = x.clone()
    broken[0] = torch.nan
    sifter.select((broken, y))
    assert sifter.score((x, y)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": 0.0}, ValueError, "lr=0.0 must be above 0"),
        ({"lr": "wide"}, ValueError, "lr='wide' must be above 0, or 'width'"),
        ({"rows": 0}, ValueError, "rows=0 must be at least 1"),
        ({"at": 1.5}, TypeError, "at=1.5"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        TunedExit(**options)


def test_what_it_cannot_do_is_said(net: Net) -> None:
    with pytest.raises(ValueError, match=r"at='nowhere' names no module"):
        Sifter(net, exit=TunedExit("nowhere"))
    with pytest.raises(ValueError, match=r"gives no labels: pass forward= and labels="):
        Sifter(net, exit="tuned", score="entropy").score(torch.randn(4, 8))
    bert = hf.BertForMaskedLM(hf.BertConfig(**{**SMALL, "vocab_size": 2000}))
    with pytest.raises(ValueError, match=r"choose a block of its stack"):
        Sifter(bert, exit=TunedExit("bert.embeddings")).score(token_batch())


def test_any_network_has_a_place_for_it() -> None:
    cnn = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 5),
    )
    sifter = Sifter(cnn, keep=0.5)
    batch = torch.randn(6, 3, 8, 8), torch.arange(6) % 5
    assert sifter.select(batch).scores.shape == (6,)
    assert repr(sifter.exit) == "TunedExit(1)"  # after the first convolution, not where all is done


def test_with_losses_it_learns_to_predict_them() -> None:
    """Noise prediction: the loss is no function of logits and labels."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 8, generator=generator)
    size = x[:, :1] + 5  # the loss of a sample

    def losses(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) * 0 + batch[:, :1] + 5).mean(dim=1)

    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    sifter = Sifter(model, losses=losses, exit=TunedExit("1"), explore=0.0, audit_every=10)
    for _ in range(300):  # the exact losses of an eighth of them are computed to learn from
        sifter.select(x[torch.randperm(256, generator=generator)[:64]])
    assert sifter.settings()["score"] == "loss"
    assert rank_correlation(sifter.score(x), size.squeeze(1)) > 0.6
    stats = sifter.stats()
    assert stats.rho_approx is not None
    assert stats.rho_approx > 1.05


def test_pieces_of_a_batch_are_scored_by_the_same_weights(net: Net) -> None:
    """Learning happens after all pieces, or equal samples would get unequal scores."""
    x, y = easy_task(32)
    twice = torch.cat([x, x]), torch.cat([y, y])
    sifter = Sifter(net, exit="tuned", score="loss", score_batch_size=32)
    for _ in range(3):
        scores = sifter.select(twice).scores
        torch.testing.assert_close(scores[:32], scores[32:])


def test_sequences_with_the_channels_first_are_pooled_over_time() -> None:
    class Audio(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv1d(4, 6, 3, padding=1), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).mean(dim=2))

    sifter = Sifter(Audio(), exit=TunedExit("conv"), score="loss")
    for length in (9, 12):  # a head on channels does not mind the length
        assert sifter.select((torch.randn(5, 4, length), torch.arange(5) % 3)).scores.shape == (5,)


def test_an_encoder_that_packs_its_padding_is_pooled_sample_by_sample() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.table, self.encoder = nn.Embedding(20, 8), nn.TransformerEncoder(layer, 3)
            self.head = nn.Linear(8, 3)

        def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
            hidden = self.encoder(self.table(ids), src_key_padding_mask=attention_mask == 0)
            return self.head(hidden[:, 0])

    mask = torch.ones(6, 7, dtype=torch.long)
    mask[2:, 5:] = 0
    batch = {"ids": torch.randint(0, 20, (6, 7)), "attention_mask": mask}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own word on its nested tensors
        sifter = Sifter(Text(), exit="tuned", score="loss")
        assert sifter.select((batch, torch.arange(6) % 3)).scores.isfinite().all()


def test_pictures_are_predicted_place_by_place() -> None:
    """A head of its own at every place, unless what the exit finds has fewer places than labels."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    batch = torch.randn(4, 3, 6, 6), torch.randint(0, 4, (4, 6, 6))
    sifter = Sifter(model, exit=TunedExit("0"), score="loss", explore=0.0)
    before = sifter.score(batch)
    torch.testing.assert_close(before, torch.full((4,), math.log(4)))
    for _ in range(10):
        sifter.select(batch)
    assert float(sifter.score(batch).mean()) < float(before.mean())
    shrunk = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 1))
    with pytest.raises(ValueError, match=r"cannot predict logits at every position.*exit='last'"):
        Sifter(shrunk, exit=TunedExit("0"), score="loss").score(batch)
    assert Sifter(shrunk, exit="last", score="loss").score(batch).shape == (4,)


def test_one_state_can_be_loaded_twice(net: Net) -> None:
    x, y = easy_task(64)
    trained = Sifter(net, exit="tuned", score="loss")
    for _ in range(4):
        trained.select((x, y))
    state = trained.state_dict()
    runs = []
    for _ in range(2):
        sifter = Sifter(net, exit="tuned", score="loss")
        sifter.load_state_dict(state)
        runs.append([sifter.select((x, y)).scores for _ in range(5)][-1])
    assert torch.equal(*runs)


def test_a_state_of_another_model_is_refused() -> None:
    x, y = easy_task(32)
    trained = Sifter(Net(classes=7), exit="tuned")
    trained.select((x, y))
    other = Sifter(Net(classes=5), exit="tuned")
    other.load_state_dict(trained.state_dict())
    with pytest.raises(ValueError, match=r"are of shape \(7, 16\), and this model needs \(5, 16\)"):
        other.select((x, y))


def test_one_exit_serves_one_sifter(net: Net) -> None:
    exit = TunedExit(1)
    Sifter(net, exit=exit)
    with pytest.raises(ValueError, match="in use by another sifter"):
        Sifter(Net(), exit=exit)


def test_answers_whose_classes_are_positions_are_refused_on_the_first_batch() -> None:
    model = hf.BertForQuestionAnswering(hf.BertConfig(**SMALL))
    batch = {
        "input_ids": torch.randint(5, 150, (4, 9)),
        "start_positions": torch.arange(4),
        "end_positions": torch.arange(4),
    }
    with pytest.raises(ValueError, match=r"cannot predict start_positions.*choose exit=k"):
        Sifter(model, exit="tuned").score(batch)
    per_position = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="one value or vector per sample"):
        Sifter(per_position, exit=TunedExit(1), score="loss", loss_fn=nn.MSELoss()).score(
            (torch.randn(4, 5, 3), torch.randn(4, 5, 2))
        )


def test_where_losses_alone_know_how_the_model_is_called_it_is_run_through_them() -> None:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in range(3)])

        def forward(self, x: Tensor, time: Tensor) -> Tensor:
            for conv in self.convs:
                x = x + time.view(-1, 1, 1, 1) * torch.tanh(conv(x))
            return x

    def losses(model: nn.Module, images: Tensor) -> Tensor:
        noise = torch.randn_like(images)
        found = model(images + noise, torch.rand(len(images)))
        return ((found - noise) ** 2).mean(dim=(1, 2, 3))

    model, images = Denoiser(), torch.randn(16, 3, 8, 8)
    sifter = Sifter(model, losses=losses, exit="tuned", keep=0.5)
    before = torch.get_rng_state()
    sifter.score(images)
    assert torch.equal(torch.get_rng_state(), before)
    kept = [losses(model, batch).mean().backward() or len(batch) for batch in sifter([images] * 4)]
    assert kept == [16] * 4
    assert sifter.stats().selections == 4


def test_an_encoder_with_a_decoder_is_left_in_the_decoder() -> None:
    config = hf.T5Config(
        d_model=16,
        d_ff=32,
        num_layers=3,
        num_heads=2,
        d_kv=8,
        vocab_size=50,
        decoder_start_token_id=0,
    )
    model = hf.T5ForConditionalGeneration(config)
    batch = {"input_ids": torch.randint(3, 50, (8, 9)), "labels": torch.randint(3, 50, (8, 7))}
    sifter = Sifter(model, keep=0.5)
    before = sifter.score(batch)
    assert repr(sifter.exit) == "TunedExit(block 1 of decoder.block)"
    for _ in range(30):
        sifter.select(batch)
    after = sifter.score(batch)
    assert after.mean() < before.mean(), "it learns what the decoder is to predict"


def test_graphs_are_predicted_from_their_nodes() -> None:
    class Graphs:
        def __init__(self, graphs: list[Tensor]) -> None:
            self.graphs, self.num_graphs = graphs, len(graphs)
            self.x = torch.cat(graphs)
            self.batch = torch.repeat_interleave(torch.tensor([len(g) for g in graphs]))
            self.y = torch.tensor([int(g.mean() > 0) for g in graphs])

        def index_select(self, indices: Tensor) -> list[Tensor]:
            return [self.graphs[i] for i in indices.tolist()]

        @classmethod
        def from_data_list(cls, graphs: list[Tensor]) -> Graphs:
            return cls(graphs)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
            self.head = nn.Linear(4, 2)

        def forward(self, graphs: Graphs) -> Tensor:
            h = graphs.x
            for layer in self.layers:
                h = h + torch.tanh(layer(h))
            return self.head(torch.zeros(graphs.num_graphs, 4).index_add(0, graphs.batch, h))

    batch = Graphs([torch.randn(2 + i % 3, 4) for i in range(12)])
    sifter = Sifter(
        Network(),
        keep=0.5,
        score="loss",
        forward=lambda model, graphs: model(graphs),
        labels=lambda graphs: graphs.y,
    )
    before = sifter.score(batch)
    for _ in range(60):
        assert sifter.select(batch).batch.num_graphs == 6
    assert sifter.score(batch).mean() < before.mean()


def test_a_module_that_is_none_or_does_not_run_is_named() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    model[1].register_module("spare", nn.Linear(2, 2))
    sifter = Sifter(model, exit=TunedExit("1.spare"), keep=0.5)
    with pytest.raises(ValueError, match=r"the exit's module '1.spare', a Linear, did not run"):
        sifter.select((torch.randn(4, 8), torch.arange(4) % 3))
    for at in ("", True, 2.5):
        with pytest.raises(TypeError, match=f"at={at!r}: give a block number from 1, or a module"):
            TunedExit(at)  # type: ignore[arg-type]
