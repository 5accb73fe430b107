"""Pictures with one label each: reading them from anywhere, and batches of them.

Shapes: N pictures of C channels, height H, width W.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sifting.recipes.recipe import DataError

LABELS = ("fine_label", "label", "labels")  # CIFAR-100 has two; the fine one is the task
TESTS = ("test", "validation", "valid", "val")


@dataclass(frozen=True)
class Pictures:
    """One split, decoded: pictures as bytes, labels from 0.

    Attributes:
        pixels_NCHW: unsigned bytes.
        labels_N: class numbers.
        classes: how many there are.
    """

    pixels_NCHW: Tensor
    labels_N: Tensor
    classes: int

    def __post_init__(self) -> None:
        if not len(self.labels_N):
            raise DataError("a split without pictures")
        low, high = int(self.labels_N.min()), int(self.labels_N.max())
        if low < 0 or high >= self.classes:
            row = int(((self.labels_N < 0) | (self.labels_N >= self.classes)).nonzero()[0])
            raise DataError(
                f"row {row} has the label {int(self.labels_N[row])}, but there are {self.classes} classes, "
                f"so labels go from 0 to {self.classes - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels_N)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each channel, on a scale of 0 to 1."""
        sample = self.pixels_NCHW[:: max(1, len(self) // 5000)].float() / 255
        return sample.mean(dim=(0, 2, 3)), sample.std(dim=(0, 2, 3)).clamp_min(1e-3)


def read_pictures(
    source: str,
    *,
    side: int,
    limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Pictures, Pictures]:
    """Training and test pictures, all of one size.

    Args:
        source: "digits" (8×8, from scikit-learn), a folder of parquet files with the `datasets`
            image schema (`train*.parquet`, `test*.parquet`), a folder of `train/CLASS/…` and
            `test/CLASS/…`, or a name on the Hugging Face Hub.
        side: height and width; pictures are resized by their shorter side and cut square.
        limit: how many pictures to train on, spread evenly over the data; None for all.
        progress: called with the split, the pictures decoded so far and their number.
    """
    if source == "digits":
        train, held_out = _digits(side)
        rows = spread(len(train), limit)
        return Pictures(train.pixels_NCHW[rows], train.labels_N[rows], train.classes), held_out
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
        raise DataError(f"cannot read pictures from {source!r}: {error}") from error
    test = next((name for name in TESTS if name in splits), None)
    if "train" not in splits or test is None:
        raise DataError(
            f"{source!r} has the splits {sorted(splits)}: a 'train' and one of {', '.join(TESTS)} are needed"
        )
    chosen = splits["train"].select(spread(len(splits["train"]), limit).tolist())
    return (
        _decoded(chosen, "train", side, progress),
        _decoded(splits[test], test, side, progress),
    )


def spread(count: int, limit: int | None) -> Tensor:
    """Row numbers of at most `limit` of `count` rows, evenly apart.

    >>> spread(10, 4).tolist(), spread(3, None).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if limit is None or limit >= count:
        return torch.arange(count)
    return torch.arange(limit) * count // limit


def _decoded(split: Any, name: str, side: int, progress: Callable[..., None] | None) -> Pictures:
    import datasets

    images = [n for n, kind in split.features.items() if isinstance(kind, datasets.Image)]
    labels = [n for n in LABELS if n in split.features]
    if not images or not labels:
        raise DataError(
            f"the split {name!r} has the columns {list(split.features)}: a picture column with the "
            f"`datasets` image schema and one of {', '.join(LABELS)} are needed"
        )
    kind = split.features[labels[0]]
    numbers = torch.tensor(split.with_format(None)[labels[0]])
    classes = int(getattr(kind, "num_classes", 0) or int(numbers.max()) + 1)
    raw = split.cast_column(images[0], datasets.Image(decode=False))
    pixels = torch.empty(len(raw), 3, side, side, dtype=torch.uint8)
    for row, record in enumerate(raw):
        picture = record[images[0]]
        try:
            pixels[row] = decode(picture["bytes"] or Path(picture["path"]).read_bytes(), side)
        except Exception as error:
            where = picture.get("path") or f"row {row}"
            raise DataError(f"the picture {where} of {name!r} cannot be read: {error}") from error
        if progress is not None and row % 500 == 0:
            progress(name, row, len(raw))
    return Pictures(pixels, numbers, classes)


def decode(data: bytes, side: int) -> Tensor:
    """An encoded picture as bytes of shape (3, side, side)."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        picture = image.convert("RGB")
        if picture.size != (side, side):
            scale = side / min(picture.size)
            size = [max(side, round(n * scale)) for n in picture.size]
            picture = picture.resize((size[0], size[1]), Image.Resampling.BILINEAR)
            left, top = (size[0] - side) // 2, (size[1] - side) // 2
            picture = picture.crop((left, top, left + side, top + side))
        raw = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return raw.reshape(side, side, 3).permute(2, 0, 1)


def _digits(side: int) -> tuple[Pictures, Pictures]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    gray_NHW = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 * 255
    large = F.interpolate(gray_NHW, size=(side, side), mode="nearest").to(torch.uint8)
    pixels_NCHW, labels_N = large.expand(-1, 3, -1, -1).contiguous(), torch.tensor(labels)
    order = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return (
        Pictures(pixels_NCHW[train], labels_N[train], 10),
        Pictures(pixels_NCHW[test], labels_N[test], 10),
    )


class PictureBatches:
    """Shuffled, augmented batches of one epoch; the same for the same seed, epoch by epoch.

    >>> data = Pictures(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.zeros(10).long(), 2)
    >>> [tuple(batch["pixel_values"].shape) for batch in PictureBatches(data, 4, seed=0)]
    [(4, 3, 8, 8), (4, 3, 8, 8)]

    Flips and padded crops are tensor operations on the whole batch. All randomness is from one
    generator, so that a sifter can find the order, and every crop, again.

    Args:
        data: the pictures.
        batch_size: pictures a batch; an incomplete last batch is left out.
        seed: of order and augmentation.
        augment: whether to flip and crop.
        padding: pixels of reflection around a picture that is cropped.
        statistics: mean and deviation to normalise by; the data's own by default.
    """

    drop_last = True

    def __init__(
        self,
        data: Pictures,
        batch_size: int,
        *,
        seed: int,
        augment: bool = True,
        padding: int | None = None,
        statistics: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        if not 1 <= batch_size <= len(data):
            raise DataError(
                f"batches of {batch_size} from {len(data)} pictures: choose a batch of at most {len(data)}"
            )
        self.dataset, self.batch_size, self.augment = data, batch_size, augment
        self.padding = data.pixels_NCHW.shape[-1] // 8 if padding is None else padding
        self.statistics = data.statistics() if statistics is None else statistics
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(len(self.dataset), generator=self.generator)
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            rows = order[start : start + self.batch_size]
            pixels = self.dataset.pixels_NCHW[rows]
            if self.augment:
                pixels = augmented(pixels, self.padding, self.generator)
            yield {
                "pixel_values": normalised(pixels, *self.statistics),
                "labels": self.dataset.labels_N[rows],
                "index": rows,
            }


def normalised(pixels_BCHW: Tensor, mean_C: Tensor, deviation_C: Tensor) -> Tensor:
    """Bytes to centred single precision, in the memory layout that convolutions like."""
    values = (
        pixels_BCHW.float().div_(255).sub_(mean_C[:, None, None]).div_(deviation_C[:, None, None])
    )
    return values.contiguous(memory_format=torch.channels_last)


def augmented(pixels_BCHW: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Each picture flipped or not, and cut out of its reflection-padded self at random.

    >>> x = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).to(torch.uint8)
    >>> augmented(x, 1, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 4, 4])
    """
    batch, _, height, width = pixels_BCHW.shape
    flip_B = torch.rand(batch, generator=generator) < 0.5
    out = torch.where(flip_B[:, None, None, None], pixels_BCHW.flip(-1), pixels_BCHW)
    if padding == 0:
        return out
    padded = F.pad(out.float(), (padding,) * 4, mode="reflect").to(out.dtype)
    top_B, left_B = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator)
    rows_BH = top_B[:, None] + torch.arange(height)
    columns_BW = left_B[:, None] + torch.arange(width)
    pick_B = torch.arange(batch)[:, None, None]
    return padded.permute(0, 2, 3, 1)[pick_B, rows_BH[:, :, None], columns_BW[:, None, :]].permute(
        0, 3, 1, 2
    )
