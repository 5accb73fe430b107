"""The exit at block k equals hidden_states[k] plus the model's own head, on every architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter, SiftingWarning
from sifting.exits.block import BlockExit
from tests.helpers.models import SMALL, Net, token_batch

Case = tuple[nn.Module, dict[str, Tensor], Callable[[Any, Tensor], list[Tensor]]]


def _classes(batch: dict[str, Tensor], classes: int = 3) -> dict[str, Tensor]:
    return {**batch, "labels": torch.randint(0, classes, (len(batch["input_ids"]),))}


def bert_pretraining() -> Case:
    model = hf.BertForPreTraining(hf.BertConfig(**SMALL))
    batch = token_batch()
    batch["next_sentence_label"] = torch.randint(0, 2, (6,))
    return (
        model,
        batch,
        lambda m, h: [m.cls.predictions(h), m.cls.seq_relationship(m.bert.pooler(h))],
    )


def bert_masked() -> Case:
    return hf.BertForMaskedLM(hf.BertConfig(**SMALL)), token_batch(), lambda m, h: [m.cls(h)]


def bert_classes() -> Case:
    model = hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=3))
    return model, _classes(token_batch()), lambda m, h: [m.classifier(m.bert.pooler(h))]


def roberta() -> Case:
    model = hf.RobertaForMaskedLM(hf.RobertaConfig(**SMALL, max_position_embeddings=64))
    return model, token_batch(), lambda m, h: [m.lm_head(h)]


def distilbert() -> Case:
    config = hf.DistilBertConfig(dim=32, n_layers=4, n_heads=4, hidden_dim=64, vocab_size=150)
    model = hf.DistilBertForMaskedLM(config)
    return (
        model,
        token_batch(),
        lambda m, h: [m.vocab_projector(m.vocab_layer_norm(m.activation(m.vocab_transform(h))))],
    )


def albert() -> Case:
    model = hf.AlbertForMaskedLM(hf.AlbertConfig(**SMALL, embedding_size=16))
    return model, token_batch(), lambda m, h: [m.predictions(h)]


def albert_groups() -> Case:
    model = hf.AlbertForMaskedLM(hf.AlbertConfig(**SMALL, embedding_size=16, num_hidden_groups=2))
    return model, token_batch(), lambda m, h: [m.predictions(h)]


def modernbert() -> Case:
    config = hf.ModernBertConfig(**SMALL, pad_token_id=0, global_attn_every_n_layers=2)
    model = hf.ModernBertForMaskedLM(config)
    return model, token_batch(), lambda m, h: [m.decoder(m.head(m.model.final_norm(h)))]


def gpt2() -> Case:
    model = hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=4, n_head=4, vocab_size=150))
    return model, token_batch(), lambda m, h: [m.lm_head(m.transformer.ln_f(h))]


def llama() -> Case:
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2))
    return model, token_batch(), lambda m, h: [m.lm_head(m.model.norm(h))]


def vit() -> Case:
    sizes = {k: v for k, v in SMALL.items() if k != "vocab_size"}
    model = hf.ViTForImageClassification(
        hf.ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=3)
    )
    batch = {"pixel_values": torch.randn(6, 3, 16, 16), "labels": torch.randint(0, 3, (6,))}
    return model, batch, lambda m, h: [m.classifier(m.vit.layernorm(h)[:, 0])]


CASES = [
    bert_pretraining,
    bert_masked,
    bert_classes,
    roberta,
    distilbert,
    albert,
    albert_groups,
    modernbert,
    gpt2,
    llama,
    vit,
]


def hidden_before_norm(model: nn.Module, batch: dict[str, Tensor], k: int) -> Tensor:
    """Output of block k by its own forward hook: hidden_states ends with the *normed* last one."""
    inputs = {name: value for name, value in batch.items() if "label" not in name}
    hidden = model(**inputs, output_hidden_states=True).hidden_states
    if k < len(hidden) - 1:
        return hidden[k]
    stack = BlockExit(k)
    stack.bind(model, None)
    assert stack.stack is not None
    caught: list[Tensor] = []
    block = stack.stack.module(stack.stack.blocks[-1][-1])
    handle = block.register_forward_hook(
        lambda m, a, out: caught.append(out if isinstance(out, Tensor) else out[0])
    )
    model(**inputs)
    handle.remove()
    return caught[-1]


def reference(name: str, logits: Tensor, labels: Tensor, shift: int) -> Tensor:
    """Scores sample by sample, the slow and plain way."""
    values = []
    for z, y in zip(logits, labels, strict=True):
        if y.ndim == 0:
            z, y = z[None], y[None]
        elif shift:
            z, y = z[:-1], y[1:]
        z, y = z[y != -100], y[y != -100]
        p = z.softmax(-1)
        if name == "loss":
            values.append(F.cross_entropy(z, y))
        elif name == "entropy":
            values.append(torch.distributions.Categorical(logits=z).entropy().mean())
        elif name == "margin":
            top = p.sort(descending=True).values
            values.append((1 - top[:, 0] + top[:, 1]).mean())
        else:
            values.append((p - F.one_hot(y, z.shape[-1])).norm(dim=-1).mean())
    return torch.stack(values)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_own_head_at_block_k_equals_hidden_state_k_through_the_head(
    make: Callable[[], Case],
) -> None:
    model, batch, head = make()
    model.eval()
    shift = int(isinstance(model, hf.GPT2LMHeadModel | hf.LlamaForCausalLM))
    targets = [batch["labels"]] + [batch[n] for n in ("next_sentence_label",) if n in batch]
    for k in (1, 2, 3, 4, "last"):
        with torch.no_grad():
            logits = head(model, hidden_before_norm(model, batch, 4 if k == "last" else k))
        for name in ("loss", "entropy", "margin", "grad_norm"):
            got = Sifter(model, exit=k, score=name).score(batch)
            want = sum(reference(name, z, y, shift) for z, y in zip(logits, targets, strict=True))
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, msg=f"{name} at exit {k}")


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_scores_of_the_last_exit_average_to_the_loss_that_is_trained(
    make: Callable[[], Case],
) -> None:
    model, batch, _ = make()
    model.eval()
    one = {name: value[:1] for name, value in batch.items()}
    score = Sifter(model, exit="last", score="loss").score({n: v[:2] for n, v in batch.items()})[0]
    torch.testing.assert_close(score, model(**one).loss.detach(), rtol=1e-5, atol=1e-5)


def test_only_the_first_k_blocks_run() -> None:
    model, batch, _ = bert_masked()
    calls: list[int] = []
    for i, block in enumerate(model.bert.encoder.layer):
        block.register_forward_pre_hook(lambda m, a, i=i: calls.append(i))
    sifter = Sifter(model, exit=2, score="loss")
    sifter.score(batch)  # the first batch also runs the whole model, on two samples
    calls.clear()
    sifter.score(batch)
    assert calls == [0, 1]


@pytest.mark.parametrize(
    "container", ["list", "sequential", "flat", "pattern", "encoder", "indexed"]
)
def test_plain_torch_models(container: str) -> None:
    width, classes = 8, 3
    blocks = [nn.Linear(width, width) for _ in range(4)]
    stem, head = nn.Linear(5, width), nn.Linear(width, classes)
    x, y = torch.randn(6, 5), torch.randint(0, classes, (6,))
    if container == "sequential":
        model: nn.Module = nn.Sequential(stem, nn.Sequential(*blocks), head)
    elif container == "flat":
        model = nn.Sequential(stem, nn.Tanh(), *blocks, nn.Tanh(), head)
    elif container == "pattern":
        model = nn.Sequential(stem, *[m for b in blocks for m in (b, nn.Tanh())], head)
    elif container == "encoder":
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

        class Text(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stem, self.encoder, self.head = nn.Linear(1, width), encoder, head

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.encoder(self.stem(x[..., None])).mean(1))

        model = Text()
        blocks = list(encoder.layers)
    else:

        class Looped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head

            def forward(self, x: Tensor) -> Tensor:
                x = self.stem(x)
                if container == "list":
                    for block in self.blocks:
                        x = block(x)
                else:
                    for i in range(4):
                        x = self.blocks[i](x)
                return self.head(x)

        model = Looped()
    model.eval()
    for k in range(1, 5):
        with torch.no_grad():
            if container == "encoder":
                h = model.stem(x[..., None])
                for block in blocks[:k]:
                    h = block(h)
                logits = head(h.mean(1))
            else:
                h = stem(x)
                h = torch.tanh(h) if container == "flat" else h
                for block in blocks[:k]:
                    h = torch.tanh(block(h)) if container == "pattern" else block(h)
                h = torch.tanh(h) if container == "flat" else h
                logits = head(h)
        got = Sifter(model, exit=k, score="loss").score((x, y))
        torch.testing.assert_close(
            got, F.cross_entropy(logits, y, reduction="none"), rtol=1e-5, atol=1e-5
        )


def test_a_block_can_be_named_by_its_path(net: Net, pair: tuple[Tensor, Tensor]) -> None:
    by_path = Sifter(net, exit="blocks.1", score="loss").score(pair)
    by_number = Sifter(net, exit=2, score="loss", stack="blocks").score(pair)
    assert torch.equal(by_path, by_number)


def test_scoring_in_pieces_gives_the_same_scores() -> None:
    model, batch, _ = bert_pretraining()
    whole = Sifter(model, exit=1, score="entropy").score(batch)
    pieces = Sifter(model, exit=1, score="entropy", score_batch_size=4).score(batch)
    torch.testing.assert_close(whole, pieces, rtol=1e-5, atol=1e-6)


def test_a_sequence_without_labels_scores_lowest_and_is_not_nan() -> None:
    model, batch, _ = bert_masked()
    batch["labels"][2] = -100
    for name in ("loss", "entropy"):
        scores = Sifter(model, exit=1, score=name).score(batch)
        assert scores[2] == 0
        assert (scores[torch.arange(6) != 2] > 0).all()


def test_a_model_that_only_gives_a_reduced_loss_is_scored_one_sample_at_a_time(net: Net) -> None:
    class OnlyLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(self.net(x), labels, label_smoothing=0.1)}

    model = OnlyLoss().eval()
    batch = {"x": torch.randn(6, 8), "labels": torch.randint(0, 5, (6,))}
    with torch.no_grad():
        want = F.cross_entropy(
            net.logits_at(batch["x"], 2), batch["labels"], label_smoothing=0.1, reduction="none"
        )
    with pytest.warns(SiftingWarning, match="one sample at a time"):
        got = Sifter(model, exit=2, score="loss").score(batch)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"score='entropy' needs logits"):
        Sifter(model, exit=2, score="entropy").score(batch)


def test_a_loss_that_the_logits_do_not_explain_is_taken_from_the_model(net: Net) -> None:
    """Weighted, smoothed or otherwise special losses must not silently become cross-entropy."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.net(x)
            if labels is None:
                return {"logits": logits}
            return {"loss": 3 * F.cross_entropy(logits, labels), "logits": logits}

    batch = {"x": torch.randn(6, 8), "labels": torch.randint(0, 5, (6,))}
    with pytest.warns(SiftingWarning, match="one sample at a time"):
        got = Sifter(Weighted(), exit="last", score="loss").score(batch)
    net.eval()
    with torch.no_grad():
        want = 3 * F.cross_entropy(net(batch["x"]), batch["labels"], reduction="none")
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_callable_score_gets_the_exit_logits_and_labels(
    net: Net, pair: tuple[Tensor, Tensor]
) -> None:
    x, y = pair
    got = Sifter(net, exit=1, score=lambda z, y: z[:, 0] + y).score(pair)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(got, net.logits_at(x, 1)[:, 0] + y)
    with pytest.raises(ValueError, match=r"gave \(12, 5\) for 12 samples"):
        Sifter(net, exit=1, score=lambda z, y: z).score(pair)
