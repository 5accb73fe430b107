"""Every write of a command fails once; what was there before stays, and the command continues to the same end."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sifting import files
from tests.chaos.cases import CACHED, Site, corrupt, kill, own_cache, wrong_end
from tests.chaos.runs import REPORT, command, start

FAILURES = (errno.ENOSPC, errno.EIO, errno.EROFS)
# of Python's audit events, those that change a folder; opening a file to write is looked at by its flags
CHANGES = ("os.rename", "os.mkdir", "os.truncate", "os.link", "os.symlink", "os.remove", "os.rmdir")


class Failing:
    """Counts the writes of a process to a folder, and fails one of them."""

    def __init__(self, folder: Path, which: int, error: int) -> None:
        self.folder, self.which, self.error, self.count = str(folder), which, error, 0
        self.points: list[str] = []

    def install(self) -> None:
        """From now on, in this process."""
        sys.addaudithook(self._hook)
        fsync, write, write_at_once = os.fsync, files.Sink.write, os.write

        def failing_fsync(descriptor: int) -> None:
            self._point(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
            fsync(descriptor)

        def failing_write_at_once(descriptor: int, data: Any) -> int:
            self._point(f"write {os.readlink(f'/proc/self/fd/{descriptor}')}")
            return write_at_once(descriptor, data)

        begun = set()

        def failing_write(sink: Any, data: Any) -> int:
            if sink in begun:  # one point a file: torch writes in a thousand pieces
                return write(sink, data)
            begun.add(sink)
            try:
                self._point(f"write {os.readlink(f'/proc/self/fd/{sink._file.fileno()}')}")
            except OSError as error:
                sink.failure = error
                raise
            return write(sink, data)

        os.fsync, os.write = failing_fsync, failing_write_at_once
        files.Sink.write = failing_write  # type: ignore[method-assign]

    def _hook(self, event: str, args: Any) -> None:
        if (
            event == "open"
            and isinstance(args[2], int)
            and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            self._point(f"open {args[0]}")
        elif event in CHANGES:
            self._point(f"{event} {args[0]}")

    def _point(self, what: str) -> None:
        if self.folder not in what:
            return
        self.count += 1
        if self.count == self.which:
            print(f"[failed on purpose: {what}]", file=sys.stderr, flush=True)
            raise OSError(self.error, os.strerror(self.error), what.partition(" ")[2])


def _words(site: Site, name: str, folder: Path) -> list[str]:
    if name != REPORT:
        return command(name, site.work, folder / "run")
    site.whole("mine")
    runs = site.work / "whole" / "mine" / "run"
    return ["report", str(runs), "-o", str(folder / "run" / "report.md")]


def _setup(name: str, folder: Path, failing: Failing | None) -> Callable[[], None]:
    """Before the command: a cache of its own where there is one, so that its writes fail too."""

    def setup() -> None:
        if name in CACHED:
            own_cache(folder)()
        if name == REPORT:
            (folder / "run").mkdir(exist_ok=True)
        if failing is not None:
            failing.install()

    return setup


def write_points(site: Site, name: str) -> int:
    """How many writes a workload makes to its folder."""
    _, folder = site.case("count", 0)
    counter = Failing(folder, 0, errno.EIO)

    def setup() -> None:
        _setup(name, folder, counter)()
        real = os._exit

        def tell(code: int) -> None:
            counter.folder = "nothing is counted any more"
            (site.work / f"points-{name}").write_text(str(counter.count))
            real(code)

        os._exit = tell  # type: ignore[assignment]

    child = start(_words(site, name, folder), folder / "said.txt", setup)
    assert child.wait() == 0, child.said
    return int((site.work / f"points-{name}").read_text())


def fail_write(site: Site, name: str, number: int) -> dict[str, Any]:
    """The n-th write of a workload fails; then it goes on to the same end."""
    _, folder = site.case(f"write-{name}", number)
    error = FAILURES[number % len(FAILURES)]
    failing = Failing(folder, number + 1, error)
    words = _words(site, name, folder)
    child = start(words, folder / "said.txt", _setup(name, folder, failing))
    code, said, wrong = child.wait(), child.said, None
    how = "refused" if code == 2 else "right"
    if "Traceback" in said or code not in (0, 2):
        wrong = f"exit code {code}: {said[-800:]}"
    elif code == 2 and os.strerror(error) not in said.replace("[failed on purpose", ""):
        wrong = f"not named: {said[-400:]}"
    else:
        again = start(words, folder / "again.txt", _setup(name, folder, None))
        again.wait()
        wrong = (
            _wrong_report(folder, again.code, again.said)
            if name == REPORT
            else wrong_end(site, name, folder / "run", again)
        )
    return {"workload": name, "error": errno.errorcode[error], "how": how, "wrong": wrong}


def _wrong_report(folder: Path, code: int | None, said: str) -> str | None:
    """What is wrong with a report that should have been written, its figures beside it."""
    out = folder / "run"
    left = [path.name for path in out.rglob("*.part")]
    if code != 0 or left or not (out / "report.md").read_text().startswith("# Does selection pay?"):
        return f"exit code {code}, left {left}: {said[-400:]}"
    return None


Case = tuple[str, Callable[[], dict[str, Any]]]


def interruptions(results: list[dict[str, Any]]) -> int:
    """How many signals were sent to runs under way."""
    return sum(len(result.get("signals", ())) for result in results)


def cases(
    site: Site,
    results: list[dict[str, Any]],
    *,
    kills: int,
    damages: int,
    writes: tuple[str, ...],
    some: int | None,
) -> Iterator[Case]:
    """Every case, by a name that tells it from others.

    Args:
        site: where they take place.
        results: of the cases so far, which grow as each is done.
        kills: interruptions, in chains of up to five: how many come before a run's end is chance.
        damages: files.
        writes: workloads of which every write fails once.
        some: of them, only so many, spread evenly.
    """
    for number in itertools.count():
        if number % len(site.workloads) == 0 and interruptions(results) >= kills:
            break  # each workload had as many chains as any other
        yield f"kill {number}", lambda n=number: kill(site, n)
    for number in range(damages):
        yield f"damage {number}", lambda n=number: corrupt(site, n)
    for name in writes:
        points = write_points(site, name)
        chosen = range(points) if some is None else range(0, points, max(1, points // some))
        for number in chosen:
            yield f"write {name} {number}", lambda n=number, w=name: fail_write(site, w, n)
