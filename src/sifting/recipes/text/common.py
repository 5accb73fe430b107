"""What the text recipes share: settings, data, optimizer and learning rate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from sifting.recipes.batches import Examples, epoch_loader
from sifting.recipes.text.corpus import read_corpus
from sifting.recipes.text.masking import IGNORED
from sifting.recipes.text.tokens import Integers, TokenizedText, tokenise
from sifting.recipes.text.vocabulary import TRAIN, Vocabulary, load_vocabulary, train_vocabulary
from sifting.training.config import RunConfig
from sifting.training.launch import rank_and_world
from sifting.training.problem import Problem

# The BookCorpus of the paper is not given out any more; this is its open successor, book by book.
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
            raise ValueError(f"hidden={self.hidden} is no multiple of heads={self.heads}")
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


@dataclass(frozen=True)
class TextData:
    """A tokenised corpus in two parts."""

    tokens: TokenizedText
    vocabulary: Vocabulary
    train: Integers
    """Documents to train on."""
    dev: Integers
    """Documents held out."""

    def describe(self) -> str:
        """One line of counts."""
        counts = self.tokens.report
        left_out = {
            "empty and left out": counts["empty_documents"],
            "of one sentence and without a pair": counts["documents_of_one_sentence"]
            if self.vocabulary.kind == "wordpiece"
            else 0,
        }
        notes = "".join(f", {count:,} {what}" for what, count in left_out.items() if count)
        return (
            f"{counts['documents']:,} documents of {counts['tokens']:,} tokens, "
            f"{len(self.dev):,} held out{notes}"
        )


def read_text(config: TextConfig, kind: str) -> TextData:
    """Read, tokenise and split a corpus; what was done before is found in the cache.

    Args:
        config: what to read.
        kind: of the vocabulary: "wordpiece" (sentence by sentence) or "bpe".
    """
    from sifting.training.progress import reading_bar

    corpus = read_corpus(
        config.data,
        column=config.column,
        paragraphs=config.paragraphs,
        streaming=config.streaming,
        megabytes=config.megabytes,
    )
    if config.vocabulary == TRAIN:
        vocabulary = train_vocabulary(
            kind, corpus, size=config.vocabulary_size, dev_share=config.dev_share
        )
    else:
        vocabulary = load_vocabulary(kind, config.vocabulary)
    # only the rank that tokenises has anything to show, and it may be any
    with reading_bar(f"tokenising {config.data}") as progress:
        tokens = tokenise(corpus, vocabulary, sentences=kind == "wordpiece", progress=progress)
    data = TextData(tokens, vocabulary, *tokens.split(config.dev_share))
    if rank_and_world()[0] == 0:
        print(data.describe(), file=sys.stderr)
    return data


def linear(warmup: float) -> Callable[[torch.optim.Optimizer, int], LRScheduler]:
    """A learning rate that rises in a line for a share of the updates, then falls to 0.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = linear(0.25)(optimizer, 8)
    >>> rates = []
    >>> for _ in range(8):
    ...     rates.append(round(optimizer.param_groups[0]["lr"], 3))
    ...     optimizer.step(); schedule.step()
    >>> rates
    [0.5, 1.0, 1.0, 0.833, 0.667, 0.5, 0.333, 0.167]
    """

    def make(optimizer: torch.optim.Optimizer, updates: int) -> LRScheduler:
        rising = max(1, round(warmup * updates))

        def factor(step: int) -> float:
            if step < rising:
                return (step + 1) / rising
            return max(0.0, (updates - step) / max(1, updates - rising))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    return make


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with β 0.9 and 0.999; vectors, which are biases and norms, do not decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999))


def sample_losses(model: nn.Module, batch: Mapping[str, Tensor], *, shift: int = 0) -> Tensor:
    """The mean loss of each sample's labelled tokens, and that of the next sentence where it has one.

    Args:
        model: of `transformers`, with logits for every token.
        batch: on its device.
        shift: 1 where a token predicts the one after it.
    """
    apart = ("labels", "next_sentence_label", "index")
    output = model(**{name: value for name, value in batch.items() if name not in apart})
    labels_BL, next_B = batch["labels"], batch.get("next_sentence_label")
    logits_BLV = output.logits if next_B is None else output.prediction_logits
    if shift:
        logits_BLV, labels_BL = logits_BLV[:, :-shift], labels_BL[:, shift:]
    values_BL = F.cross_entropy(logits_BLV.float().movedim(-1, 1), labels_BL, reduction="none")
    counted_BL = labels_BL != IGNORED
    losses_B = (values_BL * counted_BL).sum(dim=1) / counted_BL.sum(dim=1).clamp_min(1)
    if next_B is None:
        return losses_B
    return losses_B + F.cross_entropy(
        output.seq_relationship_logits.float(), next_B, reduction="none"
    )


def text_problem(
    config: TextConfig,
    model: nn.Module,
    train: Examples,
    evaluate: Callable[[nn.Module], dict[str, float]],
    *,
    shift: int = 0,
    metric: str = "accuracy",
    lower_is_better: bool = False,
) -> Problem:
    """A model of `transformers` on some examples, trained with its own loss.

    Args:
        config: the settings.
        model: with a loss of its own.
        train: what it is trained on.
        evaluate: metrics on held-out text.
        shift: see `sample_losses`.
        metric: which of them counts.
        lower_is_better: whether less of it is better.
    """
    model.to(config.device)
    rank, world = rank_and_world()

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        on_device = {k: v.to(config.device) for k, v in batch.items() if k != "index"}
        value: Tensor = model(**on_device).loss
        return value

    def batches(size: int = config.batch) -> DataLoader[Any]:
        return epoch_loader(
            train,
            size,
            seed=config.seed,
            workers=config.workers,
            rank=rank,
            world=world,
            kind="sequences",
            remedy="shorter sequences, or more text",
        )

    return Problem(
        model=model,
        batches=batches,
        loss=loss,
        losses=lambda model, batch: sample_losses(
            model, {k: v.to(config.device) for k, v in batch.items()}, shift=shift
        ),
        evaluate=evaluate,
        optimizer=adamw(model, lr=config.lr, weight_decay=config.weight_decay),
        schedule=linear(config.lr_warmup),
        batch=config.batch,
        exit=1,
        metric=metric,
        lower_is_better=lower_is_better,
        sifter={"ids": "index"},
        samples=len(train),
    )
