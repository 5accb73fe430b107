"""`sift train RECIPE …`: one entry a recipe."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

RECIPES = {
    "bert": "sifting.recipes.bert",
    "gpt": "sifting.recipes.gpt",
    "resnet": "sifting.recipes.resnet",
}


def find_recipe(name: str) -> Any:
    """The recipe of a name."""
    return importlib.import_module(RECIPES[name]).RECIPE


def main(argv: Sequence[str]) -> int:
    """Run one recipe."""
    if not argv or argv[0] not in RECIPES:
        wanted = f"unknown recipe {argv[0]!r}" if argv and not argv[0].startswith("-") else "usage"
        asked = bool(argv) and argv[0] in ("-h", "--help")
        print(
            f"{wanted}: sift train {{{','.join(RECIPES)}}} [preset] --out FOLDER …\n"
            "`sift train RECIPE --help` says what a recipe takes",
            file=sys.stdout if asked else sys.stderr,
        )
        return 0 if asked else 2
    from sifting.training.recipe import main as run

    return run(find_recipe(argv[0]), argv[1:])
