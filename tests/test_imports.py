"""Data flows one way, and so do imports; and nothing is imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sifting

PACKAGE = Path(sifting.__file__).parent

# Each module may import those before it, and none after it.
ORDER = [
    "_version",
    "batch",
    "scores",
    "selection",
    "schedules",
    "cost",
    "streams",
    "wrappers",
    "ranks",
    "quiet",
    "calls",
    "stack",
    "stages",
    "heads",
    "objective",
    "meter",
    "audit",
    "exits",
    "tuned",
    "additive",
    "loader",
    "scorer",
    "sifter",
    "runs",
    "writers",
    "intervals",
    "curves",
    "pairing",
    "wording",
    "layout",
    "verdict",
    "distributed",
    "problem",
    "engine",
    "costs_cli",
    "demo",
    "cli",
]
PURE = {
    "batch",
    "scores",
    "selection",
    "schedules",
    "cost",
    "streams",
    "calls",
    "stack",
    "meter",
    "runs",
    "writers",
    "intervals",
    "curves",
}


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports at run time, imports for type checkers aside."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in guarded or not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module == "sifting":
            found |= {alias.name for alias in node.names if (PACKAGE / f"{alias.name}.py").exists()}
        elif node.module.startswith("sifting."):
            found.add(node.module.split(".")[1])
    return found


@pytest.mark.parametrize("name", ORDER)
def test_imports_go_one_way(name: str) -> None:
    ours = imports(PACKAGE / f"{name}.py") - {"theory"}
    assert ours <= set(ORDER[: ORDER.index(name)]), f"{name} imports {ours}"
    if name in PURE:
        assert not ours


@pytest.mark.parametrize("path", sorted((PACKAGE / "integrations").glob("*.py")), ids=str)
def test_integrations_know_the_core_and_the_core_does_not_know_them(path: Path) -> None:
    assert imports(path) <= {*ORDER, "integrations"} - {"demo", "cli"}
    assert all("integrations" not in imports(PACKAGE / f"{name}.py") for name in ORDER)


@pytest.mark.parametrize("path", sorted((PACKAGE / "report").glob("*.py")), ids=str)
def test_reports_know_the_files_of_runs_and_nothing_that_trains(path: Path) -> None:
    known = {"_version", "runs", "intervals", "curves", "pairing", "wording", "layout", "verdict"}
    assert imports(path) <= {*known, "report"}
    assert "torch" not in path.read_text()


def test_every_module_has_its_place() -> None:
    names = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert names == set(ORDER)


def test_public_names_are_few_and_all_there() -> None:
    assert len(sifting.__all__) < 12
    for name in sifting.__all__:
        assert getattr(sifting, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Shifter'"):
        _ = sifting.Shifter


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, sifting, sifting.cli; assert 'torch' not in sys.modules; "
        "from sifting import Sifter; import sifting.integrations; "
        "assert not {'transformers', 'accelerate', 'lightning', 'scipy', 'matplotlib', 'rich'} "
        "& set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
