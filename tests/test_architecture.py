"""docs/architecture.md is the architecture: its map, its way of a batch, its rules of size and place."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sifting
from sifting import Sifter
from tools import draw_map

ROOT = Path(__file__).resolve().parent.parent
PAGE = draw_map.PAGE.read_text(encoding="utf-8")
HOPS = re.findall(r"^\| \d+ \| `([\w/]+)\.py:([\w.]+)` \|", PAGE, flags=re.M)
LONGEST = 350  # lines of a file

# Folders of tests that are about no single module: behaviour of the whole, pages, generated cases.
ELSEWHERE = {"behaviour", "chaos", "docs", "fuzz"}
BEHAVIOUR = {
    "compare/test_compare.py",
    "exits/test_losses.py",
    "model/test_as_trained.py",
}


def test_the_map_is_current() -> None:
    assert draw_map.written(PAGE) == PAGE, "run python tools/draw_map.py"


def test_the_map_shows_an_import_that_goes_the_wrong_way() -> None:
    drawn = draw_map.drawing({"rng": {"cli"}, "cli": {"rng"}})
    assert drawn.splitlines()[1:] == [" 1 rng  □ ✗", " 2 cli  ● □"]


def test_every_room_and_file_is_on_the_page_once() -> None:
    for path in draw_map.sources():
        if path.name != "__init__.py":
            assert PAGE.count(f"| `{path.relative_to(draw_map.PACKAGE)}` |") == 1


def code_of(module: str, name: str) -> CodeType:
    """The code of a function by its file and qualified name."""
    found = pkgutil.resolve_name(f"sifting.{module.replace('/', '.')}:{name}")
    code: CodeType = inspect.unwrap(found).__code__
    return code


def test_the_way_of_a_batch_is_short() -> None:
    numbers = re.findall(r"^\| (\d+) \| `[\w/]+\.py:", PAGE, flags=re.M)
    assert numbers == [str(i) for i in range(1, len(HOPS) + 1)]
    assert 8 <= len(HOPS) <= 12


def test_a_batch_goes_the_way_of_the_page() -> None:
    wanted = {code_of(*hop): ":".join(hop) for hop in HOPS}
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in wanted:
            calls.append(wanted[frame.f_code])

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    sifter = Sifter(model, exit=1, score="loss", audit_every=0)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for inputs, labels in sifter(DataLoader(data, batch_size=8)):
            F.cross_entropy(model(inputs), labels).backward()
            break
    finally:
        sys.setprofile(before)
    rest = iter(calls)
    for hop in wanted.values():
        assert hop in rest, f"{hop} is not called after the hops before it; called: {calls}"


def test_no_file_is_long() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "src").glob("**/*.py")
    }
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}


def test_what_is_no_code_is_packaged_too() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^sifting = \[(.*)\]$", project, flags=re.M)
    assert listed is not None
    patterns = re.findall(r'"([^"]+)"', listed[1])
    kept = {path for pattern in patterns for path in draw_map.PACKAGE.glob(pattern)}
    others = {
        path
        for path in draw_map.PACKAGE.glob("**/*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert others == kept


def test_the_version_is_said_once() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {sifting.__version__}\n" in citation


def test_tests_stand_where_their_module_stands() -> None:
    tests = ROOT / "tests"
    lost = []
    for path in sorted(tests.glob("*/**/test_*.py")):
        place = path.relative_to(tests)
        if place.parts[0] in ELSEWHERE or place.as_posix() in BEHAVIOUR:
            continue
        folder, name = draw_map.PACKAGE / place.parent, place.stem.removeprefix("test_")
        modules = {file.stem for file in folder.glob("*.py")}
        modules |= {inner.parent.name for inner in folder.glob("*/__init__.py")}
        if name not in {*modules, "package"}:
            lost.append(place.as_posix())
    assert lost == [], "name them after the module they test, or list them in BEHAVIOUR"
