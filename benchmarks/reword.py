"""Word the verdicts in `benchmarks/results` again, from the figures that they hold.

    python benchmarks/reword.py            # then: python benchmarks/tables.py

For when the words, the table or what decides have changed since a comparison was kept. No figure of an
arm changes; runs are not needed.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from sifting.verdict import Verdict
from sifting.verdict.deciding import decide
from sifting.verdict.intervals import Estimate
from sifting.verdict.judging import in_seconds
from sifting.verdict.pairing import ArmVerdict

RESULTS = Path(__file__).resolve().parent / "results"


def arm_of(content: dict[str, Any]) -> ArmVerdict:
    """An arm's figures, as `Verdict.to_dict` has them."""
    known = {field.name: content[field.name] for field in fields(ArmVerdict)}
    for name, value in known.items():
        if isinstance(value, dict) and name != "final":
            known[name] = Estimate(**value)
    return ArmVerdict(**{**known, "final": {int(k): v for k, v in content["final"].items()}})


def verdict_of(content: dict[str, Any]) -> Verdict:
    """A verdict, decided again from what `Verdict.to_dict` has of its arms."""
    arms = tuple(map(arm_of, content["arms"]))
    lower, budget = content["lower_is_better"], content["budget"]
    kept = ("metric", "percent", "target", "axis", "baseline", "control")
    return Verdict(
        **{name: content[name] for name in kept},
        lower_is_better=lower,
        budget=budget,
        arms=arms,
        decision=decide(arms, lower_is_better=lower, equal_time=in_seconds(budget)),
        early=content.get("early", 0),
    )


def main() -> None:
    """Rewrite the results that hold a verdict."""
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "verdict" in result:
            result["verdict"] = verdict_of(result["verdict"]).to_dict()
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
