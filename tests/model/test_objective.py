from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter
from sifting.model.call import Call
from sifting.model.objective import resolve
from sifting.model.sample_losses import PerSampleLoss
from tests.helpers.models import SMALL


def test_lengths_of_labels_are_no_labels() -> None:
    model = nn.Linear(8, 3)
    x, y = torch.randn(6, 8), torch.arange(6) % 3
    batch = {"input": x, "labels": y, "label_lengths": y.flip(0)}
    want = F.cross_entropy(model(x), y, reduction="none")
    torch.testing.assert_close(Sifter(model, exit="last", score="loss").score(batch), want)
    batch = {"input": x, "fine_label": y, "coarse_label": y.flip(0)}
    with pytest.raises(ValueError, match="'fine_label', 'coarse_label', which all fit"):
        Sifter(model, exit="last", score="loss").score(batch)


def test_outputs_that_are_not_a_row_a_sample_are_shown_with_their_shapes() -> None:
    class Recurrent(nn.Module):  # time first, and as many steps as samples
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][-1])

    batch = (torch.randn(6, 6, 4), torch.arange(6) % 3)
    with pytest.raises(ValueError, match=r"of 2 samples .* puts out logits \(6, 3\).*take=lambda"):
        Sifter(Recurrent(), exit="last", score="loss").score(batch)
    model = Recurrent()
    sifter = Sifter(model, exit="last", score="loss", take=lambda b, i: (b[0][:, i], b[1][i]))
    want = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    torch.testing.assert_close(sifter.score(batch), want)


def test_question_answering_averages_its_two_parts() -> None:
    model = hf.BertForQuestionAnswering(hf.BertConfig(**SMALL)).eval()
    batch = {
        "input_ids": torch.randint(5, 150, (6, 9)),
        "start_positions": torch.randint(0, 9, (6,)),
        "end_positions": torch.randint(0, 9, (6,)),
    }
    with torch.no_grad():
        parts = resolve(Call(), model, batch).parts
        out = model(input_ids=batch["input_ids"])
    assert [(p.logits, p.labels, p.weight) for p in parts] == [
        ("start_logits", "start_positions", 0.5),
        ("end_logits", "end_positions", 0.5),
    ]
    want = 0.5 * sum(
        F.cross_entropy(out[f"{side}_logits"], batch[f"{side}_positions"], reduction="none")
        for side in ("start", "end")
    )
    torch.testing.assert_close(Sifter(model, exit="last", score="loss").score(batch), want)


def test_token_classification() -> None:
    model = hf.BertForTokenClassification(hf.BertConfig(**SMALL, num_labels=4)).eval()
    labels = torch.randint(0, 4, (5, 7))
    labels[:, 5:] = -100
    batch = {"input_ids": torch.randint(5, 150, (5, 7)), "labels": labels}
    got = Sifter(model, exit="last", score="loss").score(batch)
    want = [model(**{k: v[i : i + 1] for k, v in batch.items()}).loss.item() for i in range(5)]
    assert got.tolist() == pytest.approx(want, rel=1e-5)


def test_dense_predictions_with_the_class_second() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    x, y = torch.randn(5, 3, 6, 6), torch.randint(0, 4, (5, 6, 6))
    got = Sifter(model, exit="last", score="loss").score((x, y))
    with torch.no_grad():
        want = F.cross_entropy(model(x), y, reduction="none").mean(dim=(1, 2))
    torch.testing.assert_close(got, want)


def test_soft_labels_of_a_pair_are_cross_entropy_targets() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    x, y = torch.randn(5, 3), torch.rand(5, 4).softmax(-1)
    got = Sifter(model, exit="last", score="loss").score((x, y))
    with torch.no_grad():
        torch.testing.assert_close(got, F.cross_entropy(model(x), y, reduction="none"))


def test_loss_function_must_give_one_value_a_sample() -> None:
    with pytest.raises(ValueError, match=r"gave a tensor of shape \(3,\) for 4 samples"):
        PerSampleLoss(lambda z, y: torch.zeros(3))(torch.zeros(4, 2), torch.zeros(4))


def test_a_loss_module_of_the_user_is_not_modified() -> None:
    mine = nn.CrossEntropyLoss(label_smoothing=0.2)
    z, y = torch.randn(4, 3), torch.arange(4) % 3
    torch.testing.assert_close(
        PerSampleLoss(mine)(z, y), F.cross_entropy(z, y, label_smoothing=0.2, reduction="none")
    )
    assert mine.reduction == "mean"


def test_custom_loss_needs_one_output() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a_logits": x, "b_logits": x}

    sifter = Sifter(Two(), exit="last", score="loss", loss_fn=F.mse_loss)
    with pytest.raises(ValueError, match=r"loss_fn needs one output.*\['a_logits', 'b_logits'\]"):
        sifter.score({"x": torch.zeros(4, 3), "labels": torch.zeros(4, 3)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_an_untrained_causal_model_is_found_to_be_shifted(seed: int, dtype: torch.dtype) -> None:
    """At initialisation the loss is about log V for any labels: only the closest match will do."""
    torch.manual_seed(seed)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2)).to(dtype).eval()
    ids = torch.randint(0, 150, (2, 64))
    with torch.no_grad():
        found = resolve(Call(), model, {"input_ids": ids, "labels": ids})
    assert [part.shift for part in found.parts] == [1]
    assert found.explained


def test_an_encoder_decoder_is_given_its_labels() -> None:
    model = hf.T5ForConditionalGeneration(
        hf.T5Config(
            d_model=16,
            d_ff=32,
            num_layers=2,
            num_decoder_layers=3,
            num_heads=2,
            d_kv=8,
            vocab_size=60,
            decoder_start_token_id=0,
        )
    ).eval()
    batch = {"input_ids": torch.randint(1, 60, (4, 7)), "labels": torch.randint(1, 60, (4, 5))}
    batch["labels"][0, 3:] = -100
    got = Sifter(model, exit="last", score="loss").score(batch)
    want = [model(**{k: v[i : i + 1] for k, v in batch.items()}).loss.item() for i in range(4)]
    assert got.tolist() == pytest.approx(want, rel=1e-4)
    early = Sifter(model, exit=1, stack="decoder.block", score="loss").score(batch)
    assert early.isfinite().all()
    with pytest.raises(ValueError, match=r"exit=4 is out of range.*3 blocks"):
        Sifter(model, exit=4, stack="decoder.block")


def test_a_model_whose_forward_takes_no_labels_is_scored_by_cross_entropy() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x)

    model = Bare()
    x, y = torch.randn(5, 3), torch.arange(5) % 4
    got = Sifter(model, exit="last", score="loss").score({"x": x, "labels": y})
    with torch.no_grad():
        torch.testing.assert_close(got, F.cross_entropy(model(x), y, reduction="none"))


def test_logits_that_appear_only_with_targets() -> None:
    class Nano(nn.Module):
        """Gives only the last position's logits unless it has targets; −1 marks no label."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

        def forward(
            self, idx: Tensor, targets: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            x = self.table(idx)
            if targets is None:
                return self.head(x[:, [-1]]), None
            logits = self.head(x)
            return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    model = Nano()
    batch = {"idx": torch.randint(0, 20, (4, 6)), "targets": torch.randint(0, 20, (4, 6))}
    batch["targets"][:, 4:] = -1
    got = Sifter(model, exit="last", score="loss").score(batch)
    with torch.no_grad():
        logits = model(**batch)[0]
        want = F.cross_entropy(
            logits[:, :4].transpose(1, 2), batch["targets"][:, :4], reduction="none"
        )
    torch.testing.assert_close(got, want.mean(dim=1))


def test_the_first_samples_may_have_no_labels() -> None:
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    batch = {"input_ids": torch.randint(5, 150, (6, 8)), "labels": torch.full((6, 8), -100)}
    sifter = Sifter(model, exit="tuned", score="entropy")
    assert sifter.score(batch).tolist() == [0] * 6  # nothing to learn anywhere, and no plan yet
    batch["labels"][3:, 2] = 7
    scores = Sifter(model, exit=1, score="loss").score(batch)
    assert scores[:3].tolist() == [0, 0, 0]
    assert (scores[3:] > 0).all()


def test_regression_targets_are_not_taken_for_probabilities() -> None:
    model = nn.Sequential(nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"labels \(B, 1\) of float32: these are not classes"):
        Sifter(model, exit="last", score="loss").score((torch.randn(4, 3), torch.randn(4, 1)))


def test_entropy_needs_only_logits_whatever_the_loss() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    pair = torch.randn(5, 3), torch.arange(5) % 4
    plain = Sifter(model, exit="last", score="entropy").score(pair)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert torch.equal(
        Sifter(model, exit="last", score="entropy", loss_fn=smoothed).score(pair), plain
    )


def test_a_loss_function_does_not_count_positions_without_a_label() -> None:
    z, y = torch.randn(2, 5, 4), torch.tensor([[-100, 1], [-100, -100], [2, 3], [-100, 0]]).T
    values = PerSampleLoss(F.cross_entropy)(z.transpose(1, 2)[..., :4], y)
    want = F.cross_entropy(z.transpose(1, 2)[:1, :, 2:3], y[:1, 2:3])
    torch.testing.assert_close(values[0], want)


def test_a_tuple_with_several_outputs_is_understood() -> None:
    model = hf.BertForPreTraining(hf.BertConfig(**SMALL, return_dict=False))
    batch = {
        "input_ids": torch.randint(5, 150, (4, 6)),
        "labels": torch.randint(5, 150, (4, 6)),
        "next_sentence_label": torch.randint(0, 2, (4,)),
    }
    sifter = Sifter(model, exit=1, score="loss")
    sifter.score(batch)
    assert "one sample at a time" not in repr(sifter)
    assert "next_sentence_label" in repr(sifter)


class TwoTasks(nn.Module):
    """Two classifications of which a sample may have one label, the other, or both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 8)
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 5)

    def forward(
        self, x: Tensor, a_labels: Tensor | None = None, b_labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        h = torch.tanh(self.stem(x))
        out = {"a_logits": self.a(h), "b_logits": self.b(h)}
        losses = [
            F.cross_entropy(out[f"{name}_logits"], labels)
            for name, labels in (("a", a_labels), ("b", b_labels))
            if labels is not None
        ]
        return {"loss": torch.stack(losses).sum(), **out} if losses else out


def test_tasks_of_which_a_sample_has_only_one_label() -> None:
    model = TwoTasks()
    a, b = torch.randint(0, 4, (8,)), torch.randint(0, 5, (8,))
    a[::2], b[1::2] = -100, -100
    x = torch.randn(8, 3)
    got = Sifter(model, exit="last", score="loss").score({"x": x, "a_labels": a, "b_labels": b})
    with torch.no_grad():
        out = model(x)
        want = F.cross_entropy(out["a_logits"], a, reduction="none") + F.cross_entropy(
            out["b_logits"], b, reduction="none"
        )
    torch.testing.assert_close(got, want)


def test_labels_that_appear_later_are_scored_too() -> None:
    model, x = TwoTasks(), torch.randn(8, 3)
    a, b = torch.randint(0, 4, (8,)), torch.randint(0, 5, (8,))
    sifter = Sifter(model, exit="last", score="loss")
    first = sifter.score({"x": x, "a_labels": a})
    both = sifter.score({"x": x, "a_labels": a, "b_labels": b})
    with torch.no_grad():
        more = F.cross_entropy(model(x)["b_logits"], b, reduction="none")
    torch.testing.assert_close(both, first + more)
    torch.testing.assert_close(sifter.score({"x": x, "a_labels": a}), first)


def test_labels_may_turn_soft_between_batches() -> None:
    """Mixup that is applied with a probability."""
    model, x = nn.Sequential(nn.Linear(3, 4)), torch.randn(6, 3)
    hard, soft = torch.arange(6) % 4, torch.rand(6, 4).softmax(-1)
    sifter = Sifter(model, exit="last", score="loss")
    for y in (hard, soft, hard):
        with torch.no_grad():
            want = F.cross_entropy(model(x), y, reduction="none")
        torch.testing.assert_close(sifter.score((x, y)), want)


def test_multi_hot_targets_are_not_soft_labels_whatever_their_order() -> None:
    y = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]])
    for targets in (y, y.flip(0)):
        sifter = Sifter(nn.Sequential(nn.Linear(2, 3)), exit="last", score="loss")
        with pytest.raises(ValueError, match="these are not classes"):
            sifter.score((torch.randn(4, 2), targets))


def test_a_class_may_be_numbered_minus_one_where_the_loss_says_so() -> None:
    model = nn.Sequential(nn.Linear(3, 1))

    def hinge(z: Tensor, y: Tensor) -> Tensor:
        return F.relu(1 - z.squeeze(1) * y)

    x, y = torch.randn(6, 3), torch.tensor([-1, 1, -1, 1, -1, -1])
    sifter = Sifter(model, exit="last", score="loss", loss_fn=hinge)
    with torch.no_grad():
        torch.testing.assert_close(sifter.score((x, y)), hinge(model(x), y))
    with torch.no_grad():
        torch.testing.assert_close(
            sifter.score((x, -torch.ones(6).long())), hinge(model(x), -torch.ones(6))
        )


def test_two_sets_of_labels_on_one_set_of_logits() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

        def forward(
            self, ids: Tensor, labels: Tensor | None = None, aux_labels: Tensor | None = None
        ) -> dict[str, Tensor]:
            z = self.head(self.table(ids))
            out = {"logits": z}
            if labels is not None and aux_labels is not None:
                pairs = [
                    F.cross_entropy(z.flatten(0, 1), y.flatten()) for y in (labels, aux_labels)
                ]
                out["loss"] = pairs[0] + pairs[1]
            return out

    model = Doubled()
    ids, one, two = (torch.randint(0, 20, (6, 5)) for _ in range(3))
    got = Sifter(model, exit="last", score="loss").score(
        {"ids": ids, "labels": one, "aux_labels": two}
    )
    with torch.no_grad():
        z = model(ids)["logits"].transpose(1, 2)
    want = sum(F.cross_entropy(z, y, reduction="none").mean(1) for y in (one, two))
    torch.testing.assert_close(got, want)


def test_a_label_that_nothing_predicts_is_not_taken_for_the_one_that_means_none() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 5)

        def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            z = self.table(ids)
            if labels is None:
                return {"logits": z}
            loss = F.cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            return {"logits": z, "loss": loss}

    ids = torch.randint(0, 9, (3, 3))
    sifter = Sifter(Causal(), exit="last", score="loss")
    sifter.score({"ids": ids, "labels": torch.tensor([[1, 0, 2], [-3, 2, 1], [2, 1, 4]])})
    assert "-3 is no label" not in repr(sifter)
    with pytest.raises(ValueError, match=r"labels\[1, 2\] is -3"):
        sifter.score({"ids": ids, "labels": torch.tensor([[1, 0, 2], [1, 2, -3], [2, 1, 4]])})


class LossAlone(hf.LlamaForCausalLM):  # type: ignore[misc]
    """As a fused head patches a model: given labels it returns its loss, and no logits in any mode."""

    def forward(self, *args: object, labels: Tensor | None = None, **kwargs: object) -> object:
        output = super().forward(*args, labels=labels, **kwargs)
        if labels is not None:
            output.logits = None
        return output


def test_a_model_that_gives_its_loss_alone_is_scored_by_the_logits_it_gives_without_labels() -> (
    None
):
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,
    )
    model = LossAlone(config).eval()
    rows = torch.randint(0, 40, (6, 9))
    batch = {"input_ids": rows, "labels": rows.masked_fill(torch.rand(6, 9) < 0.3, -100)}
    sifter = Sifter(model, exit="last", score="loss", keep=0.5)
    got = sifter.score(batch)  # a warning here would be an error
    want = [model(**{k: v[i : i + 1] for k, v in batch.items()}).loss.item() for i in range(6)]
    assert got.tolist() == pytest.approx(want, rel=1e-5)
    assert "lm_head only where labels are" in str(sifter)
    entropies = Sifter(model, exit=1, score="entropy", keep=0.5).score(batch)
    assert entropies.unique().numel() == 6
