"""What the package exports and imports."""

import ast
import subprocess
import sys
from pathlib import Path

import sifting.theory

FOLDER = Path(sifting.theory.__file__).parent


def test_importing_the_theory_imports_neither_torch_nor_what_draws():
    code = (
        "import sys, sifting.theory, sifting.cli.theory\n"
        "print([m for m in ('torch', 'matplotlib', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_modules_import_only_numpy_scipy_and_each_other():
    allowed = {"__future__", "numpy", "scipy", "sifting", *sys.stdlib_module_names}
    drawing = {"matplotlib"}
    for file in FOLDER.glob("*.py"):
        may = allowed | (drawing if file.stem in ("plots", "plots_past") else set())
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                if names[0].startswith("sifting"):
                    own = names[0].startswith("sifting.theory")
                    files = names == ["sifting"] and [a.name for a in node.names] == ["files"]
                    assert own or files, (file.name, names)
            assert {name.split(".")[0] for name in names} <= may, (file.name, names)


def test_every_public_name_exists_and_has_an_example_or_is_a_record():
    for name in sifting.theory.__all__:
        value = getattr(sifting.theory, name)
        if callable(value):
            assert value.__doc__, name
            records = {
                "RuleComparison",
                "Constants",
                "Course",
                "Estimates",
                "Interval",
                "Prediction",
            }
            records |= {"Simulation"}
            assert ">>>" in value.__doc__ or name in records, name
