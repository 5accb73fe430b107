"""Colours, dashes and marks of the arms."""

from __future__ import annotations

from itertools import combinations

from sifting.report.palette import (
    CLOCKS,
    DARK,
    DARK_CLOCKS,
    LIGHT,
    LIGHT_CLOCKS,
    PLAIN,
    THEMED,
    place,
    style,
    variables,
)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_can_be_seen_on_white_and_on_black() -> None:
    assert min(contrast(colour, "#ffffff") for colour in LIGHT) >= 3
    assert min(contrast(colour, "#14171b") for colour in DARK) >= 3


def test_arms_differ_in_more_than_colour() -> None:
    looks = [(place(arm), str(style(arm))) for arm in range(22)]
    assert len(set(looks)) == 22
    for one, other in combinations(range(22), 2):
        if place(one) == place(other):
            assert style(one) != style(other)
    assert all(place(arm) > 0 for arm in range(1, 30)), "the neutral colour is the baseline's"


def test_every_colour_of_an_arm_or_a_clock_has_a_variable_of_the_page() -> None:
    defined = {f"var({item.split(':')[0]})" for item in variables(LIGHT, LIGHT_CLOCKS).split(";")}
    assert {*THEMED.series, *THEMED.clocks} == defined
    assert THEMED.of(9) == THEMED.series[place(9)]
    assert PLAIN.of(0) == LIGHT[0]


def test_light_and_dark_define_the_same_variables() -> None:
    light, dark = variables(LIGHT, LIGHT_CLOCKS), variables(DARK, DARK_CLOCKS)
    names = [[item.split(":")[0] for item in css.split(";")] for css in (light, dark)]
    assert names[0] == names[1]
    assert len(LIGHT_CLOCKS) == len(DARK_CLOCKS) == len(CLOCKS)
