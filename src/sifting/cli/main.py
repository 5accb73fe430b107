"""The `sift` command: one entry per job, each imported only when it is called."""

from __future__ import annotations

import argparse
import importlib
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sifting._version import __version__
from sifting.files import DISK
from sifting.terminal import printable, say

# name -> (module whose `main(argv) -> int` does the job, one line for --help, extra it needs)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "advise": (
        "sifting.cli.advise",
        "will selection pay on your model and data, how, and how much?",
        "recipes",
    ),
    "bench": (
        "sifting.cli.bench",
        "real tasks, every arm and control, one table: where does it pay?",
        "recipes",
    ),
    "compare": (
        "sifting.cli.compare",
        "arms × seeds under one budget, on your own model, with a verdict",
        "recipes",
    ),
    "cost": ("sifting.cli.cost", "predict what scoring costs beside training", ""),
    "demo": (
        "sifting.cli.demo",
        "train a small real task with and without sifting, and compare",
        "recipes",
    ),
    "reference": (
        "sifting.cli.reference",
        "a model's loss of every sample, once: what score='reducible' takes off",
        "recipes",
    ),
    "report": ("sifting.cli.report", "runs to one page: did selection pay, and why", "report"),
    "grid": (
        "sifting.cli.grid",
        "the paper's ResNet tables: arms × learning rates × seeds",
        "recipes",
    ),
    "train": (
        "sifting.cli.train",
        "the paper's experiments, at any size: sift train resnet",
        "recipes",
    ),
    "theory": ("sifting.cli.theory", "the paper's bounds as tables and plots", "theory"),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the top level; what follows the command belongs to the command."""
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="sift",
        description="Spend backward passes only on the samples worth them.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<{width}}  {line}" for name, (_, line, _) in COMMANDS.items())
        + "\n\n`sift COMMAND --help` lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sifting {__version__}")
    parser.add_argument("command", choices=sorted(COMMANDS), metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    module_name, _, extra = COMMANDS[args.command]
    try:
        with _plain_warnings():
            return int(importlib.import_module(module_name).main(args.arguments))
    except OSError as error:
        if error.errno not in DISK:  # of the user's own code, for one
            raise
        say(f"sift {args.command}: {error}", error=True)
        return 2
    except KeyboardInterrupt as interrupt:  # before a run listens for it, or after
        say(f"sift {args.command}: stopped", error=True)
        return 128 + getattr(signal, str(interrupt), signal.SIGINT)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sifting"):
            raise
        say(
            f"sift {args.command} needs {error.name}, which is not installed: "
            f"pip install 'sifting[{extra}]'",
            error=True,
        )
        return 2


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings of the library as a sentence: the line of code behind it is this command's own."""
    usual = warnings.formatwarning

    def plain(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if category.__module__.partition(".")[0] == __package__.partition(".")[0]:
            return printable(f"warning: {message}\n")
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = usual


if __name__ == "__main__":
    raise SystemExit(main())
