"""What is scored is what is trained, or it is refused on the first batch; from the user's side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter


def linear(outputs: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, outputs))


def stacked(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)])
    return nn.Sequential(nn.Linear(3, 6), blocks, nn.Linear(6, outputs))


def scored(model: nn.Module, batch: Any, **options: Any) -> Tensor:
    return Sifter(model, **{"exit": "last", "score": "loss", **options}).score(batch)


def outputs(model: nn.Module, *args: Any) -> Any:
    with torch.no_grad():
        return model(*args)


class OwnLoss(nn.Module):
    """A token classifier that gives its own loss, as Hugging Face's do."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], classes: int = 7) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, classes)
        self.loss = loss

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.head(self.table(ids))
        return {"logits": z} | ({} if labels is None else {"loss": self.loss(z, labels)})


# ignore_index


@pytest.mark.parametrize("ignore", [-1, 0, 3, 255])
def test_the_label_that_means_none_is_the_loss_functions_own(ignore: int) -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 5))
    x, y = torch.randint(0, 20, (6, 4)), torch.randint(0, 5, (6, 4))
    y[:, 2:] = ignore
    z = outputs(model, x)
    want = [F.cross_entropy(z[i], y[i], ignore_index=ignore) for i in range(6)]
    want = [torch.zeros(()) if value.isnan() else value for value in want]
    for loss_fn in (
        nn.CrossEntropyLoss(ignore_index=ignore),
        functools.partial(F.cross_entropy, ignore_index=ignore),
        lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=ignore),
    ):
        got = scored(model, (x, y), loss_fn=loss_fn)
        torch.testing.assert_close(got, torch.stack(want))


@pytest.mark.parametrize("ignore", [-1, 0, 255])
def test_the_label_that_means_none_is_found_from_the_models_own_loss(ignore: int) -> None:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=ignore)

    model = OwnLoss(loss)
    batch = {"ids": torch.randint(0, 20, (6, 5)), "labels": torch.randint(1, 7, (6, 5))}
    batch["labels"][4, 2:] = ignore  # not in the first samples
    sifter = Sifter(model, exit="last", score="loss")
    got = sifter.score(batch)
    z = outputs(model, batch["ids"])["logits"]
    torch.testing.assert_close(
        got, torch.stack([loss(z[i : i + 1], batch["labels"][i : i + 1]) for i in range(6)])
    )
    assert f"{ignore} is no label" in repr(sifter)


def test_a_label_that_means_none_may_first_appear_later() -> None:
    model = OwnLoss(lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=-1))
    batch = {"ids": torch.randint(0, 20, (4, 5)), "labels": torch.randint(0, 7, (4, 5))}
    sifter = Sifter(model, exit="last", score="loss")
    sifter.score(batch)
    batch["labels"][1, 3:] = -1
    got = sifter.score(batch)
    z = outputs(model, batch["ids"])["logits"]
    torch.testing.assert_close(got[1], F.cross_entropy(z[1, :3], batch["labels"][1, :3]))


@pytest.mark.parametrize("value", [-3, -1, 5, 99])
@pytest.mark.parametrize("score", ["loss", "entropy"])
@pytest.mark.parametrize("exit", ["last", "tuned"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_label_out_of_range_is_refused_with_row_and_value(
    value: int, score: str, exit: str, before: int
) -> None:
    model = stacked(5)
    x, y = torch.randn(8, 3), torch.arange(8) % 5
    sifter = Sifter(model, exit=exit, score=score)
    for _ in range(before):  # a tuned exit has learned by then
        sifter.select((x, y))
    y[6] = value
    with pytest.raises(
        ValueError, match=rf"labels\[6\] is {value}, .*5\) have classes from 0 to 4"
    ):
        sifter.score((x, y))
    with pytest.raises(ValueError, match=rf"ignore_index={value}"):
        sifter.select((x, y))


def test_the_remedy_for_a_label_out_of_range_works() -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 5))
    x, y = torch.randint(0, 20, (6, 4)), torch.randint(0, 5, (6, 4))
    y[:, 3] = -3
    with pytest.raises(
        ValueError, match=r"labels\[0, 3\] is -3.*CrossEntropyLoss\(ignore_index=-3"
    ):
        scored(model, (x, y))
    got = scored(model, (x, y), loss_fn=nn.CrossEntropyLoss(ignore_index=-3))
    z = outputs(model, x)[:, :3]
    want = F.cross_entropy(z.transpose(1, 2), y[:, :3], reduction="none").mean(dim=1)
    torch.testing.assert_close(got, want)
    entropy = Sifter(
        model, exit="last", score="entropy", loss_fn=nn.CrossEntropyLoss(ignore_index=-3)
    ).score((x, y))
    logp = z.log_softmax(-1)
    torch.testing.assert_close(entropy, -(logp.exp() * logp).sum(-1).mean(dim=1))


def test_a_label_out_of_range_in_a_model_with_its_own_loss() -> None:
    model = OwnLoss(lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()))
    batch = {"ids": torch.randint(0, 20, (4, 5)), "labels": torch.randint(0, 7, (4, 5))}
    sifter = Sifter(model, exit="last", score="loss")
    sifter.score(batch)
    batch["labels"][2, 1] = 12
    with pytest.raises(ValueError, match=r"labels\[2, 1\] is 12"):
        sifter.score(batch)


def test_audits_refuse_a_label_out_of_range_too() -> None:
    model = stacked(5)
    sifter = Sifter(model, exit=1, score="loss")
    x, y = torch.randn(8, 3), torch.arange(8) % 5
    sifter.score((x, y))
    y[3] = 7
    with pytest.raises(ValueError, match=r"labels\[3\] is 7"):
        sifter.chooser.scorer.examine((x, y), early=False)


# one logit


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
@pytest.mark.parametrize("dtype", [torch.long, torch.int32, torch.bool, torch.uint8])
def test_one_logit_with_labels_of_two_values_is_binary(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    model = linear(1)
    x, y = torch.randn(8, 3), (torch.arange(8) % 2).to(dtype).reshape(shape)
    sifter = Sifter(model, exit="last", score="loss")
    want = F.binary_cross_entropy_with_logits(
        outputs(model, x).squeeze(1), y.flatten().float(), reduction="none"
    )
    torch.testing.assert_close(sifter.score((x, y)), want)
    assert "binary cross-entropy; assumed" in repr(sifter)
    sifter.chooser.scorer.examine((x, y), early=True)


def test_one_logit_with_other_labels_is_refused_with_a_remedy_that_works() -> None:
    model = linear(1)
    x, y = torch.randn(8, 3), torch.arange(8) % 3
    with pytest.raises(ValueError, match=r"labels\[2\] is 2, and one logit .* loss_fn=nn.MSELoss"):
        scored(model, (x, y))
    with pytest.raises(ValueError, match=r"labels \(B\) of int64: these are not classes.*MSELoss"):
        scored(model, (x, y + 1))
    got = scored(model, (x, y), loss_fn=nn.MSELoss())
    torch.testing.assert_close(got, (outputs(model, x).squeeze(1) - y).square())
    with pytest.raises(
        ValueError, match=r"CrossEntropyLoss on outputs \(\d, 1\) has a single class"
    ):
        scored(model, (x, y), loss_fn=nn.CrossEntropyLoss())


def test_one_logit_of_which_a_later_label_is_neither_0_nor_1() -> None:
    model = linear(1)
    sifter = Sifter(model, exit="last", score="loss")
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    sifter.score((x, y))
    y[5] = 2
    with pytest.raises(ValueError, match=r"labels\[5\] is 2, .*0 from 1"):
        sifter.score((x, y))


# broadcasting


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.MSELoss(),
        nn.L1Loss(),
        nn.SmoothL1Loss(),
        nn.HuberLoss(),
        F.mse_loss,
        nn.BCEWithLogitsLoss(),
    ],
)
def test_outputs_of_one_column_are_not_broadcast_against_labels(loss_fn: Any) -> None:
    model = linear(1)
    x, y = torch.randn(8, 3), torch.rand(8)
    z = outputs(model, x)
    want = torch.stack([loss_fn(z[i], y[i : i + 1]) for i in range(8)])
    torch.testing.assert_close(scored(model, (x, y), loss_fn=loss_fn), want)


def test_a_function_that_broadcasts_is_refused() -> None:
    model = linear(1)
    pair = torch.randn(8, 3), torch.randn(8)
    with pytest.raises(ValueError, match=r"compares every sample with every other.*\(\d, 1\)"):
        scored(model, pair, loss_fn=lambda z, y: (z - y).square())
    with pytest.raises(ValueError, match="one by one"):
        scored(model, pair, loss_fn=lambda z, y: (z - y).square().mean())
    squeezed = scored(model, pair, loss_fn=lambda z, y: (z.squeeze(1) - y).square().mean())
    torch.testing.assert_close(squeezed, (outputs(model, pair[0]).squeeze(1) - pair[1]).square())


def test_outputs_and_labels_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"MSELoss compares outputs \(\d, 3\) with labels \(\d,\)"):
        scored(linear(3), (torch.randn(3, 3), torch.randn(3)), loss_fn=nn.MSELoss())


def test_a_function_that_compares_samples_is_refused() -> None:
    def centred(z: Tensor, y: Tensor) -> Tensor:
        return (z - z.mean(dim=0) - y).square()

    with pytest.raises(ValueError, match=r"mixes samples.*losses="):
        scored(linear(3), (torch.randn(8, 3), torch.randn(8, 3)), loss_fn=centred)


# weights, smoothing, reductions, shift


def test_class_weights_count_in_what_is_scored() -> None:
    model, weight = linear(4), torch.tensor([0.1, 1.0, 5.0, 2.0])
    x, y = torch.randn(8, 3), torch.arange(8) % 4
    got = scored(model, (x, y), loss_fn=nn.CrossEntropyLoss(weight=weight))
    nll = F.cross_entropy(outputs(model, x), y, reduction="none")
    torch.testing.assert_close(got, weight[y] * nll)
    with pytest.raises(ValueError, match=r"weighs samples against one another.*reduction='none'"):
        scored(model, (x, y), loss_fn=lambda z, y: F.cross_entropy(z, y, weight=weight))


def test_class_weights_inside_the_model() -> None:
    weight = torch.tensor([0.1, 1.0, 5.0, 2.0, 0.5, 3.0, 1.0])

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1)

        def forward(self, z: Tensor, y: Tensor) -> Tensor:
            return self.loss(z.flatten(0, 1), y.flatten())

    ids, y = torch.randint(0, 20, (6, 5)), torch.randint(0, 7, (6, 5))
    model = OwnLoss(Module())
    sifter = Sifter(model, exit="last", score="loss")
    z = outputs(model, ids)["logits"].transpose(1, 2)
    want = F.cross_entropy(z, y, weight=weight, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(sifter.score({"ids": ids, "labels": y}), want.mean(dim=1))
    assert "CrossEntropyLoss; found inside the model" in repr(sifter)
    hidden = OwnLoss(lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), weight=weight))
    with pytest.raises(ValueError, match=r"class weights.*loss_fn="):
        scored(hidden, {"ids": ids, "labels": y})


@pytest.mark.parametrize("later", [[3, 2], [0, 3], [1, 2]])
def test_class_weights_that_the_first_batches_cannot_show_are_refused_when_they_count(
    later: list[int],
) -> None:
    weight = torch.tensor([1.0, 1.0, 5.0, 5.0])
    model = OwnLoss(
        lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), weight=weight), classes=4
    )
    ids = torch.randint(0, 20, (2, 1))
    sifter = Sifter(model, exit="last", score="loss")

    def score(labels: list[int]) -> Tensor:
        return sifter.score({"ids": ids, "labels": torch.tensor(labels).unsqueeze(1)})

    for labels in ([3, 3], [0, 1], [2, 3], [1, 0]):  # no two of one batch differ in weight
        score(labels)
    if weight[later[0]] == weight[later[1]]:
        score(later)
        return
    with pytest.raises(ValueError, match=r"class weights.*loss_fn="):
        score(later)


def test_a_model_is_held_against_its_own_loss_until_every_class_was_met() -> None:
    model = OwnLoss(lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()))
    sifter = Sifter(model, exit="last", score="loss")
    forwards: list[int] = []
    model.register_forward_hook(lambda *_: forwards.append(1))

    def count(labels: list[int]) -> int:
        forwards.clear()
        sifter.score({"ids": torch.randint(0, 20, (2, 1)), "labels": torch.tensor(labels)[:, None]})
        return len(forwards)

    count([1, 2])
    assert count([1, 2]) == count([2, 2]) == 1
    assert count([2, 3]) == 2, "3 is new: once more with its label"
    assert count([3, 1]) == 1


def test_smoothing_in_the_models_own_loss_is_taken_from_it() -> None:
    model = OwnLoss(lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=0.2))
    ids, y = torch.randint(0, 20, (6, 5)), torch.randint(0, 7, (6, 5))
    with pytest.warns(UserWarning, match="one sample at a time"):
        got = scored(model, {"ids": ids, "labels": y})
    z = outputs(model, ids)["logits"].transpose(1, 2)
    want = F.cross_entropy(z, y, label_smoothing=0.2, reduction="none").mean(dim=1)
    torch.testing.assert_close(got, want)


def test_a_shift_inside_the_loss_function() -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    x = torch.randint(0, 20, (6, 5))
    y = x.clone()
    y[:, 0], y[3, 3:] = -100, -100
    z = outputs(model, x)
    want = torch.stack([F.cross_entropy(z[i, :-1], y[i, 1:]) for i in range(6)])
    for loss_fn in (
        lambda z, y: F.cross_entropy(z[:, :-1].flatten(0, 1), y[:, 1:].flatten()),
        lambda z, y: F.cross_entropy(z[:, :-1].transpose(1, 2), y[:, 1:], reduction="none"),
    ):
        torch.testing.assert_close(scored(model, (x, y), loss_fn=loss_fn), want)


def test_a_loss_that_sums_is_summed() -> None:
    model, x, y = linear(4), torch.randn(8, 3), torch.randn(8, 4)
    z = outputs(model, x)
    got = scored(model, (x, y), loss_fn=nn.MSELoss(reduction="sum"))
    torch.testing.assert_close(got, (z - y).square().sum(dim=1))
    target = y.softmax(-1)
    got = scored(
        nn.Sequential(*model, nn.LogSoftmax(-1)),
        (x, target),
        loss_fn=nn.KLDivLoss(reduction="batchmean"),
    )
    torch.testing.assert_close(
        got, F.kl_div(z.log_softmax(-1), target, reduction="none").sum(dim=1)
    )


def test_as_many_positions_as_classes_cannot_be_told() -> None:
    model, x, y = nn.Embedding(20, 5), torch.randint(0, 20, (6, 5)), torch.randint(0, 5, (6, 5))
    with pytest.raises(
        ValueError, match=r"labels \(B, 5\) of int64 fit logits \(B, 5, 5\).* in two"
    ):
        scored(nn.Sequential(model), (x, y))
    z = outputs(model, x)
    got = scored(nn.Sequential(model), (x, y), loss_fn=nn.CrossEntropyLoss())
    torch.testing.assert_close(got, F.cross_entropy(z, y, reduction="none").mean(dim=1))
    got = scored(
        nn.Sequential(model),
        (x, y),
        loss_fn=lambda z, y: F.cross_entropy(z.movedim(-1, 1), y, reduction="none"),
    )
    torch.testing.assert_close(
        got, F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(dim=1)
    )


def test_a_loss_behind_the_logits_in_a_tuple_is_the_reference() -> None:
    class Nano(OwnLoss):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            z = self.head(self.table(ids))
            return z, None if targets is None else self.loss(z, targets)

    model = Nano(lambda z, y: F.cross_entropy(z[:, :-1].flatten(0, 1), y[:, 1:].flatten()))
    ids = torch.randint(0, 7, (6, 5))
    sifter = Sifter(model, exit="last", score="loss")
    got = sifter.score({"ids": ids, "targets": ids})
    z = outputs(model, ids)[0]
    want = torch.stack([F.cross_entropy(z[i, :-1], ids[i, 1:]) for i in range(6)])
    torch.testing.assert_close(got, want)
    assert "shifted by one, mean over labelled positions; found by matching" in repr(sifter)


def test_a_class_that_the_model_ignores_is_found_when_it_is_first_met() -> None:
    """Padding is 0 in many models; the first batch may hold none of it."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.out(x)
            if labels is None:
                return {"logits": logits}
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)
            return {"logits": logits, "loss": loss}

    model = Padded().eval()
    sifter = Sifter(model, exit="last", score="loss")
    for labels in (torch.tensor([[1, 2, 1], [2, 2, 1]]), torch.tensor([[1, 2, 0], [2, 0, 0]])):
        x = torch.randn(2, 3, 4)
        with torch.no_grad():
            losses = F.cross_entropy(
                model.out(x).transpose(1, 2), labels, ignore_index=0, reduction="none"
            )
        want = losses.sum(1) / (labels != 0).sum(1)
        torch.testing.assert_close(sifter.score({"x": x, "labels": labels}), want)
