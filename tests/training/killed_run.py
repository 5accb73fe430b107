"""A run of test_engine.py in a process of its own, to be killed: `killed_run.py FOLDER PAUSE`."""

from __future__ import annotations

import sys
from pathlib import Path

from sifting.training.run_folder import RunFolder
from tests.training.test_engine import ARMS, KILLED, build

folder, pause = Path(sys.argv[1]), float(sys.argv[2])
step = RunFolder(folder).latest() if folder.exists() else None
if step is None:
    engine = build(RunFolder.create(folder, config={}), pace=KILLED, arm=ARMS[2], pause=pause)
else:
    opened = RunFolder.reopen(folder, config={}, step=step)
    engine = build(opened, pace=KILLED, arm=ARMS[2], pause=pause)
    engine.resume(step)
print(engine.run(), flush=True)
