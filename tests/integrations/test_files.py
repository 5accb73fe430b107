"""A sifter's state in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sifting import Sifter
from sifting.checksums import Damaged
from sifting.integrations.files import read_state, write_state
from tests.helpers.models import Net, candidates


def test_a_state_comes_back_from_a_file_whose_folder_is_made(net: Net, tmp_path: Path) -> None:
    sifter = Sifter(net, exit="tuned", keep=0.5)
    for _ in sifter(candidates(3)):
        pass
    path = tmp_path / "deep" / "sifter.pt"
    write_state(sifter.state_dict(), path)
    assert [file.name for file in path.parent.iterdir()] == ["sifter.pt"]
    again = Sifter(net, exit="tuned", keep=0.5)
    again.load_state_dict(read_state(str(path)))
    assert again.step == 3


def test_a_file_that_is_damaged_or_holds_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sifter.pt"
    write_state({"step": 3}, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(Damaged, match=r"sifter\.pt"):
        read_state(path)
    torch.save({"code": print}, path)
    with pytest.raises(Damaged, match=r"sifter\.pt"):
        read_state(path)
