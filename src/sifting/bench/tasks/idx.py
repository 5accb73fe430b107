"""Files in the format of MNIST: arrays of bytes behind a short header, compressed."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from sifting.training.recipe import DataError

BYTES = 8  # the code for unsigned bytes


def read_idx(path: Path) -> Tensor:
    """The array of a file.

    Args:
        path: of a file as `train-images-idx3-ubyte.gz`.
    """
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != BYTES:
        raise DataError(f"{path} is not an array of bytes in idx format")
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise DataError(f"{path} ends within its header")
    shape = struct.unpack(f">{rank}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} has {len(content) - start} bytes of data, and its header says {math.prod(shape)}: "
            "it is cut off, or damaged"
        )
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).reshape(shape)
