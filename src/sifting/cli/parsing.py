"""Command lines made from the fields of settings: presets as subcommands, and what differs from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro
from rich.console import Console

from sifting import files
from sifting.terminal import make_console, say
from sifting.training.arms import ARMS
from sifting.training.config import RunConfig
from sifting.training.engine import Diverged
from sifting.training.locks import locked
from sifting.training.run_folder import RunError
from sifting.training.signals import at_once, exit_code

C = TypeVar("C")


@dataclass(frozen=True)
class TrainOptions(Generic[C]):
    """What to run and where to write."""

    out: Path
    """Run folder."""
    config: C
    resume: Literal["no", "yes", "auto"] = "no"
    """Continue with the run in the folder; a finished one is left as it is. auto: begin where there is none."""
    rank_timeout: str = "5m"
    """Time (90s, 10m) after which a rank that hangs ends the run on all ranks."""


@dataclass(frozen=True)
class SharedOptions(Generic[C]):
    """What comparisons and grids have in common."""

    out: Path
    """Folder of all runs; give the same to continue with one."""
    config: C
    arms: tuple[str, ...] = ()
    """Beside the baseline and random-keep: names, names at an exit (sift@3), or module:attribute."""
    seeds: tuple[int, ...] = ()
    """Every arm is run with each."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Setting of one arm (sift:max_lr=0.005) or of all (max_lr=0.005); may be given often."""
    control: bool = True
    """Whether random-keep is run: what it gains too is not due to selection."""
    turn: int | None = None
    """Updates an arm makes before it is another one's turn; by default some seconds' worth."""
    sequential: bool = False
    """One run after the other, so that one model is in memory at a time."""
    keep_finished: bool = False
    """Keep the checkpoints of runs that have finished, which are deleted otherwise."""


def parse_preset(
    presets: Mapping[str, C],
    argv: list[str],
    *,
    make: Callable[[C], Any],
    prog: str,
    about: str,
) -> tuple[str, Any]:
    """The preset that comes first, and the options with what differs from it.

    The preset is taken off here and not by tyro's `overridable_config_cli`, which calls a misspelt
    preset, and options without one, "unrecognized options". All else of the options is tyro's.

    Args:
        presets: settings by name; a single one called "" has no name to give.
        argv: what follows the workload on the command line.
        make: the options, with the preset's settings as defaults.
        prog: the command so far, for --help.
        about: what it does, for --help.

    Raises:
        ValueError: where no preset is named, or one that there is not; the message lists them.
    """
    if set(presets) == {""}:
        if argv and not argv[0].startswith("-"):
            raise ValueError(f"{prog} has no preset {argv[0]!r}: it takes options alone")
        return "", _options(presets[""], argv, make, prog, about)
    known = ", ".join(presets)
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: {prog} {{{','.join(presets)}}} [options]\n\n{about}")
        print(f"\n`{prog} PRESET --help` lists the options, with the preset's values: {known}")
        raise SystemExit(0)
    if not argv or argv[0].startswith("-"):
        raise ValueError(f"name a preset after `{prog}`: {known}")
    if argv[0] not in presets:
        raise ValueError(f"{prog} has no preset {argv[0]!r}; it has: {known}")
    preset, rest = argv[0], argv[1:]
    return preset, _options(presets[preset], rest, make, f"{prog} {preset}", about)


def _options(config: C, argv: list[str], make: Callable[[C], Any], prog: str, about: str) -> Any:
    default = make(config)
    arms = "\n\n".join(f"{name}: {arm.about}." for name, arm in ARMS.items())
    return tyro.cli(
        type(default)[type(config)],
        default=default,
        args=argv,
        prog=prog,
        description=f"{about}\n\nArms:\n\n{arms}",
        config=(tyro.conf.OmitArgPrefixes,),
    )


def spell_out_resume(argv: list[str]) -> list[str]:
    """`--resume` alone, as it may be written, with its value.

    >>> spell_out_resume(["--resume", "--out", "a"]), spell_out_resume(["--resume=auto"])
    (['--resume=yes', '--out', 'a'], ['--resume=auto'])
    """
    alone = {"--resume": "--resume=yes", "--no-resume": "--resume=no"}
    return [
        word
        if word not in alone or (word == "--resume" and after in ("no", "yes", "auto"))
        else alone[word]
        for word, after in zip(argv, [*argv, ""][1:], strict=True)
    ]


def refuse(config: RunConfig, base: RunConfig, instead: Mapping[str, str]) -> None:
    """Raise where an option of single runs was given, and say what stands for it here."""
    for name, other in instead.items():
        if getattr(config, name) != getattr(base, name):
            raise ValueError(f"--{name.replace('_', '-')} is for single runs: here it is {other}")


def check_out_file(path: Path) -> None:
    """Raise unless a file can be written there once there is something to write, which may be hours later."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"--out {path}: that is a folder, or its folder does not exist")
    with writing(path):
        files.check_writable(path.absolute().parent)


@contextmanager
def alone_at(path: Path | None) -> Iterator[None]:
    """Keep other processes off a file that the user has named, from before the work on; None for none."""
    if path is None:
        yield
        return
    with locked(path.absolute().parent, file=path.name):
        yield


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While a file is written that the user has named: where the disk refuses, that is said and no traceback.

    Args:
        path: of the file, whose folder may be gone by the time there is something to write.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"--out {path}: it cannot be written: {error.strerror or error}"
        ) from error


def run_many(
    argv: Sequence[str],
    *,
    label: str,
    text: str,
    work: Callable[[list[str], Console], str | None],
    continues: bool = True,
) -> int:
    """A command that takes long, from its words to its exit code: what is common to their ends.

    Args:
        argv: what follows the command's name.
        label: the command, for messages.
        text: how it is called.
        work: runs what the words mean and shows what came out; gives the signal that stopped it.
        continues: whether the same command goes on where it was stopped.
    """
    words = list(argv)
    code = usage(text, words)
    if code is not None:
        return code
    try:
        stopped = work(words, make_console())
    except (RunError, Diverged, ValueError, TypeError) as error:
        say(f"{label}: {error}", error=True)
        return 2
    except KeyboardInterrupt as interrupt:
        stopped = at_once(interrupt)
    if stopped is None:
        return 0
    again = "continues" if continues else "begins anew"
    say(f"{label}: stopped by {stopped}; the same command {again}", error=True)
    return exit_code(stopped)


def usage(text: str, argv: list[str]) -> int | None:
    """Print how a command is called where nothing, or only options, follow it; its exit code then."""
    if argv and not argv[0].startswith("-"):
        return None
    asked = bool(argv) and argv[0] in ("-h", "--help")
    print(f"usage: {text}", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2
