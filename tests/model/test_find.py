"""Finding a model's stack of blocks, by its shape or by its path."""

from __future__ import annotations

import pytest
import transformers as hf
from torch import nn

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


def test_the_stack_itself_is_not_an_exit(net: Net) -> None:
    with pytest.raises(StackError, match=r"exit='blocks' is the stack.*stack='blocks' and exit=1"):
        exit_in_stack(net, "blocks")


def test_shared_blocks_are_found_inside_a_larger_model() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = hf.AlbertForMaskedLM(hf.AlbertConfig(**SMALL, embedding_size=16))

    assert len(find_stack(Wrapped())) == 4
