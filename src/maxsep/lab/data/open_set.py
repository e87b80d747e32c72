"""Open-set benchmarks: a few classes are known and trained on, the others are met for the first time in testing.

The class lists are those that Vaze et al. (Open-set recognition: a good closed-set classifier is all you need?, ICLR
2022) released. Labels are the official ones, for CIFAR-100 the fine ones. The lists of the embedded digits are the
first six of five permutations drawn by NumPy's RandomState(0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from maxsep.lab.data.images import ImageSet, Splits

SPLITS = 5
SOURCES = {"svhn": "svhn", "cifar10": "cifar10", "cifar+": "cifar10", "digits": "digits"}
"""The dataset that the known classes of each benchmark come from."""
# fmt: off
KNOWN: dict[str, tuple[tuple[int, ...], ...]] = {
    "svhn": ((5, 3, 7, 2, 8, 6), (3, 8, 7, 6, 2, 5), (8, 9, 4, 7, 2, 1), (3, 8, 2, 5, 0, 6), (4, 9, 2, 7, 1, 0)),
    "cifar10": ((0, 6, 4, 9, 1, 7), (7, 6, 4, 9, 0, 1), (1, 5, 7, 3, 9, 4), (8, 6, 1, 9, 0, 7), (2, 4, 1, 7, 9, 6)),
    "digits": ((2, 8, 4, 9, 1, 6), (3, 5, 1, 2, 9, 8), (2, 3, 8, 4, 5, 1), (6, 1, 9, 2, 7, 5), (5, 2, 7, 4, 1, 0)),
    "cifar+": ((4, 7, 9, 1), (6, 7, 1, 9), (9, 6, 1, 7), (6, 4, 9, 1), (1, 0, 9, 8)),
}
"""Known classes of each benchmark and split, in the order of their new labels."""
_TEN = (
    (30, 25, 1, 9, 8, 0, 46, 52, 49, 71),
    (41, 9, 49, 40, 73, 60, 48, 30, 95, 71),
    (8, 9, 49, 40, 73, 60, 48, 95, 30, 71),
    (95, 60, 30, 73, 46, 49, 68, 99, 8, 71),
    (33, 2, 3, 97, 46, 21, 64, 63, 88, 43),
)
_OTHER_FORTY = (
    (27, 94, 29, 77, 88, 26, 69, 48, 75, 5, 59, 93, 39, 57, 45, 40, 78, 20, 98, 47, 66, 70, 91, 76, 41, 83,
     99, 32, 53, 72, 2, 95, 21, 73, 84, 68, 35, 11, 55, 60),
    (65, 97, 86, 24, 45, 67, 2, 3, 91, 98, 79, 29, 62, 82, 33, 76, 0, 35, 5, 16, 54, 11, 99, 52, 85, 1, 25,
     66, 28, 84, 23, 56, 75, 46, 21, 72, 55, 68, 8, 69),
    (20, 83, 65, 97, 94, 2, 93, 16, 67, 29, 62, 33, 24, 98, 5, 86, 35, 54, 0, 91, 52, 66, 85, 84, 56, 11, 1,
     76, 25, 55, 21, 99, 72, 41, 23, 75, 28, 68, 69, 46),
    (92, 82, 77, 64, 5, 33, 62, 56, 70, 0, 20, 28, 67, 14, 84, 53, 91, 29, 85, 2, 52, 83, 75, 35, 11, 21, 72,
     98, 55, 1, 41, 76, 25, 66, 69, 9, 48, 54, 40, 23),
    (47, 6, 19, 0, 62, 93, 59, 65, 54, 70, 34, 55, 23, 38, 72, 76, 53, 31, 78, 96, 77, 27, 92, 18, 82, 50,
     98, 32, 1, 75, 83, 4, 51, 35, 80, 11, 74, 66, 36, 42),
)
# fmt: on
UNKNOWN_OF_CIFAR100: dict[str, tuple[tuple[int, ...], ...]] = {
    "cifar+10": _TEN,
    "cifar+50": tuple(forty + ten for forty, ten in zip(_OTHER_FORTY, _TEN, strict=True)),
}
"""The list of CIFAR+50 ends with that of CIFAR+10."""


@dataclass(frozen=True)
class OpenSetSplit:
    """One split of an open-set benchmark."""

    benchmark: str
    split: int

    @classmethod
    def parse(cls, dataset: str) -> OpenSetSplit | None:
        """Read a name such as `osr_cifar+_3`; None if it names no open-set split."""
        match = re.fullmatch(r"osr_(svhn|cifar10|cifar\+|digits)_([0-4])", dataset)
        return None if match is None else cls(match[1], int(match[2]))

    @property
    def name(self) -> str:
        """The name that a spec has for it."""
        return f"osr_{self.benchmark}_{self.split}"

    @property
    def label(self) -> str:
        """The benchmark as people write it, which is not the name of the whole dataset."""
        return "Digits" if self.benchmark == "digits" else self.benchmark.upper()

    @property
    def source(self) -> str:
        """The dataset that holds the known classes."""
        return SOURCES[self.benchmark]

    @property
    def unknown_source(self) -> str:
        """The dataset that holds the unknown classes."""
        return "cifar100" if self.benchmark == "cifar+" else self.source

    @property
    def known(self) -> tuple[int, ...]:
        """The known classes of the source; the new label of a class is its position."""
        return KNOWN[self.benchmark][self.split]

    @property
    def unknown(self) -> dict[str, tuple[int, ...]]:
        """The classes of each unknown set: the rest of the source, or classes of CIFAR-100."""
        if self.benchmark == "cifar+":
            return {name: lists[self.split] for name, lists in UNKNOWN_OF_CIFAR100.items()}
        return {"unknown": tuple(label for label in range(10) if label not in self.known)}


def keep_classes(images: ImageSet, classes: Sequence[int]) -> ImageSet:
    """Keep the images of some classes, in their order; a class's new label is its position in the list."""
    new_label = torch.full((images.num_classes,), -1)
    new_label[list(classes)] = torch.arange(len(classes))
    labels = new_label[images.labels.cpu()]
    kept = (labels >= 0).nonzero()[:, 0]
    return ImageSet(images.images[kept], labels[kept], tuple(images.classes[label] for label in classes))


def known_classes(split: OpenSetSplit, source: Splits) -> Splits:
    """Cut the known classes out of the source: they are trained on, and tested on for closed-set accuracy."""
    return Splits(split.name, keep_classes(source.train, split.known), keep_classes(source.test, split.known))
