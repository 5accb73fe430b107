"""What the accuracy of a BERT comparison is made of: tokens hidden, left as they are, or replaced.

    python benchmarks/kinds.py RUNS $SIFT_DATA/text    # writes benchmarks/results/text-kinds.json

Of the tokens to predict, 80 % are replaced by [MASK], 10 % by another token, and 10 % are left. The
last models of a `sift compare bert small` are evaluated on the same held-out pairs as in the runs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sifting.files import write_json
from sifting.recipes import bert
from sifting.recipes.text.masking import IGNORED
from sifting.recipes.text.pairs import Pairs
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder

RESULTS = Path(__file__).resolve().parent / "results"


@torch.no_grad()
def accuracies(model: nn.Module, pairs: Pairs, *, count: int) -> dict[str, float]:
    """Accuracy of each kind of token, and how many of it there are."""
    indices = np.unique(np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(np.int64))
    right = dict.fromkeys(("hidden", "left", "replaced"), 0)
    tokens = dict(right)
    model.eval()
    for start in range(0, len(indices), 128):
        batch = pairs.batch(indices[start : start + 128], seed=bert.FIXED)
        labels, ids = batch.pop("labels"), batch["input_ids"]
        batch = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        hit = model(**batch).prediction_logits.argmax(dim=-1) == labels
        wanted, masked = labels != IGNORED, ids == pairs.masking.mask
        kinds = {
            "hidden": wanted & masked,
            "left": wanted & (ids == labels),
            "replaced": wanted & ~masked & (ids != labels),
        }
        for name, chosen in kinds.items():
            right[name] += int(hit[chosen].sum())
            tokens[name] += int(chosen.sum())
    return {name: right[name] / tokens[name] for name in right}


def main() -> None:
    """Evaluate the last model of every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("data")
    args = parser.parse_args()
    config = replace(bert.PRESETS["small"], data=args.data)
    data = bert.RECIPE.read(config)
    model = bert.RECIPE.problem(config, data).model
    dev = Pairs(data.tokens, data.dev, data.vocabulary, length=config.length, masked=config.masked)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for path in sorted(args.runs.glob("*/seed-*/run.json")):
        run, folder = read_run(path.parent), RunFolder(path.parent)
        step = folder.checkpoints.latest()
        assert step is not None, f"{folder.path} has no checkpoint"
        model.load_state_dict(folder.checkpoints.load(step)["model"])
        figures = accuracies(model, dev, count=config.dev_sequences)
        found.setdefault(run.config["arm"], {})[str(run.config["seed"])] = figures
    command = f"python benchmarks/kinds.py runs/{args.runs.name} $SIFT_DATA/text"
    write_json(RESULTS / "text-kinds.json", {"command": command, "arms": found})


if __name__ == "__main__":
    main()
