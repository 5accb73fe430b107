"""docs/architecture.md is the architecture: its map, its way of a batch, its rules of size and place."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
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
FACADE = 300  # lines of `Sifter` that it has to stay below

# Folders of tests that no single module stands behind, and why.
ELSEWHERE = {
    "behaviour": "what the library does as a whole, on real architectures, trainers and processes",
    "chaos": "runs that are killed, files that are damaged",
    "docs": "the pages of the documentation",
    "fuzz": "generated cases by the hundred thousand",
}
# Tests of the repository rather than of a module, and what each is about.
REPOSITORY = {
    "test_architecture.py": "where files stand",
    "test_benchmarks.py": "the folder benchmarks",
    "test_examples.py": "the folder examples",
    "test_imports.py": "who imports whom",
    "test_readme.py": "the README",
}
# Modules without a test file of their own, and why.
UNTESTED = {"_version.py": "a constant, which `test_the_version_is_said_once` holds"}
TESTS = ROOT / "tests"


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


def test_the_facade_is_short() -> None:
    source = (draw_map.PACKAGE / "sifter.py").read_text(encoding="utf-8")
    (facade,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    assert facade.end_lineno is not None
    assert facade.end_lineno - facade.lineno + 1 < FACADE


def test_exits_are_equals() -> None:
    """What an exit is asked is in its protocol: only among exits is one asked what class it has."""
    asked = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in draw_map.sources()
        if path.parent.name != "exits"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("isinstance", "issubclass", "type")
        and re.search(r"\w+Exit\b", " ".join(map(ast.unparse, node.args[1:])))
    ]
    assert asked == []


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


def mirror_of(module: Path) -> Path:
    """Where the tests of a module stand, as seen from `tests`; a package's are in test_package.py."""
    name = "package" if module.stem == "__init__" else module.stem.lstrip("_")
    return module.parent / f"test_{name}.py"


def modules() -> list[Path]:
    return [path.relative_to(draw_map.PACKAGE) for path in draw_map.sources()]


def reached(path: Path) -> set[str]:
    """The modules that a file imports, or from which something that it imports comes."""
    return {
        home
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sifting")
        for alias in node.names
        for home in (str(node.module), home_of(str(node.module), alias.name))
    }


def home_of(module: str, name: str) -> str:
    """The module that a name comes from which is imported from a module, or from a package."""
    folder = ROOT / "src" / module.replace(".", "/")
    if (folder / f"{name}.py").exists() or not (folder / "__init__.py").exists():
        return f"{module}.{name}" if (folder / f"{name}.py").exists() else module
    if module == "sifting":
        return f"sifting.{sifting._HOME.get(name, '')}"
    for node in ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return str(node.module)
    return module


@pytest.mark.parametrize("room", sorted({module.parent.as_posix() for module in modules()}))
def test_every_module_has_a_test_file_that_knows_it(room: str) -> None:
    lacking = []
    for module in modules():
        if module.parent.as_posix() != room or module.name in ("__init__.py", *UNTESTED):
            continue
        path = TESTS / mirror_of(module)
        name = ".".join(("sifting", *module.with_suffix("").parts))
        if not path.exists() or name not in reached(path):
            lacking.append(f"{module}: {path.relative_to(ROOT)}")
    assert lacking == [], "write it there, and import what it tests from the module"


def test_every_test_file_stands_where_its_module_stands() -> None:
    known = {mirror_of(module).as_posix() for module in modules()} | set(REPOSITORY)
    found = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.glob("**/test_*.py")
        if path.relative_to(TESTS).parts[0] not in ELSEWHERE
    }
    assert found - known == set(), f"name them after their module, or put them in {list(ELSEWHERE)}"
    assert {mirror_of(Path(module)).as_posix() for module in UNTESTED} & found == set()
    assert all((TESTS / folder).is_dir() for folder in ELSEWHERE)


def test_what_tests_share_is_in_helpers() -> None:
    borrowed = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.glob("**/*.py")
        for name in re.findall(r"(?:from|import) (tests[\w.]*\.test_\w+)", path.read_text("utf-8"))
    }
    assert borrowed == set()
    assert list(TESTS.glob("*/**/conftest.py")) == []
