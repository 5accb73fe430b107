"""Pictures: an exit at block k against the architecture's own pieces, put together without the library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter, SiftingWarning
from sifting.model.find import find_stack
from sifting.model.no_trace import no_trace
from sifting.model.places import find_place
from sifting.model.stack import StackError
from tests.helpers.models import SMALL

VISION = {name: value for name, value in SMALL.items() if name != "vocab_size"}


def truncated(model: nn.Module, path: str | None, k: int, **inputs: Tensor) -> Any:
    """What a model puts out with its stack cut short."""
    stack = find_stack(model, path)
    with no_trace(model):
        stack.check_chain(lambda: model(**inputs))
        with stack.truncated(k):
            return model(**inputs)


def caught(model: nn.Module, module: nn.Module, **inputs: Tensor) -> Tensor:
    """What a module puts out in a plain forward."""
    found: list[Tensor] = []
    handle = module.register_forward_hook(
        lambda m, a, out: found.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        model(**inputs)
    handle.remove()
    return found[0]


def yolos(mid: bool) -> Any:
    return hf.YolosForObjectDetection(
        hf.YolosConfig(
            **VISION,
            image_size=[32, 32],
            patch_size=8,
            num_detection_tokens=5,
            num_labels=3,
            use_mid_position_embeddings=mid,
        )
    ).eval()


def test_yolos() -> None:
    model, pixels = yolos(mid=False), torch.randn(3, 3, 32, 32)
    hidden = caught(model, model.vit.encoder.layer[1], pixel_values=pixels)
    with torch.no_grad():
        last = model.vit.layernorm(hidden)[:, -5:]
        logits, boxes = model.class_labels_classifier(last), model.bbox_predictor(last).sigmoid()
    got = truncated(model, None, 2, pixel_values=pixels)
    torch.testing.assert_close(got.logits, logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.pred_boxes, boxes, rtol=1e-4, atol=1e-5)


def detection_losses(model: Any, batch: Any) -> Tensor:
    pixels, labels = batch["pixel_values"], batch["labels"]
    return torch.stack(
        [
            model(pixel_values=pixels[i : i + 1], labels=labels[i : i + 1]).loss
            for i in range(len(labels))
        ]
    )


@pytest.mark.parametrize("exit", [1, "last", "tuned"])
def test_yolos_with_the_loss_of_its_boxes(exit: int | str) -> None:
    model = yolos(mid=False)
    labels = [
        {"class_labels": torch.tensor([i % 3]), "boxes": 0.2 + 0.5 * torch.rand(1, 4)}
        for i in range(4)
    ]
    batch = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": labels}
    with pytest.raises(
        ValueError, match=r"batch\['labels'\] is a list of 2 \(dict each\).*losses="
    ):
        Sifter(model, exit=exit).score(batch)
    chosen = Sifter(model, exit=exit, losses=detection_losses).select(batch)
    assert chosen.batch["labels"] == [labels[i] for i in chosen.indices.tolist()]
    if exit == "tuned":
        return
    kept = model.vit.encoder.layer
    model.vit.encoder.layer = kept[:1] if exit == 1 else kept
    with torch.no_grad():
        want = detection_losses(model, batch)
    torch.testing.assert_close(chosen.scores, want, rtol=1e-4, atol=1e-4)


def test_yolos_that_adds_positions_between_its_blocks_is_refused() -> None:
    """They are zero in a fresh model, which then looks like a chain."""
    model, pixels = yolos(mid=True), torch.randn(3, 3, 32, 32)
    with pytest.raises(
        StackError, match=r"'vit.encoder.layer' \(4 × YolosLayer\): block 2 does not"
    ):
        truncated(model, None, 1, pixel_values=pixels)
    with no_trace(model):
        place = find_place(model, lambda: model(pixel_values=pixels), size=3)
    assert place.path == "vit.embeddings"


def test_detr() -> None:
    backbone = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 64))
    }
    model: Any = hf.DetrForObjectDetection(
        hf.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=32,
            num_queries=5,
            num_labels=3,
            **sizes,
        )
    ).eval()
    pixels = torch.randn(3, 3, 64, 64)
    hidden = caught(model, model.model.decoder.layers[0], pixel_values=pixels)
    with torch.no_grad():
        logits = model.class_labels_classifier(model.model.decoder.layernorm(hidden))
    got = truncated(model, "model.decoder.layers", 1, pixel_values=pixels)
    torch.testing.assert_close(got.logits, logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        StackError, match=r"stacks that could be meant: 'model.decoder.layers' \(3 ×"
    ):
        find_stack(model)
    with no_trace(model):
        place = find_place(model, lambda: model(pixel_values=pixels), size=3, head=True)
    assert str(place).startswith("block 1 of 'model.decoder.layers'")


def clip() -> tuple[Any, dict[str, Tensor]]:
    text = {**SMALL, "eos_token_id": 149, "bos_token_id": 1, "pad_token_id": 0}
    model: Any = hf.CLIPModel(
        hf.CLIPConfig(
            text_config={**text, "max_position_embeddings": 16},
            vision_config={**VISION, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        )
    ).eval()
    ids = torch.randint(5, 140, (3, 8))
    ids[:, -1] = 149
    return model, {"input_ids": ids, "pixel_values": torch.randn(3, 3, 32, 32)}


def both_ways(model: Any, batch: Any) -> Tensor:
    """CLIP's loss of each pair: of the text among the pictures, and of the picture among the texts."""
    out = model(input_ids=batch["input_ids"], pixel_values=batch["pixel_values"])
    own = torch.arange(len(batch["input_ids"]))
    ways = (out.logits_per_text, out.logits_per_image)
    return torch.stack([F.cross_entropy(z, own, reduction="none") for z in ways]).mean(0)


def test_clip_with_its_contrastive_loss() -> None:
    model, inputs = clip()
    for batch in (inputs, {**inputs, "return_loss": True}):
        with pytest.raises(
            ValueError, match=r"logits_per_image \(B, B\): the model compares.*losses="
        ):
            Sifter(model).score(batch)
    got = Sifter(model, exit="last", losses=both_ways).score(inputs)
    with torch.no_grad():
        torch.testing.assert_close(got, both_ways(model, inputs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got.mean(), model(**inputs, return_loss=True).loss)
    assert len(Sifter(model, exit="tuned", keep=0.5, losses=both_ways).select(inputs).indices) == 2


def test_clip() -> None:
    model, inputs = clip()
    with pytest.raises(StackError, match=r"'text_model.encoder.layers'.*'vision_model.encoder"):
        find_stack(model)
    hidden = caught(model, model.text_model.encoder.layers[1], **inputs)
    with torch.no_grad():
        words = model.text_projection(model.text_model.final_layer_norm(hidden)[:, -1])
    got = truncated(model, "text_model.encoder.layers", 2, **inputs)
    torch.testing.assert_close(got.text_embeds, F.normalize(words, dim=1), rtol=1e-4, atol=1e-5)
    hidden = caught(model, model.vision_model.encoder.layers[0], **inputs)
    with torch.no_grad():
        seen = model.visual_projection(model.vision_model.post_layernorm(hidden[:, 0]))
    got = truncated(model, "vision_model.encoder.layers", 1, **inputs)
    torch.testing.assert_close(got.image_embeds, F.normalize(seen, dim=1), rtol=1e-4, atol=1e-5)
    with no_trace(model):
        assert find_place(model, lambda: model(**inputs), size=3).path.startswith("vision_model.")
        with pytest.raises(StackError, match="no stack of blocks that its own head"):
            find_place(model, lambda: model(**inputs), size=3, head=True)


def test_segformer() -> None:
    """Stages change shape: the whole model is scored, and an early exit needs a head of its own."""
    model: Any = hf.SegformerForSemanticSegmentation(
        hf.SegformerConfig(
            hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 2, 4],
            decoder_hidden_size=16,
            num_labels=4,
        )
    ).eval()
    pixels, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 4, (4, 32, 32))
    with torch.no_grad():
        small = model(pixel_values=pixels).logits
        logits = F.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
        want = F.cross_entropy(logits, labels, reduction="none").mean((1, 2))
    batch = {"pixel_values": pixels, "labels": labels}
    with pytest.warns(SiftingWarning, match="one sample at a time"):
        got = Sifter(model, exit="last", score="loss").score(batch)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(StackError, match=r"no stack .* Segformer.*exit='last', TunedExit"):
        Sifter(model, exit=1)
    with no_trace(model):
        assert find_place(model, lambda: model(pixel_values=pixels), size=4).path == (
            "segformer.stages.1"
        )


class DitBlock(nn.Module):
    """A transformer block modulated by a condition, the identity at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            self.modulation(F.silu(condition)).unsqueeze(1).chunk(6, dim=2)
        )
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Dit(nn.Module):
    """Predicts the noise in a picture, patch by patch, given how much there is."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([DitBlock(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 48)

    def forward(self, noisy: Tensor, t: Tensor, depth: int | None = None) -> Tensor:
        x = self.patches(noisy).flatten(2).transpose(1, 2)
        condition = self.time(t[:, None])
        for block in self.blocks if depth is None else self.blocks[:depth]:
            x = block(x, condition)
        side = noisy.shape[2] // 4
        patches = self.out(self.norm(x)).view(-1, side, side, 3, 4, 4)
        return patches.permute(0, 3, 1, 4, 2, 5).reshape(noisy.shape)


def diffusion_batch(size: int = 5) -> dict[str, Tensor]:
    return {
        "noisy": torch.randn(size, 3, 16, 16),
        "t": torch.rand(size),
        "noise": torch.randn(size, 3, 16, 16),
    }


def squared(predicted: Tensor, noise: Tensor) -> Tensor:
    return ((predicted - noise) ** 2).mean((1, 2, 3))


@pytest.mark.parametrize("fresh", [True, False])
def test_dit_with_noise_prediction(fresh: bool) -> None:
    model = Dit().eval()
    batch = diffusion_batch()
    sifter = Sifter(
        model,
        exit=2,
        score="loss",
        forward=lambda m, b: m(b["noisy"], b["t"]),
        labels=lambda b: b["noise"],
        loss_fn=squared,
    )
    if fresh:  # the plan is made while every block is the identity
        sifter.score(batch)
    for block in model.blocks:
        nn.init.normal_(block.modulation.weight, std=0.5)
    with torch.no_grad():
        want = squared(model(batch["noisy"], batch["t"], depth=2), batch["noise"])
        whole = squared(model(batch["noisy"], batch["t"]), batch["noise"])
    torch.testing.assert_close(sifter.score(batch), want, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(want, whole, rtol=1e-3)


class Unet(nn.Module):
    """Down, up, and across: what comes early is needed late."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, padding=1)
        self.downs = nn.ModuleList([nn.Conv2d(8 * 2**i, 16 * 2**i, 3, 2, 1) for i in range(2)])
        self.middle = nn.ModuleList([nn.Conv2d(32, 32, 3, padding=1) for _ in range(2)])
        self.ups = nn.ModuleList(
            [nn.ConvTranspose2d(64, 16, 2, 2), nn.ConvTranspose2d(32, 8, 2, 2)]
        )
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, noisy: Tensor, t: Tensor) -> Tensor:
        time = t[:, None, None, None].expand(-1, 1, *noisy.shape[2:])
        x = self.stem(torch.cat([noisy, time], dim=1))
        kept = [x]
        for down in self.downs:
            x = F.silu(down(x))
            kept.append(x)
        for block in self.middle:
            x = x + F.silu(block(x))
        for up in self.ups:
            x = F.silu(up(torch.cat([x, kept.pop()], dim=1)))
        return self.out(torch.cat([x, kept.pop()], dim=1))


def test_unet_with_noise_prediction() -> None:
    model = Unet().eval()
    batch = diffusion_batch()
    given = {
        "score": "loss",
        "forward": lambda m, b: m(b["noisy"], b["t"]),
        "labels": lambda b: b["noise"],
        "loss_fn": squared,
    }
    with torch.no_grad():
        want = squared(model(batch["noisy"], batch["t"]), batch["noise"])
    got = Sifter(model, exit="last", **given).score(batch)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(StackError, match=r"'ups' \(2 × ConvTranspose2d\): blocks 1 and 2 output"):
        Sifter(model, exit=1, stack="ups", **given).score(batch)
    # the middle, which adds, holds most of the parameters, and is what is cut short
    kept = model.middle[1]
    with torch.no_grad():
        model.middle[1] = nn.Conv2d(32, 32, 3, padding=1)
        nn.init.zeros_(model.middle[1].weight)
        nn.init.zeros_(model.middle[1].bias)
        want = squared(model(batch["noisy"], batch["t"]), batch["noise"])
    model.middle[1] = kept
    got = Sifter(model, exit=1, **given).score(batch)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with no_trace(model):
        place = find_place(model, lambda: model(batch["noisy"], batch["t"]), size=5)
    assert place.path == "middle.0"
