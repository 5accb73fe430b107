"""Networks of stages that change shape (CNNs): finding a stage, and stopping a model there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sifting.stack import first_tensor


class Stopped(Exception):
    """Carries a module's output out of a forward that need not go on."""

    def __init__(self, output: Any) -> None:
        super().__init__("stopped at an exit")
        self.output = output


def stopped_at(module: nn.Module, run: Callable[[], Any]) -> Tensor:
    """Run a model only until one of its modules has put out its result, and return that.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(9, 9))
    >>> stopped_at(model[0], lambda: model(torch.zeros(4, 2))).shape
    torch.Size([4, 3])
    """

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        raise Stopped(output)

    handle = module.register_forward_hook(stop)
    try:
        run()
    except Stopped as stopped:
        found = first_tensor(stopped.output)
        if found is None:
            raise ValueError(
                f"the exit's module, a {type(module).__name__}, returned no tensor"
            ) from None
        return found
    finally:
        handle.remove()
    raise ValueError(
        f"the exit's module, a {type(module).__name__}, did not run in the model's forward"
    )


def find_stage(model: nn.Module) -> str | None:
    """Path of the second of a network's stages, by the two layouts in common use.

    >>> find_stage(nn.ModuleDict({"stages": nn.ModuleList([nn.ReLU(), nn.Tanh(), nn.ReLU()])}))
    'stages.1'
    """
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        stages = module._modules.get("stages")
        if isinstance(stages, nn.ModuleList | nn.Sequential) and len(stages) > 2:
            return f"{prefix}stages.1"
        if all(f"layer{i}" in module._modules for i in (1, 2, 3)):
            return f"{prefix}layer2"
    return None
