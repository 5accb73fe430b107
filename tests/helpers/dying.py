"""A recipe whose second rank is killed, killed again and then hangs, each once, in the middle."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sifting.training.launch import rank_and_world
from tests.helpers.recipe import RECIPE as SOUND

TIMES = 3


def problem(config: Any, data: Any) -> Any:
    torch.manual_seed(config.seed)
    found = SOUND.problem(config, data)
    marks = os.environ.get("DYING")
    if marks is None or rank_and_world()[0] != 1:
        return found
    calls = [0]

    def loss(model: Any, batch: Any) -> Any:
        calls[0] += 1
        done = len(list(Path(marks).iterdir()))
        if calls[0] == 5 and done < TIMES:
            (Path(marks) / str(done)).touch()
            if done < TIMES - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)
        return found.loss(model, batch)

    return replace(found, loss=loss)


RECIPE = replace(SOUND, problem=problem)
