"""Data flows one way, and so do imports; and nothing is imported before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sifting

PACKAGE = Path(sifting.__file__).parent

# Each room may import those before it, and none after it: the direction of the data.
ORDER = [
    "_version",
    "files",
    "theory",
    "rng",
    "selection",
    "data",
    "cost",
    "parallel",
    "model",
    "measure",
    "exits",
    "chooser",
    "observer",
    "loader",
    "sifter",
    "checkpoint",
    "integrations",
    "training",
    "verdict",
    "report",
    "recipes",
    "compare",
    "cli",
]
PURE = {"rng", "selection", "cost", "files"}


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
            found |= {alias.name for alias in node.names} & set(ORDER)
        elif node.module.startswith("sifting."):
            found.add(node.module.split(".")[1])
    return found


def files(name: str) -> list[Path]:
    """The files of a module or package."""
    module = PACKAGE / f"{name}.py"
    return [module] if module.exists() else sorted((PACKAGE / name).glob("**/*.py"))


@pytest.mark.parametrize("name", ORDER)
def test_imports_go_one_way(name: str) -> None:
    for path in files(name):
        ours = imports(path) - {name}
        assert ours <= set(ORDER[: ORDER.index(name)]), f"{path} imports {ours}"
        if name in PURE:
            assert not ours


@pytest.mark.parametrize("name", ["verdict", "report"])
def test_reports_know_the_files_of_runs_and_nothing_that_trains(name: str) -> None:
    for path in files(name):
        plain = {"_version", "files", "markdown", "terminal", "training"}
        assert imports(path) <= {*plain, "verdict", "report"}
        assert not re.search(r"sifting\.training\.(?!run_folder\b)", path.read_text())
        assert "torch" not in path.read_text()


def test_every_module_has_its_place() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert modules | packages == set(ORDER)


def test_public_names_are_few_and_all_there() -> None:
    assert len(sifting.__all__) < 12
    for name in sifting.__all__:
        assert getattr(sifting, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Shifter'"):
        _ = sifting.Shifter


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, sifting, sifting.cli.main; assert 'torch' not in sys.modules; "
        "from sifting import Sifter; import sifting.integrations; "
        "assert not {'transformers', 'accelerate', 'lightning', 'scipy', 'matplotlib', 'rich'} "
        "& set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
