"""The attacks: processes that are killed, files that are damaged; writes that fail are in `writes`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
CACHED = ("bert", "gpt")  # what tokens are cached for


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

    @property
    def workloads(self) -> list[str]:
        """What is interrupted, in turn."""
        return ["mine", "compare"] if self.short else list(WORKLOADS)

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
    name = site.workloads[number % len(site.workloads)]
    site.whole(name)
    out, sent, wrong = folder / "run", [], None
    fresh = (
        name in CACHED and rng.random() < 0.5
    )  # so that it is killed while tokens are cached too
    setup = own_cache(folder) if fresh else None
    for _ in range(rng.randint(2, 5)):
        which = rng.choice(SIGNALS)
        child = start(command(name, site.work, out), folder / "said.txt", setup)
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
        child = start(command(name, site.work, out), folder / "said.txt", setup)
        child.wait()
        wrong = wrong_end(site, name, out, child)
    return {"workload": name, "signals": sent, "fresh": fresh, "wrong": wrong}


def own_cache(folder: Path) -> Callable[[], None]:
    """For a process that shall not use the cache of all."""

    def setup() -> None:
        os.environ["SIFT_CACHE"] = str(folder / "cache")

    return setup


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

    child = start(words, folder / "said.txt", own_cache(folder) if kind == "cache" else None)
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
