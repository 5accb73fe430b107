"""A predictor of exact losses from what is cheap to know: the autopilot's scorer that joins the others.

Shapes: B samples, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.plain import Plain

FADE = 0.99  # weight of the batches before beside the next one: losses fall as training goes on
RIDGE = 1e-3  # of each feature's own weight, against features that say the same
FEWEST = 400  # samples before anything is predicted
FEATURES = 9


class LossPredictor:
    """Least squares from memory, its age, and an exit's entropy and loss to the exact loss.

    >>> predictor = LossPredictor()
    >>> remembered = torch.rand(500)
    >>> inputs = features(remembered, torch.zeros(500), torch.zeros(500), None)
    >>> predictor.learn(inputs, 4 * remembered)
    >>> bool((predictor(inputs[:3]) - 4 * remembered[:3]).abs().max() < 0.2)
    True

    What is fitted is the root of the loss, in which few high losses do not outweigh all others. It
    learns from exact losses that training produces anyway, and forgets what it learned long ago.
    It has no weights that are trained step by step: only two sums, from which they are solved.
    """

    def __init__(self) -> None:
        self.squares_FF = torch.zeros(FEATURES, FEATURES, dtype=torch.float64)
        self.products_F = torch.zeros(FEATURES, dtype=torch.float64)
        self.seen = 0
        self._weights_F: Tensor | None = None  # None where what was learned has yet to be solved
        self._rows: dict[
            Any, int
        ] = {}  # by ID, where its inputs are whose exact losses are to come
        self._noted_BF = torch.zeros(0, FEATURES)

    @property
    def ready(self) -> bool:
        """Whether it has learned enough to predict."""
        return self.seen >= FEWEST

    def learn(self, inputs_BF: Tensor, losses_B: Tensor) -> None:
        """Take in the exact losses of some samples; those that are not finite are left out."""
        losses_B = losses_B.detach().double().cpu()
        sound_B = losses_B.isfinite() & inputs_BF.isfinite().all(dim=1)
        inputs_BF, losses_B = inputs_BF[sound_B].double(), losses_B[sound_B]
        self.squares_FF.mul_(FADE).addmm_(inputs_BF.T, inputs_BF)
        self.products_F.mul_(FADE).addmv_(inputs_BF.T, _root(losses_B))
        self.seen += len(losses_B)
        self._weights_F = None

    def note(self, ids: Sequence[Any], inputs_BF: Tensor) -> None:
        """Keep what losses are predicted from until the exact ones are there; the last such batch alone."""
        self._rows = dict(zip(ids, range(len(inputs_BF)), strict=True))
        self._noted_BF = inputs_BF

    @property
    def waits(self) -> bool:
        """Whether exact losses of a batch that was noted are still to come."""
        return bool(self._rows)

    def hear(self, ids: Sequence[Any], losses_B: Tensor) -> None:
        """Learn from the exact losses of those samples that were noted."""
        heard = [i for i, one in enumerate(ids) if one in self._rows]
        if heard:
            inputs_BF = self._noted_BF[[self._rows[ids[i]] for i in heard]]
            self.learn(inputs_BF, losses_B.detach().cpu()[heard])
        self._rows = {}

    def __call__(self, inputs_BF: Tensor) -> Tensor:
        """Predicted losses."""
        if self._weights_F is None:
            ridge_F = RIDGE * self.squares_FF.diagonal() + 1e-9
            self._weights_F = torch.linalg.solve(
                self.squares_FF + ridge_F.diag_embed(), self.products_F
            )
        roots_B = inputs_BF.double() @ self._weights_F
        return (roots_B * roots_B.abs()).float()

    def state_dict(self) -> dict[str, Any]:
        return {
            "squares": self.squares_FF.clone(),
            "products": self.products_F.clone(),
            "seen": self.seen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        found = Plain(state, "the loss predictor")
        wanted = {"squares": (FEATURES, FEATURES), "products": (FEATURES,)}
        for name, shape in wanted.items():
            tensor = found.get(name)
            if not isinstance(tensor, Tensor) or tensor.shape != shape:
                raise ValueError(
                    f"the state is damaged: {name} of the loss predictor is not a tensor of shape {shape}"
                )
        self.seen = found.whole("seen")
        self.squares_FF = state["squares"].double().clone()
        self.products_F = state["products"].double().clone()
        self._weights_F = None


def features(
    losses_B: Tensor, passed_B: Tensor, entropies_B: Tensor, exit_losses_B: Tensor | None
) -> Tensor:
    """What a loss is predicted from; for samples never trained, the exit's word alone.

    >>> features(torch.tensor([4.0, float("nan")]), torch.zeros(2), torch.ones(2), None).tolist()[1]
    [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]

    Args:
        losses_B: as last trained; not a number where there is none.
        passed_B: how often each was passed over since: the memory's age.
        entropies_B: of the exit, or whatever it scores by.
        exit_losses_B: of the exit, where they cost nothing more.
    """
    known_B = (~losses_B.isnan()).float()
    remembered_B = losses_B.nan_to_num(0.0).float()
    root_B = _root(remembered_B)
    aged_B = root_B * passed_B.float().log1p()
    entropies_B = entropies_B.detach().float().cpu()
    if exit_losses_B is None:
        exit_losses_B = torch.zeros_like(entropies_B)
    exit_losses_B = exit_losses_B.detach().float().cpu()
    new_B = 1 - known_B
    columns = (known_B, remembered_B, root_B, aged_B, new_B, entropies_B, new_B * entropies_B)
    return torch.stack([*columns, exit_losses_B, new_B * exit_losses_B], dim=1)


def _root(losses_B: Tensor) -> Tensor:
    """Square roots; losses of densities may be negative."""
    return losses_B.sign() * losses_B.abs().sqrt()
