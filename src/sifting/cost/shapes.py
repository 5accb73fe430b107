"""The sizes of a transformer that its cost depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

HeadKind = Literal["mlm", "lm"]
GATED = ("llama", "mistral", "mixtral", "qwen", "gemma", "phi3", "olmo", "smollm", "granite")


def check_whole(name: str, value: object, least: int) -> None:
    """Raise unless a value is a whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")


def check_share(name: str, value: float, *, zero: bool = False) -> None:
    """Raise unless a value is a share, which may be 0 where that has a meaning."""
    if not (0 < value <= 1 or (zero and value == 0)):
        raise ValueError(
            f"{name}={value!r} is not a share: give one in {'[' if zero else '('}0, 1]"
        )


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer encoder or decoder that its cost depends on.

    >>> Shape(layers=2, hidden=128, intermediate=512, vocab=1000, heads=2, length=64).parameters
    545792

    Args:
        layers: number of blocks.
        hidden: features of a position between blocks.
        intermediate: features inside a block's MLP.
        vocab: number of classes the head predicts.
        heads: attention heads.
        length: positions of a sequence.
        head: "mlm" for a square transform before the decoder (BERT), "lm" for a decoder alone.
        gated: whether the MLP has a third matrix, its gate (Llama).
        key_value_heads: heads of the keys and values, where they are fewer (grouped queries).
        head_width: features of an attention head; by default hidden / heads.
        embedding: width of the embeddings, where it is not `hidden` (ALBERT, ELECTRA).
        pooled_classes: classes predicted from a pooled first position; 2 for next sentences.
    """

    layers: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    length: int
    head: HeadKind = "mlm"
    gated: bool = False
    key_value_heads: int | None = None
    head_width: int | None = None
    embedding: int | None = None
    pooled_classes: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "intermediate", "vocab", "heads", "length"):
            check_whole(name, getattr(self, name), 1)
        for name in ("key_value_heads", "head_width", "embedding"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        check_whole("pooled_classes", self.pooled_classes, 0)
        if self.head not in ("mlm", "lm"):
            raise ValueError(
                f"head={self.head!r} is unknown: choose 'mlm' (transform and decoder) or 'lm'"
            )
        if self.head_width is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden={self.hidden} does not divide into heads={self.heads}: pass head_width= "
                "where the attention is not as wide as the block"
            )
        if self.heads % (self.key_value_heads or self.heads):
            raise ValueError(
                f"heads={self.heads} is not a multiple of key_value_heads={self.key_value_heads}: "
                "each of these serves the same number of heads"
            )

    @property
    def attention(self) -> int:
        """Features of all attention heads of a position together."""
        return self.heads * (self.head_width or self.hidden // self.heads)

    @property
    def key_values(self) -> int:
        """Features of the keys, or of the values, of a position."""
        return self.attention // self.heads * (self.key_value_heads or self.heads)

    @property
    def block_weights(self) -> int:
        """Entries of one block's matrices."""
        attention = 2 * self.hidden * (self.attention + self.key_values)
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Entries of the matrices that turn a position's features into logits."""
        width = self.embedding or self.hidden
        projected = self.head == "mlm" or self.embedding is not None
        return width * self.vocab + (self.hidden * width if projected else 0)

    @property
    def pooled_weights(self) -> int:
        """Entries of the matrices that predict from the pooled first position."""
        if not self.pooled_classes:
            return 0
        return self.hidden * (self.hidden + self.pooled_classes)

    @property
    def parameters(self) -> int:
        """Entries of all matrices; the head's decoder and the embeddings counted once, as tied."""
        width = self.embedding or self.hidden
        projection = width * self.hidden if self.embedding is not None else 0
        return (
            self.layers * self.block_weights
            + self.head_weights
            + projection
            + self.length * width
            + self.pooled_weights
        )


BERT_BASE = Shape(
    layers=12,
    hidden=768,
    intermediate=3072,
    vocab=30522,
    heads=12,
    length=512,
    pooled_classes=2,
)


def check_exit(shape: Shape, exit: int | None) -> int:
    """Blocks that an exit runs; raise where the model has no such block."""
    if exit is None:
        return shape.layers
    if isinstance(exit, bool) or not isinstance(exit, int) or not 1 <= exit <= shape.layers:
        raise ValueError(
            f"exit={exit!r} is not a block of a model with {shape.layers}: choose 1 to "
            f"{shape.layers}, or None for the whole model"
        )
    return exit


def shape_of(config: Mapping[str, Any], *, length: int) -> Shape:
    """The shape of a transformer, from its Hugging Face config.

    >>> shape_of({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 9,
    ...           "architectures": ["GPT2LMHeadModel"]}, length=4).intermediate
    32
    """

    def find(*names: str, default: Any = None) -> Any:
        found = next((config[name] for name in names if config.get(name) is not None), default)
        if found is None:
            raise ValueError(f"the config has none of {', '.join(names)}: is it a transformer's?")
        return found

    kind = str(config.get("model_type", ""))
    names = " ".join(config.get("architectures") or ())
    causal = "CausalLM" in names or "LMHead" in names or (not names and kind.startswith(GATED))
    hidden = find("hidden_size", "n_embd", "d_model", "dim")
    return Shape(
        layers=find("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=hidden,
        intermediate=find(
            "intermediate_size", "n_inner", "hidden_dim", "ffn_dim", default=4 * hidden
        ),
        vocab=find("vocab_size"),
        heads=find("num_attention_heads", "n_head", "n_heads"),
        length=length,
        head="lm" if causal else "mlm",
        gated=kind.startswith(GATED),
        key_value_heads=config.get("num_key_value_heads"),
        head_width=config.get("head_dim"),
        embedding=config.get("embedding_size"),
        pooled_classes=2 if "ForPreTraining" in names and kind == "bert" else 0,
    )
