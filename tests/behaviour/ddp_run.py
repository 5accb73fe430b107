"""Run by `torchrun` from test_ddp.py: what a trainer does on two processes, as lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[2]))


def of_trainer(folder: Path) -> dict[str, Any]:
    from tests.helpers.hf_trainer import Watched, run
    from tests.helpers.trainer_models import Texts

    options: dict[str, Any] = {"ddp_backend": "gloo", "ddp_find_unused_parameters": False}
    plain = run(folder, Watched, **options)
    kept = run(folder, sift={"keep": 1.0}, **options)
    sift = {"warmup_steps": 3, "explore": 0.25}
    options |= {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 3}
    whole = run(folder, sift=sift, data=Texts(80), **options)
    resumed = True
    if str(whole.args.device) == "cpu":
        # older transformers say cpu:0, from which torch.load reads no optimizer: the plain Trainer
        # cannot resume on two processes of a CPU either
        checkpoint = str(folder / "checkpoint-3")
        again = run(folder, sift=sift, data=Texts(80), resume=checkpoint, **options)
        resumed = again.losses == whole.losses[-len(again.losses) :]
    return {
        "kept all": kept.losses == plain.losses and kept.seen == plain.seen,
        "resumed": resumed,
        "size": 8,
        "updates": whole.state.global_step,
        "planned": whole.state.max_steps,
        "seen": whole.seen,
    }


def of_lightning(folder: Path) -> dict[str, Any]:
    from tests.helpers import lightning_runs
    from tests.helpers.lightning_runs import fit

    class Normed(lightning_runs.Net):
        """A batch norm's statistics are each process's own, and only the first one's are saved."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(16)  # type: ignore[assignment]

    lightning_runs.Net = Normed  # type: ignore[misc]
    options: dict[str, Any] = {"strategy": "ddp", "devices": 2}
    plain, _, _ = fit(folder, **options)
    kept, _, _ = fit(folder, sift={"keep": 1.0}, **options)
    whole, trainer, _ = fit(folder, sift={"explore": 0.25}, save=True, **options)
    checkpoint = folder / "step=1.ckpt"
    again, _, _ = fit(folder, sift={"explore": 0.25}, resume=checkpoint, **options)
    return {
        "kept all": kept.losses == plain.losses and kept.seen == plain.seen,
        "resumed": again.losses == whole.losses[1:],
        "size": 16,
        "updates": trainer.global_step,
        "planned": 4,
        "seen": whole.seen,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[2])
    found = {"trainer": of_trainer, "lightning": of_lightning}[sys.argv[1]](folder)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
