from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import AdditiveExit, Sifter


def resnet() -> hf.ResNetForImageClassification:
    config = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 32, 64],
        depths=[1, 2, 1, 1],
        layer_type="bottleneck",
        num_labels=5,
    )
    return hf.ResNetForImageClassification(config)


def pictures(size: int = 6) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(size, 3, 32, 32), "labels": torch.randint(0, 5, (size,))}


def test_the_output_is_the_sum_and_the_score_is_the_early_term_alone() -> None:
    model = resnet().eval()
    batch = pictures()
    with torch.no_grad():
        plain = model(**batch).logits
    exit = AdditiveExit(model)
    assert exit.path == "resnet.encoder.stages.1"
    assert exit.linear.in_features == 16
    features: list[Tensor] = []
    model.resnet.encoder.stages[1].register_forward_hook(lambda m, a, out: features.append(out))
    with torch.no_grad():
        whole = model(**batch).logits
        early = F.linear(features[0].mean(dim=(2, 3)), exit.linear.weight, exit.linear.bias)
    torch.testing.assert_close(whole, plain + early)
    got = Sifter(model, exit=exit, score="loss").score(batch)
    torch.testing.assert_close(got, F.cross_entropy(early, batch["labels"], reduction="none"))


def test_it_is_trained_saved_and_moved_with_the_model() -> None:
    model = resnet()
    exit = AdditiveExit(model)
    assert any(p is exit.linear.weight for p in model.parameters())
    assert "classifier.1.sift_exit.weight" in model.state_dict()
    model(**pictures()).loss.backward()
    assert exit.linear.weight.grad is not None


def test_scoring_stops_at_the_stage() -> None:
    model = resnet()
    exit = AdditiveExit(model)
    sifter = Sifter(model, exit=exit, score="entropy", audit_every=0)
    batch = pictures()
    sifter.select(batch)
    ran: list[int] = []
    for i, stage in enumerate(model.resnet.encoder.stages):
        stage.register_forward_hook(lambda m, a, out, i=i: ran.append(i))
    sifter.select(batch)  # no class is new, so the model's own loss is not looked at again
    assert 2 not in ran
    model(**pictures())  # nothing of the stopped forward is left over
    assert ran[-4:] == [0, 1, 2, 3]


def test_remove_gives_the_model_back() -> None:
    model = resnet().eval()
    batch = pictures()
    with torch.no_grad():
        before = model(**batch).logits
    keys = list(model.state_dict())
    AdditiveExit(model).remove()
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, before)
    assert list(model.state_dict()) == keys
    assert not any(m._forward_hooks for m in model.modules())


def test_a_deep_copy_has_its_own_exit() -> None:
    model = resnet().eval()
    exit = AdditiveExit(model)
    twin = copy.deepcopy(model)
    batch = pictures()
    with torch.no_grad():
        before = twin(**batch).logits
        exit.linear.weight.zero_()
        exit.linear.bias.zero_()
        assert torch.equal(twin(**batch).logits, before)
        assert not torch.equal(model(**batch).logits, before)


def test_any_cnn_by_module_path() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(8, 12, 3), nn.ReLU())
            self.head = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.first(x)).mean(dim=(2, 3)))

    model = Small()
    exit = AdditiveExit(model, "first")
    scores = Sifter(model, exit=exit, score="loss").score(
        (torch.randn(5, 3, 9, 9), torch.arange(5) % 4)
    )
    assert scores.shape == (5,)
    with pytest.raises(ValueError, match="has an additive exit already"):
        AdditiveExit(model, "first")


def test_torchvision_style_networks_are_recognised() -> None:
    class Like(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.layer2, self.layer3 = (
                nn.Conv2d(a, b, 1) for a, b in ((3, 4), (4, 6), (6, 8))
            )
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.layer3(self.layer2(self.layer1(x))).mean(dim=(2, 3)))

    assert AdditiveExit(Like()).path == "layer2"


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="has no stages"):
        AdditiveExit(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"head='resnet' is a ResNetModel"):
        AdditiveExit(resnet(), head="resnet")
    model = resnet()
    exit = AdditiveExit(model, features=7)
    with pytest.raises(ValueError, match=r"outputs 16 channels, not 7: pass .*features=16"):
        model(**pictures())
    with pytest.raises(ValueError, match="made for another model"):
        Sifter(resnet(), exit=exit)


def test_a_compiled_model_can_have_one() -> None:
    model = resnet()
    compiled = torch.compile(model, backend="eager")
    exit = AdditiveExit(compiled)
    assert Sifter(compiled, exit=exit, score="loss").score(pictures()).shape == (6,)
