"""Speech, graphs, tables: an exit at block k against references written without the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter, SiftingWarning
from sifting.exits.tuned import TunedExit
from sifting.model.find import find_stack
from sifting.model.no_trace import no_trace
from sifting.model.places import find_place
from sifting.model.stack import StackError
from tests.helpers.models import SMALL


@pytest.mark.parametrize("k", [1, 3])
def test_wav2vec2_with_ctc(k: int) -> None:
    model: Any = hf.Wav2Vec2ForCTC(
        hf.Wav2Vec2Config(
            **{**SMALL, "vocab_size": 20},
            conv_dim=(16, 16),
            conv_kernel=(10, 3),
            conv_stride=(5, 2),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
        )
    ).eval()
    sound, labels = torch.randn(4, 400), torch.randint(1, 20, (4, 5))
    labels[1, 3:] = -100
    with torch.no_grad():
        hidden = model(input_values=sound, output_hidden_states=True).hidden_states[k]
        log_probs = model.lm_head(hidden).log_softmax(-1)
        want = torch.stack(
            [
                F.ctc_loss(p[:, None], y[None, y > 0], (len(p),), ((y > 0).sum(),), reduction="sum")
                for p, y in zip(log_probs, labels, strict=True)
            ]
        )
    with pytest.warns(SiftingWarning, match="one sample at a time"):
        got = Sifter(model, exit=k, score="loss").score({"input_values": sound, "labels": labels})
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


class Conv(nn.Module):
    """A graph convolution: neighbours are averaged, then mapped."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x_BNF: Tensor, edges_BNN: Tensor) -> Tensor:
        return self.linear(edges_BNN @ x_BNF / edges_BNN.sum(2, keepdim=True).clamp_min(1))


Join = Callable[[Tensor, Tensor, int], Tensor]


class Graphs(nn.Module):
    """One label per graph; how layers are joined is said by `join(before, convolved, i)`."""

    def __init__(self, join: Join, depth: int = 4) -> None:
        super().__init__()
        self.join = join
        self.stem = nn.Linear(3, 12)
        self.convs = nn.ModuleList([Conv(12) for _ in range(depth)])
        self.head = nn.Linear(12, 4)

    def forward(self, x_BNF: Tensor, edges_BNN: Tensor, depth: int | None = None) -> Tensor:
        h = self.stem(x_BNF)
        for i, conv in enumerate(self.convs[:depth] if depth else self.convs):
            h = self.join(h, conv(h, edges_BNN), i)
        return self.head(h.mean(1))


def graph_batch(size: int = 6) -> dict[str, Tensor]:
    return {
        "x_BNF": torch.randn(size, 5, 3),
        "edges_BNN": (torch.rand(size, 5, 5) < 0.5).float(),
        "labels": torch.randint(0, 4, (size,)),
    }


JOINS: dict[str, Join] = {
    "chain": lambda h, out, i: out.relu(),
    "residual": lambda h, out, i: h + out.relu(),
    "initial": lambda h, out, i: 0.9 * out + 0.1 * h,
}


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", JOINS)
def test_graph_networks(name: str, k: int) -> None:
    model = Graphs(JOINS[name]).eval()
    batch = graph_batch()
    with torch.no_grad():
        logits = model(batch["x_BNF"], batch["edges_BNN"], depth=k)
        want = F.cross_entropy(logits, batch["labels"], reduction="none")
    got = Sifter(model, exit=k, score="loss").score(batch)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_graph_network_whose_nodes_are_the_rows_has_no_place_for_its_graphs() -> None:
    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 4)

        def forward(self, x_NF: Tensor, graph_N: Tensor) -> Tensor:
            h = self.second(F.relu(self.first(x_NF)))
            return torch.zeros(int(graph_N.max()) + 1, 4).index_add(0, graph_N, h)

    model = Nodes()
    x, graph = torch.randn(7, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    with (
        no_trace(model),
        pytest.raises(StackError, match=r"no module of Nodes.*a row for each sample"),
    ):
        find_place(model, lambda: model(x, graph), size=2)


class ResidualMlp(nn.Module):
    """Tables: the sum is written in the model's forward, the norms are beside the blocks."""

    def __init__(self, width: int = 16, depth: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(9, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
                for _ in range(depth)
            ]
        )
        self.scales = nn.Parameter(torch.full((depth,), 0.1))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3))

    def forward(self, x: Tensor, depth: int | None = None) -> Tensor:
        h = self.embed(x)
        for i, (norm, block) in enumerate(zip(self.norms, self.blocks, strict=True)):
            if depth is None or i < depth:
                h = h + self.scales[i] * block(norm(h))
        return self.head(h)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_residual_mlp(k: int) -> None:
    model = ResidualMlp().eval()
    for name, parameter in model.named_parameters():
        if "norms" in name:
            nn.init.normal_(parameter, 1.0, 0.3)
    x, y = torch.randn(8, 9), torch.randint(0, 3, (8,))
    with torch.no_grad():
        want = F.cross_entropy(model(x, depth=k), y, reduction="none")
    got = Sifter(model, exit=k, score="loss").score((x, y))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


class Mixture(nn.Module):
    """A router sends each sample to two of four experts, in one layer of a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.router = nn.Linear(9, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)]
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        weights, chosen = self.router(h).softmax(1).topk(2, dim=1)
        mixed = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            rows, column = (chosen == i).nonzero(as_tuple=True)
            if len(rows):
                mixed = mixed.index_add(0, rows, weights[rows, column, None] * expert(h[rows]))
        return self.head(h + mixed)


@pytest.mark.parametrize("stack", [None, "experts"])
def test_experts_of_a_mixture_are_no_blocks(stack: str | None) -> None:
    model = Mixture().eval()
    x, y = torch.randn(8, 9), torch.randint(0, 3, (8,))
    with pytest.raises(StackError, match=r"the stack 'experts' \(4 × Sequential\).*exit='last'"):
        Sifter(model, exit=1, score="loss", stack=stack).score((x, y))
    with torch.no_grad():
        want = F.cross_entropy(model(x), y, reduction="none")
    got = Sifter(model, exit="last", score="loss").score((x, y))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with no_trace(model):
        place = find_place(model, lambda: model(x), size=8)
    assert place.path == "stem"
    assert Sifter(model, exit=TunedExit("stem"), score="loss").score((x, y)).shape == (8,)


def test_a_stack_of_mixtures_is_one_of_layers_and_not_of_experts() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 3)
            self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            weights = self.router(x).softmax(1)
            parts = [weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)]
            return torch.stack(parts).sum(0)

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer() for _ in range(3)])
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor, depth: int = 3) -> Tensor:
            for layer in self.layers[:depth]:
                x = x + layer(x)
            return self.head(x)

    model = Deep().eval()
    assert find_stack(model).path == "layers"
    x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
    with torch.no_grad():
        want = F.cross_entropy(model(x, depth=1), y, reduction="none")
    got = Sifter(model, exit=1, score="loss").score((x, y))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
