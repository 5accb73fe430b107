"""Pairs from arrays and from a run's files, whole or damaged."""

import json

import numpy as np
import pytest

from sifting.theory import Pairs, read_pairs


def write(folder, *lines):
    (folder / "audits.jsonl").write_bytes(b"".join(lines))
    return folder


def line(step=0, early=(0.5, 0.25), exact=(0.75, 0.125), **other):
    record = {"step": step, "early": list(early), "exact": list(exact)} | other
    return json.dumps(record).encode() + b"\n"


def test_one_batch_a_matrix_and_a_list_of_batches():
    one = Pairs.of([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    assert [e.tolist() for e in one.early] == [[1, 2, 3]]
    assert [f.tolist() for f in one.exact] == [[1, 2, 4]]
    assert len(Pairs.of(np.ones((4, 3)), np.ones((4, 3))).early) == 4
    ragged = Pairs.of([np.ones(3), np.ones(2)], [np.ones(3), np.zeros(2)])
    assert [e.size for e in ragged.early] == [3, 2]
    assert ragged.steps == (0, 1)
    assert repr(ragged) == "Pairs(2 batches, 5 pairs)"


@pytest.mark.parametrize(
    ("early", "exact", "message"),
    [
        ([1.0, 2.0], [1.0], r"batch 0 has \(2,\) early and \(1,\) exact"),
        (np.ones((2, 3)), np.ones((3, 3)), "early has 2 batches and exact 3"),
        ([1.0, np.nan], [1.0, 1.0], r"early\[1\] = nan"),
        ([1.0, 1.0], [1.0, -0.5], r"exact\[0\]\[1\] = -0.5, but .* >= 0"),
        ([], [], "not empty"),
        (np.ones((2, 2, 2)), np.ones((2, 2, 2)), "must be a vector"),
    ],
)
def test_wrong_arrays_are_named(early, exact, message):
    with pytest.raises(ValueError, match=message):
        Pairs.of(early, exact)


def test_folder_and_file_read_alike_and_other_keys_are_ignored(tmp_path):
    write(tmp_path, line(10, rank=3, note="x"), b"\n", line(20, early=[1, 2, 3], exact=[0, 0, 1]))
    for path in (tmp_path, str(tmp_path), tmp_path / "audits.jsonl"):
        pairs = read_pairs(path)
        assert pairs.steps == (10, 20)
        assert pairs.early[0].tolist() == [0.5, 0.25]
        assert pairs.exact[1].tolist() == [0, 0, 1]


@pytest.mark.parametrize("cut", [1, 9, 20, -2])
def test_a_last_line_cut_off_is_skipped_with_a_warning(tmp_path, cut):
    write(tmp_path, line(1), line(2)[:cut])
    with pytest.warns(UserWarning, match=r"audits.jsonl, line 2 is cut off"):
        assert read_pairs(tmp_path).steps == (1,)


def test_a_last_line_cut_within_a_character_is_skipped_too(tmp_path):
    whole = '{"note": "é"}'.encode()
    write(tmp_path, line(1), whole[: whole.index(b"\xc3") + 1])
    with pytest.warns(UserWarning, match="line 2 is cut off"):
        read_pairs(tmp_path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"step": 2, "ear\n', "line 2 is damaged"),
        (b"[" * 200_000 + b"\n", "line 2 is damaged"),
        (b"[1, 2]\n", "line 2 must be an object with `early` and `exact`"),
        (b'{"step": 2, "early": [1]}\n', "line 2 must be an object"),
        (line(early=[1, 2, 3]), "line 2: batch 0 has"),
        (line(exact=[1, float("nan")]), r"line 2: exact\[1\] = nan"),
        (line(exact=[1, -1]), r"line 2: .*= -1, but"),
        (line(early=["a", "b"]), "line 2: early must be a number"),
        (line(early=[[1, 2]], exact=[[1, 2]]), None),
        (line(early=[[1, 2], [3, 4]], exact=[[1, 2], [3, 4]]), "line 2: .*flat lists"),
    ],
)
def test_damage_elsewhere_raises_naming_file_and_line(tmp_path, bad, message):
    write(tmp_path, line(1), bad, line(3))
    if message is None:  # one batch in one list too many is still one batch
        assert len(read_pairs(tmp_path).early) == 3
        return
    with pytest.raises(ValueError, match=rf"audits\.jsonl, {message}"):
        read_pairs(tmp_path)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"audits\.jsonl does not exist"):
        read_pairs(tmp_path)
    write(tmp_path, b"\n\n")
    with pytest.raises(ValueError, match="holds no complete line"):
        read_pairs(tmp_path)
    write(tmp_path, line(1)[:5])
    with pytest.warns(UserWarning, match="cut off"), pytest.raises(ValueError, match="no complete"):
        read_pairs(tmp_path)
