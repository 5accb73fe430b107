"""Processes for tests that need real ones: to be killed, or to be ranks of a group.

Each is forked from a server that has imported torch and the library once: of a test that starts
three processes, importing would be nearly all of the time. A test of what is imported, or of
`torchrun` itself, starts an interpreter instead.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120.0  # seconds; a busy machine needs some of them
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
    """A Python process as `python WORDS…` would start it.

    Args:
        words: a script and its arguments, or `-m`, a module and its arguments.
        env: variables beside those of this process.
        cwd: folder to start in.
    """

    def __init__(
        self, words: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._folder = tempfile.TemporaryDirectory(prefix="process-")
        self._files = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self._process = context.Process(
            target=_main, args=([str(word) for word in words], variables, cwd, self._files)
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
            self._process.kill()
            self._process.join()
        said = [file.read_text(errors="replace") if file.exists() else "" for file in self._files]
        self._folder.cleanup()
        assert not late, f"no end within {timeout:g} s: {said}"
        return Done(self._process.exitcode or 0, *said)


def run(
    words: Sequence[object], *, env: Mapping[str, str] | None = None, timeout: float = LIMIT
) -> Done:
    """Run a process to its end."""
    return Started(words, env=env).wait(timeout)


def start_ranks(words: Sequence[object], *, world: int = 2) -> list[Started]:
    """Start the ranks of a group, as torchrun does, each on its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [
        Started(words, env={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]


def run_ranks(words: Sequence[object], *, world: int = 2, timeout: float = LIMIT) -> Done:
    """Run a group to its end; where one rank fails the others are ended, as torchrun does."""
    ranks = start_ranks(words, world=world)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        codes = [rank.returncode for rank in ranks]
        if any(codes) or None not in codes:
            break
        time.sleep(0.02)
    for rank in ranks:
        if rank.returncode is None:
            rank.send_signal(signal.SIGKILL)
    ends = [rank.wait(timeout=10) for rank in ranks]
    return Done(
        next((code for code in codes if code), 0 if None not in codes else -signal.SIGKILL),
        "".join(end.stdout for end in ends),
        "".join(end.stderr for end in ends),
    )


def torchrun(
    words: Sequence[object], *, restarts: int = 0, world: int = 2
) -> subprocess.Popen[str]:
    """Start torchrun itself: for what it alone does, such as starting ranks again."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    return subprocess.Popen(
        [sys.executable, *launcher, f"--max-restarts={restarts}", *map(str, words)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            # a store of its own for each restart: in a shared one, ranks can find their peers'
            # addresses of before it
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _main(words: list[str], variables: dict[str, str], cwd: Path, files: list[Path]) -> None:
    """In the new process: be what `python WORDS…` would be."""
    for number, file in zip((1, 2), files, strict=True):
        sink = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, number)
        os.close(sink)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    sys.path.insert(0, str(ROOT))
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    sys.argv = [name, *arguments]
    if module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")
