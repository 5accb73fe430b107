"""Sifting in TRL's supervised fine-tuning.

`SFTTrainer` is a `Trainer`, and `SiftMixin` does all that it does there. What TRL has of its own:

compute_loss     TRL's fused head gives the log-probability of each token and no logits: the exact
                 losses of what is trained are read from those, which costs nothing
loss_type="dft"  is scored as it is trained
packing          rows of whole documents ("bfd") and padding-free batches are sifted document by
                 document, rows of running text ("wrapped") row by row

Shapes: B samples, N documents, T tokens in a row, V tokens of the vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trl.trainer.sft_trainer import SFTTrainer

from sifting.data.documents import document_of_position, documents
from sifting.integrations.trainer import SiftMixin
from sifting.model.call import no_cache
from sifting.model.parts import IGNORE
from sifting.selection.tokens import MEAN, MeanOfTokens, Tokens, weighed
from sifting.sifter import Sifter

_Base: Any = SFTTrainer if TYPE_CHECKING else object


class SiftSFTMixin(SiftMixin, _Base):  # type: ignore[misc]
    """Makes an `SFTTrainer` of your own train on the kept samples: `class Mine(SiftSFTMixin, MySFTTrainer)`.

    Args:
        sift: arguments of the `Sifter`, as a dict, or a `Sifter` of the same model. None, the
            default, takes the sifter's own defaults.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, SFTTrainer):
            raise TypeError(
                f"{type(self).__name__} has SiftSFTMixin but is not a trl.SFTTrainer: name one among its bases, "
                "or take sifting.integrations.trainer.SiftMixin"
            )
        super().__init__(*args, **kwargs)

    def _make_sifter(self) -> Sifter:
        check_sft(self)
        given = self._sift
        if self.args.loss_type == "dft" and not isinstance(given, Sifter):
            own = {} if {"loss_fn", "losses"} & given.keys() else {"losses": dft_losses}
            self._sift = {**given, **own}
        return super()._make_sifter()

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's own loss, from whose forward the sifter learns what each sample's was."""
        if not self.model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        handle = model.register_forward_hook(partial(_read, self, inputs))
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            handle.remove()


class SiftSFTTrainer(SiftSFTMixin, SFTTrainer):  # type: ignore[misc]
    """An `SFTTrainer` that trains only on the samples worth a backward pass.

    ```python
    trainer = SiftSFTTrainer(
        model=model,
        args=SFTConfig("out", per_device_train_batch_size=8),
        train_dataset=dataset,
        peft_config=LoraConfig(),
        sift={"exit": 4, "score": "loss", "keep": 0.5},   # draws 16, trains 8
    )
    ```

    Takes what an `SFTTrainer` takes, and `sift`.

    Args:
        sift: arguments of the `Sifter`; see `SiftSFTMixin`.
    """


def check_sft(trainer: Any) -> None:
    """Raise where what TRL is asked for cannot be sifted."""
    if getattr(trainer, "_is_vision_dataset", False):
        raise ValueError(
            "the data has images, whose patches are in a batch without saying which sample they belong to, "
            "so that it cannot be divided: sift text, or train in a loop of your own with take= and batch_size="
        )
    parallel = getattr(trainer.accelerator, "parallelism_config", None)
    split = [name for name in ("cp_size", "sp_size") if (getattr(parallel, name, 1) or 1) > 1]
    if split:
        raise ValueError(
            f"{split[0]}={getattr(parallel, split[0])} divides a sequence among processes, none of which then has "
            "a whole sample to score: train with data parallelism alone"
        )


def dft_losses(model: nn.Module, batch: Any) -> Tensor:
    """The loss of `loss_type="dft"`, one per sample: that of each token, weighed by its probability."""
    labels_BT = batch["labels"][:, 1:]
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits_BTV = model(**inputs, **no_cache(model, inputs)).logits[:, :-1].float()
    losses_BT = F.cross_entropy(logits_BTV.movedim(-1, 1), labels_BT, reduction="none")
    return fused_losses(-losses_BT, batch, dft=True)


def _read(trainer: Any, inputs: Any, module: Any, args: Any, output: Any) -> None:
    """Forward hook: report the exact losses of the batch that is trained."""
    log_probs = getattr(output, "log_probs", None)
    tried = trainer.sifter.scoring  # a piece that is trained on trial
    if tried or not isinstance(log_probs, Tensor) or not torch.is_grad_enabled():
        return  # another forward: for TRL's metrics, or of a version that returns logits
    labels = inputs.get("labels")
    if labels is None or log_probs.shape != labels[:, 1:].shape:
        return  # virtual tokens stand before the sample's own
    step = trainer.sifter.observer.current
    dft = trainer.args.loss_type == "dft"
    tokens = MEAN if dft else trainer.sifter.tokens
    losses = fused_losses(log_probs.detach(), inputs, dft=dft, tokens=tokens)
    if step is not None and len(losses) == step.size:
        trainer.sifter.observe(losses)


def fused_losses(
    log_probs_BT: Tensor, inputs: Any, *, dft: bool = False, tokens: Tokens = MEAN
) -> Tensor:
    """Each sample's loss, or each document's of a packed batch, from the log-probabilities of its tokens.

    Args:
        log_probs_BT: of each next token, as TRL's fused head gives them.
        inputs: the batch, with "labels".
        dft: whether a token's loss is weighed by its probability.
        tokens: how a document's tokens make its loss.
    """
    counted_BT = inputs["labels"][:, 1:] != IGNORE
    values_BT = -log_probs_BT.float()
    if dft:
        values_BT = values_BT * log_probs_BT.float().exp()
    spans = documents(inputs)
    if spans is None:
        return weighed(values_BT[counted_BT], counted_BT, None, tokens)
    numbers_BT = document_of_position(inputs)[:, 1:]
    if isinstance(tokens, MeanOfTokens):
        number_T = numbers_BT[counted_BT]
        sums_N = values_BT.new_zeros(len(spans)).index_add(0, number_T, values_BT[counted_BT])
        return sums_N / number_T.bincount(minlength=len(spans)).clamp_min(1)
    counted_BT = counted_BT & (numbers_BT >= 0)
    return weighed(values_BT[counted_BT], counted_BT, numbers_BT, tokens)
