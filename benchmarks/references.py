"""Stronger references for `score="reducible"` on Fashion-MNIST with wrong labels, and what they keep.

    cd benchmarks
    sift train sifting.bench.tasks.fashion:NOISY_20 full --arm references:probe --evaluations 4 --out probe
    sift train sifting.bench.tasks.fashion:NOISY_20 full --arm references:trained --evaluations 4 --out trained
    python references.py trained      # how many of the kept have a wrong label, by the run's last checkpoint

`probe` is a linear map on the hidden layer of the network after warm-up, `trained` the same network
trained on the 5,000 held-out samples for 400 updates. Both learn from labels as random as those that
are trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter, TunedExit
from sifting.bench.tasks import fashion
from sifting.bench.tasks.common import classified
from sifting.model.plan import Plan
from sifting.reference import HeldOutReference, Reference

UPDATES, BATCH, RATE = 400, 64, 3e-3
LOOKED_AT = 4096
CONFIG = fashion.NOISY_20.presets["full"]


def held_out() -> list[Any]:
    return list(fashion.read(CONFIG).held_out.in_order())


class TrainedReference(Reference):
    """A network trained on held-out samples."""

    def __init__(self) -> None:
        torch.manual_seed(1234)
        self.network = fashion.network(32)
        x, y = (torch.cat(column) for column in zip(*held_out(), strict=True))
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=RATE, weight_decay=1e-2)
        for update in range(UPDATES):
            rows = torch.randint(len(y), (BATCH,))
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - update / UPDATES)
            F.cross_entropy(self.network(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        found = classified(self.network, fashion.read(CONFIG).test)
        print(f"the reference classifies {found['accuracy']:.2%} of the test set", flush=True)

    def losses(self, plan: Plan, model: nn.Module, batch: Any, ids: Sequence[Any] | None) -> Tensor:
        with torch.no_grad():
            return F.cross_entropy(self.network(batch[0]), batch[1], reduction="none")


def _sifter(model: nn.Module, reference: Reference, **options: Any) -> Sifter:
    fixed = {"exit": "last", "score": "reducible", "keep": 0.5, "explore": 0.0}
    return Sifter(model, reference=reference, **fixed, **options)


def probe(model: nn.Module, **options: Any) -> Sifter:
    return _sifter(model, HeldOutReference(held_out(), exit=TunedExit("7")), **options)


def trained(model: nn.Module, **options: Any) -> Sifter:
    with torch.random.fork_rng():
        reference = TrainedReference()
    return _sifter(model, reference, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder that kept its last checkpoint")
    last = sorted(parser.parse_args().run.glob("checkpoints/*/state.pt"))[-1]
    pixels, labels = fashion.read_files(CONFIG)[0].tensors_N
    given = fashion.with_random_labels(labels, CONFIG.random_labels)
    order = fashion.shuffled(len(given), seed=fashion.SPLIT)
    rows = order[round(len(given) * fashion.SHARE) :][:LOOKED_AT]
    x, y = fashion.ready(pixels[rows], given[rows])
    wrong = given[rows] != labels[rows]
    network = fashion.network(32)
    network.load_state_dict(torch.load(last, weights_only=True, map_location="cpu")["model"])
    exact = Sifter(network, exit="last", score="loss", keep=0.5).score((x, y))
    linear = _sifter(network, HeldOutReference(held_out())).score((x, y))
    by_network = exact - TrainedReference().losses(Plan, network, (x, y), None)  # type: ignore[arg-type]
    print(f"of {LOOKED_AT} training samples {float(wrong.float().mean()):.3f} have a wrong label")
    for name, scores in (("loss", exact), ("linear", linear), ("network", by_network)):
        kept = scores.argsort(descending=True)[: LOOKED_AT // 2]
        print(f"of the half kept by {name}: {float(wrong[kept].float().mean()):.3f}")


if __name__ == "__main__":
    main()
