"""The reference says what every public argument means, and shows every public name."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe
import pytest

import sifting
from tests.helpers.pages import DOCS, ROOT
from tools.docstrings import Docstrings, fenced

REFERENCE = DOCS / "reference"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md")))
DIRECTIVE = re.compile(
    r"^::: (?P<path>[\w.]+)\n(?:    options:\n(?P<options>(?:      .*\n)*))?", re.M
)
# what a dataclass' own parameters are called in its docstring
SECTIONS = ("parameters", "attributes")


@pytest.fixture(scope="module")
def package() -> griffe.Object:
    """The package as the site reads it."""
    extensions = griffe.load_extensions(Docstrings)
    found = griffe.load(
        "sifting",
        search_paths=[str(ROOT / "src")],
        extensions=extensions,
        docstring_parser="google",
    )
    assert isinstance(found, griffe.Object)
    return found


def shown() -> list[str]:
    """Every class and function that a page of the reference asks for, by its path."""
    found = []
    for match in DIRECTIVE.finditer(TEXT + "\n"):
        path, options = match["path"], match["options"] or ""
        listed = re.search(r"members: \[(.*)\]", options)
        if path == "sifting.theory":
            theory = importlib.import_module(path)
            found += [
                f"{getattr(theory, name).__module__}.{name}"
                for name in theory.__all__
                if callable(getattr(theory, name))
            ]
        elif listed is not None and "." in path and path.rpartition(".")[2].islower():
            found += [f"{path}.{name}" for name in listed[1].split(", ")]
        else:
            found.append(path)
    return found


def documented(item: griffe.Object) -> set[str]:
    """Names that a docstring has a line for."""
    if item.docstring is None:
        return set()
    return {
        entry.name
        for section in item.docstring.parse("google")
        if section.kind.value in SECTIONS
        for entry in section.value
    }


def test_every_public_name_is_shown() -> None:
    ends = {path.rpartition(".")[2] for path in shown()}
    assert set(sifting.__all__) - {"__version__"} <= ends


@pytest.mark.parametrize("path", shown())
def test_every_argument_is_explained(path: str, package: griffe.Object) -> None:
    module, _, name = path.rpartition(".")
    real: Any = getattr(importlib.import_module(module), name)
    item = package[path.removeprefix("sifting.")]
    assert item.docstring is not None, f"{path} has no docstring"
    if inspect.isclass(real) and (
        issubclass(real, Warning)
        or getattr(real, "_is_protocol", False)
        or inspect.isabstract(real)
    ):
        return
    known = documented(item)
    wanted = {
        parameter.name
        for parameter in inspect.signature(real).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    if not known and len(wanted) <= 2 and not inspect.isclass(real):
        return  # a function of one or two values says all in its first line
    assert wanted - known == set()


def test_examples_are_code_blocks() -> None:
    text = "Adds.\n\n>>> 1 + 1\n2\n\nArgs:"
    assert fenced(text) == "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nArgs:"
    assert fenced(">>> 1\n1").endswith("1\n```")


def test_every_page_has_its_place_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md")}
    # the tasks' pages are many, and linked from the results' own
    listed = {page for page in pages if not page.startswith("results/bench/")}
    assert listed == set(re.findall(r"[\w/-]+\.md", nav))
    results = (DOCS / "results" / "README.md").read_text(encoding="utf-8")
    assert all(f"({page.removeprefix('results/')})" in results for page in pages - listed)


def test_what_pages_say_of_a_sifter_it_has() -> None:
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        # not `sifter.py`, nor the sifter of something else (`trainer.sifter`)
        named = set(re.findall(r"(?<![\w/.])sifter\.(?!py\b|pt\b|md\b)([a-z_]+)", text))
        assert {name for name in named if not hasattr(sifting.Sifter, name)} == set(), page.name
