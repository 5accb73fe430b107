from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from sifting import checksums
from sifting.checksums import Damaged, Growing

CONTENT = {"format": 2, "name": "\u00fc", "numbers": [1.5, float("nan"), 10**20], "none": None}


def flipped(source: bytes, bit: int) -> bytes:
    changed = bytearray(source)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_flipped_bit_of_a_json_file_is_harmless_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    checksums.write_json(path, CONTENT)
    source, refused = path.read_bytes(), 0
    sound = str(checksums.read_json(path))
    for bit in range(0, 8 * len(source), 7):
        path.write_bytes(flipped(source, bit))
        try:
            assert str(checksums.read_json(path)) == sound  # white space, or the case of \\u00FC
        except Damaged:
            refused += 1
    assert refused > len(source)


@pytest.mark.parametrize("source", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"{}"])
def test_what_is_no_json_object_of_ours_is_named(source: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(source)
    with pytest.raises(Damaged, match=r"run\.json is damaged"):
        checksums.read_json(path)


def test_a_file_without_a_checksum_is_read_only_where_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"format": 1}))
    assert checksums.read_json(path, required=False) == {"format": 1}
    with pytest.raises(Damaged, match="has no checksum"):
        checksums.read_json(path)


class TestStates:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "state.pt"
        checksums.write_state(path, {"w": torch.arange(5.0), "n": 3})
        return path

    def test_torch_reads_it_too(self, path: Path) -> None:
        assert checksums.read_state(path)["w"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert torch.load(path, weights_only=True)["n"] == 3

    def test_every_kind_of_damage_is_refused_by_name(self, path: Path) -> None:
        source, rng = path.read_bytes(), random.Random(0)
        cases = [flipped(source, rng.randrange(8 * len(source))) for _ in range(200)]
        cases += [source[: rng.randrange(len(source))] for _ in range(50)]
        cases += [b"", source + b"\n", b"junk", source[: -checksums.TRAILER]]
        for case in cases:
            path.write_bytes(case)
            with pytest.raises(Damaged, match=r"state\.pt"):
                checksums.read_state(path)

    def test_code_is_not_run_and_torch_advice_to_run_it_not_relayed(self, path: Path) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return print, ("never",)

        checksums.write_state(path, {"x": Evil()})
        with pytest.raises(Damaged, match="it was not loaded") as caught:
            checksums.read_state(path)
        assert "weights_only" not in str(caught.value)


class TestLogs:
    def test_what_is_shortened_lengthened_or_changed_is_named(self, tmp_path: Path) -> None:
        path, log = tmp_path / "metrics.jsonl", Growing()
        for line in (b"one\n", b"two\n"):
            with path.open("ab") as file:
                file.write(line)
            log.add(line)
        said = log.said()
        checksums.check_log(path, said, whole=True)
        path.write_bytes(b"one\ntwo\nthree\n")
        checksums.check_log(path, said, whole=False)
        for content, whole, why in [
            (b"one\ntwo\nthree\n", True, "was lengthened"),
            (b"one\n", False, "was shortened: it has 4 bytes, and 8"),
            (b"one\ntwx\n", False, "is not as it was written"),
        ]:
            path.write_bytes(content)
            with pytest.raises(Damaged, match=rf"metrics\.jsonl {why}"):
                checksums.check_log(path, said, whole=whole)
        path.unlink()
        with pytest.raises(Damaged, match="shortened"):
            checksums.check_log(path, said, whole=False)
        with pytest.raises(Damaged, match="recorded of"):
            checksums.check_log(path, {"bytes": "8"}, whole=False)

    def test_what_somebody_else_appends_is_taken_in(self, tmp_path: Path) -> None:
        path, log = tmp_path / "audits.jsonl", Growing()
        log.catch_up(path)
        path.write_bytes(b"a\n")
        log.catch_up(path)
        path.write_bytes(b"a\nb\n")
        log.catch_up(path)
        checksums.check_log(path, log.said(), whole=True)
