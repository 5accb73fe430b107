"""What decides: from what is known of the options to one of them. Pure; nothing here measures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sifting.autopilot.options import PLAIN, Judged, Option

# share of the progress from which an option is taken up, less its error; and below which it is dropped
ENTER, LEAVE = 0.56, 0.52
ERRORS_OF_NEW = 2  # on new samples, that many errors less: they are other samples at every step
GAIN = 1.05  # speed-up from which it is taken up: costs are by clocks that may be wrong by some percent
WORTH = 1.08  # how much better another option has to be than the one in use
EPSILON = 0.1  # share of the loss that the dropped may carry, where nothing better is known
AGREES = 0.9  # agreement below which an option is not taken
RANDOM = (
    0.02  # below random in kept loss, by which what is in use on the word of new samples is dropped
)
TOO_NOISY = 0.25  # error of a share from which it is not told
AS_WELL = 0.93  # of the best that is not by loss, below which one by loss is after wrong labels


def decide(judged: Sequence[Judged], current: Option, *, held_out: bool) -> tuple[Option, str]:
    """The option to take, and why.

    >>> good = Judged(Option("input", 2), share=0.8, error=0.02, speedup=1.3)
    >>> decide([good], PLAIN, held_out=True)[0]
    Option(scorer='input', ratio=2)
    >>> poor = Judged(Option("input", 2), share=0.5, error=0.02, speedup=1.0)
    >>> str(decide([poor], good.option, held_out=True)[0])
    'everything'

    Where the share of progress on held-out or new samples is known, it decides at the first rung of
    the ladder; everywhere else kept loss does, and agreement may veto. What is in use is kept
    until it falls below a lower mark than the one it had to reach.

    Args:
        judged: the options.
        current: the one in use.
        held_out: whether held-out samples are looked at.
    """
    level = AS_WELL * max(
        (found.agreement or 0.0 for found in judged if _by_sight(found)), default=0.0
    )
    allowed = [found for found in judged if _allowed(found, current, held_out, level)]
    looked_at = {found.option.scorer for found in allowed if found.share is not None}
    if looked_at:  # what held-out samples speak for goes before what only losses do
        allowed = [found for found in allowed if found.option.scorer in looked_at]
    if not allowed:
        return PLAIN, _why_not(judged, current, held_out)
    best = max(allowed, key=lambda found: (_gain(found), found.option == current))
    using = next((found for found in allowed if found.option == current), None)
    if using is not None and _gain(best) < _gain(using) * WORTH:
        best = using  # not worth a change
    return best.option, _why(best, held_out)


def expected(judged: Judged) -> float:
    """The speed-up that is expected of an option."""
    return _gain(judged)


def _gain(found: Judged) -> float:
    if found.speedup is not None and found.option.ratio == 2:
        return found.speedup
    if found.kept_loss is None:
        return 1.0
    # a batch R times as large, at its price; what it buys is at most as much
    return 1 + (found.kept_loss * found.option.ratio - 1) / 2 - found.cost


def _least(found: Judged, errors: int) -> float:
    """Its share, less some errors; one above 1, where the others get worse, is no surer for that."""
    return min(found.share or 0.0, 1.0) - errors * (found.error or 0.0)


def _by_sight(found: Judged) -> bool:
    """Whether it is a scorer that looks at samples, and does not go by their losses."""
    return found.option.ratio == 2 and found.share is not None and found.learnable is None


def _allowed(found: Judged, current: Option, held_out: bool, level: float) -> bool:
    if found.vetoed or found.forgets:
        return False
    disagrees = found.agreement is not None and found.agreement < AGREES
    if found.option.ratio == 2 and found.share is not None:
        if found.learnable is not None and found.option != current:
            # by loss: not before it is known that high losses are no wrong labels
            if not found.learnable or found.agreement is None or disagrees:
                return False
            if found.agreement < level:
                return False
        if found.learnable is False:
            return False
        if found.option == current:
            return found.share >= LEAVE and (found.speedup or 0.0) >= 1  # its cost is taken off
        if (found.speedup or 0.0) < GAIN:
            return False
        return _least(found, 1 if held_out else ERRORS_OF_NEW) >= ENTER
    if found.kept_loss is None or disagrees or found.learnable is False:
        return False
    if held_out and found.learnable is None and found.option.ratio == 2:
        return False  # held-out samples have yet to tell
    margin = EPSILON / 2 if found.option == current else 0.0
    return found.kept_loss >= 1 - EPSILON - margin and _gain(found) > GAIN


def _why(found: Judged, held_out: bool) -> str:
    if found.option.ratio == 2 and found.share is not None:
        return (
            f"{_percent(found.share)} (± {found.error or 0:.0%}) of the progress on {_samples(held_out)} is made "
            "on the half that it keeps"
        )
    return f"the kept carry {found.kept_loss or 0:.0%} of the loss"


def _why_not(judged: Sequence[Judged], current: Option, held_out: bool) -> str:
    if not judged:
        return "no scorer fits the model and its batches"
    vetoed = [str(found.option) for found in judged if found.vetoed]
    if vetoed:
        return f"a trial found harm in {', '.join(vetoed)}"
    lost = [str(found.option) for found in judged if found.forgets and found.option == current]
    if lost:
        return f"with {', '.join(lost)}, what is dropped gets worse"
    shares = [f for f in judged if f.share is not None and not math.isnan(f.share)]
    if shares:
        # one by loss may be refused for other reasons than its share
        best = max([f for f in shares if f.learnable is None] or shares, key=lambda f: f.share or 0)
        told = f"{_percent(best.share)} (± {best.error or 0:.0%})"
        if (best.error or 0.0) > TOO_NOISY:
            return f"progress on {_samples(held_out)} is too small beside its noise to tell where it is made"
        if best.share == best.speedup == 0:
            return f"no progress on {_samples(held_out)} is told from noise"
        sure = _least(best, 1) >= ENTER
        if not held_out and sure and _least(best, ERRORS_OF_NEW) < ENTER:
            return (
                f"{told} of the progress on new samples is made on the half that "
                f"{best.option.scorer} would keep: too uncertain to go by"
            )
        if sure and best.speedup is not None:
            return (
                f"a step that keeps {best.option} would be worth {best.speedup:.2f} plain ones, with the "
                f"{best.cost:.0%} of a step that choosing takes: too little to be sure of"
            )
        return (
            f"only {told} of the progress on {_samples(held_out)} is made "
            f"on the half that {best.option.scorer} would keep"
        )
    known = [found for found in judged if found.kept_loss is not None]
    # one by loss that held-out samples do not speak for is refused, whatever its kept loss is
    known = [found for found in known if found.learnable is not False] or known
    if known:
        most = max(known, key=lambda found: found.kept_loss or 0)
        return f"the kept would carry {most.kept_loss:.0%} of the loss ({most.option}){_but(most, held_out)}"
    return "too little is known yet"


def _but(most: Judged, held_out: bool) -> str:
    """Why an option is not taken though its kept loss would do; nothing where it would not."""
    if (most.kept_loss or 0.0) < 1 - EPSILON:
        return ""
    if most.agreement is not None and most.agreement < AGREES:
        return ", but their gradient does not agree with the mean"
    if most.learnable is False:
        return ", but held-out samples do not say that high losses are learned"
    if held_out and most.learnable is None and most.option.ratio == 2:
        return ", but held-out samples have yet to tell"
    return f", with the {most.cost:.0%} of a step that choosing takes: too little to be sure of"


def _percent(share: float | None) -> str:
    """A share of the progress, for people: above 1, the others got worse."""
    return f"{min(max(share or 0.0, 0.0), 1.0):.0%}"


def _samples(held_out: bool) -> str:
    return "held-out samples" if held_out else "new samples"
