"""The attacks: processes that are killed, files that are damaged, writes that fail."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sifting import files
from sifting.training.checkpoints import Checkpoints
from sifting.training.run_folder import RunError
from tests.chaos.runs import (
    CRASHED,
    WORKLOADS,
    Child,
    command,
    difference,
    end_of,
    run_here,
    start,
)

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
ENDS = {  # exit codes after a signal: by its handler, before there is one, or when all was done
    signal.SIGKILL: (-9, 0),
    signal.SIGTERM: (143, -15, 0),
    signal.SIGINT: (130, -2, 0),
    signal.SIGSTOP: (0,),
}
WAYS = ("shortened", "emptied", "flipped", "replaced", "junk", "deleted")
FAILURES = (errno.ENOSPC, errno.EIO, errno.EROFS)


@dataclass
class Site:
    """Where the attacks take place.

    Attributes:
        work: a folder of its own.
        seed: of every case, with the case's number.
        short: leave out the recipes, whose libraries take seconds to import.
    """

    work: Path
    seed: int
    short: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    _whole: dict[str, Any] = field(default_factory=dict)

    def whole(self, name: str) -> dict[str, Any]:
        """How a workload ends where nothing disturbs it."""
        out = self.work / "whole" / name
        if name not in self._whole:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            # here for what it imports, which chance may enter into; then twice as all others will run
            code = run_here(command(name, self.work, out / "first"), out / "said.txt")
            assert code == 0, (out / "said.txt").read_text()
            for again in ("again", "run"):
                begin = time.monotonic()
                child = start(command(name, self.work, out / again), out / "said.txt")
                assert child.wait() == 0, child.said
                self.seconds[name] = time.monotonic() - begin
            self._whole[name] = end_of(out / "run")
            differs = difference(self._whole[name], end_of(out / "again"))
            assert differs is None, f"{name} is not the same each time: {differs}"
            shutil.rmtree(out / "again")
            shutil.rmtree(out / "first")
        return self._whole[name]  # type: ignore[no-any-return]

    def interrupted(self, name: str) -> Path:
        """A run of a workload that was killed when it had two checkpoints."""
        out = self.work / "interrupted" / name
        if (out / "done").exists():
            return out / "run"
        self.whole(name)
        while True:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            child = start(command(name, self.work, out / "run"), out / "said.txt")
            while not child.ended():
                found = [len(Checkpoints(p).steps()) for p in (out / "run").rglob("checkpoints")]
                if found and max(found) >= 2:
                    break
                time.sleep(0.002)
            child.signal(signal.SIGKILL)
            if child.wait() == -9:
                (out / "done").write_text("")
                return out / "run"

    def case(self, kind: str, number: int) -> tuple[random.Random, Path]:
        """Chance and a fresh folder for a case."""
        folder = self.work / "cases" / f"{kind}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return random.Random(f"{self.seed} {kind} {number}"), folder


def wrong_end(site: Site, name: str, out: Path, child: Child) -> str | None:
    """What is wrong with a run that should have ended well."""
    if child.code != 0:
        return f"exit code {child.code}: {child.said[-600:]}"
    try:
        return difference(site.whole(name), end_of(out))
    except (RunError, AssertionError) as error:
        return str(error)


def kill(site: Site, number: int) -> dict[str, Any]:
    """A run that is interrupted one to five times, at any moment, until it ends."""
    rng, folder = site.case("kill", number)
    names = ["mine", "compare"] if site.short else list(WORKLOADS)
    name = names[number % len(names)]
    site.whole(name)
    out, sent, wrong = folder / "run", [], None
    for _ in range(rng.randint(2, 5)):
        which = rng.choice(SIGNALS)
        child = start(command(name, site.work, out), folder / "said.txt")
        deadline = time.monotonic() + rng.random() * site.seconds[name]
        while time.monotonic() < deadline and not child.ended():
            time.sleep(0.002)
        if child.ended():
            if child.code != 0:
                wrong = f"exit code {child.code}: {child.said[-600:]}"
            break
        child.signal(which)
        sent.append(which.name)
        if which == signal.SIGSTOP:
            time.sleep(rng.uniform(0.02, 0.3))
            child.signal(signal.SIGCONT)
        code = child.wait()
        if code not in ENDS[which] or "Traceback" in child.said:
            wrong = f"{which.name} gave {code}: {child.said[-600:]}"
            break
    if wrong is None:
        child = start(command(name, site.work, out), folder / "said.txt")
        child.wait()
        wrong = wrong_end(site, name, out, child)
    return {"workload": name, "signals": sent, "wrong": wrong}


def files_of(folder: Path) -> list[str]:
    """Every file in a folder, by its name there."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def damage(rng: random.Random, path: Path, way: str, other: Path | None) -> None:
    """Damage a file in one of the ways."""
    source = path.read_bytes()
    if way == "deleted":
        path.unlink()
    elif way == "emptied" or not source:
        path.write_bytes(b"")
    elif way == "shortened":
        path.write_bytes(source[: rng.randrange(len(source))])
    elif way == "flipped":
        at = rng.randrange(len(source))
        path.write_bytes(
            source[:at] + bytes([source[at] ^ 1 << rng.randrange(8)]) + source[at + 1 :]
        )
    elif way == "replaced" and other is not None and other.exists():
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(rng.randbytes(len(source)))


def corrupt(site: Site, number: int) -> dict[str, Any]:
    """One file of a finished or interrupted run, or of the cache, damaged; then the run goes on."""
    rng, folder = site.case("damage", number)
    targets = [*((name, kind) for name in ("mine", "compare") for kind in ("whole", "interrupted"))]
    targets += [("gpt", "interrupted"), ("bert", "cache"), ("resnet", "interrupted")]
    targets = targets[:4] if site.short else targets
    name, kind = targets[number % len(targets)]
    site.whole(name)
    turn = number // len(targets)
    out = folder / "run"
    root = out
    if kind == "cache":
        root = folder / "cache"
        shutil.copytree(site.work / "cache", root)
        words, base = command(name, site.work, out), None
    else:
        base = site.work / "whole" / name / "run" if kind == "whole" else site.interrupted(name)
        shutil.copytree(base, out)
        words = command(name, site.work, out)
    names = [each for each in files_of(root) if not each.endswith(".lock")]
    file = names[turn % len(names)]
    way = WAYS[(turn // len(names) + turn) % len(WAYS)]
    # the same file of another run: as sound as can be, and not its own
    others = [e for e in names if e != file and Path(e).name == Path(file).name]
    other = root / rng.choice(others) if others else _elsewhere(site, name, file)
    damage(rng, root / file, way, other)

    def setup() -> None:
        if kind == "cache":
            os.environ["SIFT_CACHE"] = str(root)

    child = start(words, folder / "said.txt", setup)
    code = child.wait()
    said, how, wrong = child.said, "right", None
    if "Traceback" in said or code == CRASHED:
        wrong = f"traceback: {said[-600:]}"
    elif code == 2:
        how = "refused"
        if Path(file).name not in said and Path(file).parent.name not in said:
            wrong = f"{file} is not named: {said[-400:]}"
    elif code == 0:
        try:
            wrong = difference(site.whole(name), end_of(out))
        except RunError as error:  # it is never read by the command: by whoever reads it then
            how = "refused"
            wrong = None if Path(file).name in str(error) else str(error)
        except AssertionError as error:
            wrong = str(error)
    else:
        wrong = f"exit code {code}: {said[-400:]}"
    return {"workload": name, "of": kind, "file": file, "way": way, "how": how, "wrong": wrong}


def _elsewhere(site: Site, name: str, file: str) -> Path | None:
    """A file of the same name in a run of another workload."""
    for other in WORKLOADS:
        for path in sorted((site.work / "whole" / other).rglob(Path(file).name)):
            if other != name:
                return path
    return None


class Failing:
    """Counts the writes of a process to a folder, and fails one of them."""

    def __init__(self, folder: Path, which: int, error: int) -> None:
        self.folder, self.which, self.error, self.count = str(folder), which, error, 0
        self.points: list[str] = []

    def install(self) -> None:
        """From now on, in this process."""
        sys.addaudithook(self._hook)
        fsync, write = os.fsync, files.Sink.write

        def failing_fsync(descriptor: int) -> None:
            self._point(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
            fsync(descriptor)

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

        os.fsync = failing_fsync
        files.Sink.write = failing_write  # type: ignore[method-assign]

    def _hook(self, event: str, args: Any) -> None:
        if (
            event == "open"
            and isinstance(args[2], int)
            and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            self._point(f"open {args[0]}")
        elif event in ("os.rename", "os.mkdir", "os.truncate", "os.link"):
            self._point(f"{event} {args[0]}")

    def _point(self, what: str) -> None:
        if self.folder not in what:
            return
        self.count += 1
        if self.count == self.which:
            os.write(2, f"[failed on purpose: {what}]\n".encode())
            raise OSError(self.error, os.strerror(self.error), what.partition(" ")[2])


def write_points(site: Site, name: str) -> int:
    """How many writes a workload makes to its folder."""
    _, folder = site.case("count", 0)
    counter = Failing(folder, 0, errno.EIO)

    def setup() -> None:
        counter.install()
        real = os._exit

        def tell(code: int) -> None:
            (site.work / f"points-{name}").write_text(str(counter.count))
            real(code)

        os._exit = tell  # type: ignore[assignment]

    child = start(command(name, site.work, folder / "run"), folder / "said.txt", setup)
    assert child.wait() == 0, child.said
    return int((site.work / f"points-{name}").read_text())


def fail_write(site: Site, name: str, number: int) -> dict[str, Any]:
    """The n-th write of a workload fails; then it goes on to the same end."""
    _, folder = site.case(f"write-{name}", number)
    error = FAILURES[number % len(FAILURES)]
    out = folder / "run"
    failing = Failing(folder, number + 1, error)
    child = start(command(name, site.work, out), folder / "said.txt", failing.install)
    code, said, wrong = child.wait(), child.said, None
    how = "refused" if code == 2 else "right"
    if "Traceback" in said or code not in (0, 2):
        wrong = f"exit code {code}: {said[-800:]}"
    elif code == 2 and os.strerror(error) not in said.replace("[failed on purpose", ""):
        wrong = f"not named: {said[-400:]}"
    else:
        again = start(command(name, site.work, out), folder / "again.txt")
        again.wait()
        wrong = wrong_end(site, name, out, again)
    return {"workload": name, "error": errno.errorcode[error], "how": how, "wrong": wrong}


Case = tuple[str, Callable[[], dict[str, Any]]]


def cases(
    site: Site, *, kills: int, damages: int, writes: tuple[str, ...], some: int | None
) -> Iterator[Case]:
    """Every case, by a name that tells it from others.

    Args:
        kills: chains of interruptions.
        damages: files.
        writes: workloads of which every write fails once.
        some: of them, only so many, spread evenly.
    """
    for number in range(kills):
        yield f"kill {number}", lambda n=number: kill(site, n)
    for number in range(damages):
        yield f"damage {number}", lambda n=number: corrupt(site, n)
    for name in writes:
        points = write_points(site, name)
        chosen = range(points) if some is None else range(0, points, max(1, points // some))
        for number in chosen:
            yield f"write {name} {number}", lambda n=number, w=name: fail_write(site, w, n)
