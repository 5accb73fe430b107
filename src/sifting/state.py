"""The state of a sifter: everything that resuming identically needs, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sifting.compose import say_changes
from sifting.cursor import Cursor
from sifting.data.filling import Filling
from sifting.data.position import IndexPosition
from sifting.exits.drawn_ahead import DrawnAhead
from sifting.exits.scoring import DTYPES
from sifting.measure.meter import Meter
from sifting.parallel.detect import rank_of
from sifting.plain import Plain, damaged, generator_state

if TYPE_CHECKING:
    from sifting.sifter import Sifter

VERSION = 4  # of a state


def saved(sifter: Sifter, *, epoch_over: bool) -> dict[str, Any]:
    """The state of a sifter; see `Sifter.state_dict`."""
    # first: until it is scored, an exit has something to set aside
    beside = sifter.beside
    ahead = None if beside is None else beside.state_dict()
    cursor = sifter.cursor.state_dict()
    own = sifter._generator.get_state()
    return {
        "version": VERSION,
        "settings": sifter.settings(),
        "asked": sifter.asked,
        "generator": own if beside is None or epoch_over else beside.generator_state(),
        "autocast": sifter._scorer.autocast,
        "economy": sifter._scorer.economy.state_dict(),
        "graphs": sifter._scorer.graphs.plain(),
        "cursor": {**cursor, "position": None} if epoch_over else cursor,
        "rank": list(rank_of()),
        "meter": sifter.meter.state_dict(),
        "exit": sifter.exit.state_dict(),
        "pilot": None if sifter.pilot is None else sifter.pilot.state_dict(),
        "under_way": sifter.observer.under_way,
        "budget": None if sifter.budget is None else sifter.budget.state_dict(),
        "reference": None if sifter.reference is None else sifter.reference.state_dict(),
        "ahead": None if epoch_over else ahead,
        **({"padding": sifter.filling.state_dict()} if sifter.filling.found else {}),
    }


def load_saved(sifter: Sifter, state: Mapping[str, Any]) -> None:
    """Put a state into a sifter; one that is refused changes nothing."""
    given = state.get("version") if isinstance(state, Mapping) else state
    if not isinstance(state, Mapping) or not isinstance(given, int) or given != VERSION:
        raise ValueError(
            f"this sifter state has version {given!r}, and this release reads "
            f"version {VERSION}: finish the run with the release it was started with, or start over"
        )
    found = Plain(state, "the sifter")
    generator = found.made("generator", generator_state)
    autocast = found.whole("autocast", most=len(DTYPES) - 1)
    meter = Meter.checked(found.get("meter"))
    place = Cursor.checked(found.get("cursor"), steps=meter.counts["steps"])
    _check_rank(found, place[1])
    settings = _shown_settings(found.inside("settings"))
    asked = _shown_settings(found.inside("asked")) if "asked" in found else settings
    under_way = found.whole("under_way")
    ahead = DrawnAhead.from_plain(state.get("ahead"), found.inside("exit").content)
    if sifter.pilot is not None and found.get("pilot") is None:
        raise ValueError(
            f"the state was saved with keep={settings.get('keep')!r}, and this sifter is an autopilot "
            "(keep='auto'), which finds nothing in it to continue from: pass the keep= and exit= that it was "
            "saved with, or start over"
        )
    pilot = None if sifter.pilot is None else found.inside("pilot")
    learned = found.get("reference") if sifter.reference is not None else None
    reference = {} if learned is None else found.inside("reference").content
    economy = found.inside("economy") if "economy" in found else None  # states of before have none
    if economy is not None:
        economy.whole("low", least=-1, most=1)
    padding = Filling.checked(found.get("padding") if "padding" in found else {})
    graphs = found.whole("graphs", least=-1, most=1) if "graphs" in found else -1
    if sifter.beside is not None:
        sifter.beside.state_dict()  # waits until nothing of the exit is read beside
    # the last that can fail, so that nothing else has changed yet
    exit = found.inside("exit").content
    try:
        _load_learned(sifter, exit, pilot, reference=reference, budget=found.get("budget"))
    except ValueError as error:
        before, now = settings.get("exit"), sifter.settings()["exit"]
        if before == now:
            raise
        raise ValueError(
            f"the state was saved with exit={before}, and this sifter's is {now}, which cannot continue from "
            f"what that has learned: make the sifter with the exit the state was saved with ({error})"
        ) from error
    if sifter.beside is not None:
        sifter.beside.drop()
    sifter._generator.set_state(generator)
    sifter._scorer.autocast = autocast
    if economy is not None:
        sifter._scorer.economy.load_state_dict(economy.content)
    sifter._scorer.graphs.take(graphs)
    sifter.filling.load_state_dict(padding)
    sifter.cursor.adopt(*place)
    sifter.meter.load_state_dict(found.get("meter"))
    sifter.observer.forget()
    sifter.observer.under_way = under_way
    if sifter.beside is not None and place[1] is not None:
        sifter.beside.ahead = ahead
    say_changes(asked, sifter.asked)  # what is found on a first batch is no change


def _check_rank(found: Plain, place: Any) -> None:
    """Raise where a state holds candidates that another rank has drawn, which both would train."""
    if found.content.get("rank") is None:  # of releases before, or for any rank
        return
    saved, now = found.numbers("rank", length=2), list(rank_of())
    if saved != now and isinstance(place, IndexPosition):
        raise ValueError(
            f"this is rank {now[0]} of {now[1]}, and the state was saved in the middle of an epoch by rank "
            f"{saved[0]:g} of {saved[1]:g}, whose candidates it holds: give each rank its own state, or save all "
            "of them as one: sifting.checkpoint.Portable(sifter) (accelerator.register_for_checkpointing(Portable("
            "sifter)), since Accelerate saves the first rank's state alone), or save between epochs "
            "(state_dict(epoch_over=True))"
        )


def _shown_settings(found: Plain) -> dict[str, Any]:
    """The settings that a state was saved with, which are shown where they are others."""
    for name in found:
        if isinstance(found.get(name), Tensor | Mapping):
            found.refuse(name, "a plain value")
    return dict(found.content)


def _load_learned(
    sifter: Sifter,
    exit: Mapping[str, Any],
    pilot: Plain | None,
    *,
    reference: Mapping[str, Any],
    budget: Mapping[str, Any] | None,
) -> None:
    """Put back what exit and autopilot have learned: both, or neither, also of exits of one's own.

    An exit refuses what is another exit's.
    """
    parts: list[tuple[Any, Any]] = [(sifter.exit, exit)]
    if sifter.budget is not None and budget is not None:  # begun without one: nothing is left over
        parts.insert(0, (sifter.budget, budget))
    if sifter.reference is not None:
        parts.insert(0, (sifter.reference, reference))
    if sifter.pilot is not None and pilot is not None:
        parts.insert(0, (sifter.pilot, pilot.content))
    before = [(part, part.state_dict()) for part, _ in parts]
    try:
        for part, content in parts:
            part.load_state_dict(content)
    except Exception as error:
        for part, content in before:
            part.load_state_dict(content)
        if isinstance(error, ValueError):
            raise
        raise damaged(f"what was learned cannot be restored: {error!r}"[:300]) from error
