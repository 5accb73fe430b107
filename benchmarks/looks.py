"""How looks at held-out samples are best joined: rules replayed on looks that were made once.

    python benchmarks/looks.py record fashion-20 cifar --seeds 0 1 --keep DIR     trains plainly, and looks
    python benchmarks/looks.py judge --keep DIR                                   every rule, on every task

Recording trains each task plainly, at its baseline's learning rate in `benchmarks/results/bench`, and keeps the
losses and scores of thousands of held-out samples at every look. Judging draws sets of as many as an autopilot
at work can afford, and asks for each rule which of them would select, and what the whole of the samples says that
this is worth. No rule trains anything, so that what selecting does to later looks is not in it.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from sifting import files
from sifting.autopilot.deciding import decide
from sifting.autopilot.looks import plan_looks
from sifting.autopilot.noted import LOOKS, Noted, pooled
from sifting.autopilot.options import PLAIN, Judged, Option
from sifting.bench.registry import find_task
from sifting.bench.running import Bench, TaskRun
from sifting.measure.learning import Progress, progress, speedup
from sifting.rng import seed_all
from sifting.training.assemble import assemble

HERE = Path(__file__).parent / "results"
EFFORT = 0.5  # share of the run's time that is looked
SETS = 64
EXPLORE, SURE = (
    0.25,
    1.3,
)  # at random among the kept, and what a step counted for at most, when these were made


def record(name: str, seed: int, keep: Path) -> None:
    """One plain run, and the looks that were made along it."""
    path = keep / f"{name}-{seed}.npz"
    if path.exists():
        return
    task = find_task(name)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = TaskRun(name, task, Bench(out=Path(place)))
        known = json.loads((HERE / "bench" / f"{name}.json").read_text())
        given = {task.rate: known["rates"]["baseline"]}
        config = replace(run.workload.with_settings(run.config, given), seed=seed, arm="auto")
        config = replace(config, evaluations=1, checkpoint_every=None)
        seed_all(seed)
        problem = run.workload.problem(config)
        engine = assemble(name, config, problem, Path(place) / "run", updates=run.length)
        pilot = engine.sifter.pilot
        assert pilot is not None
        pilot.acts, pilot.held_out.budget = False, EFFORT
        looks: list[dict[str, Any]] = []
        whole: list[int] = [0]

        def note(
            self: Noted, scorer: str, before_M: Tensor, now_M: Tensor, scores_M: Tensor
        ) -> None:
            if scorer == pilot.exit.looks and len(before_M) >= whole[0]:
                if len(before_M) > whole[0]:
                    whole[0] = len(before_M)
                if not looks or looks[-1]["step"] != pilot._done:
                    looks.append({"step": pilot._done})
                looks[-1].update(before=before_M, now=now_M, scores=scores_M)

        with mock.patch.object(Noted, "add", note):
            engine.advance(round(0.61 * run.length) + 1)
        engine.finish()
        if not looks:
            print(f"{name}, seed {seed}: no looks, since {pilot.decision.why}")
            return
        found = {
            key: np.stack([look[key].float().numpy() for look in looks])
            for key in ("before", "now", "scores")
        }
        about = {"steps": [look["step"] for look in looks], "updates": run.length}
        about |= {"batch": problem.batch, "cost": pilot.pacing.cost or 0.0}
    keep.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, about=json.dumps(about), **found)
    print(f"{name}, seed {seed}: {found['now'].shape[1]} samples, looks at {about['steps']}")


Rule = Callable[[Sequence[Progress]], Progress | None]


def added_up(looks: Sequence[Progress], *, settled: float) -> Progress | None:
    """The last two looks, and whole earlier ones until the error is small enough."""
    whole: Progress | None = None
    for number, found in enumerate(reversed(looks)):
        whole = found if whole is None else whole + found
        if number > 0 and whole.error <= settled:
            break
    return whole


RULES: dict[str, Rule] = {
    "added up": partial(added_up, settled=0.04),
    "last two": partial(added_up, settled=math.inf),
    **{f"drift {drift:g}": partial(pooled, drift=drift) for drift in (0.05, 0.08, 0.12, 0.2)},
}
OPTION = Option("input", 2)


def judged(found: Progress | None, cost: float, *, using: bool) -> Judged:
    """As the autopilot judges what it has looked at."""
    if found is None:
        return Judged(OPTION)
    if math.isinf(found.error) or math.isnan(found.share):
        return Judged(OPTION, cost, share=0.0, error=0.0, speedup=0.0, sure=1.0)
    low, value = (
        speedup(share, ratio=2, explore=EXPLORE)
        for share in (found.balance - found.error, min(found.share, 1.0))
    )
    return Judged(
        OPTION,
        cost,
        share=found.share,
        error=found.error,
        speedup=value / (1 + cost),
        sure=min(max(1.0, low), SURE),
        forgets=using and found.forgets,
    )


def follow(looks: Sequence[Progress], rule: Rule, cost: float) -> list[float]:
    """What is done from each look on: the plain steps that a step counts for, 0 where all is trained."""
    option, done = PLAIN, []
    for number in range(1, len(looks) + 1):
        found = judged(rule(looks[max(0, number - LOOKS) : number]), cost, using=option != PLAIN)
        option, _ = decide([found], option, held_out=True)
        done.append(0.0 if option == PLAIN else found.sure or 1.0)
    return done


def judge(path: Path) -> dict[str, Any]:
    """What each rule does with sets of samples, on one recorded run."""
    kept = np.load(path)
    about = json.loads(str(kept["about"]))
    before, now, scores = (torch.from_numpy(kept[key]) for key in ("before", "now", "scores"))
    samples, updates = now.shape[1], about["updates"]
    own = plan_looks(updates, batch=about["batch"], held_out=samples).samples
    cost = about["cost"]
    whole = [progress(*one, 2) for one in zip(before, now, scores, strict=True)]
    # what a step is worth from each look on: by all samples, and the progress until the next look
    worth = [
        speedup(min(one.share, 1.0) if one.told else 0.5, ratio=2, explore=EXPLORE) / (1 + cost)
        for one in (*whole[1:], whole[-1])
    ]
    starts = [step / updates for step in about["steps"]]
    lengths = [b - a for a, b in zip(starts, [*starts[1:], 1.0], strict=True)]
    drawn = torch.Generator().manual_seed(0)
    sets = [torch.randperm(samples, generator=drawn)[:own] for _ in range(SETS)]
    rules: dict[str, Any] = {}
    for name, rule in RULES.items():
        courses = [
            follow(
                [
                    progress(b[some], n[some], s[some], 2)
                    for b, n, s in zip(before, now, scores, strict=True)
                ],
                rule,
                cost,
            )
            for some in sets
        ]
        gained = [
            sum(
                part * (good - 1)
                for part, good, did in zip(lengths, worth, course, strict=True)
                if did
            )
            for course in courses
        ]
        charged = [
            sum(part * (did - 1) for part, did in zip(lengths, course, strict=True) if did)
            for course in courses
        ]
        rules[name] = {
            "select": sum(any(course) for course in courses) / SETS,
            "part": sum(
                sum(part for part, did in zip(lengths, course, strict=True) if did)
                for course in courses
            )
            / SETS,
            "worth": sum(gained) / SETS,
            "counted": sum(charged) / SETS,
        }
    return {
        "samples": samples,
        "own": own,
        "cost": cost,
        "shares": [
            [round(one.share, 3), round(one.error, 3)] if one.told else None for one in whole
        ],
        "rules": rules,
    }


def show(results: Mapping[str, Any]) -> None:
    """One line a run: of each rule, sets that select, and what that is worth by all samples."""
    print(f"{'':20}" + "".join(f"{name:>22}" for name in RULES))
    for name, found in results.items():
        cells = (found["rules"][rule] for rule in RULES)
        line = "".join(
            f"{one['select']:>7.0%} {one['part']:>5.0%} {one['worth']:>+8.1%}" for one in cells
        )
        shares = " ".join(
            "–" if one is None else f"{one[0]:.2f}±{one[1]:.2f}" for one in found["shares"]
        )
        print(f"{name:20}{line}   {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--keep", type=Path, required=True, help="folder of the looks")
    parser.add_argument("--json", type=Path, default=HERE / "looks.json")
    args = parser.parse_args()
    if args.what == "record":
        for name in args.tasks:
            for seed in args.seeds:
                record(name, seed, args.keep)
        return
    results = {path.stem: judge(path) for path in sorted(args.keep.glob("*.npz"))}
    show(results)
    files.write_json(args.json, results)


if __name__ == "__main__":
    main()
