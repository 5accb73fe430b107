"""Images in files, as data sets have them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import torch
from PIL import Image


def encoded(color: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(folder: Path, name: str, rows: list[dict[str, Any]], classes: int = 3) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(num_classes=classes),
        }
    )
    datasets.Dataset.from_list(rows, features=features).to_parquet(str(folder / f"{name}.parquet"))


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"image": {"bytes": encoded((i * 20, 0, 255)), "path": None}, "label": i % 3}
        for i in range(count)
    ]


def write_large(folder: Path) -> Path:
    """Food-101's kind: a folder for each class, jpegs of odd sizes."""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 9), ("test", 4)):
        for name in ("apple_pie", "waffles"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                size = 90 + 7 * i, 131 - 5 * i
                noise = torch.randint(0, 256, (size[1], size[0], 3), generator=generator)
                image = Image.fromarray(noise.to(torch.uint8).numpy())
                image.save(folder / split / name / f"{i}.jpg")
    return folder
