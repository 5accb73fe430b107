from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sifting.training.checkpoints import Found
from sifting.training.run_folder import RunError, read_attached, read_run
from sifting.training.run_writer import RunFolder


def make(path: Path) -> RunFolder:
    folder = RunFolder.create(path / "run", config={"seed": 1})
    for step in range(1, 6):
        folder.log({"kind": "train", "step": step, "loss": 1 / step})
    return folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert read_run(folder.path).status == "running"
    folder.finish("finished", {"accuracy": 0.5})
    run = read_run(folder.path)
    assert (run.status, run.config, run.summary) == ("finished", {"seed": 1}, {"accuracy": 0.5})
    assert [line["step"] for line in run.metrics] == [1, 2, 3, 4, 5]
    assert run.environment["versions"]["torch"] == torch.__version__
    assert not list(folder.path.rglob("*.part"))


def test_a_line_cut_off_at_the_end_is_left_out_and_one_in_the_middle_is_damage(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path)
    log = folder.path / "metrics.jsonl"
    log.write_text(log.read_text() + '{"kind": "tra')
    with pytest.warns(UserWarning, match="cut off"):
        assert len(read_run(folder.path).metrics) == 5
    log.write_text('{"broken\n' + log.read_text())
    with pytest.raises(RunError, match=r"metrics.jsonl, line 1, is damaged"):
        read_run(folder.path)


@pytest.mark.parametrize("line", ["[" * 200_000, "7", "[]", '{"step": ' + "9" * 5000 + "}"])
def test_a_line_that_is_no_object_or_too_deep_is_damage(tmp_path: Path, line: str) -> None:
    folder = make(tmp_path)
    log = folder.path / "metrics.jsonl"
    log.write_text(f"{log.read_text()}{line}\n{{}}\n")
    with pytest.raises(RunError, match=r"metrics.jsonl, line 6, is damaged"):
        read_run(folder.path)


def test_a_shortened_log_of_a_run_that_is_over_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.finish("finished", {"accuracy": 0.5})
    log = folder.path / "metrics.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(RunError, match=r"metrics\.jsonl was shortened"):
        read_run(folder.path)


def test_every_file_is_held_against_its_checksum(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.attach("reference.json", {"forward": 0.5})
    folder.finish("finished", {"accuracy": 0.5})
    assert read_attached(folder.path, "reference.json") == {"forward": 0.5}
    assert read_attached(folder.path, "other.json") is None
    for name in ("run.json", "config.json", "environment.json", "summary.json", "reference.json"):
        file = folder.path / name
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b"5", b"6").replace(b"1", b"2").replace(b"2.", b"3."))
        with pytest.raises(RunError, match=name):
            read_run(folder.path) and read_attached(folder.path, name)
        file.unlink()
        with pytest.raises(RunError, match=name):
            read_run(folder.path) and read_attached(folder.path, name)
        file.write_bytes(whole)
    read_run(folder.path)


def test_a_run_of_the_first_format_is_read_and_not_gone_on_with(tmp_path: Path) -> None:
    for name, content in [
        ("run.json", {"format": 1, "status": "stopped"}),
        ("config.json", {"seed": 1}),
        ("environment.json", {}),
    ]:
        (tmp_path / name).write_text(json.dumps(content))
    assert read_run(tmp_path).config == {"seed": 1}
    with pytest.raises(RunError, match="is a run of format 1"):
        RunFolder.reopen(tmp_path, config={"seed": 1}, found=Found())
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "status": "finished"}))
    with pytest.raises(RunError, match=r"summary\.json cannot be read"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": 2, "status": "stopped"}))
    with pytest.raises(RunError, match=r"run\.json is damaged: it has no checksum"):
        read_run(tmp_path)


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path)
    log = folder.path / "metrics.jsonl"
    log.write_text(log.read_text() + "[1, 2]\n")
    with pytest.raises(RunError, match="line 6, is damaged: it holds no JSON object"):
        read_run(folder.path)


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: run.json cannot be read"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(RunError, match="has format 99; this release reads 1 and 2"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("[")
    with pytest.raises(RunError, match="is damaged"):
        read_run(tmp_path)
