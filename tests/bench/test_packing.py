"""A task's runs in one file, and back."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sifting import checksums
from sifting.bench import packing
from sifting.bench.packing import pack, packed_path, unpack
from sifting.bench.registry import TASKS
from sifting.bench.results import result_of
from sifting.bench.running import Bench, TaskRun
from sifting.cli.bench import main
from sifting.compare import calibration
from sifting.training.run_folder import RunError, read_run


@pytest.fixture(scope="module")
def quick() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MOST", 3), ("FEWEST", 2), ("FIRST", 1)):
            patch.setattr(calibration, name, value)
        yield


def _task(out: Path, *arms: str) -> TaskRun:
    bench = Bench(out, size="smoke", clock="cpu", arms=arms, seeds=2, tune="none")
    return TaskRun("digits", TASKS["digits"], bench, command="sift bench digits")


@pytest.fixture(scope="module")
def ran(quick: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    assert _task(out, "memory").run(Console(quiet=True)) is None
    return out


@pytest.fixture
def packed(ran: Path, tmp_path: Path) -> Path:
    return pack(ran / "digits", tmp_path / "results")


def _ids(folder: Path) -> dict[str, str]:
    return {
        path.parent.relative_to(folder).as_posix(): json.loads(path.read_text())["id"]
        for path in folder.rglob("run.json")
    }


def test_what_was_measured_can_be_judged_again(ran: Path, packed: Path, tmp_path: Path) -> None:
    folder = unpack(packed, tmp_path / "back")
    assert result_of(folder) == result_of(ran / "digits")
    assert _ids(folder) == _ids(ran / "digits")
    assert not list(folder.rglob("audits.jsonl"))


def test_whose_folders_they_were_is_left_out(ran: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied" / "digits"
    shutil.copytree(ran / "digits", copied)
    run = next(copied.glob("compared/memory/seed-0"))
    environment = json.loads((run / "environment.json").read_text())
    environment["command"] = ["/usr/bin/sift", "bench", "digits", "--out", "/home/somebody/runs"]
    (run / "environment.json").write_text(json.dumps(environment))
    about = checksums.read_json(run / "run.json")
    about["files"]["environment.json"] = checksums.digest_of_file(run / "environment.json")
    checksums.write_json(run / "run.json", about)
    folder = unpack(pack(copied, tmp_path / "results"), tmp_path / "back")
    found = read_run(folder / "compared" / "memory" / "seed-0").environment
    assert found["command"] == ["sift", "bench", "digits", "--out", "runs"]
    assert found["versions"] == environment["versions"]


def test_an_arm_is_added_and_what_is_over_stays(packed: Path, tmp_path: Path, quick: None) -> None:
    folder = unpack(packed, tmp_path / "back")
    before = _ids(folder)
    assert _task(tmp_path / "back", "memory", "sift-last").run(Console(quiet=True)) is None
    after = _ids(folder)
    assert {place: after[place] for place in before} == before
    assert {place.split("/")[1] for place in after.keys() - before.keys()} == {"sift-last"}
    found = result_of(folder)
    assert found is not None
    assert set(found["arms"]) == {"baseline", "random", "memory", "sift-last"}


def test_a_run_under_way_is_left_out(packed: Path, tmp_path: Path) -> None:
    folder = unpack(packed, tmp_path / "back")
    path = next(folder.glob("compared/memory/seed-0")) / "run.json"
    about = checksums.read_json(path)
    checksums.write_json(path, {**about, "status": "stopped"})
    again = unpack(pack(folder, tmp_path / "again"), tmp_path / "there")
    assert len(_ids(again)) == len(_ids(folder)) - 1


def test_nothing_that_is_there_is_written_over(packed: Path, tmp_path: Path) -> None:
    unpack(packed, tmp_path / "back")
    with pytest.raises(RunError, match="digits is there already"):
        unpack(packed, tmp_path / "back")


def _write(path: Path, **changes: Any) -> Path:
    """A packed file with other content, and a checksum that fits it."""
    content = json.loads(lzma.decompress(path.read_bytes()))
    content = {**{k: v for k, v in content.items() if k != checksums.NAME}, **changes}
    content[checksums.NAME] = checksums.digest_of(content)
    path.write_bytes(lzma.compress(json.dumps(content).encode()))
    return path


@pytest.mark.parametrize(
    "name",
    [
        "../run.json",
        "/tmp/run.json",
        "compared/../../run.json",
        "a//run.json",
        "compared/x.py",
        "compared/a b/run.json",
        "",
        "./run.json",
        "a/b/c/d/e/f/run.json",
    ],
)
def test_names_that_lead_elsewhere_are_refused(packed: Path, tmp_path: Path, name: str) -> None:
    _write(packed, files={"bench.json": "{}", name: "{}"})
    with pytest.raises(RunError, match="is no file of a task"):
        unpack(packed, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_damage_is_named_and_nothing_is_left(packed: Path, tmp_path: Path) -> None:
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-20])
    with pytest.raises(RunError, match=r"digits\.json\.xz is damaged"):
        unpack(packed, tmp_path / "back")
    packed.write_bytes(b"nothing of ours")
    with pytest.raises(RunError, match=r"digits\.json\.xz is damaged"):
        unpack(packed, tmp_path / "back")
    packed.write_bytes(whole)
    files = json.loads(lzma.decompress(whole))["files"]
    place = next(name for name in files if name.endswith("metrics.jsonl"))
    _write(packed, files={**files, place: files[place].replace("1", "2", 1)})
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        unpack(packed, tmp_path / "back")
    assert not list((tmp_path / "back").iterdir())
    _write(packed, task="fashion")
    with pytest.raises(RunError, match="is of task 'fashion', not of 'digits'"):
        unpack(packed, tmp_path / "back")
    _write(packed, task="digits", format=9)
    with pytest.raises(RunError, match="has format 9"):
        unpack(packed, tmp_path / "back")


def test_no_more_is_unpacked_than_runs_can_be(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_BYTES", 1000)
    with pytest.raises(RunError, match="holds more than 1,000 bytes"):
        unpack(packed, tmp_path / "back")


def test_the_command_packs_and_unpacks(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, back = tmp_path / "results", tmp_path / "back"
    assert main(["pack", "all", "--out", str(ran), "--results", str(results)]) == 0
    assert packed_path(results, "digits").exists()
    assert main(["unpack", "all", "--out", str(back), "--results", str(results)]) == 0
    assert read_run(back / "digits" / "compared" / "memory" / "seed-1").status == "finished"
    assert main(["unpack", "fashion", "--out", str(back), "--results", str(results)]) == 2
    assert "there is nothing to unpack of 'fashion'" in capsys.readouterr().err
    assert main(["pack", "all", "--out", str(tmp_path), "--results", str(results)]) == 2
    assert "has nothing to pack" in capsys.readouterr().err
