from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sifting.recipes.images.transforms import augmented, decode, decode_crop


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def wide() -> bytes:
    """Black, with a white square in the middle."""
    image = Image.new("RGB", (40, 10), (0, 0, 0))
    image.paste((255, 255, 255), (15, 0, 25, 10))
    return encoded(image)


def ramp(width: int, height: int) -> bytes:
    """Red grows to the right, green downwards, both to 255."""
    across = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    down = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    pixels = np.stack([across, down, np.zeros_like(down)], axis=-1).astype(np.uint8)
    return encoded(Image.fromarray(pixels))


def test_pictures_are_resized_by_the_shorter_side_and_cut_square() -> None:
    assert decode(wide(), 10).float().mean() > 250


def test_large_pictures_are_evaluated_by_the_middle_of_the_shorter_side() -> None:
    pixels = decode_crop(ramp(640, 256), 224)
    assert pixels.shape == (3, 224, 224)
    red, green = pixels[0].float(), pixels[1].float()
    assert abs(float(red.mean()) - 127.5) < 1  # the middle
    assert float(green[0].mean()) < 255 * 18 / 256  # 16 of 256 are cut off above …
    assert float(green[-1].mean()) > 255 * 238 / 256  # … and below
    assert float(red[:, -1].mean() - red[:, 0].mean()) == pytest.approx(255 * 223 / 640, abs=1)


def test_chances_say_where_a_training_picture_is_cut_and_whether_it_is_flipped() -> None:
    data = ramp(640, 256)
    left = decode_crop(data, 224, np.array([0.9, 0.0, 0.0]))
    right = decode_crop(data, 224, np.array([0.9, 1 - 1e-9, 1 - 1e-9]))
    assert left[:2, 0, 0].tolist() == [0, 0]
    assert right[:2, -1, -1].tolist() == [255, 255]
    assert torch.equal(decode_crop(data, 224, np.array([0.1, 0.0, 0.0])), left.flip(-1))


def test_pictures_of_any_kind_and_size() -> None:
    for mode, size in (
        ("L", (7, 300)),
        ("RGBA", (300, 9)),
        ("P", (224, 224)),
        ("CMYK", (500, 333)),
    ):
        data = encoded(Image.new(mode, size), "JPEG" if mode == "CMYK" else "PNG")
        for chances in (None, np.array([0.3, 0.999, 0.999])):
            assert decode_crop(data, 96, chances).shape == (3, 96, 96)


def test_every_crop_is_a_window_of_the_padded_picture_or_its_mirror() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 3, 8, 8), generator=generator).to(torch.uint8)
    out = augmented(pixels, 2, np.random.default_rng(3).random((40, 3)))
    padded = torch.nn.functional.pad(pixels.float(), (2,) * 4, mode="reflect").to(torch.uint8)
    mirrored = torch.nn.functional.pad(pixels.flip(-1).float(), (2,) * 4, mode="reflect").to(
        torch.uint8
    )
    found = set()
    for i in range(40):
        windows = {
            (side, t, left): source[i, :, t : t + 8, left : left + 8]
            for side, source in enumerate((padded, mirrored))
            for t in range(5)
            for left in range(5)
        }
        places = [place for place, window in windows.items() if torch.equal(out[i], window)]
        assert places
        found |= set(places)
    assert {place[0] for place in found} == {0, 1}
    assert {place[1] for place in found} == {place[2] for place in found} == set(range(5))


@pytest.mark.parametrize("cut", [decode, decode_crop])
def test_sixteen_bits_are_scaled_and_not_cut_off(cut: Any) -> None:
    gray = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8).repeat(4, 0).repeat(4, 1)
    deep = cut(encoded(Image.fromarray(gray)), 8)
    shallow = cut(encoded(Image.fromarray((gray >> 8).astype(np.uint8))), 8)
    assert torch.equal(deep, shallow)
    with pytest.raises(ValueError, match="its pixels are fractions of an unknown scale"):
        cut(encoded(Image.fromarray(gray.astype(np.float32)), "TIFF"), 8)


@pytest.mark.parametrize("cut", [decode, decode_crop])
def test_a_picture_is_turned_as_its_camera_was_held(cut: Any) -> None:
    lying, turned = Image.open(io.BytesIO(ramp(40, 20))), Image.Exif()
    turned[0x0112] = 6  # the camera stood on its side
    buffer = io.BytesIO()
    lying.save(buffer, "PNG", exif=turned)
    upright = encoded(lying.transpose(Image.Transpose.ROTATE_270))
    assert torch.equal(cut(buffer.getvalue(), 8), cut(upright, 8))


def test_palettes_with_transparency_are_read_without_a_word() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=b"\0\0")
    assert decode(buffer.getvalue(), 8)[:, 0, 0].tolist() == [10, 200, 30]
