"""What a dataset is here: all images of a split in one uint8 tensor, their labels, and the class names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Hold a whole split of images in memory, or mapped into it, ready to be moved to a device at once or in batches.

    Args:
        images: uint8, (N, C, H, W).
        labels: int64, (N,), each in [0, len(classes)).
        classes: Class names; the position is the label. A class may have no image.

    Every value is checked here, so that a bad label is an error with a name and never a failed assertion
    inside a CUDA kernel.

    >>> digits = ImageSet(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]), ("no", "yes"))
    >>> len(digits), digits.shape, digits.class_counts
    (3, (1, 8, 8), [1, 2])
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse anything that training would only stumble over later."""
        _check_images(self.images)
        _check_classes(self.classes)
        check_labels(self.labels, len(self.classes), len(self.images))

    def __len__(self) -> int:
        return len(self.images)

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

    def subset(self, indices: Tensor) -> ImageSet:
        """Take the images at these positions (int64, in this order); the classes stay."""
        indices = indices.to(self.images.device)
        if torch.equal(indices, torch.arange(len(self), device=indices.device)):
            return self  # what is mapped into memory would be copied there for nothing
        return ImageSet(self.images[indices], self.labels[indices], self.classes)

    def to(self, device: torch.device | str, *, images: bool = True) -> ImageSet:
        """Move the labels to a device, and the images if they are wanted there: else `batch` moves a few at a time."""
        return ImageSet(self.images.to(device) if images else self.images, self.labels.to(device), self.classes)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Give the images at these positions, and their labels, where the labels are.

        Nothing waits for the device: indices are to lie where the images lie. Images that lie on the host go through
        memory from which a GPU copies by itself, while it still computes what it was given before.

        Args:
            indices: int64, (B,).
        """
        device = self.labels.device
        labels = self.labels.index_select(0, indices.to(device, non_blocking=True))
        if self.images.device == device:
            return self.images.index_select(0, indices), labels
        picked = torch.empty(len(indices), *self.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        torch.index_select(self.images, 0, indices, out=picked)
        return picked.to(device, non_blocking=True), labels

    def batches(self, size: int) -> Iterator[Tensor]:
        """Give all images in their order, so many at a time, where the labels are."""
        for images in torch.split(self.images, size):
            yield images.to(self.labels.device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Data:
    """Pair a training split with the split it is evaluated on.

    All must share their classes and their image shape. `calibration`, where there is one, is of neither kind: it sets
    the threshold of "unknown". `files` is what `folder.files_mark` says of a folder, and None for what is no folder.
    """

    name: str
    train: ImageSet
    test: ImageSet
    calibration: ImageSet | None = None
    files: str | None = None

    def __post_init__(self) -> None:
        """Refuse splits that do not belong together."""
        self._check("test", self.test)
        if self.calibration is not None:
            self._check("calibration", self.calibration)

    @property
    def bytes(self) -> int:
        """What the images of all splits take."""
        splits = (self.train, self.test, self.calibration)
        return sum(split.images.nbytes for split in splits if split is not None)

    def to(self, device: torch.device | str, *, images: bool = True) -> Data:
        """Move all splits to a device, or their labels only."""
        train, test, calibration = (
            None if split is None else split.to(device, images=images)
            for split in (self.train, self.test, self.calibration)
        )
        assert train is not None
        assert test is not None
        return Data(self.name, train, test, calibration, self.files)

    def _check(self, kind: str, split: ImageSet) -> None:
        if self.train.classes != split.classes:
            raise ValueError(
                f"{self.name}: the training classes {self.train.classes[:5]}... and the {kind} classes "
                f"{split.classes[:5]}... differ. Both splits must have the same classes in the same order."
            )
        if self.train.shape != split.shape:
            raise ValueError(
                f"{self.name}: training images are {self.train.shape}, {kind} images {split.shape} "
                "(channels, height, width). Both splits must have the same shape."
            )


def labels_of(counts: Sequence[int]) -> Tensor:
    """Give the labels of images that lie class by class.

    >>> labels_of([2, 1]).tolist()
    [0, 0, 1]
    """
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def check_labels(labels: Tensor, num_classes: int, num_images: int) -> None:
    """Check that labels are one int64 class index per image.

    >>> check_labels(torch.tensor([0, 2]), num_classes=2, num_images=2)
    Traceback (most recent call last):
        ...
    ValueError: label 2 at position 1 is out of range: with 2 classes labels are 0 to 1. Labels count from 0.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be an int64 tensor, got {type(labels).__name__}. Use torch.tensor(labels).")
    if labels.ndim != 1:
        raise ValueError(
            f"labels must have shape (N,), got {tuple(labels.shape)}. "
            "For one-hot or score rows take argmax(dim=1) first."
        )
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be int64 class indices, got {labels.dtype}. Convert them with .long().")
    if len(labels) != num_images:
        raise ValueError(f"{len(labels)} labels for {num_images} images. There must be one label per image.")
    outside = (labels < 0) | (labels >= num_classes)
    if bool(outside.any()):
        position = int(outside.nonzero()[0, 0])
        raise ValueError(
            f"label {int(labels[position])} at position {position} is out of range: with {num_classes} classes "
            f"labels are 0 to {num_classes - 1}. Labels count from 0."
        )


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a uint8 tensor, got {type(images).__name__}. Use torch.from_numpy.")
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8 (0 to 255), got {images.dtype}. Normalisation happens in training.")
    if images.ndim != 4:
        raise ValueError(f"images must have shape (N, C, H, W), got {tuple(images.shape)}.")
    if 0 in images.shape:
        raise ValueError(f"images must not be empty, got shape {tuple(images.shape)}. Check that the data was read.")


def _check_classes(classes: tuple[str, ...]) -> None:
    if not isinstance(classes, tuple) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"classes must be a tuple of names, got {classes!r}. Convert with tuple(map(str, names)).")
    if not classes:
        raise ValueError("classes must name at least one class, got an empty tuple.")
