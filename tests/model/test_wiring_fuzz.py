"""Models joined at random: scored as the loop that is left after block k, or refused; never wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sifting.model.find import find_stack
from sifting.model.stack import StackError

WIDTH = 6
BEFORE = ("as it is", "own norm", "one norm", "tanh")
JOIN = ("output", "add", "subtract", "scale", "gate", "highway", "modulate", "decay", "ignore")
AFTER = ("nothing", "relu", "silu in place", "own norm", "one norm", "own batch norm", "own term")
# what is right whatever else is done: these must not be refused
SURE = {("as it is", join, "nothing") for join in ("output", "add", "subtract", "scale", "gate")}


class Joined(nn.Module):
    """What a block is given, how its output is joined, what is done then; the last may end bare."""

    def __init__(self, before: str, join: str, after: str, bare: bool, depth: int) -> None:
        super().__init__()
        self.before, self.join, self.after, self.bare = before, join, after, bare
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(depth)])
        self.batch_norms = nn.ModuleList([nn.BatchNorm1d(WIDTH) for _ in range(depth)])
        self.gates = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
        self.terms = nn.Parameter(torch.zeros(depth, WIDTH))
        self.scales = nn.Parameter(torch.zeros(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def given(self, i: int, h: Tensor) -> Tensor:
        return {
            "as it is": lambda: h,
            "own norm": lambda: self.norms[i](h),
            "one norm": lambda: self.norm(h),
            "tanh": lambda: torch.tanh(h),
        }[self.before]()

    def joined(self, i: int, h: Tensor, out: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gates[i](h))
        return {
            "output": lambda: out,
            "add": lambda: h + out,
            "subtract": lambda: h - 0.5 * out,
            "scale": lambda: h + self.scales[i] * out,
            "gate": lambda: h + gate * out,
            "highway": lambda: gate * out + (1 - gate) * h,
            "modulate": lambda: h * (1 + out),
            "decay": lambda: 0.7 * h + out,
            "ignore": lambda: h + gate,
        }[self.join]()

    def finished(self, i: int, h: Tensor) -> Tensor:
        if self.bare and i == len(self.blocks) - 1:
            return h
        return {
            "nothing": lambda: h,
            "relu": lambda: F.relu(h),
            "silu in place": lambda: F.silu(h, inplace=True),
            "own norm": lambda: self.norms[i](h),
            "one norm": lambda: self.norm(h),
            "own batch norm": lambda: self.batch_norms[i](h),
            "own term": lambda: h + self.terms[i],
        }[self.after]()

    def forward(self, x: Tensor, depth: int | None = None) -> Tensor:
        h = x
        for i, block in enumerate(self.blocks):
            if depth is None or i < depth:
                h = self.finished(i, self.joined(i, h, block(self.given(i, h))))
        return self.head(torch.tanh(h))


@settings(max_examples=60, deadline=None)
@given(
    before=st.sampled_from(BEFORE),
    join=st.sampled_from(JOIN),
    after=st.sampled_from(AFTER),
    bare=st.booleans(),
    depth=st.integers(2, 4),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_right_or_refused(
    before: str,
    join: str,
    after: str,
    bare: bool,
    depth: int,
    seed: int,
    data: st.DataObject,
) -> None:
    """Bound while norms, terms and scales are fresh; compared after all of them have moved."""
    torch.manual_seed(seed)
    model = Joined(before, join, after, bare, depth).eval()
    x = torch.randn(4, WIDTH)
    k = data.draw(st.integers(1, depth), label="k")
    stack = find_stack(model, "blocks")
    with torch.no_grad():
        try:
            stack.check_chain(lambda: model(x.clone()))
        except StackError:
            assert (before, join, after) not in SURE
            return
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor += 0.5 * torch.rand_like(tensor)
            assert "num_batches" in name or tensor.is_floating_point()
        want = model(x.clone(), depth=k)
        with stack.truncated(k):
            got = model(x.clone())
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
