from __future__ import annotations

import pytest

from sifting.recipes.text.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["He left.", "She stayed!", "Why?", "Nobody knows…", "3 men came."],
        [
            "It was Mr. Brown.",
            "Dr. J. Smith, i.e. his son, met No. 3 there.",
            "The U.S. Senate met.",
        ],
        ['"Is it?" he asked.', "(It is.)", "'So be it.'", "The end."],
        ["It costs 3.5 dollars, e.g. here.", "So what."],
        ["no capital letters . . .", "but marks apart .", "they end it ?", "they do"],
    ],
)
def test_sentences_are_found(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


def test_lines_end_sentences_only_after_a_mark_and_blank_lines_always() -> None:
    text = "A heading\n\nThe first line\ngoes on here.\nsecond sentence, small letter"
    assert split_sentences(text) == [
        "A heading",
        "The first line\ngoes on here.",
        "second sentence, small letter",
    ]


@pytest.mark.parametrize("text", ["", " \n\n \t"])
def test_no_text_has_no_sentences(text: str) -> None:
    assert split_sentences(text) == []


def test_nothing_is_lost() -> None:
    text = 'One. Two! "Three?" four . Five\n\nsix... Seven (eight.) Nine'
    joined = "".join(split_sentences(text))
    assert "".join(joined.split()) == "".join(text.split())
