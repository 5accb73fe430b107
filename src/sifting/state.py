"""The state of a sifter: everything that going on identically needs, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sifting.compose import say_changes
from sifting.cursor import Cursor
from sifting.exits.scoring import DTYPES
from sifting.measure.meter import Meter
from sifting.plain import Plain, generator_state

if TYPE_CHECKING:
    from sifting.sifter import Sifter

VERSION = 3  # of a state


def saved(sifter: Sifter, *, epoch_over: bool) -> dict[str, Any]:
    """The state of a sifter; see `Sifter.state_dict`."""
    cursor = sifter.cursor.state_dict()
    return {
        "version": VERSION,
        "settings": sifter.settings(),
        "generator": sifter._generator.get_state(),
        "autocast": sifter._scorer.autocast,
        "cursor": {**cursor, "position": None} if epoch_over else cursor,
        "meter": sifter.meter.state_dict(),
        "exit": sifter.exit.state_dict(),
        "pilot": None if sifter.pilot is None else sifter.pilot.state_dict(),
        "under_way": sifter.observer.under_way,
    }


def load_saved(sifter: Sifter, state: Mapping[str, Any]) -> None:
    """Put a state into a sifter; one that is refused changes nothing."""
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        given = state.get("version") if isinstance(state, Mapping) else state
        raise ValueError(
            f"this sifter state has version {given!r}, and this release reads "
            f"version {VERSION}: finish the run with the release it was started with, or begin anew"
        )
    found = Plain(state, "the sifter")
    generator = found.made("generator", generator_state)
    autocast = found.whole("autocast", most=len(DTYPES) - 1)
    meter = Meter.checked(found.get("meter"))
    place = Cursor.checked(found.get("cursor"), steps=meter.counts["steps"])
    settings = found.inside("settings").content
    under_way = found.whole("under_way")
    pilot = None if sifter.pilot is None else found.inside("pilot")
    # it refuses what is another exit's: the last that can fail, so that nothing has changed yet
    sifter.exit.load_state_dict(found.inside("exit").content)
    sifter._generator.set_state(generator)
    sifter._scorer.autocast = autocast
    sifter.cursor.adopt(*place)
    sifter.meter.load_state_dict(found.get("meter"))
    if pilot is not None:
        assert sifter.pilot is not None
        sifter.pilot.load_state_dict(pilot.content)
    sifter.observer.forget()
    sifter.observer.under_way = under_way
    say_changes(settings, sifter.settings())
