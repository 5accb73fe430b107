"""From candidates to what is trained: scored, checked, chosen, and audited now and then.

choosing (of a batch) and by_ids (before anything is read) → finite → `selection` → a `Step`; audits
"""

from __future__ import annotations

from sifting.chooser.choosing import Chooser
from sifting.chooser.finite import NotFinite

__all__ = ["Chooser", "NotFinite"]
