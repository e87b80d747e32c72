"""Images as the lab holds them: all of a split in one uint8 tensor, with labels and class names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

_CHUNK = 1024  # mapped images that are read at a time


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Hold a whole split of images in memory, or mapped into it. Never write to it: datasets are shared by runs.

    >>> split = ImageSet(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]), ("no", "yes"))
    >>> len(split), split.shape, split.class_counts
    (3, (1, 8, 8), [1, 2])
    """

    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,)
    classes: tuple[str, ...]  # the position is the label; a class may have no image
    files: tuple[object, ...] = ()  # of every image its path or name, where images come from picture files
    rows: Tensor | None = None  # int64 (N,): where the images stand in `images`, which is mapped and stays on the disk

    def __post_init__(self) -> None:
        """Check types, shapes and labels: a bad label would fail inside a CUDA kernel."""
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or 0 in self.images.shape:
            raise ValueError(f"images must be uint8 (N, C, H, W), got {self.images.dtype} {tuple(self.images.shape)}.")
        if not self.classes:
            raise ValueError("classes must name at least one class.")
        check_labels(self.labels, len(self.classes), len(self.images if self.rows is None else self.rows))
        if self.files and len(self.files) != len(self):
            raise ValueError(f"files must be one for each of {len(self)} images, got {len(self.files)}.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes, with or without images."""
        return len(self.classes)

    @property
    def class_counts(self) -> list[int]:
        """Images per class, in label order."""
        counts: list[int] = torch.bincount(self.labels, minlength=self.num_classes).tolist()
        return counts

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def bytes(self) -> int:
        """Memory that the images take, or would take if they are mapped."""
        return len(self) * math.prod(self.shape)

    def subset(self, indices: Tensor) -> ImageSet:
        """Take the images at these positions (int64, in this order); the classes stay. Mapped images are not read."""
        indices = indices.to(self.images.device)
        if torch.equal(indices, torch.arange(len(self), device=indices.device)):
            return self
        files = tuple(self.files[position] for position in indices.tolist()) if self.files else ()
        labels = self.labels[indices]
        if self.rows is not None:
            return replace(self, labels=labels, files=files, rows=self.rows[indices])
        return ImageSet(self.images[indices], labels, self.classes, files)

    def to(self, device: torch.device | str, *, images: bool = True) -> ImageSet:
        """Move the labels to a device, and the images too unless `batch` is to move them a few at a time."""
        labels = self.labels.to(device)
        if not images or self.images.device == labels.device:
            return replace(self, labels=labels)
        if self.rows is None:
            return replace(self, images=self.images.to(device), labels=labels)
        moved = torch.empty(len(self), *self.shape, dtype=torch.uint8, device=device)
        for rows, place in zip(torch.split(self.rows, _CHUNK), torch.split(moved, _CHUNK), strict=True):
            place.copy_(self.images.index_select(0, rows))
        return replace(self, images=moved, labels=labels, rows=None)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images at these positions (int64, (B,), on the device of the images), and their labels.

        Images on the CPU are gathered into pinned memory and copied asynchronously to the device of the labels.
        """
        device = self.labels.device
        labels = self.labels.index_select(0, indices.to(device, non_blocking=True))
        indices = indices if self.rows is None else self.rows.index_select(0, indices)
        if self.images.device == device:
            return self.images.index_select(0, indices), labels
        picked = torch.empty(len(indices), *self.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        torch.index_select(self.images, 0, indices, out=picked)
        return picked.to(device, non_blocking=True), labels

    def batches(self, size: int) -> Iterator[Tensor]:
        """Yield all images in order, `size` at a time, on the device of the labels."""
        if self.rows is None:
            parts: Iterable[Tensor] = torch.split(self.images, size)
        else:
            parts = (self.images.index_select(0, rows) for rows in torch.split(self.rows, size))
        for images in parts:
            yield images.to(self.labels.device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a dataset. All share their classes and their image shape."""

    name: str
    train: ImageSet
    test: ImageSet
    calibration: ImageSet | None = None  # neither trained nor tested on: it sets the threshold of "unknown"
    fingerprint: str | None = None  # of the names and sizes of picture files, where there are any

    def __post_init__(self) -> None:
        """Refuse splits that do not belong together."""
        for kind, split in (("test", self.test), ("calibration", self.calibration)):
            for field in ("classes", "shape"):
                if split is not None and getattr(self.train, field) != getattr(split, field):
                    raise ValueError(f"{self.name}: the {field} of the training and the {kind} images differ.")

    @property
    def bytes(self) -> int:
        """Memory of the images of all splits."""
        splits = (self.train, self.test, self.calibration)
        return sum(split.bytes for split in splits if split is not None)

    def to(self, device: torch.device | str, *, images: bool = True) -> Splits:
        """Move all splits to a device, or their labels only."""
        calibration = None if self.calibration is None else self.calibration.to(device, images=images)
        train, test = self.train.to(device, images=images), self.test.to(device, images=images)
        return replace(self, train=train, test=test, calibration=calibration)


def labels_of(counts: Sequence[int]) -> Tensor:
    """Return the labels of images that are sorted by class: [2, 1] gives 0, 0, 1."""
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def check_labels(labels: Tensor, num_classes: int, num_images: int) -> None:
    """Raise unless labels are one int64 class index per image."""
    if labels.dtype != torch.int64 or labels.shape != (num_images,):
        raise ValueError(f"labels must be int64 of shape ({num_images},), got {labels.dtype} {tuple(labels.shape)}.")
    outside = (labels < 0) | (labels >= num_classes)
    if bool(outside.any()):
        position = int(outside.nonzero()[0, 0])
        raise ValueError(f"label {int(labels[position])} at position {position} is not in 0 to {num_classes - 1}.")


def hold_out(labels: Tensor, fraction: float, seed: int = 0, least: int = 1) -> tuple[Tensor, Tensor]:
    """Split positions into a part to train on and a part held out, class by class.

    Of a class with n images round(fraction * n) are held out: at least one, but never the last one. A class with a
    single image therefore stays in training. Of a class with at least 2 * least images, `least` or more are held out.
    Both results are int64 positions in dataset order.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie strictly between 0 and 1, got {fraction!r}.")
    held = draw_per_class(labels, held_counts(torch.bincount(labels.cpu()).tolist(), fraction, least), seed)
    mask = torch.ones(len(labels), dtype=torch.bool)
    mask[held] = False
    return mask.nonzero()[:, 0], held


def held_counts(counts: Sequence[int], fraction: float, least: int = 1) -> list[int]:
    """Return how many images of every class `hold_out` holds out."""
    return [min(max(least if n >= 2 * least else 1, round(fraction * n)), n - 1) if n else 0 for n in counts]


def draw_per_class(labels: Tensor, counts: Sequence[int], seed: int) -> Tensor:
    """Draw counts[i] positions of each class i; sorted, the same on every machine and version."""
    values = labels.cpu().numpy()
    generator = np.random.RandomState(seed)  # its stream never changes between numpy versions
    # one pass for all classes, of which there may be thousands
    by_class = np.split(np.argsort(values, kind="stable"), np.bincount(values, minlength=len(counts)).cumsum()[:-1])
    chosen = [generator.permutation(places)[:n] for places, n in zip(by_class, counts, strict=True)]
    return torch.from_numpy(np.sort(np.concatenate(chosen)).astype(np.int64))
