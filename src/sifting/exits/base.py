"""The protocol of an exit: everything that the library asks of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sifting.model.call import Call
from sifting.model.objective import Score
from sifting.model.plan import Plan


class Exit(ABC):
    """Scores candidates at some depth of a model."""

    runs = True  # whether it runs the model to score
    observes = False  # whether it wants to be told the exact loss of everything that is trained

    def suits(self, *, score: Score, scope: str, call: Call, trim: float) -> None:  # noqa: B027
        """Raise at construction where the sifter's other arguments do not go with this exit."""

    @abstractmethod
    def bind(self, model: nn.Module, stack: str | None) -> None:
        """Check at construction that the model has this exit.

        Args:
            stack: path of the stack, where the user named it.
        """

    @abstractmethod
    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        """Check, on some samples of the first batch, that this exit fits the model."""

    @abstractmethod
    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        """One score a sample; called in eval mode, without gradients.

        Args:
            learn: whether an exit with weights of its own should remember these samples for
                the next `learn`.
        """

    def learn(self, plan: Plan) -> None:  # noqa: B027 - most exits have nothing to learn
        """Train the exit's own weights, if it has any, on the samples scored for that."""

    def observe(self, call: Call, batch: Any, losses: Tensor) -> None:  # noqa: B027
        """Take in the exact losses of a batch that is being trained, in warm-up too.

        Called with every batch where `observes` is set. The losses are of the user's own forward,
        and may not be there yet on a GPU.
        """

    def unheard(self) -> None:  # noqa: B027
        """Take note that a batch was trained whose losses did not arrive, where they are wanted."""

    def state_dict(self) -> dict[str, Any]:
        """What the exit has learned, as plain tensors and numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        if state:
            raise ValueError(
                f"the state holds weights of a learned exit ({', '.join(state)}), but this sifter's exit "
                f"is a {type(self).__name__}: make the sifter with the exit the state was saved with"
            )
