"""`sift bench`: real tasks, every arm and control, one table: where does selection pay?

sift bench list                         the tasks
sift bench fashion digits               some of them
sift bench all --hours 1                all, an hour's worth; the same command continues
sift bench --mine module:build --updates 2000
sift bench advise fashion digits        what `sift advise` predicts for some of them
sift bench report                       results and pages from what has been run
sift bench pack fashion                 the runs of a task in one file beside the results
sift bench unpack fashion               and back, to judge them again or to add an arm
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from sifting.bench.registry import SIZES, BenchTask, tasks
from sifting.bench.results import RESULTS, keep_results
from sifting.bench.running import NAME, Bench, TaskRun, limited, own_task
from sifting.compare.live import tell
from sifting.compare.workload import import_from_here
from sifting.terminal import make_console, say
from sifting.training.engine import Diverged
from sifting.training.run_folder import RunError
from sifting.training.signals import at_once, exit_code

LABEL = "sift bench"
OUT = Path("runs/bench")
ALONE = ("list", "report")  # words that no task goes with
BEFORE = ("advise", "pack", "unpack")  # words that tasks come after
COMMANDS = (*ALONE, *BEFORE)


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog=LABEL, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "tasks",
        nargs="*",
        metavar="TASK",
        help="names, or all; first: list, advise, report, pack, unpack",
    )
    add("--mine", action="append", default=[], metavar="MODULE:BUILD", help="a problem of your own")
    add("--size", choices=SIZES, default="full", help="smoke: seconds, on whatever data is there")
    add("--out", type=Path, default=OUT, help=f"folder of the runs (default: {OUT})")
    add("--arms", nargs="+", help="beside the baseline and random-keep (default: all)")
    add("--seeds", type=int, help="how many (default: five, or three where a run takes minutes)")
    add("--updates", type=int, help="of the baseline (default: the task's own number)")
    add("--equal", choices=("time", "updates"), default="time", help="what is equal for all arms")
    add(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: by the processor time of one thread, for a machine that is shared",
    )
    add(
        "--tune",
        choices=("every", "baseline", "none"),
        default="every",
        help="whose learning rate is chosen; the baseline's, or none, serves all arms then",
    )
    add("--no-wait", action="store_true", help="also run while the machine is busy")
    add("--hours", type=float, help="stop after this many hours; the same command continues")
    add("--results", type=Path, default=RESULTS, help=f"for the report (default: {RESULTS})")
    add("--pages", type=Path, help="for the report: where to write the pages")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    first, rest = (*args.tasks, "")[0], args.tasks[1:]
    words = rest if first in BEFORE else args.tasks
    if not words and not args.mine:
        wanted = (
            "of which task: its name, all" if args.tasks else "a task's name, all, list, report"
        )
        parser.error(f"give {wanted}, or --mine module:build")
    misplaced = [word for word in rest if word in COMMANDS]
    if misplaced or (rest and first in ALONE):
        word = first if first in ALONE else misplaced[0]
        parser.error(f"{word} {'stands alone' if word in ALONE else 'comes before the tasks'}")
    try:
        if args.tasks == ["list"]:
            return _list()
        if args.tasks == ["report"]:
            return _report(args)
        if first in ("pack", "unpack"):
            return _carry(args, first, rest)
        return _run(args)
    except (RunError, Diverged, ValueError, TypeError) as error:
        say(f"{LABEL}: {error}", error=True)
        return 2


def _list() -> int:
    width = max(map(len, tasks()))
    for name, task in tasks().items():
        say(f"{name:<{width}}  {task.about}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from sifting.bench.pages import write_pages

    try:
        kept = keep_results(args.out, args.results)
        for path in kept:
            say(f"wrote {path}")
        if not kept:
            say(f"{LABEL}: no task in {args.out} has a run of its baseline to report", error=True)
        for path in [] if args.pages is None else write_pages(args.results, args.pages):
            say(f"wrote {path}")
    except OSError as error:  # a folder that is a file, a link to nowhere, or may not be written
        raise RunError(f"the report cannot be written: {error}") from error
    return 0


def _carry(args: argparse.Namespace, word: str, names: Sequence[str]) -> int:
    """Put the runs of tasks into files beside the results, or back; all: those that there are."""
    from sifting.bench import packing

    if "all" in names:
        there = args.results / packing.FOLDER if word == "unpack" else args.out
        found = there.glob(f"*{packing.SUFFIX}" if word == "unpack" else f"*/{NAME}")
        names = sorted(
            path.name.removesuffix(packing.SUFFIX) if word == "unpack" else path.parent.name
            for path in found
        )
        if not names:
            raise RunError(f"{there} has nothing to {word}")
    for name in names:
        try:
            if word == "pack":
                done = packing.pack(args.out / name, args.results)
            else:
                done = packing.unpack(packing.packed_path(args.results, name), args.out)
        except FileNotFoundError as error:
            raise RunError(f"there is nothing to {word} of {name!r}: {error}") from error
        except OSError as error:
            raise RunError(f"{name!r} cannot be {word}ed: {error}") from error
        say(f"wrote {done}")
    return 0


def _chosen(args: argparse.Namespace, words: Sequence[str]) -> dict[str, BenchTask]:
    known = tasks()
    names = list(known) if "all" in words else words
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ValueError(
            f"task={wrong[0]!r} is unknown: choose among {', '.join(known)}, or all, {', '.join(COMMANDS)}"
        )
    import_from_here()
    own = {path.replace(":", "."): own_task(path) for path in args.mine}
    return {**{name: known[name] for name in names}, **own}


def command_of(name: str, args: argparse.Namespace) -> str:
    """What makes a task's metrics, as a reader would type it: not where, nor in how many pieces.

    >>> command_of("digits", build_parser().parse_args(["all", "--hours", "1", "--clock", "cpu"]))
    'sift bench digits --clock cpu'
    """
    own = [path for path in args.mine if path.replace(":", ".") == name]
    words = ["sift", "bench", *(["--mine", *own] if own else [name])]
    plain = build_parser().parse_args([name])
    for key in ("size", "seeds", "updates", "equal", "clock", "tune"):
        if getattr(args, key) != getattr(plain, key):
            words += [f"--{key}", str(getattr(args, key))]
    words += ["--arms", *args.arms] if args.arms is not None else []
    return shlex.join(words)


def _run(args: argparse.Namespace) -> int:
    bench = Bench(
        args.out,
        size=args.size,
        equal=args.equal,
        clock=args.clock,
        arms=None if args.arms is None else tuple(args.arms),
        seeds=args.seeds,
        tune=args.tune,
        updates=args.updates,
        wait=not args.no_wait,
    )
    console = make_console()
    stopped: str | None = None
    advises = args.tasks[:1] == ["advise"]
    try:
        with limited(args.hours):
            for name, task in _chosen(args, args.tasks[advises:]).items():
                tell(console, f"{name}: {task.about}")
                command = "" if advises else command_of(name, args)
                run = TaskRun(name, task, bench, command=command)
                stopped = run.advise(console) if advises else run.run(console)
                if stopped is not None:
                    break
    except KeyboardInterrupt as interrupt:
        stopped = at_once(interrupt)
    if stopped is not None:
        say(f"{LABEL}: stopped by {stopped}; the same command continues", error=True)
        return exit_code(stopped)
    where = "" if args.out == OUT else f" --out {shlex.quote(str(args.out))}"
    say(f"all runs are in {args.out}; `sift bench report{where}` makes results of them")
    return 0
