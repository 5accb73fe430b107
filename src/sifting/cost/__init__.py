"""What scoring costs beside an update, from a model's shape alone: FLOPs and memory.

Both are limits set by arithmetic; `benchmarks/overhead.py` measures how near a machine comes.
"""

from __future__ import annotations

from sifting.cost.flops import (
    PAPER_BACKWARD_HOURS,
    PAPER_FORWARD_HOURS,
    PAPER_SCORING_HOURS,
    UPDATE,
    Flops,
    forward_flops,
    paper_ratio,
    scoring_flops,
    scoring_ratio,
    seen_flops,
    update_flops,
)
from sifting.cost.memory import CHUNK, scoring_bytes, update_bytes
from sifting.cost.prediction import PredictedCost, moved_samples, predict
from sifting.cost.shapes import BERT_BASE, HeadKind, Shape, shape_of

__all__ = [
    "BERT_BASE",
    "CHUNK",
    "PAPER_BACKWARD_HOURS",
    "PAPER_FORWARD_HOURS",
    "PAPER_SCORING_HOURS",
    "UPDATE",
    "Flops",
    "HeadKind",
    "PredictedCost",
    "Shape",
    "forward_flops",
    "moved_samples",
    "paper_ratio",
    "predict",
    "scoring_bytes",
    "scoring_flops",
    "scoring_ratio",
    "seen_flops",
    "shape_of",
    "update_bytes",
    "update_flops",
]
