"""Text from run folders made safe to show: it comes from anywhere."""

from __future__ import annotations

import html
import unicodedata


def clean(text: str) -> str:
    """Text without control characters, half surrogates and marks that turn the reading direction.

    >>> clean("a\\x00b\\u202ec\\ud800")
    'a�b�c�'
    """
    bad = ("Cc", "Cf", "Cs", "Co")
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in bad else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )


def clip(text: str, most: int) -> str:
    """Text of one line and at most so many characters.

    >>> clip("a name\\nthat is long", 10)
    'a name th…'
    """
    text = " ".join(clean(text).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def escape(text: str) -> str:
    """Text that HTML shows as it is, inside an element or a quoted attribute.

    >>> escape('<script>alert("x")</script>')
    '&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;'
    """
    return html.escape(clean(text), quote=True)
