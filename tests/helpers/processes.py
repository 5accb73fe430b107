"""Processes for tests that need real ones: to be killed, or to be ranks of a group.

Each is forked from a server that has imported torch and the library once: of a test that starts
three processes, importing would be nearly all of the time. A test of what is imported, or of
`torchrun` itself, starts an interpreter instead.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240.0  # seconds; a busy machine needs some of them
STREAMS = ("stdout", "stderr")
IMPORTED = [
    "torch._dynamo",  # which optimizers import when they are made
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "sifting.cli.compare",
    "sifting.cli.train",
]


@dataclass(frozen=True)
class Done:
    """How processes ended, and what they said, the first one's words first."""

    returncode: int
    stdout: str
    stderr: str


class Started:
    """A Python process as `python WORDS…` would start it, or ranks that are such processes.

    Args:
        words: a script and its arguments, or `-m`, a module and its arguments.
        env: variables beside those of this process.
        world: number of ranks; 0 for a process that is none.
        first: modules to import before the ranks are forked, since each would import them.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        world: int = 0,
        first: Sequence[str] = (),
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._folder = tempfile.TemporaryDirectory(prefix="process-")
        said = Path(self._folder.name)
        settings = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        command = [str(word) for word in words]
        self._process = context.Process(
            target=_ranks if world else _main,
            args=(command, settings, said, world, list(first))
            if world
            else (command, settings, said),
        )
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """None while it runs, minus the signal's number where one ended it."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout: float = LIMIT) -> Done:
        """Wait until it ends; one that does not is killed, and the test fails."""
        self._process.join(timeout)
        late = self._process.exitcode is None
        if late:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid or 0, signal.SIGKILL)
            self._process.join()
        said = [
            "".join(file.read_text(errors="replace") for file in sorted(files))
            for files in (Path(self._folder.name).glob(f"{name}*") for name in STREAMS)
        ]
        self._folder.cleanup()
        assert not late, f"no end within {timeout:g} s: {said}"
        return Done(self._process.exitcode or 0, *said)


def run_ranks(
    words: Sequence[object], *, world: int = 2, timeout: float = LIMIT, first: Sequence[str] = ()
) -> Done:
    """Run ranks to their end; where one fails the others are ended, as torchrun does."""
    return Started(words, env=group_of(world), world=world, first=first).wait(timeout)


def start_ranks(words: Sequence[object], *, world: int = 2) -> list[Started]:
    """Start ranks that nobody ends."""
    group = group_of(world)
    return [Started(words, env={**group, **rank_of(rank)}) for rank in range(world)]


def group_of(world: int) -> dict[str, str]:
    """What torchrun tells the ranks of a group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }


def rank_of(rank: int) -> dict[str, str]:
    """What torchrun tells one of them."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def torchrun(
    words: Sequence[object],
    *,
    restarts: int = 0,
    world: int = 2,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start torchrun itself: for what it alone does, such as starting ranks again."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    return subprocess.Popen(
        [sys.executable, *launcher, f"--max-restarts={restarts}", *map(str, words)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _main(words: list[str], settings: dict[str, str], said: Path, rank: str = "") -> None:
    """In the new process: be what `python WORDS…` would be."""
    if not rank:
        os.setpgid(0, 0)  # so that it is ended with what it has started
    for number, name in enumerate(STREAMS, start=1):
        sink = os.open(said / f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, number)
        os.close(sink)
    os.environ.clear()
    os.environ.update(settings)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    torch.set_num_threads(1)
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    sys.argv = [name, *arguments]
    if module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


def _ranks(
    words: list[str], settings: dict[str, str], said: Path, world: int, first: list[str]
) -> None:
    """In the new process: start the ranks, and end with the first that fails."""
    os.setpgid(0, 0)
    sys.path.insert(0, str(ROOT))
    for name in first:
        importlib.import_module(name)
    ranks = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _end(lambda rank=rank: _main(words, {**settings, **rank_of(rank)}, said, str(rank)))
        ranks.append(pid)
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            sys.exit(abs(os.waitstatus_to_exitcode(status)))


def _end(work: Callable[[], None]) -> NoReturn:
    """Do it and be gone, with the code that Python would end with."""
    code = 0
    try:
        work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
