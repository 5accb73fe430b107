"""The protocol of an exit: everything that the library asks of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sifting.measure.costs import Costs
from sifting.model.call import Call
from sifting.model.parts import Score
from sifting.model.places import work_share
from sifting.model.plan import Plan
from sifting.model.replica import Twin
from sifting.model.stack import Stack
from sifting.parallel.ranks import Ranks


@dataclass(frozen=True)
class Setting:
    """What a sifter asks of its exit: everything an exit may have to refuse.

    Attributes:
        score: what candidates are scored by.
        scope: "rank" or "global".
        call: how batches go through the model.
        trim: share of the highest scores that is never kept.
    """

    score: Score
    scope: str
    call: Call
    trim: float = 0.0


@dataclass(frozen=True)
class TrainedBatch:
    """A batch that is being trained, as an exit that observes is told of it.

    Attributes:
        call: how batches go through the model.
        members: the batch.
        ids: the samples' IDs, where the sifter drew them itself.
    """

    call: Call
    members: Any
    ids: Sequence[Any] | None = None


class Exit(ABC):
    """Scores candidates at some depth of a model.

    Everything that the library asks of an exit is in this class.
    """

    runs = True  # whether it runs the model to score
    observes = False  # whether it wants to be told the exact loss of everything that is trained
    by_id = False  # whether it scores by the samples' IDs alone, before anything is read
    learns = False  # whether it has weights of its own, which ranks of one model train together
    shardable = False  # whether it can score a model whose parameters are spread over ranks
    pipelined = False  # whether it can score beside the training step: `beside` gives its twin
    needs_labels = (
        True  # whether it scores by logits and labels; else the losses of `losses=` are enough
    )
    exact = False  # whether it scores by the whole model
    settled = True  # whether it is decided where it scores; not while it compares places
    whole = True  # whether it looks at all of a candidate by itself, as it is trained
    block: tuple[Stack, int] | None = None  # the stack and the number of its block, where it is one
    # gives, by ID, what score="reducible" takes off, to an exit that scores by IDs
    reference: Callable[[Sequence[Any]], Tensor] | None = None
    default_score: Score = "entropy"  # where the user names none
    default_explore = 0.0  # share of random picks, where the user names none
    remedy = "exit='tuned', a later exit"  # where it chooses badly
    cheaper = "an earlier exit, or exit=MemoryExit()"  # where it takes too long

    def __repr__(self) -> str:
        """What logs and states call it: the same for every exit of this kind and its settings."""
        return f"{type(self).__name__}()"

    def suits(self, setting: Setting) -> None:  # noqa: B027
        """Raise at construction where the sifter's other arguments do not go with this exit."""

    def join(self, ranks: Ranks) -> None:  # noqa: B027
        """Take note of the ranks that train the same model on other data, where `learns` is set.

        `ranks.average(grads, weight)` gives the mean of all ranks' gradients: all of them call it
        in each `learn`, or none.
        """

    def see_whole(self, plan: Plan, model: nn.Module, batch: Any, score: Score) -> None:  # noqa: B027
        """See candidates whole, where not `settled`: just before they are scored by as much as is looked at."""

    def may_leave_out(self, generator: torch.Generator, free: bool) -> None:  # noqa: B027
        """Take note whether it may find out by itself how much of a candidate is enough.

        Args:
            generator: the sifter's own.
            free: whether the user has said nothing of it (`rows=`, `view=`, `precision=`).
        """

    def keep_shardable(self) -> None:  # noqa: B027
        """Leave out what cannot score a model whose parameters are spread over ranks."""

    def compared(self) -> Costs | None:
        """What the ways of scoring that it compares cost and tell; None where it compares none."""
        return None

    def work(self, plan: Plan, model: nn.Module, probe: Any) -> float:
        """What it takes to score a sample, as a share of a forward's work: for exits that compete."""
        path = getattr(self, "place", None)
        if path is None:
            return 1.0  # not known: as dear as can be
        return work_share(model, lambda: plan.call.run(model, probe), path)

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
        """One score per sample; called in eval mode, without gradients.

        Args:
            learn: whether an exit with weights of its own should remember these samples for
                the next `learn`.
        """

    def refined(
        self,
        plan: Plan,
        model: nn.Module,
        batch: Any,
        scores_B: Tensor,
        ids: Sequence[Any] | None,
    ) -> Tensor:
        """What becomes of a batch's scores where the samples' IDs say more; by default nothing.

        Args:
            scores_B: of all candidates of a step.
            ids: of them, where the sifter drew them itself.
        """
        return scores_B

    def expect(self, samples: int | None) -> None:  # noqa: B027
        """Take note of how many samples the data set has, where their IDs are its indices."""

    def score_ids(self, ids: Sequence[Any]) -> Tensor:
        """One score for each ID, where `by_id` is set; the samples are candidates of a step."""
        raise TypeError(f"{type(self).__name__} does not score by IDs")

    def learn(self, plan: Plan) -> None:  # noqa: B027 - most exits have nothing to learn
        """Train the exit's own weights, if it has any, on the samples scored for that."""

    def beside(self, twin: Twin) -> Exit:
        """This exit for a copy of the model, where `pipelined` is set; it may run in another thread.

        It reads what this one has learned, and sets aside what it wants to learn (`unlearned`).

        Args:
            twin: from a module of the model to its copy.
        """
        raise TypeError(f"{type(self).__name__} does not score beside a training step")

    def unlearned(self) -> dict[str, Any]:
        """What was set aside to be learned, as plain tensors and numbers."""
        return {}

    def take_in(self, lessons: Mapping[str, Any]) -> None:  # noqa: B027
        """Take what a twin has set aside, for the next `learn`."""

    def observe(self, trained: TrainedBatch, losses_B: Tensor) -> None:  # noqa: B027
        """Take in the exact losses of a batch that is being trained, in warm-up too.

        Called with every batch where `observes` is set. The losses are of the user's own forward,
        and may not be there yet on a GPU.
        """

    def end_step(self) -> None:  # noqa: B027
        """Take note that a training step is over: on all ranks alike, so that they may talk."""

    def rehearse(self) -> None:  # noqa: B027
        """Behave as in most of a run from now on, not as at its start: its cost is about to be timed."""

    def missed(self) -> None:  # noqa: B027
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

    def share(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what the first of the ranks has learned, which train one model from now on.

        Args:
            states: of all ranks' exits.
        """
        self.load_state_dict(states[0])


def ids_in(call: Call, batch: Any, who: str = "a MemoryExit") -> Sequence[Any]:
    """The IDs of a batch's samples, as `ids=` finds them.

    Args:
        who: needs them, for a message.
    """
    if call.ids is None:
        raise ValueError(
            f"{who} has to know which sample is which: iterate over sifter(loader) with a DataLoader "
            "over a map-style data set (not one that Accelerate reads on one process for all, "
            "dispatch_batches=True), or pass ids= to the Sifter, the key of the batch that holds the "
            "samples' IDs, its position, or a function of the batch"
        )
    ids, size = call.ids_of(batch), call.samples.size(batch)
    if len(ids) != size:
        raise ValueError(f"ids={call.ids!r} gave {len(ids)} IDs for {size} samples")
    return ids
