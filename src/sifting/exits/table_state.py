"""What a state may say of a memory of losses: checked before anything is made of it. Pure.

Legend: N samples.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sifting.plain import Plain, damaged


def check_table(state: Any, *, most: int) -> None:
    """Raise ValueError unless a `MemoryExit` can have had this state.

    Args:
        state: what its `state_dict` gave.
        most: times passed over that are told apart.
    """
    found = Plain(state, "the memory")
    losses_N = found.tensor("losses", dims=1)
    if not losses_N.is_floating_point() or bool(losses_N.isinf().any()):
        found.refuse("losses", "a tensor of numbers, of which some may be missing")
    passed_N = found.tensor("passed", shape=losses_N.shape)
    if len(passed_N) and not (float(passed_N.min()) >= 0 and float(passed_N.max()) <= most):
        found.refuse("passed", f"a tensor of counts from 0 to {most}")
    if "keys" in found:
        keys = found.items("keys")
        if not all(isinstance(key, Hashable) for key in keys) or len(set(keys)) < len(keys):
            found.refuse("keys", "a list of IDs, each once")
        if len(keys) > len(losses_N):
            raise damaged(f"the memory has {len(keys)} IDs, and losses of {len(losses_N)} samples")
    steps = found.whole("steps") if "steps" in found else 0
    if "told" in found:
        found.whole("told", most=steps)
    if "untold" in found:
        ids, untold = found.items("untold_ids"), found.items("untold")
        if len(ids) != len(untold):
            raise damaged(f"the memory has {len(ids)} batches of IDs, and losses of {len(untold)}")
        told = Plain({str(i): losses_B for i, losses_B in enumerate(untold)}, "'untold'")
        for i, theirs in enumerate(ids):
            told.tensor(str(i), shape=(len(theirs),))
