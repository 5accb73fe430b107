"""The settings that every run has."""

from __future__ import annotations

import pytest

from sifting.training.config import OPERATIONAL, RunConfig, plain_settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arm": "sieve"}, "arm='sieve' is unknown"),
        ({"warmup": 1.0}, r"warmup=1.0 is not in \[0, 1\)"),
        ({"batch": 0}, "batch=0: give at least 1"),
        ({"updates": 0}, "updates=0"),
        ({"keep_checkpoints": 0}, "keep_checkpoints=0"),
        (
            {"checkpoint_every": "often"},
            r"'often' is not understood: give updates \(500u\) or time",
        ),
        ({"checkpoint_every": "64n"}, "checkpoint_every='64n': give updates"),
    ],
)
def test_settings_that_mean_nothing_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig(**given)


def test_checkpoints_lie_updates_or_time_apart() -> None:
    assert RunConfig().checkpoint_interval() is None
    assert RunConfig(checkpoint_every="500u").checkpoint_interval() == ("updates", 500.0)
    assert RunConfig(checkpoint_every="2h").checkpoint_interval() == ("seconds", 7200.0)


def test_what_is_recorded_is_plain_and_says_how_often_to_save_only_where_asked() -> None:
    plain = plain_settings(RunConfig(arm="sift@3", clip=1.0))
    assert (plain["arm"], plain["clip"]) == ("sift@3", 1.0)
    assert "checkpoint_every" not in plain
    assert plain_settings(RunConfig(checkpoint_every="5m"))["checkpoint_every"] == "5m"
    assert set(OPERATIONAL) <= {*plain, "checkpoint_every"}, "what may change is a setting"
