"""From encoded images to what a network is trained on: decoding, crops, flips, one scale.

Chances are numbers in [0, 1): whoever draws them decides what happens, and nothing else does.
Shapes: B images of C channels, height H, width W, with P = H × W places.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CHANCES = 3  # that a training image takes: to be flipped, and where it is cut
MARGIN = 256 / 224  # shorter side of a large image, over the side of what is cut out of it


def decode(data: bytes, side: int) -> Tensor:
    """An encoded image as bytes of shape (3, side, side): all of its height or width."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image = _rgb(image)
        if image.size != (side, side):
            scale = side / min(image.size)
            size = [max(side, round(n * scale)) for n in image.size]
            image = image.resize((size[0], size[1]), Image.Resampling.BILINEAR)
            left, top = (size[0] - side) // 2, (size[1] - side) // 2
            image = image.crop((left, top, left + side, top + side))
        return _bytes(image, side)


def decode_crop(data: bytes, side: int, chances: npt.NDArray[np.float64] | None = None) -> Tensor:
    """A square of an encoded image whose shorter side is taken for 256/224 of it.

    The middle one by default, as images are evaluated; with chances one cut out anywhere, and
    flipped or not, as they are trained. At side=224 that is the usual "resize to 256, crop 224".
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        shorter = round(side * MARGIN)
        image.draft("RGB", (shorter, shorter))  # JPEG decodes faster at a half or a quarter
        image = _rgb(image)
        width, height = image.size
        span = min(width, height) * side / shorter
        across, down = (0.5, 0.5) if chances is None else (float(chances[1]), float(chances[2]))
        left, top = across * (width - span), down * (height - span)
        box = (left, top, min(left + span, width), min(top + span, height))
        pixels = _bytes(image.resize((side, side), Image.Resampling.BILINEAR, box=box), side)
    return pixels.flip(-1) if chances is not None and chances[0] < 0.5 else pixels


def _rgb(image: Any) -> Any:
    """A image the right way up, in three channels of bytes.

    Conversion alone would cut 16 bits off at 255, and so make nearly every such pixel white.
    """
    from PIL import Image, ImageOps

    ImageOps.exif_transpose(image, in_place=True)  # as cameras mean it, and as `datasets` decodes
    if image.mode == "F":
        raise ValueError("its pixels are fractions of an unknown scale: save it with 8 bits")
    if image.mode == "I" or image.mode.startswith("I;16"):
        values_HW = np.asarray(image).astype(np.int64)
        image = Image.fromarray((values_HW >> 8).clip(0, 255).astype(np.uint8))
    if "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns about palettes
    return image.convert("RGB")


def _bytes(image: object, side: int) -> Tensor:
    raw = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)  # type: ignore[attr-defined]
    return raw.reshape(side, side, 3).permute(2, 0, 1)


def augmented(pixels_BCHW: Tensor, padding: int, chances_BK: npt.NDArray[np.float64]) -> Tensor:
    """Each image flipped or not, and cut out of its reflection-padded self.

    >>> x = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).to(torch.uint8)
    >>> augmented(x, 1, np.array([[0.9, 0.0, 0.7], [0.1, 0.5, 0.5]])).shape
    torch.Size([2, 3, 4, 4])
    """
    batch, channels, height, width = pixels_BCHW.shape
    chances = torch.from_numpy(chances_BK)
    shift_B2 = (chances[:, 1:3] * (2 * padding + 1)).long() - padding
    rows_BH = _reflected(shift_B2[:, :1] + torch.arange(height), height)
    columns_BW = _reflected(shift_B2[:, 1:] + torch.arange(width), width)
    columns_BW = torch.where(chances[:, :1] < 0.5, width - 1 - columns_BW, columns_BW)
    # one look-up for all of it, which is several times faster than to flip, pad and cut
    places_BHW = rows_BH[:, :, None] * width + columns_BW[:, None, :]
    places_BCP = places_BHW.reshape(batch, 1, -1).expand(-1, channels, -1)
    return pixels_BCHW.reshape(batch, channels, -1).gather(2, places_BCP).reshape_as(pixels_BCHW)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Places beyond an edge, as in a mirror that stands on the last pixel."""
    places = places.abs()
    return torch.where(places >= size, 2 * (size - 1) - places, places)


def normalised(pixels_BCHW: Tensor, mean_C: Tensor, deviation_C: Tensor) -> Tensor:
    """Bytes to centred single precision, in the memory layout that convolutions like."""
    values = (
        pixels_BCHW.float().div_(255).sub_(mean_C[:, None, None]).div_(deviation_C[:, None, None])
    )
    return values.contiguous(memory_format=torch.channels_last)
