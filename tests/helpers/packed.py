"""Documents to be packed, and the collator of TRL that packs them."""

from __future__ import annotations

from typing import Any

import pytest

LENGTHS = [3, 5, 2, 4, 2]


DOCUMENTS = [
    {
        "input_ids": [10 * (d + 1) + t for t in range(n)],
        "labels": [10 * (d + 1) + t for t in range(n)],
    }
    for d, n in enumerate(LENGTHS)
]


def language_modeling(**given: Any) -> Any:
    """TRL's collator for supervised fine-tuning."""
    trainer = pytest.importorskip("trl.trainer.sft_trainer", reason="TRL is not installed")
    return trainer.DataCollatorForLanguageModeling(pad_token_id=0, **given)
