"""What each module does in a forward: how much work, by when, and what comes out.

Work is what matrix products and convolutions take, two for each multiply-add, read off the shapes
of the layers that run; products of activations with each other (attention's maps) are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sifting.model.values import first_tensor

BACKBONE = (
    0.1  # frozen layers with more of the work than this are no scaling of inputs, but a network
)
GRAIN = 0.2  # a module with more of the work than this is looked into
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

RunModel = Callable[[], Any]


class Work:
    """What each module of a model did in one forward, and how much was done by then.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 12))
    >>> work = Work.of(model, lambda: model(torch.zeros(3, 4)))
    >>> work.total, work.share("1"), work.exits(3)
    (768.0, 0.25, ['0', '1'])
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.done = 0.0
        self.total = 0.0
        self.trained = self.weighted = False
        self.frozen = 0.0  # work before anything that is trained
        self.calls: dict[str, int] = {}
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}  # in the order in which modules end
        self.outputs: dict[str, Tensor | None] = {}
        self.after_training: set[str] = set()
        self.after_weights: set[str] = set()  # also frozen ones

    @classmethod
    def of(cls, model: nn.Module, run: RunModel) -> Work:
        """Run a model once and note it."""
        work = cls(model)
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(work._entering(path)))
            handles.append(module.register_forward_hook(work._leaving(path)))
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()
        work.total = work.done
        return work

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self.calls[path] = self.calls.get(path, 0) + 1
            self.begun.setdefault(path, self.done)

        return enter

    def _leaving(self, path: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.done += _work(module, args, output)
            own = list(module.parameters(recurse=False))
            self.weighted |= bool(own)
            self.trained |= any(p.requires_grad for p in own)
            self.ended.pop(path, None)
            self.ended[path] = self.done
            self.outputs[path] = first_tensor(output)
            if self.trained:
                self.after_training.add(path)
            else:
                self.frozen = self.done
            if self.weighted:
                self.after_weights.add(path)

        return leave

    def share(self, path: str) -> float | None:
        """Of all work, what is done when a module has ended; None where it did not run."""
        if path not in self.ended:
            return None
        return self.ended[path] / self.total if self.total else 0.0

    def width(self, path: str) -> int:
        """Numbers that a module has put out for each position of a sample."""
        output = self.outputs[path]
        if output is None or output.ndim < 2:
            return 1
        channels = getattr(self.model.get_submodule(path), "out_channels", None)
        return channels if isinstance(channels, int) else output.shape[1 if output.ndim > 3 else -1]

    def exits(self, size: int | None) -> list[str]:
        """Modules that the model could be left at, in the order in which they end.

        They run once, after something that is trained and before all is done (unless there are no
        others), and put out a row for each sample. A frozen backbone has places too.
        """
        outer = self._outer()
        after = self.after_weights if self.frozen > BACKBONE * self.total else self.after_training
        found = [
            path
            for path in self.ended
            if path in outer
            and path in after
            and self.calls[path] == 1
            and _features(self.outputs[path], size)
            and not self._routed(path)
        ]
        early = [path for path in found if self.ended[path] < self.total]
        found = early or found
        # what is the same for all samples, positions, say, tells nothing about them
        telling = [path for path in found if not _constant(self.outputs[path])]
        return telling or found

    def _routed(self, path: str) -> bool:
        """Whether a module is one of several in a list that do not all run on the same rows.

        So it is with experts, of which a router picks some for each row.
        """
        above, _, _ = path.rpartition(".")
        siblings = self.model.get_submodule(above)
        if not isinstance(siblings, nn.ModuleList):
            return False
        outputs = [self.outputs.get(f"{above}.{i}") for i in range(len(siblings))]
        return len({None if output is None else len(output) for output in outputs}) > 1

    def _outer(self) -> set[str]:
        """Modules worth a name: members of those that do much of the work, down from the model."""
        found: set[str] = set()
        queue = [("", self.model)]
        while queue:
            prefix, parent = queue.pop()
            for name, child in parent.named_children():
                path = f"{prefix}.{name}" if prefix else name
                output, above = self.outputs.get(path), self.outputs.get(prefix)
                if path in self.ended and not (output is above and prefix):
                    found.add(path)
                spent = self.ended.get(path, 0.0) - self.begun.get(path, 0.0)
                if path not in self.ended or spent > GRAIN * self.total:
                    queue.append((path, child))
        return found


def _features(output: Tensor | None, size: int | None) -> bool:
    """Whether an output has a row of numbers for each sample."""
    if output is None or output.is_nested or output.ndim < 2 or not output.is_floating_point():
        return False
    return size is None or len(output) == size


def _constant(output: Tensor | None) -> bool:
    return output is not None and bool((output == output[:1]).all())


def _work(module: nn.Module, args: Any, output: Any) -> float:
    weights = [p for p in module.parameters(recurse=False) if p.ndim > 1]
    if isinstance(module, nn.MultiheadAttention):
        weights = [p for p in module.parameters() if p.ndim > 1]  # used past their own modules
    first, given = first_tensor(output), first_tensor(args)
    if not weights or first is None or first.is_nested or isinstance(module, EMBEDDINGS):
        return 0.0
    width = first.shape[-1] if first.ndim else 1
    if isinstance(module, TRANSPOSED) and given is not None:
        rows = given.numel() / module.in_channels
    else:
        rows = first.numel() / max(1, getattr(module, "out_channels", width))
    return 2.0 * rows * sum(p.numel() for p in weights)
