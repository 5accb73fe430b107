"""Images with one label each, read from anywhere, decoded once or when they are wanted.

Shapes: N images of C channels, height H, width W.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from sifting.recipes.images.transforms import augmented, decode, decode_crop
from sifting.training.recipe import DataError

LABELS = ("fine_label", "label", "labels")  # CIFAR-100 has two; the fine one is the task
TESTS = ("test", "validation", "valid", "val")
SMALL = 64  # side up to which images are decoded once and kept
SAMPLE = 500  # images that the mean and deviation of large ones are taken from


Indices = npt.NDArray[np.int64]
Chances = npt.NDArray[np.float64]
Statistics = tuple[Tensor, Tensor]
ImageProgress = Callable[[str, int, int], None]


class ImageSplit(Protocol):
    """One split of some images, all given out at one size."""

    @property
    def labels_N(self) -> Tensor: ...

    @property
    def classes(self) -> int: ...

    def __len__(self) -> int: ...

    def pixels(self, indices_B: Indices, chances_BK: Chances | None) -> Tensor:
        """Some images as bytes of shape (B, 3, H, W); augmented where there are chances."""
        ...

    def statistics(self) -> Statistics:
        """Mean and deviation of each channel, on a scale of 0 to 1."""
        ...


@dataclass(frozen=True)
class Images:
    """One split, decoded: images as bytes, labels from 0.

    Attributes:
        pixels_NCHW: unsigned bytes.
        labels_N: class indices.
        classes: how many there are.
    """

    pixels_NCHW: Tensor
    labels_N: Tensor
    classes: int

    def __post_init__(self) -> None:
        _check_labels(self.labels_N, self.classes)

    def __len__(self) -> int:
        return len(self.labels_N)

    def pixels(self, indices_B: Indices, chances_BK: Chances | None) -> Tensor:
        """Flips and padded crops are tensor operations on the whole batch."""
        pixels_BCHW = self.pixels_NCHW[torch.from_numpy(indices_B)]
        if chances_BK is None:
            return pixels_BCHW
        return augmented(pixels_BCHW, self.pixels_NCHW.shape[-1] // 8, chances_BK)

    def statistics(self) -> Statistics:
        return _statistics(self.pixels_NCHW[:: max(1, len(self) // 5000)])


@dataclass(frozen=True)
class EncodedImages:
    """One split as it is on disk: each image is decoded when it is wanted.

    Attributes:
        rows: of a `datasets` split whose images are not decoded.
        rows_N: which of them.
        column: of the images.
        name: of the split, for messages.
        side: height and width of what is given out.
        labels_N: class indices.
        classes: how many there are.
    """

    rows: Any
    rows_N: Tensor
    column: str
    name: str
    side: int
    labels_N: Tensor
    classes: int

    def __post_init__(self) -> None:
        _check_labels(self.labels_N, self.classes, rows_N=self.rows_N, name=self.name)

    def __len__(self) -> int:
        return len(self.labels_N)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """A image's bytes, and what to call it in a message."""
        row = int(self.rows_N[index])
        image = self.rows[row][self.column]
        where = image.get("path") or f"row {row}"
        try:
            return image["bytes"] or Path(image["path"]).read_bytes(), where
        except (OSError, TypeError) as error:
            raise self._unreadable(where, error) from error

    def pixels(self, indices_B: Indices, chances_BK: Chances | None) -> Tensor:
        out = torch.empty(len(indices_B), 3, self.side, self.side, dtype=torch.uint8)
        for place, row in enumerate(indices_B):
            data, where = self.encoded(int(row))
            chances = None if chances_BK is None else chances_BK[place]
            try:
                out[place] = decode_crop(data, self.side, chances)
            except Exception as error:
                raise self._unreadable(where, error) from error
        return out

    def in_memory(self, progress: ImageProgress | None = None) -> Images:
        """All of them decoded, for images that are small."""
        pixels = torch.empty(len(self), 3, self.side, self.side, dtype=torch.uint8)
        for row in range(len(self)):
            data, where = self.encoded(row)
            try:
                pixels[row] = decode(data, self.side)
            except Exception as error:
                raise self._unreadable(where, error) from error
            if progress is not None and row % 500 == 0:
                progress(self.name, row, len(self))
        return Images(pixels, self.labels_N, self.classes)

    def _unreadable(self, where: str, error: Exception) -> DataError:
        return DataError(f"the image {where} of {self.name!r} cannot be read: {error}")

    def statistics(self) -> Statistics:
        """Of some hundred images, spread evenly."""
        return _statistics(self.pixels(spread(len(self), SAMPLE).numpy(), None))


def _check_labels(
    labels_N: Tensor, classes: int, *, rows_N: Tensor | None = None, name: str | None = None
) -> None:
    split = "" if name is None else f" of {name!r}"
    if not len(labels_N):
        raise DataError(f"there are no images{f' in {name!r}' if name else ''}")
    wrong = ((labels_N < 0) | (labels_N >= classes)).nonzero()
    if len(wrong):
        index = int(wrong[0])
        row = index if rows_N is None else int(rows_N[index])
        raise DataError(
            f"row {row}{split} has the label {int(labels_N[index])}, but there are {classes} classes, "
            f"so labels go from 0 to {classes - 1}"
        )


def _statistics(pixels_NCHW: Tensor) -> Statistics:
    sample = pixels_NCHW.float() / 255
    return sample.mean(dim=(0, 2, 3)), sample.std(dim=(0, 2, 3)).clamp_min(1e-3)


def read_images(
    source: str,
    *,
    side: int,
    limit: int | None = None,
    keep: bool | None = None,
    progress: ImageProgress | None = None,
) -> tuple[ImageSplit, ImageSplit]:
    """Training and test images, all of one size.

    Args:
        source: "digits" (8×8, from scikit-learn), a folder of parquet files with the `datasets`
            image schema (`train*.parquet`, `test*.parquet`), a folder of `train/CLASS/…` and
            `test/CLASS/…`, or a name on the Hugging Face Hub.
        side: height and width; images are resized by their shorter side and cut square.
        limit: how many images to train on, spread evenly over the data; None for all.
        keep: whether to decode them once and keep them, rather than each time they are wanted; by
            default where they are at most 64×64.
        progress: called with the split, the images decoded so far and their number.
    """
    if source == "digits":
        train, held_out = _digits(side)
        rows = spread(len(train), limit)
        return Images(train.pixels_NCHW[rows], train.labels_N[rows], train.classes), held_out
    import datasets

    path = Path(source)
    try:
        if path.is_dir():
            parquet = {
                name: sorted(str(f) for f in path.glob(f"{name}*.parquet"))
                for name in ("train", *TESTS)
            }
            found = {name: files for name, files in parquet.items() if files}
            splits = (
                datasets.load_dataset("parquet", data_files=found)
                if found
                else datasets.load_dataset("imagefolder", data_dir=str(path))
            )
        elif path.exists():
            raise DataError(f"{source} is a file: give the folder that holds it")
        else:
            splits = datasets.load_dataset(source)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"cannot read images from {source!r}: {error}") from error
    test = next((name for name in TESTS if name in splits and _has_labels(splits[name])), None)
    if "train" not in splits or test is None:
        raise DataError(
            f"{source!r} has the splits {sorted(splits)}: a 'train' and one of {', '.join(TESTS)} are "
            "needed, with labels"
        )
    learned = _encoded(splits["train"], "train", side, limit=limit)
    tested = _encoded(splits[test], test, side, classes=learned.classes)
    if side > SMALL if keep is None else not keep:
        return learned, tested
    return learned.in_memory(progress), tested.in_memory(progress)


def spread(count: int, limit: int | None) -> Tensor:
    """Indices of at most `limit` of `count` rows, evenly apart.

    >>> spread(10, 4).tolist(), spread(3, None).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if limit is None or limit >= count:
        return torch.arange(count)
    return torch.arange(limit) * count // limit


def _encoded(
    split: Any, name: str, side: int, *, classes: int | None = None, limit: int | None = None
) -> EncodedImages:
    import datasets

    images = [n for n, kind in split.features.items() if isinstance(kind, datasets.Image)]
    labels = [n for n in LABELS if n in split.features]
    if not images or not labels:
        raise DataError(
            f"the split {name!r} has the columns {list(split.features)}: an image column with the "
            f"`datasets` image schema and one of {', '.join(LABELS)} are needed"
        )
    numbers = list(split.with_format(None)[labels[0]])
    odd = next((row for row, number in enumerate(numbers) if not isinstance(number, int)), None)
    if odd is not None:
        raise DataError(
            f"row {odd} of {name!r} has the {labels[0]} {numbers[odd]!r}: the number of a class is needed"
        )
    if classes is None:  # of all rows, also where only some are taken
        known = getattr(split.features[labels[0]], "num_classes", None)
        classes = known or max(numbers, default=0) + 1
    rows_N = spread(len(numbers), limit)
    raw = split.cast_column(images[0], datasets.Image(decode=False))
    labels_N = torch.tensor(numbers, dtype=torch.int64)[rows_N]
    return EncodedImages(raw, rows_N, images[0], name, side, labels_N, classes)


def _has_labels(split: Any) -> bool:
    """Whether a split has labels, or no column for them; tests whose labels are kept secret have −1."""
    column = next((name for name in LABELS if name in split.features), None)
    return column is None or any(number != -1 for number in split.with_format(None)[column])


def _digits(side: int) -> tuple[Images, Images]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    gray_NHW = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 * 255
    large = F.interpolate(gray_NHW, size=(side, side), mode="nearest").to(torch.uint8)
    pixels_NCHW, labels_N = large.expand(-1, 3, -1, -1).contiguous(), torch.tensor(labels)
    order = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return (
        Images(pixels_NCHW[train], labels_N[train], 10),
        Images(pixels_NCHW[test], labels_N[test], 10),
    )
