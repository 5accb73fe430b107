"""For the documentation site: our docstrings in the form that its reader of docstrings expects.

Examples (`>>> …`) become code blocks, and one line for several arguments (`low, high: bounds.`)
becomes one for each. An extension of Griffe, named in mkdocs.yml.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

SEVERAL = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+): (?P<text>.*)$")


class Docstrings(Extension):
    """Rewrites every docstring when it is read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called with everything that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = singled(fenced(obj.docstring.value))


def fenced(text: str) -> str:
    """A docstring whose examples are code blocks: from `>>>` to the next empty line."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>> "):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def singled(text: str) -> str:
    """A docstring with a line for each argument.

    >>> print(singled("Args:\\n    low, high: the bounds,\\n        in nats.\\n    n: how many."))
    Args:
        low: the bounds,
            in nats.
        high: the bounds,
            in nats.
        n: how many.
    """
    lines = text.splitlines()
    found: list[str] = []
    i = 0
    while i < len(lines):
        match = SEVERAL.match(lines[i])
        if match is None:
            found.append(lines[i])
            i += 1
            continue
        end = i + 1
        while end < len(lines) and lines[end].startswith(match["indent"] + " "):
            end += 1
        for name in match["names"].split(", "):
            found += [f"{match['indent']}{name}: {match['text']}", *lines[i + 1 : end]]
        i = end
    return "\n".join(found)
