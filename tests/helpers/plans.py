"""Plans of small models, resolved as a sifter resolves them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.call import Call
from sifting.model.plan import Plan
from sifting.model.resolving import find_plan
from sifting.model.sample_losses import PerSampleLoss


def plan_of(model: nn.Module, batch: Any, loss_fn: Any = None, **options: Any) -> Plan:
    loss = None if loss_fn is None else PerSampleLoss(loss_fn)
    with torch.no_grad():
        return find_plan(Call(), model.eval(), batch, loss, **options)


class Language(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.options = nn.Embedding(20, 8), nn.Linear(8, 20), options

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.head(self.table(ids))
        if labels is None:
            return {"logits": z}
        loss = F.cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **self.options)
        return {"logits": z, "loss": loss}


def text(rows: int = 4) -> dict[str, Tensor]:
    ids = torch.randint(0, 20, (rows, 6), generator=torch.Generator().manual_seed(0))
    return {"ids": ids, "labels": ids}
