"""Features on the way through a model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting.model.features import (
    by_graph,
    by_position,
    channels_of,
    coarser,
    find_stage,
    model_input,
    pool,
    pooled_input,
    stopped_at,
    stopped_in,
)
from sifting.model.find import find_stack
from sifting.model.stack import StackError
from tests.helpers.models import SMALL, token_batch


def test_features_of_a_stack_need_no_chain() -> None:
    class Joined(nn.Module):
        """Norms between the blocks: no head can be reached, and features can be had."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
            self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for block, norm in zip(self.blocks, self.norms, strict=True):
                x = norm(x + block(x))
            return x

    model = Joined()
    x = torch.randn(2, 8)
    stack = find_stack(model, "blocks")
    with torch.no_grad():
        with pytest.raises(StackError):
            stack.check_chain(lambda: model(x))
        second = model.norms[0](x + model.blocks[0](x))
        got = stopped_in(stack, 2, lambda: model(x))
        torch.testing.assert_close(got, model.blocks[1](second))


def test_features_in_shared_and_in_summed_stacks() -> None:
    albert = hf.AlbertForMaskedLM(
        hf.AlbertConfig(**SMALL, embedding_size=16, num_hidden_groups=2)
    ).eval()
    ids = token_batch()["input_ids"]
    with torch.no_grad():
        want = albert(input_ids=ids, output_hidden_states=True).hidden_states
        for k in (1, 2, 3):
            got = stopped_in(find_stack(albert), k, lambda: albert(input_ids=ids))
            torch.testing.assert_close(got, want[k])

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + block(x)
            return x.tanh()

    model = Summed()
    x = torch.randn(2, 8)
    stack = find_stack(model)
    with torch.no_grad():
        stack.check_chain(lambda: model(x))
        got = stopped_in(stack, 1, lambda: model(x))
        torch.testing.assert_close(got, x + model.blocks[0](x))


def test_a_model_is_run_only_until_the_module_that_is_asked_for() -> None:
    ran: list[str] = []
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 9))
    model[1].register_forward_pre_hook(lambda *_: ran.append("later"))
    assert stopped_at(model[0], lambda: model(torch.zeros(4, 2))).shape == (4, 3)
    assert ran == []
    assert not model[0]._forward_hooks
    with pytest.raises(ValueError, match="a Linear, did not run in the model's forward"):
        stopped_at(nn.Linear(2, 2), lambda: model(torch.zeros(4, 2)))

    class Words(nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return "no tensor"

    with pytest.raises(ValueError, match="a Words, returned no tensor"):
        stopped_at(words := Words(), lambda: words(torch.zeros(1)))


def test_what_a_model_is_given_is_numbers_or_embedded_tokens() -> None:
    linear = nn.Linear(2, 3)
    assert model_input(linear, lambda: linear(torch.ones(4, 2))).tolist() == [[1, 1]] * 4
    text = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 5))
    assert model_input(text, lambda: text(torch.ones(4, 7).long())).shape == (4, 7, 5)
    pixels = nn.Flatten()
    image = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert model_input(pixels, lambda: pixels(image)).dtype == torch.uint8


@pytest.mark.parametrize(
    ("shape", "size"), [((8, 8), (4, 4)), ((7, 9), (3, 2)), ((32, 32), (2, 2))]
)
def test_coarser_maps_are_torchs_own_averages(
    shape: tuple[int, int], size: tuple[int, int]
) -> None:
    maps = torch.randn(2, 3, *shape)
    torch.testing.assert_close(coarser(maps, size), F.adaptive_avg_pool2d(maps, size))


def test_inputs_have_no_more_features_than_asked_for() -> None:
    for hidden in (
        torch.randn(2, 3, 33, 47),
        torch.randn(2, 28, 28, 1),
        torch.randn(2, 5, 4000),
        torch.randn(2, 5000),
        torch.randn(2),
    ):
        found = pooled_input(hidden, widest=256)
        assert found.ndim == 2
        assert len(found) == 2
        assert found.shape[1] <= 256


def test_positions_that_are_masked_do_not_count_in_an_average() -> None:
    hidden = torch.randn(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    found = pool(hidden, channels=3, mask=mask)
    torch.testing.assert_close(found[0], hidden[0, :2].mean(0))
    torch.testing.assert_close(found[1], hidden[1].mean(0))
    torch.testing.assert_close(pool(hidden, channels=4), hidden.mean(2))
    ragged = torch.nested.nested_tensor(
        [torch.ones(2, 3), 3 * torch.ones(4, 3)], layout=torch.jagged
    )
    assert pool(ragged, channels=None).tolist() == [[1, 1, 1], [3, 3, 3]]


def test_features_of_each_labelled_position() -> None:
    maps = torch.randn(2, 7, 4, 6)
    found = by_position(maps, (4, 6), channels_first=True)
    assert found is not None
    assert torch.equal(found[:, 6 * 1 + 2], maps[:, :, 1, 2])
    assert by_position(maps, (3, 3), channels_first=True) is None
    square = torch.randn(2, 4, 4)
    first, last = (by_position(square, (4,), channels_first=flag) for flag in (True, False))
    assert first is not None
    assert last is not None
    assert torch.equal(first, square.transpose(1, 2))
    assert torch.equal(last, square)


def test_stages_and_widths_are_found() -> None:
    resnet = nn.ModuleDict({f"layer{i}": nn.Conv2d(2, 2, 1) for i in (1, 2, 3)})
    assert find_stage(nn.ModuleDict({"trunk": resnet})) == "trunk.layer2"
    assert find_stage(nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])) is None
    assert channels_of(nn.Sequential(nn.Linear(2, 6), nn.LayerNorm(6), nn.ReLU())) == 6
    assert channels_of(nn.ReLU()) is None


class Graphs:
    """A batch of graphs, as PyTorch Geometric has it."""

    num_graphs = 3
    batch = torch.tensor([0, 0, 1, 2, 2, 2])


def test_nodes_are_averaged_over_their_graph() -> None:
    hidden = torch.arange(12.0).reshape(6, 2)
    want = torch.stack([hidden[:2].mean(0), hidden[2], hidden[3:].mean(0)])
    torch.testing.assert_close(by_graph(hidden, Graphs()), want)
    torch.testing.assert_close(by_graph(hidden, (Graphs(), torch.zeros(3))), want)
    assert by_graph(hidden[:3], Graphs()).shape == (3, 2), "a row a graph already"
    assert by_graph(hidden, (torch.zeros(6), torch.zeros(6))) is hidden
