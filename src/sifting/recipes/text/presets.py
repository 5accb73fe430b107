"""Settings of the text recipes, and the presets that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sifting.recipes.text.vocabulary import TRAIN
from sifting.training.config import RunConfig

# The BookCorpus of the paper is no longer distributed; this is its open successor, book by book.
BOOKS_AND_WIKIPEDIA = "lucadiliello/bookcorpusopen + wikimedia/wikipedia:20231101.en"
SIMPLE_WIKIPEDIA = "wikimedia/wikipedia:20231101.simple"


@dataclass(frozen=True)
class TextConfig(RunConfig):
    """Settings of a text recipe; the defaults are the paper's."""

    data: str = BOOKS_AND_WIKIPEDIA
    """File, folder or Hub name ("name:config"); several with " + " between; "python" ships with Python."""
    column: str | None = None
    """Where the text is; None finds it (text, content, sentence, …)."""
    paragraphs: bool = False
    """Take what stands between blank lines of a text file as a document, not the whole file."""
    streaming: bool = False
    """Read datasets of the Hub as they come, without storing them first."""
    megabytes: float | None = None
    """Stop reading after this much text."""
    vocabulary: str = "bert-base-uncased"
    """Hub name, vocab.txt, tokenizer.json or a folder with one; "train" makes one from the corpus."""
    vocabulary_size: int = 30522
    """Tokens of a vocabulary that is made."""
    dev_share: float = 0.005
    """Share of the documents that is held out, by a hash of their content."""
    dev_sequences: int = 2048
    """Held-out sequences that an evaluation takes, at most."""
    length: int = 512
    """Tokens of a sequence."""
    updates: int | None = 800_000
    """Optimizer steps; None for one pass over the data by the baseline."""
    warmup: float = 0.025
    """Share of the updates before the first selection."""
    evaluations: int = 100
    """Evaluations over the run."""
    lr: float = 1e-4
    """Peak of the learning rate."""
    lr_warmup: float = 0.002
    """Share of the updates in which the learning rate rises; then it falls in a line."""
    weight_decay: float = 0.01
    """Of AdamW; biases and norms have none, as in BERT."""
    layers: int = 12
    """Blocks of the model."""
    hidden: int = 768
    """Its width."""
    heads: int = 12
    """Heads of its attention."""
    inner: int = 3072
    """Width between the two layers of its feed-forward part."""
    dropout: float = 0.1
    """In all layers."""
    init: float = 0.02
    """Deviation of the weights at the start; a narrow model needs more, this is 0.55 / √hidden."""
    workers: int = 0
    """Processes that make batches ahead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocabulary_size", "dev_sequences", "layers", "hidden", "heads", "inner"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is not a multiple of heads={self.heads}")
        for name in ("dev_share", "lr_warmup", "dropout"):
            low = name == "dev_share"
            if not (0 < getattr(self, name) < 1 if low else 0 <= getattr(self, name) < 1):
                raise ValueError(f"{name}={getattr(self, name)} is not a share: give one below 1")


C = TypeVar("C", bound=TextConfig)

# what `read_text` goes by
DATA_SETTINGS = (
    "data",
    "column",
    "paragraphs",
    "streaming",
    "megabytes",
    "vocabulary",
    "vocabulary_size",
    "dev_share",
)
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "data": SIMPLE_WIKIPEDIA,
        "megabytes": 25.0,
        "vocabulary_size": 2048,
        "dev_share": 0.05,
        "dev_sequences": 2048,
        "updates": 1200,
        "evaluations": 8,
        "layers": 4,
        "inner": 256,
        "audit_every": 25,
    },
    "smoke": {
        "data": "python",
        "vocabulary_size": 1000,
        "dev_share": 0.1,
        "dev_sequences": 128,
        "batch": 16,
        "updates": 200,
        "evaluations": 4,
        "layers": 3,
        "inner": 128,
        "audit_every": 10,
    },
}
REDUCED: dict[str, Any] = {  # in all sizes below the paper's
    "vocabulary": TRAIN,
    "length": 32,
    "lr": 2e-3,
    "lr_warmup": 0.05,
    "hidden": 64,
    "heads": 2,
    "init": 0.07,
}
LEARNING: dict[str, Any] = {  # in minutes of one core, from the frequencies of tokens to language
    **REDUCED,
    **SIZES["small"],
    "length": 64,
    "batch": 16,
    "updates": 1500,
    "dev_sequences": 1024,
    "evaluations": 5,
    "hidden": 128,
    "heads": 4,
    "inner": 256,
    "init": 0.02,
    "dropout": 0.0,
}


def text_presets(config: type[C], **differing: Mapping[str, Any]) -> dict[str, C]:
    """The presets of a text recipe: "paper" is its defaults, the others are smaller.

    >>> text_presets(TextConfig, small={"dev_sequences": 256})["small"].dev_sequences
    256

    Args:
        config: of the recipe.
        differing: by preset, what the recipe has otherwise than the other text recipes.
    """
    smaller = {
        name: config(**{**REDUCED, **size, **differing.get(name, {})})
        for name, size in SIZES.items()
    }
    return {"paper": config(), **smaller}
