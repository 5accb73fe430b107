"""Token tagging: which words of a text were capitalised, and what stood after them.

Words come without capitals and punctuation; each has a tag that says which it had. The labels are
the text's own, so that none has to be bought, and some are the writer's whim.
Shapes: N windows, B of a batch, T words, C tags.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.bench.tasks.common import Data, TaskConfig, find_data, make_problem, missing, updates
from sifting.bench.tasks.rows import TaskRows, shuffled
from sifting.recipes.text.corpus import SHIPPED, read_corpus
from sifting.training.problem import Problem
from sifting.training.recipe import DataError, Recipe

REMEDY = "put English prose as train.parquet with a column text into $SIFT_DATA/text"
WORD = re.compile(r"([A-Za-z][A-Za-z'-]*)([,.;:!?]?)")
COMMA, STOP = 2, 4  # added to 1 for a capital: six tags, of which 0 is the plain word
TAGS = 6
MARKS = {"": 0, ",": COMMA, ";": COMMA, ":": COMMA, ".": STOP, "!": STOP, "?": STOP}
UNKNOWN = 0  # the id of words outside the vocabulary
HELD_OUT = 10  # of so many documents, one is held out, one tested
MOST = 2000  # windows that are evaluated
SPLIT = 0  # seed of which windows are taken


@dataclass(frozen=True)
class TaggingConfig(TaskConfig):
    """Settings of a run."""

    words: int = 32
    """In a window of text."""
    vocabulary: int = 5000
    """Commonest words that are told apart."""
    width: int = 96
    """Features of the encoder."""


def tagged(text: str) -> Iterator[tuple[str, int]]:
    """Words in small letters, and their tags.

    >>> list(tagged("Well, it rains."))
    [('well', 3), ('it', 0), ('rains', 4)]
    """
    for word, mark in WORD.findall(text):
        yield word.lower(), int(word[0].isupper()) + MARKS[mark]


def written_out(text: str) -> bool:
    """Whether a text has capitals, and punctuation that touches its words."""
    head = text[:5000]
    return sum(map(str.isupper, head)) > 0.01 * len(head) and head.count(" .") < head.count(". ")


def read_texts(config: TaskConfig) -> list[str]:
    """Documents that are written out."""
    folder = find_data("text")
    if folder is None:
        missing(config, "English prose", REMEDY, "what ships with Python")
    corpus = read_corpus(SHIPPED if folder is None else str(folder))
    texts = [text for text, _ in corpus.documents() if written_out(text)]
    if not texts:
        raise DataError(f"{corpus.name} has no text with capitals and punctuation")
    return texts


def windows(texts: Iterable[str], known: dict[str, int], words: int) -> TaskRows:
    """Texts cut into windows of ids and tags; what is left at a text's end is dropped."""
    ids: list[list[int]] = []
    tags: list[list[int]] = []
    for text in texts:
        pairs = list(tagged(text))
        for start in range(0, len(pairs) - words + 1, words):
            piece = pairs[start : start + words]
            ids.append([known.get(word, UNKNOWN) for word, _ in piece])
            tags.append([tag for _, tag in piece])
    return TaskRows(torch.tensor(ids).reshape(-1, words), torch.tensor(tags).reshape(-1, words))


def read(config: TaggingConfig) -> Data:
    """Windows of some texts; every document is trained, held out or tested as a whole."""
    texts = read_texts(config)
    places = [number % HELD_OUT for number in range(len(texts))]
    parts = [
        [text for text, place in zip(texts, places, strict=True) if place in chosen]
        for chosen in (range(2, HELD_OUT), (1,), (0,))
    ]
    counts = Counter(word for text in parts[0] for word, _ in tagged(text))
    common = [word for word, _ in counts.most_common(config.vocabulary)]
    known = {word: number for number, word in enumerate(common, start=1)}
    train, held_out, test = (windows(part, known, config.words) for part in parts)
    some = shuffled(len(train), seed=SPLIT)[: config.samples]
    most = 50 if config.stand_in else MOST
    held_out, test = (r.some(shuffled(len(r), seed=SPLIT)[:most]) for r in (held_out, test))
    return Data(train.some(some), held_out, test, TAGS)


class Tagger(nn.Module):
    """Two layers of a transformer that reads both ways."""

    def __init__(self, config: TaggingConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary + 1, config.width)
        self.places = nn.Embedding(config.words, config.width)
        layer = nn.TransformerEncoderLayer(
            config.width, 4, 2 * config.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(config.width, TAGS)

    def forward(self, ids_BT: Tensor) -> Tensor:
        hidden_BTH = self.words(ids_BT) + self.places.weight[: ids_BT.shape[1]]
        logits_BTC: Tensor = self.head(self.encoder(hidden_BTH))
        return logits_BTC


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy of each window's words."""
    ids_BT, tags_BT = batch
    each_BT = F.cross_entropy(model(ids_BT).transpose(1, 2), tags_BT, reduction="none")
    return each_BT.mean(dim=1)


def measure(model: nn.Module, rows: TaskRows) -> dict[str, float]:
    """F1 of the tags that are not the plain word's, accuracy over all words, and the loss."""
    model.eval()
    right = said = there = hits = 0
    total = 0.0
    with torch.no_grad():
        for ids_BT, tags_BT in rows.in_order():
            logits_BTC = model(ids_BT)
            found_BT = logits_BTC.argmax(dim=2)
            same_BT = found_BT == tags_BT
            hits += int((same_BT & (tags_BT > 0)).sum())
            said, there = said + int((found_BT > 0).sum()), there + int((tags_BT > 0).sum())
            right += int(same_BT.sum())
            total += float(F.cross_entropy(logits_BTC.transpose(1, 2), tags_BT, reduction="sum"))
    words = rows.tensors_N[0].numel()
    return {
        "f1": 2 * hits / max(1, said + there),
        "word_accuracy": right / words,
        "test_loss": total / words,
    }


def problem(config: TaggingConfig, data: Data) -> Problem:
    """The tagger on some windows."""
    torch.manual_seed(config.seed)
    return make_problem(config, data, Tagger(config), losses=losses, measure=measure, metric="f1")


FULL = TaggingConfig(batch=32, length=1600, samples=20_000, max_lr=9e-3, evaluations=8, warmup=0.1)
TAGGING: Recipe[TaggingConfig, Data] = Recipe(
    name="tagging",
    about="capitals and punctuation of English prose, word by word, a small transformer",
    presets={
        "full": FULL,
        "smoke": replace(
            FULL, samples=200, batch=8, length=8, width=16, evaluations=2, stand_in=True
        ),
    },
    read=read,
    problem=problem,
    updates=updates,
    data_settings=("samples", "words", "vocabulary", "stand_in"),
)
