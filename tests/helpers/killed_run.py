"""A run of `engines.py` in a process of its own, to be killed: `killed_run.py FOLDER PAUSE`."""

from __future__ import annotations

import sys
from pathlib import Path

from sifting.training.checkpoints import Found
from sifting.training.run_writer import RunFolder
from tests.helpers.engines import ARMS, KILLED, build

if __name__ == "__main__":
    folder, pause = Path(sys.argv[1]), float(sys.argv[2])
    if folder.exists():
        found = RunFolder(folder).checkpoints.newest()
        run = RunFolder.reopen(folder, config={}, found=found)
    else:
        found, run = Found(), RunFolder.create(folder, config={})
    engine = build(run, pace=KILLED, arm=ARMS[2], pause=pause)
    engine.resume(found)
    print(engine.run(), flush=True)
