"""A recipe whose second rank is killed, killed again and then stopped, each once, in the middle."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from sifting.training.launch import rank_and_world
from tests.training.test_recipe import RECIPE as SOUND

ENDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)


def problem(config: Any, data: Any) -> Any:
    found = SOUND.problem(config, data)
    marks = os.environ.get("DYING")
    if marks is None or rank_and_world()[0] != 1:
        return found
    calls = [0]

    def loss(model: Any, batch: Any) -> Any:
        calls[0] += 1
        done = len(list(Path(marks).iterdir()))
        if calls[0] == 5 and done < len(ENDS):
            (Path(marks) / str(done)).touch()
            os.kill(os.getpid(), ENDS[done])
        return found.loss(model, batch)

    return replace(found, loss=loss)


RECIPE = replace(SOUND, problem=problem)
