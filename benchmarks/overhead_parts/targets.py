"""What has to hold of `limits`, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Rows = Mapping[str, Any]
Check = tuple[bool, str]


def _bert(row: str) -> Callable[[Rows], Check]:
    """The cheapest way that still ranks as exit 1 does."""

    def check(rows: Rows) -> Check:
        costs, lengths = rows[row]["cost"], rows["ranking"]["lengths"]
        quality = lengths.get(str(rows[row]["length"]), lengths["128"])
        alike = {name: quality[name]["as_before"]["mean"] for name in costs}
        name = min((name for name in costs if alike[name] >= 0.9), key=lambda name: costs[name])
        return costs[name] <= 0.035, f"{costs[name]:.4f} by {name} (Spearman {alike[name]:.3f})"

    return check


def _memory(rows: Rows) -> Check:
    cost = rows["memory"]["cost"]
    return cost <= 0.002, f"{cost:.5f}"


def _resnet(rows: Rows) -> Check:
    """The cheapest exit whose recall is not below the second stage's."""
    costs, quality = rows["resnet"]["cost"], rows["resnet"]["quality"]
    apart = {name: quality[name]["recall_apart"]["mean"] for name in costs}
    name = min((name for name in costs if apart[name] >= 0), key=lambda name: costs[name])
    return costs[name] <= 0.15, f"{costs[name]:.3f} by {name} (recall {apart[name]:+.4f})"


def _resnet_at_best(rows: Rows) -> Check:
    """The exit of most recall within the cost, beside the second stage at the best of its own rates."""
    costs, quality = rows["resnet"]["cost"], rows["resnet"]["quality"]
    apart = {name: quality[name]["recall_apart"]["mean"] for name in costs}
    before = max(
        (name for name in costs if name.startswith("second stage") and "view" not in name),
        key=lambda name: apart[name],
    )
    name = max((name for name in costs if costs[name] <= 0.15), key=lambda name: apart[name])
    less = apart[name] - apart[before]
    return less >= 0, f"recall {less:+.4f} by {name}, at {costs[name]:.3f} (before: {before})"


def _ahead(rows: Rows) -> Check:
    wall = rows["ahead"]["ratios"]["ahead=1"]["wall"]
    return wall <= 1.02, f"{wall:.4f} (load at most {max(rows['ahead']['load']):.1f})"


def _llama(rows: Rows) -> Check:
    found = rows["llama"]
    over = found["cost"]["as it is"] / found["flops"]
    peak = found["peak_growth_bytes"]["sifter"] / found["peak_growth_bytes"]["update"]
    return over <= 1.1 and peak <= 0.15, f"{over:.2f} × its FLOP ratio, memory {peak:.3f}"


TARGETS: dict[str, tuple[tuple[str, ...], Callable[[Rows], Check]]] = {
    "BERT-base, length 128, at most 0.035 with Spearman 0.9": (
        ("bert-128", "ranking"),
        _bert("bert-128"),
    ),
    "BERT-base, length 512, at most 0.035": (("bert-512", "ranking"), _bert("bert-512")),
    "memory of ten million, at most 0.002": (("memory",), _memory),
    "small ResNet, at most 0.15 with the recall of the second stage by default": (
        ("resnet",),
        _resnet,
    ),
    "small ResNet, the same with the best learning rate of each exit's head": (
        ("resnet",),
        _resnet_at_best,
    ),
    "ahead=1, at most 1.02 of the plain step": (("ahead",), _ahead),
    "Llama's shape, at most 1.1 × its FLOP ratio, memory 0.15": (("llama",), _llama),
}


def report(rows: Rows) -> int:
    """Say what holds of the rows that are there."""
    for name, (needed, check) in TARGETS.items():
        if all(one in rows for one in needed):
            passed, got = check(rows)
            print(f"{'PASS' if passed else 'MISS'}  {name}: {got}")
    return 0
