"""Data flows one way, and so do imports; and nothing is imported before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sifting
from tools.draw_map import ORDER, PACKAGE, homes, imports, room_of, sources

# Rooms that import nothing of ours.
ALONE = {"_version", "files", "markdown", "terminal", "log", "plain", "selection"}
# Files that are pure: they import only each other, read and write nothing, and print nothing. A
# folder stands for all its files.
PURE = ["selection", "verdict/intervals.py"]
SAYS_PURE = re.compile(r"\bpure\b", flags=re.IGNORECASE)
TOUCHES = {"open", "print", "write_text", "write_bytes", "read_text", "read_bytes", "unlink"}


def files(name: str) -> list[Path]:
    """The files of a room, or one file of a room by its path."""
    single = [PACKAGE / name, PACKAGE / f"{name}.py"]
    found = [path for path in single if path.is_file()] or sorted((PACKAGE / name).glob("**/*.py"))
    assert found, f"{name} is named here and is nowhere"
    return found


@pytest.mark.parametrize("name", ORDER)
def test_imports_go_one_way(name: str) -> None:
    for path in files(name):
        ours = imports(path) - {name}
        assert ours <= set(ORDER[: ORDER.index(name)]), f"{path} imports {ours}"
        if name in ALONE:
            assert not ours, f"{path} imports {ours}"


def test_the_rooms_that_import_nothing_are_all_listed() -> None:
    found = {room for room in ORDER if not any(imports(p) - {room} for p in files(room))}
    assert found == ALONE


@pytest.mark.parametrize("name", PURE)
def test_pure_files_import_only_each_other_and_touch_nothing(name: str) -> None:
    rooms = {room_of(path) for pure in PURE for path in files(pure)}
    for path in files(name):
        assert imports(path) <= rooms
        assert touched(path) == set(), path


def test_what_calls_itself_pure_touches_nothing() -> None:
    docstrings = {path: ast.get_docstring(parsed(path)) or "" for path in sources()}
    named = [path for path, text in docstrings.items() if SAYS_PURE.search(text)]
    assert len(named) >= 4
    for path in named:
        assert touched(path) == set(), path


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def touched(path: Path) -> set[str]:
    """What a file calls of all that reaches outside of it."""
    calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    return {getattr(called, "id", getattr(called, "attr", "")) for called in calls} & TOUCHES


@pytest.mark.parametrize("name", ["verdict", "report"])
def test_reports_know_the_files_of_runs_and_nothing_that_trains(name: str) -> None:
    for path in files(name):
        plain = {"_version", "files", "markdown", "terminal", "training"}
        assert imports(path) <= {*plain, "verdict", "report"}
        assert not re.search(r"sifting\.training\.(?!run_folder\b)", path.read_text("utf-8"))
    code = f"import sys, sifting.{name}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_has_its_place() -> None:
    assert {room_of(path) for path in sources()} == set(ORDER)
    assert len(ORDER) == len(set(ORDER))


def test_public_names_are_few_and_listed_once() -> None:
    assert len(set(sifting.__all__) - {"__version__"}) < 12
    assert len(sifting.__all__) == len(set(sifting.__all__))
    for name in sifting.__all__:
        assert getattr(sifting, name) is not None
    # what type checkers see, what is imported on demand and what is listed are the same names
    assert set(homes()) == set(sifting._HOME) | {"__version__"} == set(sifting.__all__)
    for name, home in sifting._HOME.items():
        assert home.split(".")[0] == homes()[name]
    with pytest.raises(AttributeError, match="no attribute 'Shifter'"):
        _ = sifting.Shifter


def test_no_public_name_stands_for_two_things() -> None:
    """Names that packages of the library offer, in `__all__`, mean one thing each."""
    offered: dict[str, set[str]] = {}
    for path in PACKAGE.glob("**/__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sifting."):
                for alias in node.names:
                    offered.setdefault(alias.name, set()).add(str(node.module))
    twice = {name: where for name, where in offered.items() if len(where) > 1}
    assert twice == {}


# Classes that stand in several modules under one name, since they mean the same in each.
SAME = {
    "Config": "the settings of a recipe, in the file of the recipe",
    "Floats": "an array of float64; the theory and the verdicts import nothing of each other",
}


def test_no_two_classes_or_types_share_a_name() -> None:
    """Nor do aliases of types: whoever reads `Plan` or `Rows` need not ask which."""
    homes: dict[str, list[str]] = {}
    for path in sources():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                named = [node.name]
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                named = [t.id for t in node.targets if isinstance(t, ast.Name) and t.id.istitle()]
            else:
                continue
            for name in named:
                homes.setdefault(name, []).append(path.relative_to(PACKAGE).as_posix())
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in SAME} == {}


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, sifting, sifting.cli.main; assert 'torch' not in sys.modules; "
        "from sifting import Sifter; import sifting.integrations; "
        "assert not {'transformers', 'accelerate', 'lightning', 'scipy', 'matplotlib', 'rich'} "
        "& set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
