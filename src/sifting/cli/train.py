"""`sift train RECIPE PRESET --out FOLDER …`: one run of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tyro

from sifting.cli.parsing import TrainOptions, parse_preset, spell_out_resume, usage
from sifting.compare.workload import import_from_here
from sifting.terminal import say
from sifting.training.amounts import parse_amount
from sifting.training.engine import Diverged
from sifting.training.launch import process_group, rank_and_world
from sifting.training.progress import progress_line
from sifting.training.recipe import RECIPES, find_recipe, run_recipe
from sifting.training.run_folder import RunError, read_run
from sifting.training.signals import at_once, exit_code

USAGE = (
    f"sift train {{{','.join(RECIPES)},module:RECIPE}} PRESET --out FOLDER …\n"
    "`sift train RECIPE --help` lists a recipe's presets, `sift train RECIPE PRESET --help` its options"
)


def main(argv: Sequence[str]) -> int:
    """Run one recipe and return the exit code: 130 or 143 where a signal stopped it."""
    words = list(argv)
    code = usage(USAGE, words)
    if code is not None:
        return code
    label = f"sift train {words[0]}"
    try:
        import_from_here()
        recipe = find_recipe(words[0])
        _, options = parse_preset(
            recipe.presets,
            spell_out_resume(words[1:]),
            make=lambda preset: TrainOptions(out=tyro.MISSING, config=preset),
            prog=label,
            about=recipe.about,
        )
        config = options.config
        understood = "time (90s, 10m)"
        kind, patience = parse_amount(
            options.rank_timeout, name="rank_timeout", understood=understood
        )
        if kind != "seconds":
            raise ValueError(f"rank_timeout={options.rank_timeout!r}: give {understood}")
        with process_group(config.device) as device:
            config = replace(config, device=device)
            leads = rank_and_world()[0] == 0
            with progress_line(config.arm, shown=leads) as watch:
                outcome = run_recipe(
                    recipe,
                    config,
                    options.out,
                    resume="auto" if options.resume == "auto" else options.resume == "yes",
                    watch=watch,
                    rank_timeout=patience,
                )
    except (RunError, Diverged, ValueError) as error:
        say(f"{label}: {error}", error=True)
        return 2
    except KeyboardInterrupt as interrupt:
        say(f"{label}: stopped at once; --resume continues from the last checkpoint", error=True)
        return exit_code(at_once(interrupt))
    if leads:
        summary = read_run(options.out).summary or {}
        done = f"{summary.get('updates')} updates: {_last(summary.get('final'))}; {options.out}"
        how = (
            f"{outcome.status} after"
            if outcome.trained
            else "nothing to do: the run finished after"
        )
        say(f"{how} {done}")
    if outcome.stopped_by is not None:
        if leads:
            say(f"{label}: stopped by {outcome.stopped_by}; --resume continues", error=True)
        return exit_code(outcome.stopped_by)
    return 0


def _last(metrics: Mapping[str, Any] | None) -> str:
    """The last evaluation in words.

    >>> _last({"accuracy": 0.0205761316, "perplexity": 12345.678}), _last(None)
    ('accuracy 0.02058, perplexity 1.235e+04', 'not evaluated yet')
    """
    if not metrics:
        return "not evaluated yet"
    shown = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in metrics.values())
    return ", ".join(f"{name} {value}" for name, value in zip(metrics, shown, strict=True))
