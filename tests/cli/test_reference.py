from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from sifting.cli.main import main
from sifting.cli.reference import ReferenceOptions
from sifting.exits.reference import ReferenceTable

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


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"no weights")
    out = str(tmp_path / "reference.json")
    assert main(["reference", TARGET, "--out", out, "--weights", str(weights)]) == 2
    assert "holds no state_dict of tensors alone" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "reference.json").exists()
    assert main(["reference", TARGET, "--out", out, "--arm", "sift"]) == 2
    assert "nothing is trained" in " ".join(capsys.readouterr().err.split())


def test_its_own_options_are_where_to_and_whose_weights() -> None:
    names = {field.name for field in fields(ReferenceOptions)}
    assert names == {"out", "config", "weights", "set"}
