"""`comparison.json`: what a comparison was started with, its budget and its table of costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sifting import checksums
from sifting.compare.budget import RunBudget
from sifting.compare.calibration import Calibration
from sifting.compare.turns import PlannedRun
from sifting.measure.clocks import UPDATE, of_update
from sifting.measure.stopwatch import Clock
from sifting.training.arms import find_arm
from sifting.training.config import OPERATIONAL, RunConfig, plain_settings
from sifting.training.run_folder import RunError

FORMAT = 2  # with a checksum
NAME = "comparison.json"


def plain(config: RunConfig) -> dict[str, Any]:
    """The settings of a config that all its runs share, as JSON has them."""
    return {
        key: value
        for key, value in plain_settings(config).items()
        if key not in ("arm", "seed", "updates")
    }


def folder_name(arm: str, taken: Mapping[str, str]) -> str:
    """A folder for an arm that no other arm has.

    >>> folder_name("mine.selectors:half", {})
    'mine.selectors-half'
    >>> folder_name("a:b", {"a/b": "a-b"})
    'a-b-2'
    """
    name = base = re.sub(r"[^A-Za-z0-9._@-]+", "-", arm).lstrip(".-") or "arm"
    number = 1
    while name in {folder for other, folder in taken.items() if other != arm}:
        number += 1
        name = f"{base}-{number}"
    return name


@dataclass(frozen=True)
class PlannedArm:
    """An arm of a comparison.

    Attributes:
        folder: where its runs are.
        settings: its config, arm and seed aside.
        table: seconds of each operation.
        same: what it shares with arms whose update is the same work.
        updates: that its budget allows.
        seconds: of reference time that they take.
    """

    folder: str
    settings: Mapping[str, Any]
    table: Mapping[str, float]
    same: str
    updates: int
    seconds: float


@dataclass(frozen=True)
class Manifest:
    """The content of `comparison.json`.

    Attributes:
        workload: what is trained.
        asked: the budget as the user wrote it.
        budget: kind and amount that every arm has.
        arms: by name.
        calibrations: one for each time that arms were measured: which, rounds, load, scale.
        evaluation: seconds of one evaluation.
        checkpoint_bytes: of one checkpoint; 0 where it is not known.
    """

    workload: str
    asked: str
    budget: Mapping[str, Any]
    arms: Mapping[str, PlannedArm]
    calibrations: tuple[Mapping[str, Any], ...]
    evaluation: float
    checkpoint_bytes: int = 0

    @property
    def clock(self) -> Clock:
        """That its table was measured by."""
        return self.calibrations[0].get("clock", "wall") if self.calibrations else "wall"

    def write(self, out: Path) -> None:
        """Write the file."""
        content = asdict(self)
        named = {"format": FORMAT, "target": content.pop("workload")}  # its name in the file
        try:
            out.mkdir(parents=True, exist_ok=True)
            checksums.write_json(out / NAME, {**named, **content})
        except OSError as error:
            raise RunError(f"cannot write a comparison to {out}: {error}") from error

    def check(
        self, out: Path, *, workload: str, asked: str, configs: Mapping[str, RunConfig]
    ) -> None:
        """Raise unless the settings are those that the comparison was started with."""
        now: dict[str, Any] = {"workload": workload, "budget": asked}
        then: dict[str, Any] = {"workload": self.workload, "budget": self.asked}
        for arm, config in configs.items():
            if arm in self.arms:
                now.update({f"{arm}: {key}": value for key, value in plain(config).items()})
                old = self.arms[arm].settings
                then.update({f"{arm}: {key}": value for key, value in old.items()})
        changed = [
            key
            for key in sorted({*now, *then})
            if now.get(key) != then.get(key) and key.rpartition(": ")[2] not in OPERATIONAL
        ]
        if changed:
            shown = "; ".join(f"{key} {then.get(key)!r} → {now.get(key)!r}" for key in changed)
            raise RunError(
                f"{out} holds a comparison with other settings ({shown}): continue with its own, or choose "
                "another folder"
            )

    def planned_run(self, out: Path, config: RunConfig) -> PlannedRun:
        """The run of an arm and a seed."""
        row = self.arms[config.arm]
        path = out / row.folder / f"seed-{config.seed}"
        return PlannedRun(config, path, row.updates, row.seconds, self.budget, row.table)


def read_manifest(out: Path) -> Manifest | None:
    """The manifest of a folder; None where no comparison was started there."""
    path = out / NAME
    if not path.exists():
        return None
    try:
        content = checksums.read_json(path, required=False)
        if content.get("format") != FORMAT:
            raise RunError(
                f"{path} has format {content.get('format')!r}, and this release continues with format {FORMAT}: "
                "finish the comparison with the release it was started with, or choose another folder"
            )
        content = checksums.read_json(path)
        for arm, row in content["arms"].items():
            if row["folder"] != folder_name(row["folder"], {}):
                raise ValueError(f"arm {arm[:80]!r} has the folder {row['folder'][:80]!r}")
        return Manifest(
            workload=content["target"],
            asked=content["asked"],
            budget=content["budget"],
            arms={arm: PlannedArm(**row) for arm, row in content["arms"].items()},
            calibrations=tuple(content["calibrations"]),
            evaluation=float(content["evaluation"]),
            checkpoint_bytes=int(content.get("checkpoint_bytes", 0)),
        )
    except checksums.Damaged as error:
        raise RunError(str(error)) from error
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {type(error).__name__} {error}") from error


def make_manifest(
    *,
    workload: str,
    asked: str,
    budget: RunBudget,
    configs: Mapping[str, RunConfig],
    found: Calibration,
    seeds: int = 1,
    old: Manifest | None = None,
) -> Manifest:
    """Plan the arms by a calibration, beside those that an older manifest holds.

    Args:
        workload: what is trained.
        asked: the budget as the user wrote it.
        budget: the same, parsed.
        configs: settings of the arms that were measured, the baseline's among them.
        found: what was measured.
        seeds: of each arm.
        old: manifest to add to. Its seconds are kept: what was measured now is scaled by how long
            the baseline's update took then and now.
    """
    scale = 1.0
    tables = {arm: dict(table) for arm, table in found.tables.items()}
    if old is not None:
        then, now = (of_update(t["baseline"]) for t in (_tables(old), tables))
        scale = then / now
        tables = {a: {k: v * scale for k, v in t.items()} for a, t in tables.items()}
        known = {row.same: row.table for row in old.arms.values()}
        for arm, table in tables.items():
            same = known.get(found.same[arm], {})
            table.update({k: same[k] for k in UPDATE if k in same})
        tables = {arm: table for arm, table in tables.items() if arm not in old.arms}
    amount = budget.amount
    if old is not None:
        amount = float(old.budget["amount"])
    elif budget.of_baseline:
        updates = int(budget.amount)
        amount = found.work["baseline"].seconds(tables["baseline"], updates)
    elif budget.of_all:
        amount = _share_of_all(budget.amount, configs, seeds, found.evaluation)
    kind = "seconds" if budget.of_baseline else budget.kind
    arms = dict(old.arms) if old is not None else {}
    for arm, table in tables.items():
        work, config = found.work[arm], configs[arm]
        allowed = amount * find_arm(arm).share
        if kind == "seconds":
            updates = work.affordable(table, allowed)
        else:
            each = found.batches[arm] * config.accumulate if kind == "samples" else 1
            updates = int(allowed + 1e-9) // each
        if updates < config.evaluations:
            raise ValueError(_too_small(asked, arm, updates, config.evaluations))
        folder = folder_name(arm, {name: row.folder for name, row in arms.items()})
        seconds = work.seconds(table, updates)
        arms[arm] = PlannedArm(folder, plain(config), table, found.same[arm], updates, seconds)
    calibration = {
        "arms": list(tables),
        "rounds": found.rounds,
        "load": list(found.load),
        "doubt": {arm: found.doubt[arm] for arm in tables},
        "scale": scale,
        "clock": found.clock,
    }
    return Manifest(
        workload=workload,
        asked=asked,
        budget={"kind": kind, "amount": amount},
        arms=arms,
        calibrations=(*(old.calibrations if old is not None else ()), calibration),
        evaluation=old.evaluation if old is not None else found.evaluation,
        checkpoint_bytes=found.checkpoint_bytes,
    )


def with_evaluations(run: PlannedRun, seconds: float) -> PlannedRun:
    """The run, its evaluations counted in its time."""
    return replace(run, seconds=run.seconds + run.config.evaluations * seconds)


def _tables(manifest: Manifest) -> dict[str, Mapping[str, float]]:
    return {arm: row.table for arm, row in manifest.arms.items()}


def _share_of_all(
    total: float, configs: Mapping[str, RunConfig], seeds: int, evaluation: float
) -> float:
    """Seconds that every run has for its updates, if all runs together are to take so many."""
    evaluations = seeds * evaluation * sum(config.evaluations for config in configs.values())
    each = (total - evaluations) / (seeds * len(configs))
    if each <= 0:
        raise ValueError(
            f"total={total:g}s is less than the {evaluations:.0f} s that evaluations alone take: give more, "
            "or lower --evaluations"
        )
    return each


def _too_small(asked: str, arm: str, updates: int, evaluations: int) -> str:
    if updates < 1:
        return f"budget={asked!r} is not enough for one update of arm {arm!r}: give more"
    return (
        f"budget={asked!r} is {updates} updates of arm {arm!r}, fewer than its {evaluations} evaluations: "
        "give more, or lower --evaluations"
    )
