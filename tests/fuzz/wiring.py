"""Models joined at random: scored as the loop that is left after block k, or refused; never wrong."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from sifting.model.find import find_stack
from sifting.model.stack import StackError
from tests.fuzz import Fuzz, register

BEFORE = ("as it is", "own norm", "one norm", "tanh")
JOIN = ("output", "add", "subtract", "scale", "gate", "highway", "modulate", "decay", "ignore")
AFTER = ("nothing", "relu", "silu in place", "own norm", "one norm", "own batch norm", "own term")
# what is right whatever else is done: these must not be refused
ADDS = ("add", "subtract", "scale", "gate")
SURE = {("as it is", "output"), *((before, join) for before in BEFORE for join in ADDS)}


@dataclasses.dataclass(frozen=True)
class Case:
    """One way of joining blocks.

    Args:
        before: what a block is given of the state.
        join: how its output is joined with it.
        after: what is done then.
        bare: whether that is left out after the last block.
        steps: positions of a sample; 0 for samples without.
        double: whether the model is in double precision.
    """

    before: str
    join: str
    after: str
    bare: bool
    depth: int
    width: int
    steps: int
    double: bool
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    depth = draw(st.integers(2, 4))
    after = draw(st.sampled_from((*AFTER, "nothing", "nothing", "relu")))
    return Case(
        before=draw(st.sampled_from(BEFORE)),
        join=draw(st.sampled_from(JOIN)),
        after=after,
        bare=draw(st.booleans()),
        depth=depth,
        width=draw(st.integers(3, 8)),
        steps=0 if after == "own batch norm" else draw(st.integers(0, 3)),
        double=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


class Joined(nn.Module):
    """What a block is given, how its output is joined, what is done then; the last may end bare."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width, depth = case.width, case.depth
        self.case = case
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.batch_norms = nn.ModuleList([nn.BatchNorm1d(width) for _ in range(depth)])
        self.gates = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.terms = nn.Parameter(torch.zeros(depth, width))
        self.scales = nn.Parameter(torch.zeros(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def given(self, i: int, h: Tensor) -> Tensor:
        return {
            "as it is": lambda: h,
            "own norm": lambda: self.norms[i](h),
            "one norm": lambda: self.norm(h),
            "tanh": lambda: torch.tanh(h),
        }[self.case.before]()

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
        }[self.case.join]()

    def finished(self, i: int, h: Tensor) -> Tensor:
        if self.case.bare and i == len(self.blocks) - 1:
            return h
        return {
            "nothing": lambda: h,
            "relu": lambda: F.relu(h),
            "silu in place": lambda: F.silu(h, inplace=True),
            "own norm": lambda: self.norms[i](h),
            "one norm": lambda: self.norm(h),
            "own batch norm": lambda: self.batch_norms[i](h),
            "own term": lambda: h + self.terms[i],
        }[self.case.after]()

    def forward(self, x: Tensor, depth: int | None = None) -> Tensor:
        h = x
        for i, block in enumerate(self.blocks):
            if depth is None or i < depth:
                h = self.finished(i, self.joined(i, h, block(self.given(i, h))))
        return self.head(torch.tanh(h))


def refused(case: Case, message: str) -> str:
    sure = case.after == "nothing" and (case.before, case.join) in SURE
    assert not sure, f"refused: {message}"
    assert "exit='last'" in message, f"no remedy in: {message}"
    return "refused"


def check(case: Case) -> list[str]:
    """Bound while norms, terms and scales are fresh; compared after all of them have moved."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        dtype = torch.float64 if case.double else torch.float32
        model = Joined(case).to(dtype).eval()
        shape = (4, case.steps, case.width) if case.steps else (4, case.width)
        x = torch.randn(shape, dtype=dtype)
        stack = find_stack(model, "blocks")
        with torch.no_grad():
            try:
                stack.check_chain(lambda: model(x.clone()))
            except StackError as error:
                return [refused(case, str(error))]
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    tensor += 0.5 * torch.rand_like(tensor)
                assert "num_batches" in name or tensor.is_floating_point()
            for k in range(1, case.depth + 1):
                x = torch.randn(shape, dtype=dtype)
                want = model(x.clone(), depth=k)
                with stack.truncated(k):
                    got = model(x.clone())
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    return ["right"] * case.depth


FUZZ = register("wiring", Fuzz(cases(), check))
