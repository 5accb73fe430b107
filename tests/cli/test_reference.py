from __future__ import annotations

import os
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from sifting.cli.main import main
from sifting.cli.reference import ReferenceOptions
from sifting.exits.reference import ReferenceTable
from sifting.training.locks import locked

TARGET = "tests.helpers.problems:build"


def test_a_file_of_losses_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "reference.json"
    assert main(["reference", TARGET, "--out", str(out)]) == 0
    table = ReferenceTable.load(out)
    assert bool(table.losses_N.isfinite().all())
    assert f"{len(table)} losses of {TARGET}, seed 0" in "".join(
        capsys.readouterr().out.split("\n")
    )
    assert main(["reference", TARGET, "--out", str(tmp_path / "other.json"), "--seed", "1"]) == 0
    other = ReferenceTable.load(tmp_path / "other.json")
    assert not torch.equal(other.losses_N, table.losses_N)  # of another initial model


def test_it_is_weighed_as_asked_and_needs_no_data_to_judge_by(tmp_path: Path) -> None:
    out = tmp_path / "reference.json"
    found = []
    for words, said in (([], "MeanOfTokens()"), (["--tokens", "sum"], "SumOfTokens()")):
        target = "tests.helpers.trl_sft:to_ask"
        assert main(["reference", target, "--out", str(out), *words]) == 0
        found.append(ReferenceTable.load(out))
        assert found[-1].tokens == said
    assert bool((found[1].losses_N > found[0].losses_N).all())


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"no weights")
    out = str(tmp_path / "reference.json")
    assert main(["reference", TARGET, "--out", out, "--weights", str(weights)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "weights.pt holds no state_dict of tensors alone" in said
    assert "weights_only" not in said, "advice to run what is in it"
    assert main(["reference", TARGET, "--out", out, "--weights", str(tmp_path / "none.pt")]) == 2
    assert "none.pt cannot be read: No such file" in " ".join(capsys.readouterr().err.split())
    torch.save({"other": torch.zeros(3)}, weights)
    assert main(["reference", TARGET, "--out", out, "--weights", str(weights)]) == 2
    assert "weights.pt is not of this model" in " ".join(capsys.readouterr().err.split())
    for wrong in (tmp_path, tmp_path / "absent" / "reference.json"):
        assert main(["reference", TARGET, "--out", str(wrong)]) == 2
        assert "that is a folder, or its folder does not exist" in " ".join(
            capsys.readouterr().err.split()
        )
    assert not (tmp_path / "reference.json").exists()
    assert main(["reference", TARGET, "--out", out, "--arm", "sift"]) == 2
    assert "nothing is trained" in " ".join(capsys.readouterr().err.split())
    nowhere = str(tmp_path / "nowhere" / "reference.json")
    assert main(["reference", TARGET, "--out", nowhere]) == 2
    assert "its folder does not exist" in " ".join(capsys.readouterr().err.split())


def test_its_own_options_are_where_to_and_whose_weights() -> None:
    names = {field.name for field in fields(ReferenceOptions)}
    assert names == {"out", "config", "weights", "tokens", "set"}


def test_a_folder_that_is_gone_in_the_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "there" / "reference.json"
    out.parent.mkdir()

    def losses(*args: object, **options: object) -> ReferenceTable:
        shutil.rmtree(out.parent)
        return ReferenceTable(torch.zeros(2))

    monkeypatch.setattr("sifting.cli.reference.reference_losses", losses)
    assert main(["reference", TARGET, "--out", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "reference.json: it cannot be written: No such file" in said


def test_the_second_process_at_a_file_is_refused_by_the_name_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    with locked(tmp_path, file=out.name):
        assert main(["reference", TARGET, "--out", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"found.json is in use by process {os.getpid()}" in said
    assert not out.exists()
