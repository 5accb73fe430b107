"""A rank that meets the others, and ends as one that is killed: `python meeting_run.py SECONDS-OF-RANK-1`."""

from __future__ import annotations

import os
import sys
import time

import torch.distributed as dist

from sifting.training.launch import process_group

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        time.sleep(float(sys.argv[1]))
    with process_group("cpu"):
        dist.barrier()
        print("met", flush=True)
        os._exit(0)
