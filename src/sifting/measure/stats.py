"""What sifting cost, what it kept and how well it chose, in numbers.

Shapes: B candidates, K kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

QUALITY = (
    "recall",
    "rank_correlation",
    "rho_approx",
    "rho_tokens",
    "rho_explored",
    "misclassified",
)
TOKENS = ("tokens_seen", "tokens_trained")
JUDGED = ("learning_share", "kept_loss", "agreement", "saving")  # by the autopilot
WINDOW = 10  # audits that the metrics of selection quality are averaged over


class SiftingWarning(UserWarning):
    """Selection is doing harm, or cannot be trusted; the message says what to try."""


@dataclass(frozen=True)
class Stats(Mapping[str, Any]):
    """A summary of sifting so far; prints as a short report, and reads like a dict.

    Attributes:
        steps: training batches handed out.
        selections: candidate batches that were scored.
        candidates_seen: samples drawn from the loader.
        samples_trained: samples handed out for training.
        seconds_scoring: time in scoring and choosing.
        seconds_auditing: time in measuring the quality of the choice.
        seconds_observing: time in reading losses of what is trained, for exits that observe and for the
            autopilot; most of it within the user's step.
        seconds_between: time in the user's own step, data loading aside, with what is observed in it.
        seconds_loading: time waiting for the loader.
        audits: candidate batches whose exact losses were computed.
        rehearsals: batches that were scored for comparing scorers, with nothing chosen from them.
        held_out_seen: held-out samples that the autopilot has looked at, each as often as it did.
        trial_updates: plain updates whose time the autopilot's trials took.
        recall, rank_correlation, rho_approx: see `Quality`; means over the last audits, None
            before the first.
        rho_explored: ρ_approx measured in the training step from the random picks (`explore`),
            without any extra pass; None where there are none.
        misclassified: share of the kept that the model gets wrong, None where it has no meaning.
        scoring_share: scoring time over scoring and the user's step together.
        option: what the autopilot does now; empty where the ratio is fixed.
        since: the step from which on.
        why: it does so.
        learning_share: share of the progress on held-out samples that is made on the half that
            would be kept, as it found last.
        kept_loss: share of the loss that the kept half carries.
        agreement: of the kept half's gradient with the mean one.
        saving: share of the time that the run so far is expected to have saved.
        tokens_seen: tokens of the candidates that were read, padding not counted; 0 where samples
            have none.
        tokens_trained: tokens of the samples handed out for training.
        rho_tokens: loss per token of the kept over that of the candidates, over the last audits;
            None where losses are not known by token.
        economy: what is left out of candidates when they are scored; empty where nothing is.
        losses_read: steps whose exact losses were read from their own forward.
    """

    steps: int
    selections: int
    candidates_seen: int
    samples_trained: int
    seconds_scoring: float
    seconds_auditing: float
    seconds_between: float
    seconds_loading: float
    audits: int
    rehearsals: int
    held_out_seen: int
    trial_updates: int
    recall: float | None
    rank_correlation: float | None
    rho_approx: float | None
    rho_explored: float | None
    misclassified: float | None
    scoring_share: float
    option: str = ""
    since: int = 0
    why: str = ""
    learning_share: float | None = None
    kept_loss: float | None = None
    agreement: float | None = None
    saving: float | None = None
    tokens_seen: int = 0
    tokens_trained: int = 0
    rho_tokens: float | None = None
    economy: str = ""
    seconds_observing: float = 0.0
    losses_read: int = 0

    def __getitem__(self, name: str) -> Any:
        return asdict(self)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))

    def scalars(self) -> dict[str, float]:
        """What a logger can plot, under the names that all our logs have; what is unknown left out."""
        names = (*QUALITY, *JUDGED, "scoring_share", "candidates_seen", "samples_trained")
        found = {f"sifting/{name}": self[name] for name in names if self[name] is not None}
        tokens = TOKENS if self.tokens_seen else ()
        found |= {f"sifting/{name}": self[name] for name in tokens}
        return found | {f"sifting/{name}": rate for name, rate in self.throughput().items()}

    def throughput(self) -> dict[str, float]:
        """Tokens seen and trained per second, of all that was spent since the start; empty without tokens.

        >>> from dataclasses import replace
        >>> from sifting.measure.meter import Meter
        >>> stats = replace(Meter().stats(), seconds_between=1.5, seconds_scoring=0.5)
        >>> replace(stats, tokens_seen=4000, tokens_trained=2000).throughput()
        {'tokens_seen_per_second': 2000.0, 'tokens_trained_per_second': 1000.0}
        """
        spent = (
            self.seconds_scoring
            + self.seconds_auditing
            + self.seconds_between
            + self.seconds_loading
        )
        if not self.tokens_seen or spent <= 0:
            return {}
        return {f"{name}_per_second": self[name] / spent for name in TOKENS}

    def __str__(self) -> str:
        kept = self.samples_trained / self.candidates_seen if self.candidates_seen else 0.0
        lines = [
            f"{self.steps} steps: trained {self.samples_trained} of {self.candidates_seen} candidates "
            f"({kept:.0%}); {self.selections} batches were sifted",
            f"scoring took {self.seconds_scoring:.2f} s beside {self.seconds_between:.2f} s of training "
            f"({self.scoring_share:.1%}), auditing {self.seconds_auditing:.2f} s, observing "
            f"{self.seconds_observing:.2f} s",
        ]
        if self.tokens_seen:
            rates = ", ".join(f"{rate:.0f} {name}" for name, rate in self.throughput().items())
            rates = rates.replace("tokens_", "").replace("_per_second", " a second")
            lines.insert(
                1,
                f"{self.tokens_trained} of {self.tokens_seen} tokens trained "
                f"({self.tokens_trained / self.tokens_seen:.0%})" + (rates and f"; {rates}"),
            )
        if self.economy:
            lines.append(f"scored of each candidate: {self.economy}")
        if self.option:
            lines.append(f"autopilot: {self.option} since step {self.since}, since {self.why}")
        if self.saving:
            lines.append(f"expected to have saved {self.saving:.0%} of the time so far")
        if self.rho_approx is not None:
            lines.append(
                f"choice, over the last {min(self.audits, WINDOW)} of {self.audits} audits: "
                f"rho_approx {self.rho_approx:.2f} (random: 1.00), recall {self.recall:.2f}, "
                f"rank correlation {self.rank_correlation:.2f}"
            )
        elif self.selections:
            lines.append("choice: not audited yet")
        if self.rho_tokens is not None:
            lines.append(
                f"loss per token of the kept over that of the candidates: {self.rho_tokens:.2f}"
            )
        if self.rho_explored is not None:
            lines.append(f"rho_approx from the random picks in training: {self.rho_explored:.2f}")
        if self.misclassified is not None:
            lines.append(f"misclassified among the kept: {self.misclassified:.0%}")
        return "\n".join(lines)


def share_of(part: float, rest: float) -> float:
    return part / (part + rest) if part > 0 else 0.0


def reduced(parts: Sequence[tuple[Stats, tuple[float, float] | None]]) -> Stats:
    """One summary from those of all ranks.

    Samples are added up; steps, selections and audits, which ranks make together, are those of
    the rank that has made most; seconds and metrics of quality are means over the ranks that
    have them.

    Args:
        parts: each rank's summary, and the means that its `rho_explored` is the ratio of.
    """
    stats = [own for own, _ in parts]

    def mean(name: str) -> float | None:
        values = [own[name] for own in stats if own[name] is not None]
        return sum(values) / len(values) if values else None

    words = ("option", "why", "economy")  # ranks decide alike
    found: dict[str, Any] = {f.name: mean(f.name) for f in fields(Stats) if f.name not in words}
    found.update({name: stats[0][name] for name in (*words, "since")})
    for name in ("candidates_seen", "samples_trained", *TOKENS):
        found[name] = sum(own[name] for own in stats)
    once = ("steps", "selections", "audits", "rehearsals", "held_out_seen", "trial_updates")
    for name in (*once, "losses_read"):
        found[name] = max(own[name] for own in stats)
    sums = [sum(column) for column in zip(*(m for _, m in parts if m is not None), strict=True)]
    found["rho_explored"] = sums[0] / sums[1] if sums and sums[1] > 0 else None
    return Stats(**found)
