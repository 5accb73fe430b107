"""Peak memory of a case, in a fresh process (Linux only)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes by which the peak resident set rises over what is resident now (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _status("VmRSS")
    work()
    # not getrusage's ru_maxrss: that of a child starts from its parent's, which holds a model too
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{field} is not in /proc/self/status")


def in_fresh_process(command: Sequence[str]) -> str:
    """The last line that a script prints, which gives freed memory back at once."""
    env = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": str(2**17),
        "MALLOC_TRIM_THRESHOLD_": str(2**17),
    }
    done = subprocess.run(
        [sys.executable, *command], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()[-1]
