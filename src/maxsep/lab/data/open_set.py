"""Open-set benchmarks: a few classes are known and trained on, the others are met for the first time in testing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from maxsep.lab.data.images import ImageSet, Splits
from maxsep.lab.data.open_set_splits import KNOWN, UNKNOWN_OF_CIFAR100

SPLITS = 5
SOURCES = {"svhn": "svhn", "cifar10": "cifar10", "cifar+": "cifar10", "digits": "digits"}
"""Benchmark and the dataset that its known classes come from."""
_NAME = re.compile(r"osr_(svhn|cifar10|cifar\+|digits)_([0-4])")


@dataclass(frozen=True)
class OpenSetSplit:
    """One split of an open-set benchmark.

    >>> split = OpenSetSplit("cifar10", 2)
    >>> split.known, split.unknown["unknown"]
    ((1, 5, 7, 3, 9, 4), (0, 2, 6, 8))
    >>> OpenSetSplit("cifar+", 2).same_classes_as
    1
    """

    benchmark: str
    split: int

    @classmethod
    def parse(cls, dataset: str) -> OpenSetSplit | None:
        """Read a name such as `osr_cifar+_3`; None if it names no open-set split."""
        match = _NAME.fullmatch(dataset)
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
    def known(self) -> tuple[int, ...]:
        """The known classes of the source; a class gets its place in this list as label."""
        return KNOWN[self.benchmark][self.split]

    @property
    def unknown(self) -> dict[str, tuple[int, ...]]:
        """The classes of each unknown set: the rest of the source, or those of CIFAR-100 that a list names."""
        if self.benchmark == "cifar+":
            return {name: lists[self.split] for name, lists in UNKNOWN_OF_CIFAR100.items()}
        return {"unknown": tuple(label for label in range(10) if label not in self.known)}

    @property
    def unknown_source(self) -> str:
        """The dataset that holds the unknown classes."""
        return "cifar100" if self.benchmark == "cifar+" else self.source

    @property
    def same_classes_as(self) -> int | None:
        """An earlier split with the same known classes in another order, which is no independent repetition."""
        lists = KNOWN[self.benchmark]
        return next((i for i in range(self.split) if set(lists[i]) == set(self.known)), None)


def keep_classes(images: ImageSet, classes: Sequence[int]) -> ImageSet:
    """Keep the images of some classes, in their order; a class's new label is its place in the list.

    >>> images = ImageSet(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2]), ("a", "b", "c"))
    >>> kept = keep_classes(images, [2, 0])
    >>> kept.labels.tolist(), kept.classes
    ([1, 0], ('c', 'a'))
    """
    new_label = torch.full((images.num_classes,), -1)
    new_label[list(classes)] = torch.arange(len(classes))
    labels = new_label[images.labels.cpu()]
    kept = (labels >= 0).nonzero()[:, 0]
    names = tuple(images.classes[label] for label in classes)
    if not len(kept):
        raise ValueError(f"there is no image of the classes {', '.join(names)}. Check that the data was read whole.")
    return ImageSet(images.images[kept.to(images.images.device)], labels[kept], names)


def known_classes(split: OpenSetSplit, source: Splits) -> Splits:
    """Cut the known classes out of the source: they are trained on, and tested on for closed-set accuracy."""
    return Splits(split.name, keep_classes(source.train, split.known), keep_classes(source.test, split.known))
