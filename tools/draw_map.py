"""Draw the map of the package, from its imports and docstrings, into docs/architecture.md.

    python tools/draw_map.py            # rewrites the page between its markers
    python tools/draw_map.py --check    # says whether it is out of date, and exits 1

A room is a folder or a module at the top of `src/sifting`. Imports that only type checkers see
do not count.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "sifting"
PAGE = ROOT / "docs" / "architecture.md"

Graph = dict[str, set[str]]

# The direction of the data, and so of imports: each room may import those before it. Read them in
# this order.
ORDER = [
    "_version",
    "files",
    "checksums",
    "markdown",
    "terminal",
    "log",
    "theory",
    "plain",
    "rng",
    "selection",
    "data",
    "cost",
    "parallel",
    "model",
    "measure",
    "exits",
    "step",
    "budget",
    "autopilot",
    "chooser",
    "observer",
    "cursor",
    "loader",
    "compose",
    "by_hand",
    "state",
    "sifter",
    "reference",
    "checkpoint",
    "integrations",
    "training",
    "verdict",
    "report",
    "recipes",
    "compare",
    "advice",
    "bench",
    "cli",
]


def room_of(path: Path) -> str:
    """The room that a file stands in."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def sources() -> list[Path]:
    """Every source file but the list of public names, which belongs to no room."""
    top = PACKAGE / "__init__.py"
    return sorted(path for path in PACKAGE.glob("**/*.py") if path != top)


def imports(path: Path) -> set[str]:
    """Rooms that a file imports at run time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for part in branch.body
        for node in ast.walk(part)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "sifting":
                found |= {f"sifting.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    ours = {name.split(".")[1] for name in found if name.startswith("sifting.")}
    # a public name, e.g. `from sifting import Sifter`, is the room that has it
    return {homes().get(name, name) for name in ours}


def homes() -> dict[str, str]:
    """The room of every public name."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.name: node.module.split(".")[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sifting.")
        for alias in node.names
        if node.module is not None
    }


def graph() -> Graph:
    """Every room, and the rooms that it imports."""
    found: Graph = {}
    for path in sources():
        room = room_of(path)
        found.setdefault(room, set()).update(imports(path) - {room})
    return found


def drawing(rooms: Graph) -> str:
    """The rooms as a matrix: a mark where the room of the line imports that of the column.

    >>> print(drawing({"cli": {"data", "rng"}, "data": {"rng"}, "rng": set()}))
             1 2 3
     1 rng   □
     2 data  ● □
     3 cli   ● ● □

    Above the diagonal there is nothing, unless an import goes the wrong way.
    """
    order = in_order(rooms)
    width = max(map(len, order))
    numbers = [f"{i:>2}" for i in range(1, len(order) + 1)]  # upright, to save width
    heads = ("".join(f" {number[digit]}" for number in numbers) for digit in (0, 1))
    lines = [" " * (width + 4) + head for head in heads if head.strip()]
    for number, room in enumerate(order, 1):
        marks = [_mark(room, other, rooms, order) for other in order]
        lines.append(f"{number:>2} {room:<{width}} " + "".join(f" {mark}" for mark in marks))
    return "\n".join(line.rstrip() for line in lines)


def in_order(rooms: Iterable[str]) -> list[str]:
    """Rooms in the direction of the data; one that has no place yet comes last."""
    return sorted(rooms, key=lambda room: ORDER.index(room) if room in ORDER else len(ORDER))


def _mark(room: str, other: str, rooms: Graph, order: list[str]) -> str:
    below = order.index(other) < order.index(room)
    if other == room:
        return "□"
    if other in rooms[room]:
        return "●" if below else "✗"
    return "·" if below else " "


def summary(path: Path) -> str:
    """The first sentence of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path} has no docstring"
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|").removesuffix(".")


def tables(rooms: Graph) -> str:
    """A table for each room that is a folder, one line a file, and one for the single files."""
    single = [room for room in in_order(rooms) if (PACKAGE / f"{room}.py").exists()]
    parts = ["### Files of the top level", _table(PACKAGE / f"{room}.py" for room in single)]
    for room in in_order(rooms):
        folder = PACKAGE / room
        if folder.is_dir():
            files = sorted(folder.glob("**/*.py"))
            own = [path for path in files if path.name != "__init__.py"]
            about = summary(folder / "__init__.py")
            end = "" if about.endswith("?") else "."
            parts += [f"### `{room}/`", f"{about}{end}", _table(own)]
    return "\n\n".join(parts)


def _table(paths: Iterable[Path]) -> str:
    lines = ["| file | what it is |", "| --- | --- |"]
    lines += [f"| `{path.relative_to(PACKAGE)}` | {summary(path)} |" for path in paths]
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with its map as the sources have it."""
    rooms = graph()
    for name, content in (
        ("rooms", f"```text\n{drawing(rooms)}\n```"),
        ("files", tables(rooms)),
    ):
        start, end = f"<!-- {name}: tools/draw_map.py -->", f"<!-- end of {name} -->"
        assert start in text, f"{PAGE.name} has no marker {start}"
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", flags=re.DOTALL)
        block = f"{start}\n\n{content}\n\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def main() -> int:
    """Rewrite the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    fresh = written(text)
    if fresh == text:
        return 0
    if args.check:
        print("docs/architecture.md is out of date; run python tools/draw_map.py")
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
