"""Text from run folders made safe to show: it comes from anywhere, and may be of any size."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from sifting.terminal import printable

LONGEST = 2_000  # characters of a setting that are kept
MOST = 200  # settings of one level, or items of a list
DEEPEST = 12


def clip(text: str, most: int) -> str:
    """Text of one line and at most so many characters.

    >>> clip("a name\\nthat is long", 10)
    'a name th…'
    """
    # what is cut off is not looked at: it may have megabytes
    text = " ".join(printable(text[: 4 * most + 4]).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def escape(text: str) -> str:
    """Text that HTML shows as it is, inside an element or a quoted attribute.

    >>> escape('<script>alert("x")</script>')
    '&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;'
    """
    return html.escape(printable(text), quote=True)


def cut(value: Any, depth: int = 0) -> Any:
    """Settings without what nobody reads: endless text and lists, depths without a floor.

    >>> cut({"note": "x" * 3000, "seeds": list(range(3))})
    {'note': 'xxx...x… (3,000 characters)', 'seeds': [0, 1, 2]}
    """
    if isinstance(value, str):
        if len(value) <= LONGEST:
            return value
        return f"{value[:LONGEST]}… ({len(value):,} characters)"
    if not isinstance(value, (Mapping, list)):
        return value
    if depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        kept = {cut(str(key)): cut(inner, depth + 1) for key, inner in list(value.items())[:MOST]}
        more = {"…": f"{len(value) - MOST:,} more"} if len(value) > MOST else {}
        return {**kept, **more}
    inner = [cut(item, depth + 1) for item in value[:MOST]]
    return inner + ([f"… ({len(value) - MOST:,} more)"] if len(value) > MOST else [])
