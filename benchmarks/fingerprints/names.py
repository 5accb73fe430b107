"""What may be renamed or move in a redesign: the one place to edit so that fingerprints still compare.

Everything else that is used here is public: names of `sifting` itself, arguments of `Sifter`, the
`sift` command and `state_dict()`.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

# ---------------------------------------------------------------- edit here after a redesign
# Where a name is imported from; the first place that has it is taken.
PLACES: dict[str, tuple[str, ...]] = {
    "SiftTrainer": ("sifting.integrations.trainer", "sifting.integrations"),
    "SiftCallback": ("sifting.integrations.lightning", "sifting.integrations"),
    "Problem": ("sifting.problem", "sifting.training.problem", "sifting.training", "sifting"),
    "save": ("sifting.distributed", "sifting.checkpoint", "sifting.parallel"),
    "load": ("sifting.distributed", "sifting.checkpoint", "sifting.parallel"),
    "main": ("sifting.cli.main", "sifting.cli"),  # of the `sift` command
}
# Fields of states and files whose values differ from run to run (clocks, load, what is made of them), ...
TIMED = re.compile(
    r"seconds.*|.*_seconds|reference|load|started|updated|.*_share_of_time|scoring_share|table"
    r"|calibrations|environment|checksum|logs|files"
)
# ... and such as name a format, which a redesign may count up.
VERSIONED = re.compile(r"version|format")
# ------------------------------------------------------------------------------------------


def public(name: str) -> Any:
    """Import one of `PLACES`."""
    tried = []
    for module in PLACES[name]:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            tried.append(f"{module}: {error}")
    raise ImportError(f"{name} is in none of its places; edit {__file__}:\n" + "\n".join(tried))


def ignored(key: object) -> bool:
    """Whether a field says nothing about behaviour."""
    return isinstance(key, str) and bool(TIMED.fullmatch(key) or VERSIONED.fullmatch(key))
