"""What TRL's settings and a sifter's do not go together is refused with remedies that work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import nn

pytest.importorskip("trl", reason="TRL needs Python 3.11")

from tests.helpers.trl_sft import run

pytestmark = pytest.mark.filterwarnings("default")  # of TRL and datasets, not ours


@pytest.mark.parametrize("exit", ["tuned", "input"])
@pytest.mark.parametrize("how", [{"loss_type": "dft"}, {"label_smoothing_factor": 0.1}])
def test_packed_losses_that_a_predictor_cannot_learn(
    tmp_path: Path, exit: str, how: dict[str, Any]
) -> None:
    with pytest.raises(
        ValueError, match=r"packed into rows.*exit='last' or a block's number.*packing=False"
    ):
        run(tmp_path, sift={"exit": exit}, packing=True, **how)
    remedies: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"exit": "last"}, {"packing": True}),
        ({"exit": 1}, {"packing": True}),
        ({"exit": exit}, {"packing": False}),
    ]
    for sift, packed in remedies:
        trainer = run(tmp_path, sift=sift, max_steps=2, **packed, **how)
        assert trainer.sifter.stats().selections > 0


def test_a_loss_that_does_not_shift_as_the_model_does(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="loss_fn=CrossEntropyLoss holds each position against its own label"
    ):
        run(tmp_path, sift={"loss_fn": nn.CrossEntropyLoss()})
    plain = run(tmp_path)

    def shifted(z: Any, y: Any) -> Any:
        return F.cross_entropy(z[:, :-1].movedim(-1, 1), y[:, 1:], reduction="none")

    assert run(tmp_path, sift={"loss_fn": shifted}).seen == plain.seen
