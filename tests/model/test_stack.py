from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

from sifting import Sifter
from sifting.model.find import exit_in_stack, find_stack
from sifting.model.stack import StackError
from tests.helpers.models import SMALL, Net


def test_the_stack_is_found_by_its_shape() -> None:
    bert = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    stack = find_stack(bert)
    assert (stack.path, len(stack)) == ("bert.encoder.layer", 4)
    albert = find_stack(hf.AlbertForMaskedLM(hf.AlbertConfig(**SMALL, embedding_size=16)))
    assert (albert.path, len(albert)) == ("albert.encoder.albert_layer_groups", 4)
    mixture = hf.MixtralForCausalLM(
        hf.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    )
    assert find_stack(mixture).path == "model.layers"  # not its experts
    assert (
        len(find_stack(hf.BertForMaskedLM(hf.BertConfig(**{**SMALL, "num_hidden_layers": 1})))) == 1
    )


def test_a_pattern_in_a_flat_sequential_makes_blocks() -> None:
    hidden = [m for _ in range(3) for m in (nn.Linear(8, 8), nn.ReLU())]
    stack = find_stack(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *hidden, nn.Linear(8, 2)))
    assert stack.blocks == (("2", "3"), ("4", "5"), ("6", "7"))


def test_two_stacks_are_ambiguous_and_listed() -> None:
    t5 = hf.T5ForConditionalGeneration(
        hf.T5Config(d_model=16, d_ff=32, num_layers=3, num_heads=2, d_kv=8, vocab_size=50)
    )
    with pytest.raises(
        StackError, match=r"2 stacks that could be meant: 'decoder.block' \(3 × T5Block\)"
    ):
        find_stack(t5)
    assert len(find_stack(t5, "encoder.block")) == 3


def test_no_stack_says_what_else_there_is() -> None:
    with pytest.raises(
        StackError, match=r"no stack of repeated blocks found in Linear.*exit='last'"
    ):
        find_stack(nn.Linear(2, 2))


def test_a_stage_of_a_cnn_is_not_its_trunk() -> None:
    """Cutting the first of four stages short would run the other three whole."""
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[2, 2, 2, 2], layer_type="basic"
    )
    with pytest.raises(StackError, match=r"no stack of repeated blocks|stacks that could be meant"):
        find_stack(hf.ResNetForImageClassification(config))


def test_a_large_stem_before_the_stack_does_not_hide_it() -> None:
    assert (
        len(
            find_stack(
                nn.Sequential(nn.Linear(784, 16), *[nn.Linear(16, 16)] * 2, nn.Linear(16, 2))
            )
        )
        == 2
    )


def test_a_vocabulary_does_not_hide_a_small_stack() -> None:
    small = {**SMALL, "hidden_size": 16, "vocab_size": 30522}
    assert len(find_stack(hf.BertForPreTraining(hf.BertConfig(**small)))) == 4


def test_out_of_range_names_the_range(net: Net) -> None:
    stack = find_stack(net)
    with (
        pytest.raises(ValueError, match=r"exit=5 is out of range: the stack 'blocks' has 4 blocks"),
        stack.truncated(5),
    ):
        pass


def test_a_wrong_path_lists_real_ones(net: Net) -> None:
    with pytest.raises(
        ValueError, match=r"stack='block' names no module of Net; it has 'blocks', 'blocks.0'"
    ):
        find_stack(net, "block")
    with pytest.raises(StackError, match=r"stack='embed' is a Linear"):
        find_stack(net, "embed")
    with pytest.raises(
        StackError, match=r"exit='norm' is not a block of a stack.*TunedExit\('norm'\)"
    ):
        exit_in_stack(net, "norm")


def test_truncation_leaves_the_model_as_it_was(net: Net) -> None:
    net.eval()
    x = torch.randn(3, 8)
    before = net(x)
    modules = list(net.modules())
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules]
    with pytest.raises(KeyError), find_stack(net).truncated(2) as way:
        torch.testing.assert_close(net(x), net.logits_at(x, 2))
        assert way.hidden.shape == (3, 16)
        raise KeyError
    assert [id(m) for m in net.modules()] == [id(m) for m in modules]
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules] == hooks
    assert torch.equal(net(x), before)


def test_a_stack_that_does_not_run_is_reported(net: Net) -> None:
    with find_stack(net).truncated(1) as way:
        pass
    with pytest.raises(ValueError, match="did not run"):
        _ = way.hidden


class Towers(nn.Module):
    """Alike, side by side, and not a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(sum(tower(x) for tower in self.towers))


class Elsewhere(nn.Module):
    """Runs its blocks from a plain list, past their container."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.own = list(self.blocks)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.own:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Towers(), "block 2 does not take the output of block 1"),
        (Elsewhere(), "were not called through their container"),
        (
            nn.Sequential(
                *[nn.Conv2d(4, 4, 3, stride=2, padding=1) for _ in range(3)], nn.Flatten(1)
            ),
            "blocks 1 and 2 put out different shapes",
        ),
    ],
    ids=["towers", "elsewhere", "strided"],
)
def test_what_only_looks_like_a_stack_is_refused(model: nn.Module, message: str) -> None:
    x = torch.randn(4, 4, 16, 16) if "shapes" in message else torch.randn(4, 8)
    with pytest.raises(StackError, match=message):
        Sifter(model, exit=1, score="loss").score((x, torch.zeros(4).long()))


def test_the_stack_itself_is_not_an_exit(net: Net) -> None:
    with pytest.raises(StackError, match=r"exit='blocks' is the stack.*stack='blocks' and exit=1"):
        exit_in_stack(net, "blocks")


def test_shared_blocks_are_found_inside_a_larger_model() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = hf.AlbertForMaskedLM(hf.AlbertConfig(**SMALL, embedding_size=16))

    assert len(find_stack(Wrapped())) == 4


def test_blocks_that_run_backwards_are_no_early_ones() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in (2, 1, 0):
                x = self.blocks[i](x)
            return self.head(x)

    with pytest.raises(StackError, match="runs its blocks in the order 3, 2, 1"):
        Sifter(Backwards(), exit=1, score="loss").score((torch.randn(4, 8), torch.zeros(4).long()))
