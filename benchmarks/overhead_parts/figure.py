"""The trade-off of scoring less: cost against how well it still ranks, as a figure."""

from __future__ import annotations

import json
from pathlib import Path

from overhead_parts.timing import RESULTS

PLACE = Path(__file__).parent.parent.parent / "docs" / "figures" / "scoring-less.svg"
GOAL = (0.035, 0.9)  # at most this cost, at least this correlation


def draw(results: Path = RESULTS / "limits.json", place: Path = PLACE) -> None:
    """Draw every way of scoring BERT-base at length 128 that was measured."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "sifting"
    from matplotlib import pyplot

    found = json.loads(results.read_text(encoding="utf-8"))
    costs, quality = found["bert-128"]["cost"], found["ranking"]["lengths"]["128"]
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    names = sorted(costs, key=lambda name: costs[name])
    axes.axvline(GOAL[0], linestyle=":", color="grey", linewidth=1)
    axes.axhline(GOAL[1], linestyle=":", color="grey", linewidth=1)
    for number, name in enumerate(names, start=1):
        x, y = costs[name], quality[name]["as_before"]["mean"]
        axes.plot(x, y, "o", color="C0", markersize=4)
        axes.annotate(str(number), (x, y), textcoords="offset points", xytext=(4, 3), fontsize=8)
    said = "\n".join(f"{number}  {name}" for number, name in enumerate(names, start=1))
    axes.text(1.02, 1, said, transform=axes.transAxes, fontsize=8, verticalalignment="top")
    axes.set_xlabel("scoring 2n candidates ÷ update on n (processor time, BERT-base, length 128)")
    axes.set_ylabel("Spearman with exit 1 as it is")
    axes.set_xlim(left=0)
    figure.savefig(place, metadata={"Date": None})
