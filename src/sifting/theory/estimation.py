"""The theory's quantities from a real run's (early loss, exact loss) pairs, with intervals.

Legend: N resamples, Q statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sifting.theory._checks import Floats, candidates, floats, whole
from sifting.theory._resample import COLUMNS, batch_sums
from sifting.theory.many import sigma_max
from sifting.theory.noise import rho_2_approx_lower
from sifting.theory.pairs import Pairs

CLUSTERS = 20  # from so many batches on, whole batches are resampled
_BLOCK = 512  # larger batches are dealt into blocks of about this size, at random


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval. NaN where the data cannot tell.

    Attributes:
        value: the estimate.
        low, high: the interval's ends.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Estimates:
    """What `estimate` returns; every field but the counts is an `Interval`.

    Args:
        rho: ρ_R of the exact losses, over the logged steps.
        rho_approx: ρ_{R,approx}, of selection by the early losses.
        rho_2, rho_2_approx: the same with R = 2.
        kept: mean exact loss of the share `keep` with the largest early losses, over the mean of
            all candidates: ρ_approx of the rule that training uses.
        kept_exact: the same if exact losses had selected, the most that `kept` can be.
        preservation: how often the early losses rank two candidates as the exact ones do.
        recall: share of the exact top `keep` that the early top `keep` contains.
        sigma: standard deviation, within batches, of log(early/exact).
        mu: mean over batches of log(early/exact).
        slope: of log early against log exact within batches; 1 under the paper's assumption.
        R, keep, confidence: as asked for.
        batches, pairs: how many were used.
        dropped: batches too small for R.
        nonpositive: pairs left out of sigma, mu and slope, since a loss in them is 0 or below.
    """

    rho: Interval
    rho_approx: Interval
    rho_2: Interval
    rho_2_approx: Interval
    kept: Interval
    kept_exact: Interval
    preservation: Interval
    recall: Interval
    sigma: Interval
    mu: Interval
    slope: Interval
    R: int
    keep: float
    confidence: float
    batches: int
    pairs: int
    dropped: int
    nonpositive: int

    def predict(self) -> Prediction:
        """What the theory says about a run with these estimates."""
        return predict(self)


@dataclass(frozen=True)
class Prediction:
    """What the theory predicts from `Estimates`.

    Args:
        speedup: the most that picking one of R can save in steps: ρ_{R,approx}.
        kept_speedup: the same for training on the share `keep`.
        break_even: cost of scoring, in updates per step, above which picking one of R cannot
            save time; 0 if it cannot save steps.
        kept_break_even: the same for training on the share `keep`.
        sigma_max: below this log-noise the paper's corollary promises ρ_{2,approx} > 1.
        sigma_max_symmetric: the same by the tighter bound.
        sigma_below: whether sigma is below sigma_max: True, False, or None if its interval
            contains sigma_max.
        rho_2_lower: what i.i.d. noise of this sigma would leave of ρ_2 at the least.
        noise_refuted: the measured ρ_{2,approx} lies below `rho_2_lower` by more than its
            interval, so that the early losses are not exact ones times i.i.d. noise.
        verdict: one sentence.
    """

    speedup: Interval
    kept_speedup: Interval
    break_even: Interval
    kept_break_even: Interval
    sigma_max: float
    sigma_max_symmetric: float
    sigma_below: bool | None
    rho_2_lower: float
    noise_refuted: bool
    verdict: str

    def time_ratio(self, scoring_cost: float) -> Interval:
        """Predicted time over that of plain training, at best, with the kept share.

        Args:
            scoring_cost: of scoring a step's candidates, in units of an update.
        """
        cost = float(floats("scoring_cost", scoring_cost, lambda x: x >= 0, "cost >= 0", "a cost"))
        s = self.kept_speedup
        return Interval((1 + cost) / s.value, (1 + cost) / s.high, (1 + cost) / s.low)


def estimate(
    pairs: Pairs,
    *,
    R: int = 2,
    keep: float = 0.5,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Estimates:
    """ρ_R, ρ_{R,approx}, the log-noise, argmax preservation and recall, each with an interval.

    >>> rng = np.random.default_rng(0)
    >>> exact = rng.exponential(size=(40, 64))
    >>> early = exact * np.exp(0.3 * rng.standard_normal(exact.shape))
    >>> e = estimate(Pairs.of(early, exact))
    >>> print(e.sigma)
    0.2981 [0.2903, 0.306]
    >>> e.rho.low < 1.5 < e.rho.high  # ρ_2 of exponential losses is 1.5
    True
    >>> e.predict().sigma_below
    True

    ρ_R and ρ_{R,approx} are averages over all R-subsets of each batch, computed exactly from the
    ranks. Ratios are of sums over batches, which is what the bound holds with along a run. With 20
    batches or more, whole batches are resampled; with fewer, the pairs within each, so that the
    interval then covers these batches only.

    Args:
        pairs: of `read_pairs`, or `Pairs.of(early, exact)`.
        R: candidates that one is picked from.
        keep: share of a batch that training keeps.
        confidence: of the intervals.
        resamples: bootstrap resamples.
        seed: of the bootstrap.
    """
    R = int(candidates("R", R))
    resamples = int(whole("resamples", resamples, 1, "resample once or more"))
    _share("keep", keep)
    _share("confidence", confidence)
    if confidence == 1:
        raise ValueError("confidence = 1, but confidence < 1 must hold: 0.95 is usual")
    rng = np.random.default_rng(seed)
    blocks = _blocks(pairs, R, rng)
    used = [(e, f) for e, f in blocks if e.size >= R]
    if not used:
        largest = max(e.size for e, _ in blocks)
        raise ValueError(
            f"R = {R}, but no batch has so many candidates (the largest has {largest}): lower R"
        )
    if not any(f.any() for _, f in used):
        raise ValueError("every exact loss is 0, but ρ is a ratio to their mean: log other steps")
    each = np.stack([batch_sums(e, f, np.ones((1, e.size)), R, keep)[0] for e, f in used])
    if len(used) >= CLUSTERS:
        draws = rng.multinomial(len(used), np.full(len(used), 1 / len(used)), resamples) @ each
    else:
        draws = np.zeros((resamples, len(COLUMNS)))
        for e, f in used:
            counts = rng.multinomial(e.size, np.full(e.size, 1 / e.size), resamples)
            draws += batch_sums(e, f, counts.astype(np.float64), R, keep)
    value = _ratios(each.sum(0, keepdims=True))
    spread = _ratios(draws)
    tail = (1 - confidence) / 2
    intervals: dict[str, Any] = {}
    for name, drawn in spread.items():
        finite = drawn[np.isfinite(drawn)]
        low, high = np.quantile(finite, [tail, 1 - tail]) if finite.size else (np.nan, np.nan)
        intervals[name] = Interval(float(value[name][0]), float(low), float(high))
    return Estimates(
        **intervals,
        R=R,
        keep=float(keep),
        confidence=float(confidence),
        batches=sum(e.size >= R for e in pairs.early),
        pairs=sum(e.size for e, _ in used),
        dropped=sum(e.size < R for e in pairs.early),
        nonpositive=sum(int(np.sum((e <= 0) | (f <= 0))) for e, f in used),
    )


def predict(e: Estimates) -> Prediction:
    """What the theory says about a run with these estimates; see `Prediction`."""
    rho_2 = min(max(e.rho_2.value, 1.0), 2.0)
    limit = float(sigma_max(rho_2))
    known = np.isfinite(e.sigma.value)
    lower = float(rho_2_approx_lower(rho_2, e.sigma.value, method="symmetric")) if known else 1.0
    below: bool | None = None
    if known and (e.sigma.high < limit or e.sigma.low > limit):
        below = e.sigma.high < limit
    if e.kept.high < 1:
        verdict = (
            "Stop: what is kept has a smaller loss than what is thrown away, which is worse than "
            "keeping at random."
        )
    elif e.kept.low <= 1:
        verdict = "Selection is not told apart from keeping at random."
    else:
        verdict = (
            f"The bounds allow up to {e.kept.value:.2f} times fewer steps, and so save time if "
            f"scoring a step's candidates costs less than {e.kept.value - 1:.2f} updates."
        )
    return Prediction(
        speedup=e.rho_approx,
        kept_speedup=e.kept,
        break_even=_excess(e.rho_approx),
        kept_break_even=_excess(e.kept),
        sigma_max=limit,
        sigma_max_symmetric=float(sigma_max(rho_2, method="symmetric")),
        sigma_below=below,
        rho_2_lower=lower,
        noise_refuted=bool(e.rho_2_approx.high < lower),
        verdict=verdict,
    )


def _excess(rho: Interval) -> Interval:
    return Interval(max(rho.value - 1, 0.0), max(rho.low - 1, 0.0), max(rho.high - 1, 0.0))


def _share(name: str, value: float) -> None:
    floats(name, value, lambda x: (x > 0) & (x <= 1), f"0 < {name} <= 1", "it is a share")


def _blocks(pairs: Pairs, R: int, rng: np.random.Generator) -> list[tuple[Floats, Floats]]:
    blocks = []
    for early, exact in zip(pairs.early, pairs.exact, strict=True):
        count = max(1, round(early.size / max(_BLOCK, 4 * R)))
        order = rng.permutation(early.size) if count > 1 else np.arange(early.size)
        blocks += [(early[part], exact[part]) for part in np.array_split(order, count)]
    return blocks


def _ratios(sums_NQ: Floats) -> dict[str, Floats]:
    """The estimates from sums over batches: every one is a ratio of two of them."""
    s = dict(zip(COLUMNS, sums_NQ.T, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "rho": s["top"] / s["mean"],
            "rho_approx": s["top_approx"] / s["mean"],
            "rho_2": s["pair"] / s["mean"],
            "rho_2_approx": s["pair_approx"] / s["mean"],
            "kept": s["kept"] / s["mean"],
            "kept_exact": s["kept_exact"] / s["mean"],
            "preservation": s["order"] / s["batches"],
            "recall": s["recall"] / s["batches"],
            "sigma": np.sqrt(s["log_square"] / s["log_df"]),
            "mu": s["log_mean"] / s["log_batches"],
            "slope": s["xy"] / s["xx"],
        }
