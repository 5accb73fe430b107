"""`sift reference TARGET [preset] --out FILE`: a model's loss of every sample, for score="reducible"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
import tyro
from rich.console import Console
from torch import nn

from sifting.cli.parsing import (
    alone_at,
    check_out_file,
    parse_preset,
    refuse,
    run_many,
    writing,
)
from sifting.compare.live import tell
from sifting.compare.workload import (
    FunctionWorkload,
    RecipeWorkload,
    named_workload,
    parse_settings,
)
from sifting.reference import reference_losses
from sifting.rng import seed_all
from sifting.training.config import RunConfig
from sifting.training.recipe import RECIPES

C = TypeVar("C")
LABEL = "sift reference"
USAGE = (
    f"{LABEL} {{{','.join(RECIPES)},module:function,module:RECIPE}} [PRESET] --out FILE [--weights FILE] …\n"
    f"`{LABEL} TARGET [PRESET] --help` lists the options"
)
EVERY = 20_000  # samples after which it says how far it is


@dataclass(frozen=True)
class ReferenceOptions(Generic[C]):
    """Whose losses, of what, and where to."""

    out: Path
    """The file that is written: give it to Sifter(reference=…)."""
    config: C
    weights: Path | None = None
    """Weights of the model (a state_dict that torch.save wrote); by default as the problem makes it."""
    tokens: Literal["mean", "sum", "share", "hardest"] | None = None
    """How a document's loss is made of its tokens', as in Sifter(tokens=…); by default as the problem says, else
    their mean."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A setting of the problem (width=8); may be given often."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return run_many(argv, label=LABEL, text=USAGE, work=_run, continues=False)


def _run(words: list[str], console: Console) -> str | None:
    workload = named_workload(words[0], command=LABEL)
    if isinstance(workload, FunctionWorkload):
        workload.judged = False
    preset, options = parse_preset(
        workload.presets,
        words[1:],
        make=lambda config: ReferenceOptions(out=tyro.MISSING, config=config),
        prog=f"{LABEL} {words[0]}",
        about="A model's loss of every sample that is to be trained, written to a file.",
    )
    refuse(options.config, workload.presets[preset], {"arm": "no arm: nothing is trained"})
    check_out_file(options.out)
    config = workload.with_settings(
        options.config, parse_settings(list(options.set), []).get(None, {})
    )
    with alone_at(options.out):
        _write(workload, config, options, console)
    return None


def _write(
    workload: RecipeWorkload | FunctionWorkload,
    config: RunConfig,
    options: ReferenceOptions[Any],
    console: Console,
) -> None:
    seed_all(config.seed)
    problem = workload.problem(config)
    about = f"{workload.name}, seed {config.seed}"
    if options.weights is not None:
        _load(problem.model, options.weights)
        about += f", {options.weights.name}"
    said = 0

    def watch(done: int) -> None:
        nonlocal said
        if done >= said + EVERY:
            said = done
            tell(console, f"{done} samples")

    loader = problem.batches(problem.batch) if problem.sized else problem.batches()
    told = {**problem.sifter, **({} if options.tokens is None else {"tokens": options.tokens})}
    table = reference_losses(problem.model, loader, about=about, watch=watch, **told)
    with writing(options.out):
        table.save(options.out)
    finite = table.losses_N[table.losses_N.isfinite()]
    tell(
        console,
        f"{options.out}: {len(finite)} losses of {about}, {float(finite.mean()):.4f} on average; train with "
        f"Sifter(score='reducible', reference={str(options.out)!r})",
    )


def _load(model: nn.Module, path: Path) -> None:
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise ValueError(f"--weights {path} cannot be read: {error.strerror}") from error
    except Exception as error:  # what torch says of it is advice to trust the file
        raise ValueError(
            f"--weights {path} holds no state_dict of tensors alone, or is damaged"
        ) from error
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(f"--weights {path} is not of this model: {said}") from error
