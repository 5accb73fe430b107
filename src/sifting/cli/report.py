"""`sift report`: runs to one page that says whether selection paid, and shows why."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sifting.report.reading import FILES, Material, NothingToReport, collect, find
from sifting.report.writing import write_figures, write_html, write_markdown
from sifting.terminal import make_console, printable, say
from sifting.verdict.terminal import show_table

LABEL = "sift report"
EVERY = 10.0  # seconds between looks of --watch
ENDINGS = {".html": "html", ".htm": "html", ".md": "md"}
MOST_TABLES = 3  # experiments whose tables are printed


def build_parser() -> argparse.ArgumentParser:
    """The parser of `sift report`."""
    parser = argparse.ArgumentParser(prog="sift report", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that hold some"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        help="file to write, in .html or .md (default: report.html or report.md)",
    )
    parser.add_argument(
        "--format", choices=("html", "md"), help="default: what --out ends in, else html"
    )
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="also write the figures there, as PNG and SVG"
    )
    parser.add_argument(
        "--target",
        type=float,
        help="value of the metric whose time is compared, e.g. 0.78 (default: what every baseline run reached)",
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=EVERY,
        metavar="SECONDS",
        help=f"keep the report current while runs go on (every {EVERY:g} seconds), until Ctrl-C",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; 2 where there is nothing to report or nowhere to write."""
    parser = build_parser()
    args = parser.parse_args(argv)
    kind, out = _where(parser, args.out, args.format)
    if args.watch is not None and not args.watch > 0:
        parser.error(f"--watch {args.watch:g}: give a number of seconds above 0")
    if args.target is not None and not math.isfinite(args.target):
        parser.error(f"--target {args.target}: give a finite value of the metric, e.g. 0.78")
    plan = ReportRequest(args.runs, out, kind, args.figures, args.target)
    if args.watch is not None:
        _watch(plan, args.watch)
    try:
        plan.say(plan.write())
    except NothingToReport as error:
        say(f"{LABEL}: {error}", error=True)
        return 2
    except OSError as error:
        say(f"{LABEL}: {_refused(error, out)}", error=True)
        return 2
    return 0


def _where(parser: argparse.ArgumentParser, out: Path | None, kind: str | None) -> tuple[str, Path]:
    """The format, and the file to write; both as asked for, or an end that says what works."""
    if out is None:
        return kind or "html", Path(f"report.{kind or 'html'}")
    meant = ENDINGS.get(out.suffix.lower())
    if meant is None or meant != (kind or meant):
        works = " or ".join(e for e, of in ENDINGS.items() if kind in (None, of))
        parser.error(printable(f"--out {out}: give a name that ends in {works}"))
    if not out.absolute().parent.is_dir() or out.is_dir():
        parser.error(printable(f"--out {out}: that is a folder, or its folder does not exist"))
    return meant, out


@dataclass(frozen=True)
class ReportRequest:
    """What to read and what to write."""

    runs: Sequence[Path]
    out: Path
    kind: str
    figures: Path | None
    target: float | None

    def write(self, refresh: float | None = None) -> Material:
        """Read the runs and write the report."""
        material = collect(self.runs, target=self.target)
        if self.kind == "md":
            write_markdown(material, self.out, figures=self.figures)
            return material
        write_html(material, self.out, refresh=refresh)
        if self.figures is not None:
            write_figures(material, self.figures)
        return material

    def say(self, material: Material) -> None:
        """What was left out, the verdicts, and where the report is."""
        console = make_console()
        for skipped in material.skipped:
            say(f"{LABEL}: {skipped.name}: {skipped.reason}", error=True)
        for experiment in material.experiments:
            if len(material.experiments) > 1:
                say(f"{experiment.title}:")
            say(experiment.verdict.overall)
            if len(material.experiments) <= MOST_TABLES:
                console.print()
                show_table(experiment.verdict, console)
                console.print()
        say(f"the report is {self.out}")


def _refused(error: OSError, out: Path) -> str:
    return f"cannot write {error.filename or out}: {error.strerror or error}"


def _watch(plan: ReportRequest, every: float) -> None:
    """Write again whenever a run has written, until Ctrl-C; whatever goes wrong is said, once."""
    seen: object = None
    told: set[str] = set()

    def tell(line: str) -> None:
        if line not in told:
            told.add(line)
            say(f"{LABEL}: {line}", error=True)

    say(f"keeping {plan.out} current; Ctrl-C ends it")
    try:
        while True:
            try:
                state = _state(plan.runs)
                if state != seen:
                    for skipped in plan.write(every).skipped:
                        tell(f"{skipped.name}: {skipped.reason}")
                    seen = state
            except NothingToReport as error:
                tell(f"waiting: {error}")
            except OSError as error:
                tell(f"{_refused(error, plan.out)}; trying again")
            except Exception as error:  # the next look may find the runs whole
                tell(f"unexpected {type(error).__name__}: {error}; trying again")
            time.sleep(every)
    except KeyboardInterrupt:
        return  # it is written once more, to stand as it is


def _state(runs: Sequence[Path]) -> list[tuple[str, int, int]]:
    """When the files of the runs were last written."""
    found = []
    for folder in runs:
        for path in find(folder):
            for name in FILES:
                try:
                    stat = (path / name).stat()
                except OSError:
                    continue
                found.append((str(path / name), stat.st_mtime_ns, stat.st_size))
    return found
