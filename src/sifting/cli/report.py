"""`sift report`: runs to one page that says whether selection paid, and shows why."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sifting.report.reading import FILES, Material, NothingToReport, collect, find
from sifting.report.writing import write_figures, write_html, write_markdown

EVERY = 10.0  # seconds between looks of --watch


def build_parser() -> argparse.ArgumentParser:
    """The parser of `sift report`."""
    parser = argparse.ArgumentParser(prog="sift report", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that hold some"
    )
    parser.add_argument(
        "-o", "--out", type=Path, help="file to write (default: report.html or report.md)"
    )
    parser.add_argument(
        "--format", choices=("html", "md"), help="default: md for an --out in .md, else html"
    )
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="also write the figures there, as PNG and SVG"
    )
    parser.add_argument(
        "--target",
        type=float,
        help="figure of merit whose time is compared, e.g. 0.78 (default: what every baseline run reached)",
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
    kind = args.format or ("md" if args.out and args.out.suffix == ".md" else "html")
    out = args.out or Path(f"report.{kind}")
    if args.watch is not None and not args.watch > 0:
        parser.error(f"--watch {args.watch:g}: give a number of seconds above 0")
    if not out.absolute().parent.is_dir() or out.is_dir():
        parser.error(f"--out {out}: that is a folder, or its folder does not exist")
    try:
        if args.watch is not None:
            return _watch(args.runs, out, kind, args.figures, args.target, args.watch)
        material = collect(args.runs, target=args.target)
        _write(material, out, kind, args.figures)
    except NothingToReport as error:
        print(f"sift report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"sift report: cannot write {error.filename or out}: {error.strerror}", file=sys.stderr
        )
        return 2
    _say(material, out)
    return 0


def _write(
    material: Material, out: Path, kind: str, figures: Path | None, refresh: float | None = None
) -> None:
    if kind == "md":
        write_markdown(material, out, figures=figures)
        return
    write_html(material, out, refresh=refresh)
    if figures is not None:
        write_figures(material, figures)


def _say(material: Material, out: Path) -> None:
    for skipped in material.skipped:
        print(f"sift report: {skipped.name}: {skipped.reason}", file=sys.stderr)
    for experiment in material.experiments:
        if len(material.experiments) > 1:
            print(f"{experiment.title}:")
        print(experiment.verdict.overall)
    print(f"the report is {out}")


def _watch(
    runs: Sequence[Path],
    out: Path,
    kind: str,
    figures: Path | None,
    target: float | None,
    every: float,
) -> int:
    """Write again whenever a run has written, until Ctrl-C; then once more, to stand as it is."""
    seen: object = None
    print(f"keeping {out} current; Ctrl-C ends it", flush=True)
    try:
        while True:
            state = _state(runs)
            if state != seen:
                try:
                    _write(collect(runs, target=target), out, kind, figures, every)
                    seen = state
                except NothingToReport:
                    pass  # not yet
            time.sleep(every)
    except KeyboardInterrupt:
        material = collect(runs, target=target)
        _write(material, out, kind, figures)
        _say(material, out)
        return 0


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
