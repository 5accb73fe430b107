"""Text: an exit at block k against the architecture's own pieces, put together without the library."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter
from sifting.exits.tuned import TunedExit
from sifting.model.find import find_stack
from sifting.model.no_trace import no_trace
from sifting.model.places import find_place
from sifting.model.stack import StackError
from tests.helpers.models import SMALL

T5 = {
    "d_model": 32,
    "d_ff": 64,
    "num_layers": 4,
    "num_decoder_layers": 4,
    "num_heads": 4,
    "d_kv": 8,
    "vocab_size": 150,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}


def by_sample(logits_BTC: Tensor, labels_BT: Tensor, shift: int = 0) -> Tensor:
    """Mean cross-entropy of each sample, one at a time."""
    return torch.stack(
        [
            F.cross_entropy(z[: len(z) - shift], y[shift:], ignore_index=-100)
            for z, y in zip(logits_BTC, labels_BT, strict=True)
        ]
    )


def sequences(size: int = 5) -> dict[str, Tensor]:
    labels = torch.randint(5, 150, (size, 7))
    labels[1, -2:] = -100
    return {"input_ids": torch.randint(5, 150, (size, 9)), "labels": labels}


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ["t5", "switch"])
def test_decoder_of_an_encoder_decoder(kind: str, k: int) -> None:
    """Switch is a mixture of experts in every other block."""
    if kind == "t5":
        model: Any = hf.T5ForConditionalGeneration(hf.T5Config(**T5))
    else:
        sizes = {"num_experts": 4, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2}
        model = hf.SwitchTransformersForConditionalGeneration(
            hf.SwitchTransformersConfig(
                **T5, **sizes, router_z_loss_coef=0.0, router_aux_loss_coef=0.0
            )
        )
    model.eval()
    batch = sequences()
    caught: list[Tensor] = []
    block = model.decoder.block[k - 1]
    handle = block.register_forward_hook(
        lambda m, a, out: caught.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        whole = model(**batch).logits
        handle.remove()
        scaled = kind == "switch" or model.config.scale_decoder_outputs
        scale = model.config.d_model**-0.5 if scaled else 1.0
        logits = model.lm_head(model.decoder.final_layer_norm(caught[0]) * scale)
        full = by_sample(whole, batch["labels"])
    got = Sifter(model, exit=k, score="loss", stack="decoder.block").score(batch)
    torch.testing.assert_close(got, by_sample(logits, batch["labels"]), rtol=1e-4, atol=1e-5)
    exact = Sifter(model, exit="last", score="loss").score(batch)
    torch.testing.assert_close(exact, full, rtol=1e-4, atol=1e-5)


def test_encoder_of_an_encoder_decoder() -> None:
    model = hf.T5ForConditionalGeneration(hf.T5Config(**T5)).eval()
    batch = sequences()
    with torch.no_grad():
        hidden = model.encoder(batch["input_ids"], output_hidden_states=True).hidden_states[2]
        out = model(
            encoder_outputs=(model.encoder.final_layer_norm(hidden),), labels=batch["labels"]
        )
    got = Sifter(model, exit=2, score="loss", stack="encoder.block").score(batch)
    torch.testing.assert_close(got, by_sample(out.logits, batch["labels"]), rtol=1e-4, atol=1e-5)


def test_an_encoder_decoder_must_say_which_is_meant() -> None:
    model = hf.T5ForConditionalGeneration(hf.T5Config(**T5))
    with pytest.raises(StackError, match=r"2 stacks that could be meant: 'decoder.block'.*stack="):
        Sifter(model, exit=1)


@pytest.mark.parametrize("k", [1, 3])
def test_mixture_of_experts(k: int) -> None:
    model = hf.MixtralForCausalLM(
        hf.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    ).eval()
    ids = torch.randint(5, 150, (5, 8))
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[k]
        want = by_sample(model.lm_head(model.model.norm(hidden)), ids, shift=1)
    got = Sifter(model, exit=k, score="loss").score({"input_ids": ids, "labels": ids})
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        q, k, v = (
            part.view(size, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(size, length, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, 4)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGpt(nn.Module):
    """A small GPT as people write it: a dict of parts, a loss inside, one position without labels."""

    def __init__(self, vocab: int = 60, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab, width),
                "wpe": nn.Embedding(64, width),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList([Block(width) for _ in range(depth)]),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth))

    def embedded(self, idx: Tensor) -> Tensor:
        positions = torch.arange(idx.shape[1], device=idx.device)
        return self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(positions))

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.embedded(idx)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss


@pytest.mark.parametrize("k", [1, 2, 4])
def test_nanogpt(k: int) -> None:
    model = NanoGpt().eval()
    idx, targets = torch.randint(0, 60, (5, 8)), torch.randint(0, 60, (5, 8))
    with torch.no_grad():
        x = model.embedded(idx)
        for block in list(model.transformer.h)[:k]:
            x = block(x)
        want = by_sample(model.lm_head(model.transformer.ln_f(x)), targets)
    sifter = Sifter(
        model,
        exit=k,
        score="loss",
        forward=lambda m, batch: m(*batch)[0],
        labels=lambda batch: batch[1],
    )
    torch.testing.assert_close(sifter.score((idx, targets)), want, rtol=1e-4, atol=1e-5)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.out = nn.Linear(32, 6)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(ids))
        return self.out(hidden)


def test_lstm_tagger() -> None:
    model = Tagger().eval()
    ids, tags = torch.randint(0, 50, (5, 7)), torch.randint(0, 6, (5, 7))
    tags[2, 4:] = -100
    with torch.no_grad():
        want = by_sample(model(ids), tags)
    got = Sifter(model, exit="last", score="loss").score((ids, tags))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(StackError, match=r"no stack .* in Tagger.*exit='last', TunedExit\('path"):
        Sifter(model, exit=1)
    with no_trace(model):
        place = find_place(model, lambda: model(ids), size=5)
        assert (place.path, place.share) == ("embed", 0)
        with pytest.raises(StackError, match=r"Tagger predicts at every position.*exit='last'"):
            find_place(model, lambda: model(ids), size=5, head=True)


class Retriever(nn.Module):
    """Two alike towers, for questions and passages; a row of scores for each question."""

    def __init__(self) -> None:
        super().__init__()
        self.question, self.passage = self.tower(), self.tower()

    def tower(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        return nn.ModuleDict(
            {
                "embed": nn.Embedding(50, 16),
                "encoder": nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
                "project": nn.Linear(16, 8),
            }
        )

    def encode(self, tower: Any, ids: Tensor, depth: int = 3) -> Tensor:
        hidden = tower["embed"](ids)
        for layer in tower["encoder"].layers[:depth]:
            hidden = layer(hidden)
        return F.normalize(tower["project"](hidden.mean(1)), dim=1)

    def forward(self, questions: Tensor, passages: Tensor) -> Tensor:
        towers = (self.question, questions), (self.passage, passages)
        q, p = (
            F.normalize(t["project"](t["encoder"](t["embed"](ids)).mean(1)), dim=1)
            for t, ids in towers
        )
        return 20 * q @ p.T


@pytest.mark.parametrize("name", ["question", "passage"])
def test_two_tower_retriever(name: str) -> None:
    """One tower is cut short, the other runs whole; which one must be said."""
    model = Retriever().eval()
    questions, passages = torch.randint(0, 50, (2, 6, 5))
    with pytest.raises(
        StackError, match=r"2 stacks that could be meant.*'question.encoder.layers'"
    ):
        Sifter(model, exit=1)
    with torch.no_grad():
        q = model.encode(model.question, questions, 1 if name == "question" else 3)
        p = model.encode(model.passage, passages, 1 if name == "passage" else 3)
    stack = find_stack(model, f"{name}.encoder.layers")
    with no_trace(model):
        stack.check_chain(lambda: model(questions, passages))
        with stack.truncated(1):
            got = model(questions, passages)
        torch.testing.assert_close(got, 20 * q @ p.T, rtol=1e-4, atol=1e-5)
        place = find_place(model, lambda: model(questions, passages), size=6)
    assert place.path.startswith("question.")
    with no_trace(model), pytest.raises(StackError, match=r"no stack of blocks that its own head"):
        find_place(model, lambda: model(questions, passages), size=6, head=True)


def contrast(model: Any, batch: Any) -> Tensor:
    scores = model(batch["questions"], batch["passages"])
    return F.cross_entropy(scores, torch.arange(len(scores)), reduction="none")


@pytest.mark.parametrize("pair", [False, True])
def test_a_retriever_whose_labels_are_the_rows_of_its_batch(pair: bool) -> None:
    """What is another sample's passage depends on the batch: only the user's own loss can tell."""
    model = Retriever().eval()
    questions, passages = torch.randint(0, 50, (2, 6, 5))
    named = {"questions": questions, "passages": passages}
    labels = torch.arange(6)
    batch: Any = ((questions, passages), labels) if pair else {**named, "labels": labels}
    for exit in ("tuned", "last"):
        with pytest.raises(ValueError, match=r"logits \(B, B\): the model compares.*losses=lambda"):
            Sifter(model, exit=exit, score="loss").score(batch)
    got = Sifter(model, exit="last", losses=contrast).score(named)
    with torch.no_grad():
        torch.testing.assert_close(got, contrast(model, named), rtol=1e-4, atol=1e-5)
    chosen = Sifter(model, losses=contrast).select({**named, "labels": labels})
    assert torch.equal(chosen.batch["questions"], questions[chosen.indices])


class CnnTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.first = nn.Conv1d(12, 16, 3, padding=1)
        self.second = nn.Conv1d(16, 16, 3, padding=1)
        self.out = nn.Linear(16, 6)

    def forward(self, ids: Tensor) -> Tensor:
        h = F.relu(self.first(self.embed(ids).transpose(1, 2)))
        return self.out(F.relu(self.second(h)).transpose(1, 2))


@pytest.mark.parametrize(("kind", "at"), [(Tagger, None), (Tagger, "lstm"), (CnnTagger, "first")])
def test_a_tuned_exit_of_a_tagger_has_a_head_at_every_position(kind: Any, at: str | None) -> None:
    """Tags that a word alone decides are learned, and random ones are left as the hard ones."""
    torch.manual_seed(0)
    model = kind()
    sifter = Sifter(model, exit=TunedExit(at, lr=0.1), score="loss", explore=0.0, keep=0.5)
    for _ in range(40):
        ids = torch.randint(0, 10, (16, 7))
        tags = ids % 6
        tags[8:] = torch.randint(0, 6, (8, 7))
        tags[3, 4:] = -100
        chosen = sifter.select((ids, tags))
    assert float(chosen.scores[:8].mean()) < float(chosen.scores[8:].mean()) - 0.5
    assert int((chosen.indices >= 8).sum()) >= 6
    shorter = sifter.select((ids[:, :5], tags[:, :5]))  # of another length than the first
    assert shorter.scores.shape == (16,)


def test_a_tuned_exit_of_a_tagger_needs_features_of_each_word() -> None:
    class Whole(Tagger):
        def forward(self, ids: Tensor) -> Tensor:
            mean = self.embed(ids).mean(1, keepdim=True)
            hidden, _ = self.lstm(mean.expand(-1, ids.shape[1], -1))
            return self.out(hidden)

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.summary, self.out = nn.EmbeddingBag(50, 12), nn.Linear(12, 42)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.summary(ids)).view(len(ids), 7, 6)

    batch = torch.randint(0, 50, (4, 7)), torch.randint(0, 6, (4, 7))
    assert Sifter(Whole(), exit=TunedExit("lstm")).score(batch).shape == (4,)
    with pytest.raises(
        ValueError, match=r"TunedExit\(summary\) cannot predict logits.*exit='last'"
    ):
        Sifter(Summed(), exit=TunedExit("summary")).score(batch)
    assert Sifter(Summed(), exit="last").score(batch).shape == (4,)


@pytest.mark.parametrize("exit", [1, "last", "tuned"])
def test_packed_documents_are_scored_one_by_one(exit: int | str) -> None:
    """Against each document alone in a batch; transformers keeps attention within a document."""
    model: Any = hf.LlamaForCausalLM(
        hf.LlamaConfig(**SMALL, num_key_value_heads=4, attn_implementation="eager")
    ).eval()
    documents = [{"input_ids": torch.randint(5, 140, (n,)).tolist()} for n in (3, 6, 4, 5, 3, 7)]
    collate = hf.DataCollatorWithFlattening(return_position_ids=True)
    batch = collate(documents)
    got = Sifter(model, exit=exit, score="loss").score(batch)
    assert got.shape == (6,)
    alone = Sifter(model, exit=exit, score="loss")
    want = torch.cat([alone.score(collate([d, d]))[:1] for d in documents])
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    if exit == "last":
        with torch.no_grad():
            for document, score in zip(documents, got.tolist(), strict=True):
                ids = torch.tensor([document["input_ids"]])
                assert float(model(input_ids=ids, labels=ids).loss) == pytest.approx(
                    score, abs=1e-3
                )
    chosen = Sifter(model, exit=exit, score="loss", explore=0.0, keep=0.5).select(batch)
    kept = [t for i in chosen.indices.tolist() for t in documents[i]["input_ids"]]
    assert chosen.batch["input_ids"].tolist() == [kept]
    assert len(chosen.indices) == 3


def test_a_loss_of_rows_does_not_fit_packed_documents() -> None:
    model: Any = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=4)).eval()
    documents = [{"input_ids": torch.randint(5, 140, (n,)).tolist()} for n in (3, 6, 4, 5)]
    batch = hf.DataCollatorWithFlattening(return_position_ids=True)(documents)

    def of_rows(logits_BTC: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        ahead = logits_BTC[:, :-1].transpose(1, 2)
        return nn.functional.cross_entropy(ahead, labels_BT[:, 1:], reduction="none").mean(dim=1)

    with pytest.raises(ValueError, match=r"packed, 4 documents in 1 rows.*losses=lambda"):
        Sifter(model, exit="last", score="loss", loss_fn=of_rows).score(batch)
