"""Small runs of every recipe and of a comparison, each in a process that is forked with all imports done."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sifting.compare.calibration as calibration
import sifting.recipes.bert
import sifting.recipes.gpt
import sifting.recipes.resnet
import sifting.report.paper  # noqa: F401  imported here, so that no run has to
from sifting.cli import main as sift
from sifting.log import LOGGER
from sifting.training.checkpoints import Checkpoints
from sifting.training.run_folder import read_run, resumable
from tests.helpers.text import prose

CRASHED = 70  # what a process ends with after an exception that nobody caught
# a warning that goes by the clock, as seconds do: its name, and what its message begins with after the step
DEAR, DEARLY = "dear", "choosing takes "
TEXT = (
    "--vocabulary train --vocabulary-size 300 --dev-share 0.3 --length 16 --batch 4 --dev-sequences 8 "
    "--hidden 16 --heads 2 --inner 16 --layers 3 --audit-every 3"
)
REPORT = "report"  # what is not trained, and writes too
WORKLOADS = {
    "mine": "train tests.helpers.recipe:RECIPE tiny --arm tuned --updates 12 --evaluations 3 "
    "--audit-every 4",
    "resnet": "train resnet smoke --arm default --batch 10 --images 100 --updates 8 --evaluations 1 "
    "--audit-every 3 --recalibrate 0 --checkpoint-every 2u",
    "bert": f"train bert smoke --data TEXT --arm memory-mixed --updates 8 --evaluations 1 {TEXT} "
    "--checkpoint-every 2u",
    "gpt": f"train gpt smoke --data TEXT --arm default --updates 8 --evaluations 1 {TEXT} "
    "--checkpoint-every 2u --accumulate 2",
    "compare": "compare tests.helpers.problems:build --budget 9u --evaluations 3 --audit-every 5 --arms tuned "
    "--seeds 0 --keep-finished --no-control",
}


def prepare(work: Path) -> None:
    """What all runs share: a text, a cache, one thread, calibrations of a moment."""
    torch.set_num_threads(1)
    os.environ |= {
        "SIFT_CACHE": str(work / "cache"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    calibration.MOST = calibration.FEWEST = 2
    calibration.FIRST = 1
    text = work / "text"
    text.mkdir(parents=True, exist_ok=True)
    for i in range(30):
        (text / f"{i}.txt").write_text(prose(i))


def command(name: str, work: Path, out: Path) -> list[str]:
    """The words of a workload, which begins or goes on."""
    words = WORKLOADS[name].replace("TEXT", str(work / "text")).split()
    return [*words, "--out", str(out), *(["--resume=auto"] if words[0] == "train" else [])]


@dataclass
class Child:
    """A run under way."""

    pid: int
    log: Path
    code: int | None = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        if not self.ended():
            os.kill(self.pid, number)

    def ended(self) -> bool:
        """Whether it is over."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float = 1800.0) -> int:
        """Its exit code; one that takes far too long, even where the machine has other work, is killed."""
        deadline = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    @property
    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")


def seed() -> None:
    """The same stream in all processes, as those have it that are started and not forked."""
    torch.manual_seed(0)


def run_here(words: Sequence[str], log: Path) -> int:
    """Run a command in this process, so that what it imports is there for all to come."""
    seed()
    with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        code = sift.main(list(words))
        LOGGER.handlers.clear()  # they write to the file, which is closed now
        return code


def start(words: Sequence[str], log: Path, setup: Callable[[], None] | None = None) -> Child:
    """Run a command of ours in a process of its own.

    Args:
        words: what follows `sift`.
        log: gets what it prints.
        setup: called in the process before.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, log)
    code = CRASHED
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        seed()
        if setup is not None:
            setup()
        code = sift.main(list(words))
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def runs_in(out: Path) -> list[Path]:
    """The run folders of a workload."""
    return sorted(path.parent for path in out.rglob("run.json"))


def end_of(out: Path) -> dict[str, Any]:
    """All that must come out the same: weights, optimizer, schedule, sifter and log of each run."""
    found = {}
    for path in runs_in(out):
        run = read_run(path)
        assert run.status == "finished", f"{path} is {run.status}"
        checkpoints = Checkpoints(path / "checkpoints")
        state = checkpoints.load(int((run.summary or {})["updates"]), resumable(path)["id"])
        kept = {name: state[name] for name in ("update", "model", "optimizer", "schedule", "last")}
        sifters = [dict(part["sifter"]) for part in state["ranks"]]
        for sifter in sifters:
            meter = {k: v for k, v in sifter["meter"].items() if k != "seconds"}
            meter["warned"] = {k: v for k, v in meter["warned"].items() if k != DEAR}
            sifter["meter"] = meter
        log = [
            {k: v for k, v in line.items() if k not in ("seconds", "load", "reference")}
            for line in run.metrics
            if line["kind"] != "warning" or DEARLY not in line["message"]
        ]
        audits = path / "audits.jsonl"
        found[str(path.relative_to(out))] = {
            **kept,
            "sifters": sifters,
            "streams": [part["streams"] for part in state["ranks"]],
            "log": log,
            "audits": audits.read_text() if audits.exists() else "",
        }
    return found


# streams that a process gets from the system, and that nothing here draws from
UNSEEDED = ("python", "numpy")


def difference(a: Any, b: Any, place: str = "end") -> str | None:
    """Where two ends differ; None where they are the same to the last bit."""
    if isinstance(a, Tensor):
        same = isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape
        if same and torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0)):
            return None
        return place
    if isinstance(a, dict):
        if not isinstance(b, dict) or set(a) != set(b):
            return place
        keys = [key for key in a if key not in UNSEEDED]
        return next((d for k in keys if (d := difference(a[k], b[k], f"{place}.{k}"))), None)
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return place
        return next(
            (
                d
                for i, (x, y) in enumerate(zip(a, b, strict=True))
                if (d := difference(x, y, f"{place}.{i}"))
            ),
            None,
        )
    return None if a == b or (a != a and b != b) else place
