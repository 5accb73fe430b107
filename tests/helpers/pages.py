"""Pages as tests read them: files, diffs and other code of the documentation; text and tags of HTML."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r'^```python title="(?P<title>[\w.]+)"\n(?P<code>.*?)^```$', re.DOTALL | re.M)


def titled_blocks(page: Path) -> dict[str, str]:
    """The page's code blocks that are whole files, by the file's name."""
    found = {match["title"]: match["code"] for match in BLOCK.finditer(page.read_text("utf-8"))}
    assert found, f"{page.name} has no titled code block"
    return found


def write_blocks(page: Path, folder: Path) -> None:
    """Write the page's files into a folder."""
    for title, code in titled_blocks(page).items():
        (folder / title).write_text(code, encoding="utf-8")


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """While open, the modules of a folder can be imported."""
    names = {path.stem for path in folder.glob("*.py")}
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)


def module(name: str) -> ModuleType:
    """A module of a folder that is importable now."""
    return importlib.import_module(name)


def snippet(page: str, section: str, *, line: bool = True) -> str:
    """The first code of a section; of a diff, what stands there with or without the line."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(r"```(diff|python)\n(.*?)```", text[text.index(section) :], flags=re.DOTALL)
    assert found is not None
    kind, code = found.groups()
    if kind == "python":
        return str(code)
    left_out = "-" if line else "+"
    return "\n".join(row[1:] for row in code.splitlines() if not row.startswith(left_out))


class Text(HTMLParser):
    """The text and tags of a page of HTML."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.feed(source)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
