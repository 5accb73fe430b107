"""Calling a model on a batch: which part of the batch is input, which is labels, what comes out."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sifting.data.keys import as_ids
from sifting.data.samples import BatchSize, Samples, Take
from sifting.model.failed_call import FAILURES, note_call

Forward = Callable[[nn.Module, Any], Any]
GetLabels = Callable[[Any], Any]
Ids = str | int | Callable[[Any], Any]
CallWay = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_LABEL_WORDS = ("label", "target", "start_positions", "end_positions")


@dataclass(frozen=True)
class Call:
    """How batches go through the model.

    Args:
        forward: `forward(model, batch) -> logits`, for models that are called in their own way.
        labels: `labels(batch) -> labels`, for batches that keep them in their own place.
        always_labels: whether the model must be given its labels to give its logits: decoders
            that make their inputs from them, and forwards in which they have no default.
        ids: key or position of the member that holds the samples' IDs, which no model takes; or
            `ids(batch) -> ids`.
        batch_size: how many samples a batch holds, where it cannot be determined; see `Samples`.
        take: `take(batch, indices) -> batch`, where a batch cannot be divided by member.
        samples: how batches divide into samples; made from these.
    """

    forward: Forward | None = None
    labels: GetLabels | None = None
    always_labels: bool = False
    ids: Ids | None = None
    batch_size: BatchSize | None = None
    take: Take | None = None
    samples: Samples = field(default_factory=Samples)

    def __post_init__(self) -> None:
        for name in ("forward", "labels"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name}={value!r} is not callable: pass a function")
        if self.samples.labels is None:  # once: what it learns of a batch's members stays
            samples = Samples(self.batch_size, self.take, self.labels_of)
            object.__setattr__(self, "samples", samples)
        if isinstance(self.ids, bool) or not (
            self.ids is None or isinstance(self.ids, str | int) or callable(self.ids)
        ):
            raise TypeError(
                f"ids={self.ids!r}: give the key or the position of the samples' IDs in a batch, or a "
                "function of the batch"
            )

    def ids_of(self, batch: Any) -> Sequence[Any]:
        """The ID of each sample: whole numbers as a tensor, anything else hashable as a list.

        >>> import torch
        >>> Call(ids="index").ids_of({"x": torch.zeros(2, 3), "index": [7, 4]})
        tensor([7, 4])
        """
        try:
            found = self.ids(batch) if callable(self.ids) else batch[self.ids]
        except (KeyError, IndexError, TypeError) as error:
            members = (
                sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            )
            raise ValueError(
                f"ids={self.ids!r} is not in the batch ({members}): let the loader yield the samples' "
                "IDs, or pass ids=lambda batch: …"
            ) from error
        return as_ids(found, asked=self.ids)

    def without_ids(self, batch: Any) -> Any:
        """What a batch holds beside its samples' IDs."""
        if isinstance(self.ids, str) and isinstance(batch, Mapping) and self.ids in batch:
            return {key: value for key, value in batch.items() if key != self.ids}
        if isinstance(self.ids, int) and isinstance(batch, list | tuple):
            place = self.ids % len(batch) if batch else 0
            return tuple(member for i, member in enumerate(batch) if i != place)
        return batch

    def labels_of(self, batch: Any) -> dict[str, Tensor]:
        """The labels by name; empty where the batch has none."""
        if self.labels is not None:
            found = self.labels(batch)
            if not isinstance(found, Tensor | Mapping) and found is not None:
                raise TypeError(
                    f"labels= gave a {type(found).__name__}: return a tensor or a dict of tensors; where a loss "
                    "takes something else, pass losses=lambda model, batch: … that returns one loss per sample"
                )
            return _named(found)
        batch = self.without_ids(batch)
        if isinstance(batch, Mapping):
            return {
                key: value
                for key, value in batch.items()
                if isinstance(value, Tensor) and _is_label(key)
            }
        if _is_pair(batch) and not self.samples.are_raw(batch):
            # a list of boxes or texts is no label that a loss could be made of here: see `losses=`
            return _named(batch[1]) if isinstance(batch[1], Tensor | Mapping) else {}
        return {}

    def check_labels(self, batch: Any) -> None:
        """Raise where the labels are a list of boxes or the like, of which no loss can be made here."""
        if self.labels is not None or self.samples.are_raw(batch):
            return
        if isinstance(batch, Mapping):
            named = {f"batch[{k!r}]": v for k, v in batch.items() if _is_label(k)}
        else:
            named = {"batch[1]": batch[1]} if _is_pair(batch) else {}
        for name, value in named.items():
            if not isinstance(value, list | tuple) or not value:
                continue
            if isinstance(value[0], Mapping | Tensor):
                raise ValueError(
                    f"{name} is a {type(value).__name__} of {len(value)} ({type(value[0]).__name__} each), and no "
                    "loss of a sample can be made of that without knowing yours: pass losses=lambda model, "
                    "batch: … that returns one loss per sample; to score without labels, labels=lambda b: None"
                )

    def takes_labels(self, model: nn.Module, batch: Any) -> bool:
        """Whether the labels can be passed to the model, which may then return its loss."""
        if self.forward is not None or not isinstance(batch, Mapping):
            return False
        known = parameters(model)
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
            return bool(self.labels_of(batch))
        names = self.labels_of(batch)
        return bool(names) and all(name in known for name in names)

    def run(self, model: nn.Module, batch: Any, *, with_labels: bool = False) -> Any:
        """The model's output on a batch; with its labels only where the loss is wanted."""
        function, args, kwargs = self._way(model, batch, with_labels)
        try:
            return function(*args, **kwargs)
        except FAILURES as error:
            note_call(error, function, args, kwargs)
            raise

    def _way(self, model: nn.Module, batch: Any, with_labels: bool) -> CallWay:
        """What is called with what, to get the model's output on a batch."""
        if self.forward is not None:
            return self.forward, (model, batch), {}
        whole, batch = batch, self.without_ids(batch)
        if isinstance(batch, Mapping):
            kwargs: dict[str, Any] = dict(batch)
            if not with_labels and not self.always_labels:
                kwargs = {k: v for k, v in kwargs.items() if k not in self.labels_of(whole)}
            return _way_of(model, kwargs)
        inputs = batch
        if isinstance(batch, list | tuple) and not isinstance(batch, PackedSequence):
            if self.samples.are_raw(batch):
                raise ValueError(
                    f"a list of {len(batch)} raw samples, which no model takes: pass forward=lambda model, batch: "
                    "… that puts them together and returns the logits, and labels=lambda batch: …; or "
                    "losses=lambda model, batch: … that returns one loss per sample"
                )
            if len(batch) != 2:
                raise ValueError(
                    f"a batch of {len(batch)} members is not a pair (inputs, labels): pass "
                    "forward=lambda model, batch: … that returns the logits, and labels=lambda batch: …"
                )
            inputs = batch[0]
        elif not isinstance(batch, Tensor | PackedSequence):
            raise ValueError(
                f"cannot tell how a model is called on a {type(batch).__name__}: pass "
                "forward=lambda model, batch: … that returns the logits, and labels=lambda batch: …"
            )
        if isinstance(inputs, Mapping):
            return _way_of(model, inputs)
        if isinstance(inputs, list | tuple) and not self._is_whole(inputs, whole):
            return model, tuple(inputs), {}
        return model, (inputs,), {}

    def _is_whole(self, inputs: Any, batch: Any) -> bool:
        """Whether a list or tuple is one argument: an entry per sample, as detectors take pictures."""
        if isinstance(inputs, PackedSequence):
            return True
        if hasattr(inputs, "_fields") or len(inputs) != self.samples.size(batch):
            return False
        return not all(isinstance(v, Tensor) and v.ndim and len(v) == len(inputs) for v in inputs)


def logits_of(output: Any) -> dict[str, Tensor]:
    """The tensors of a model's output that can be logits, by name.

    >>> import torch
    >>> list(logits_of({"loss": torch.tensor(1.0), "prediction_logits": torch.zeros(2, 3)}))
    ['prediction_logits']
    >>> list(logits_of((torch.tensor(1.0), torch.zeros(2, 3))))
    ['logits']
    """
    if isinstance(output, Tensor):
        return {"logits": output} if output.ndim > 0 else {}
    if isinstance(output, Mapping):
        named = {k: v for k, v in output.items() if isinstance(v, Tensor) and v.ndim > 0}
        return {k: v for k, v in named.items() if "logits" in str(k)} or {
            k: v for k, v in named.items() if k != "loss"
        }
    if isinstance(output, list | tuple):
        found = [member for member in output if isinstance(member, Tensor) and member.ndim > 0]
        return {f"logits[{i}]" if i else "logits": member for i, member in enumerate(found)}
    logits = getattr(output, "logits", None)
    return {"logits": logits} if isinstance(logits, Tensor) else {}


def mask_of(batch: Any) -> Tensor | None:
    """The attention mask of a batch, also where the inputs are one half of a pair."""
    if isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) else None


_SIGNATURES: weakref.WeakKeyDictionary[Any, Mapping[str, inspect.Parameter]] = (
    weakref.WeakKeyDictionary()
)


def parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Parameters of a model's forward; of the model inside, where an adapter wraps it (PEFT)."""
    inner = getattr(model, "get_base_model", None)
    if callable(inner):
        model = inner()
    # of a method: asked several times a step, and always the same
    function = getattr(model.forward, "__func__", None)
    known = None if function is None else _SIGNATURES.get(function)
    if known is not None:
        return known
    try:
        found = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}
    if function is not None:
        _SIGNATURES[function] = found
    return found


def _named(labels: Any) -> dict[str, Tensor]:
    if isinstance(labels, Mapping):
        return {str(key): value for key, value in labels.items() if isinstance(value, Tensor)}
    if isinstance(labels, Tensor):
        return {"labels": labels}
    return {}


def _is_label(key: Any) -> bool:
    return _named_so(str(key))


@functools.lru_cache(maxsize=1024)
def _named_so(name: str) -> bool:
    return any(word in name for word in _LABEL_WORDS)


def _is_pair(batch: Any) -> bool:
    return (
        isinstance(batch, list | tuple)
        and len(batch) == 2
        and not isinstance(batch, PackedSequence)
    )


def _way_of(model: nn.Module, members: Mapping[str, Any]) -> CallWay:
    """The model, with the members of a dict that its forward names.

    What it does not name is left out, as file names and weights are; the one tensor there is goes
    to the one argument there is, whatever their names.
    """
    known = parameters(model)
    kinds = {parameter.kind for parameter in known.values()}
    if not known or inspect.Parameter.VAR_KEYWORD in kinds:
        return model, (), {**members, **no_cache(model, members)}
    named = {
        name: value
        for name, value in members.items()
        if name in known and known[name].kind in _BY_NAME
    }
    missing = [
        name
        for name, parameter in known.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is not inspect.Parameter.VAR_POSITIONAL
        and name not in named
    ]
    if named and not missing:
        return model, (), {**named, **no_cache(model, named)}
    tensors = [value for value in members.values() if isinstance(value, Tensor)]
    alone = len(missing) == 1 or (not missing and len(known) == 1)
    if not named and alone and len(tensors) == 1:
        return model, (tensors[0],), {}
    raise ValueError(
        f"{type(model).__name__}.forward takes ({', '.join(known)}), and the batch holds "
        f"{', '.join(map(repr, members))}: pass forward=lambda model, batch: model(batch[…]), which returns "
        "the logits"
    )


def no_cache(model: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Decoders keep keys and values for generation unless told not to: memory for nothing."""
    if "use_cache" in kwargs or "use_cache" not in parameters(model):
        return {}
    return {"use_cache": False}
