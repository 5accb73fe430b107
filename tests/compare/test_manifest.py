from __future__ import annotations

import json
from pathlib import Path

import pytest

from sifting import checksums
from sifting.compare.budget import ArmWork, parse_budget
from sifting.compare.calibration import Calibration
from sifting.compare.manifest import Manifest, make_manifest, read_manifest
from sifting.selection.schedule import Schedule
from sifting.training.config import RunConfig
from sifting.training.run_folder import RunError

FAST = {"data": 0.001, "scoring": 0.0, "auditing": 0.0}
SAME = {"forward": 0.1, "backward": 0.2, "optimizer": 0.02}
TABLES = {
    "baseline": {**FAST, **SAME},
    "random": {**FAST, **SAME, "auditing": 0.2},
    "sift": {**FAST, **SAME, "scoring": 0.05, "auditing": 0.2},
    "sift-last": {**FAST, **SAME, "scoring": 0.2, "auditing": 0.2},
}


def found(*arms: str, slower: float = 1.0) -> Calibration:
    keep = {arm: 1.0 if arm == "baseline" else 0.5 for arm in arms}
    return Calibration(
        tables={a: {k: slower * v for k, v in TABLES[a].items()} for a in arms},
        work={a: ArmWork(Schedule(keep[a]), round(32 / keep[a]), audit_every=50) for a in arms},
        batches=dict.fromkeys(arms, 32),
        same=dict.fromkeys(arms, "32 samples"),
        rounds=30,
        evaluation=1.0,
        load=(0.1, 0.2),
        doubt=dict.fromkeys(arms, 0.01),
    )


def made(budget: str, *arms: str, slower: float = 1.0, old: Manifest | None = None) -> Manifest:
    arms = arms or tuple(TABLES)
    return make_manifest(
        workload="mine:build",
        asked=budget,
        budget=parse_budget(budget),
        configs={arm: RunConfig(arm=arm) for arm in arms},
        found=found(*arms, slower=slower),
        old=old,
    )


@pytest.mark.parametrize("budget", ["baseline:1000u", "352s"])
def test_equal_time_is_fewer_updates_for_those_who_score(budget: str) -> None:
    manifest = made(budget)
    assert manifest.budget == {"kind": "seconds", "amount": pytest.approx(352.0)}
    updates = {arm: row.updates for arm, row in manifest.arms.items()}
    # an update is 0.32 s; loading 32 or 64 ms; scoring 50 or 200 ms; an audit in 50 is 4 ms each
    assert updates == {
        "baseline": 1000,
        "random": pytest.approx(352 / 0.388, abs=1),
        "sift": pytest.approx(352 / 0.438, abs=1),
        "sift-last": pytest.approx(352 / 0.588, abs=1),
    }
    assert all(351.3 < row.seconds <= 352.0001 for row in manifest.arms.values())


def test_equal_updates_and_equal_samples_are_equal_for_all() -> None:
    assert {row.updates for row in made("1000u").arms.values()} == {1000}
    assert {row.updates for row in made("3300n").arms.values()} == {103}


def test_an_arm_that_is_added_is_measured_in_the_seconds_of_then() -> None:
    old = made("baseline:1000u", "baseline", "sift")
    new = made("baseline:1000u", "baseline", "sift-last", slower=2.5, old=old)
    assert {arm: new.arms[arm] for arm in old.arms} == dict(old.arms)
    assert new.budget == old.budget
    assert new.arms["sift-last"].table == pytest.approx(TABLES["sift-last"])
    assert new.arms["sift-last"].updates == made("baseline:1000u").arms["sift-last"].updates
    assert new.calibrations[1]["scale"] == pytest.approx(0.4)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    manifest = made("1000u")
    manifest.write(tmp_path)
    again = read_manifest(tmp_path)
    assert again is not None
    assert again == manifest
    again.check(
        tmp_path,
        workload="mine:build",
        asked="1000u",
        configs={"sift": RunConfig(arm="sift", seed=5)},
    )
    with pytest.raises(
        RunError, match=r"sift: audit_every 50 → 9; workload 'mine:build' → 'other'"
    ):
        again.check(
            tmp_path,
            workload="other",
            asked="1000u",
            configs={"sift": RunConfig(arm="sift", audit_every=9)},
        )
    path = tmp_path / "comparison.json"
    text = path.read_text()
    path.write_text(text.replace("1000u", "2000u"))
    with pytest.raises(RunError, match=r"comparison\.json is not as it was written"):
        read_manifest(tmp_path)
    content = json.loads(text)
    del content["checksum"]
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"comparison\.json is damaged: it has no checksum"):
        read_manifest(tmp_path)
    path.write_text(json.dumps({**content, "format": 1}))
    with pytest.raises(RunError, match="has format 1, and this release continues with format 2"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("folder", ["../elsewhere", "/elsewhere", "..", "a/b", "", ".hidden", 3])
def test_a_folder_outside_of_the_comparison_is_refused(tmp_path: Path, folder: object) -> None:
    made("1000u").write(tmp_path)
    path = tmp_path / "comparison.json"
    content = checksums.read_json(path)
    content["arms"]["sift"]["folder"] = folder
    checksums.write_json(path, content)
    with pytest.raises(RunError, match=r"comparison\.json is damaged"):
        read_manifest(tmp_path)
    checksums.write_json(path, {**content, "arms": []})
    with pytest.raises(RunError, match=r"comparison\.json is damaged"):
        read_manifest(tmp_path)
