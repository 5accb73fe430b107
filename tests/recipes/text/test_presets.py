from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sifting.recipes.bert import PRESETS
from sifting.recipes.text.presets import SIZES, TextConfig, text_presets


def test_a_preset_is_the_shared_size_and_what_the_recipe_has_otherwise() -> None:
    presets = text_presets(TextConfig, small={"layers": 3})
    assert presets["paper"] == TextConfig()
    assert presets["small"].layers == 3
    assert presets["small"].updates == SIZES["small"]["updates"]
    assert presets["smoke"].layers == SIZES["smoke"]["layers"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 65}, "hidden=65 is not a multiple of heads=2"),
        ({"layers": 0}, "layers=0"),
        ({"dev_share": 0.0}, "dev_share=0.0 is not a share"),
        ({"dropout": 1.0}, "dropout=1.0 is not a share"),
        ({"warmup": 1.0}, "warmup=1.0"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PRESETS["smoke"], **options)
