"""A rule-based sentence splitter: no model, no dependency, the same on every machine.

A sentence ends
- at a blank line;
- at `.`, `!`, `?` or `…`, with the quotes and brackets that close after it, where a line break
  follows, or a space and then anything but a small letter;
- at such a mark that stands alone between spaces, as in text that was tokenised before;
but not after an initial ("J. Smith") or a common abbreviation ("Dr. Smith", "e.g. This").
"""

from __future__ import annotations

import re

VERSION = "1"  # part of the key of what was tokenised with it

_END = re.compile(
    r"""
    \n[ \t\r]*\n\s*                                # a blank line
    | (?<=\s[.!?])\s+(?![.!?](?:\s|$))             # a mark that stands alone; the last of several
    | (?<=[.!?…])(?:["')\]”’»]*)(?:[ \t\r]*\n\s*|\s+(?![\sa-z.!?,;:]))
    """,
    re.VERBOSE,
)
_SHORT = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Prof|Rev|Gen|Sen|Rep|Gov|Col|Capt|Lt|Sgt|Jr|Sr|Inc|Ltd|Co|Corp"
    r"|vs|cf|No|Fig|Vol|pp|e\.g|i\.e|etc|al|U\.S|U\.N)\.$"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a document, without the space around them; empty ones are left out.

    >>> split_sentences('He met Dr. Brown. "Who?" she asked.\\n\\nA new paragraph')
    ['He met Dr. Brown.', '"Who?" she asked.', 'A new paragraph']
    >>> split_sentences("it was late . . . we left . \\nnobody saw us !")
    ['it was late . . .', 'we left .', 'nobody saw us !']
    """
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(text):
        head = match.group()
        # closing quotes belong to the sentence that they close
        stop = match.start() + len(head) - len(head.lstrip("\"')]”’»"))
        if "\n" not in head and _SHORT.search(text[max(start, stop - 12) : stop]):
            continue
        piece = text[start:stop].strip()
        if piece:
            sentences.append(piece)
        start = match.end()
    piece = text[start:].strip()
    if piece:
        sentences.append(piece)
    return sentences
