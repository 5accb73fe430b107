"""Advice from an autopilot's records, made up."""

from __future__ import annotations

from typing import Any

from sifting.advice.phases import make_advice


def decision(
    batch: int, share: float, *, error: float = 0.02, ratio: int = 2, speedup: float = 1.0
) -> dict[str, Any]:
    judged = [
        {"scorer": "input", "ratio": r, "cost": 0.0, "kept_loss": 0.6, "agreement": 1.1}
        for r in (2, 4)
    ]
    return {
        "kind": "decision",
        "batch": batch,
        "scorer": "input" if ratio > 1 else "",
        "ratio": ratio,
        "speedup": speedup,
        "why": f"{share:.0%} of the progress",
        "judged": judged,
        "shares": [{"scorer": "input", "ratio": 2, "share": share, "error": error}],
    }


def advice_of(*records: dict[str, Any], **more: Any) -> Any:
    return make_advice(
        list(records), target="mine", updates=1000, seen=1000, batches=1000, explore=0.25, **more
    )
