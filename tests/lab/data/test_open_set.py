"""The open-set splits: their sizes from the official class counts, and which of them repeat each other."""

import pytest
import torch

from maxsep.lab.data import Dataset, ImageSet, Splits, load_outliers
from maxsep.lab.data.open_set import KNOWN, SPLITS, UNKNOWN_OF_CIFAR100, OpenSetSplit, keep_classes, known_classes

COUNTS = {
    "svhn": (
        [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
        [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
    ),
    "cifar10": ([5000] * 10, [1000] * 10),
    "cifar100": ([500] * 100, [100] * 100),
}


def images(counts):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pixels = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return ImageSet(pixels, labels, tuple(str(i) for i in range(len(counts))))


@pytest.fixture(scope="module")
def official():
    """Every dataset with the official number of images of every class, each of one pixel."""
    return {name: Splits(name, *map(images, counts)) for name, counts in COUNTS.items()}


@pytest.mark.parametrize(
    ("benchmark", "train", "known", "unknown"),
    [
        ("cifar10", [30000] * 5, [6000] * 5, {"unknown": [4000] * 5}),
        ("cifar+", [20000] * 5, [4000] * 5, {"cifar+10": [1000] * 5, "cifar+50": [5000] * 5}),
        (
            "svhn",
            [42331, 42331, 47203, 41684, 47106],
            [15071, 15071, 17045, 14796, 17129],
            {"unknown": [10961, 10961, 8987, 11236, 8903]},
        ),
    ],
)
def test_sizes(official, benchmark, train, known, unknown):
    for number in range(SPLITS):
        split = OpenSetSplit(benchmark, number)
        data = known_classes(split, official[split.source])
        assert (len(data.train), len(data.test)) == (train[number], known[number])
        outside = official[split.unknown_source].test
        assert {name: len(keep_classes(outside, c)) for name, c in split.unknown.items()} == {
            name: sizes[number] for name, sizes in unknown.items()
        }


def test_labels_are_places_in_the_list(official):
    data = known_classes(OpenSetSplit("cifar10", 2), official["cifar10"])
    assert data.train.classes == ("1", "5", "7", "3", "9", "4")
    assert data.train.class_counts == [5000] * 6


@pytest.mark.parametrize("benchmark", KNOWN)
def test_the_lists(benchmark):
    for number in range(SPLITS):
        split = OpenSetSplit(benchmark, number)
        assert len(set(split.known)) == len(split.known) == (4 if benchmark == "cifar+" else 6)
        for name, classes in split.unknown.items():
            assert len(set(classes)) == len(classes) == {"unknown": 4, "cifar+10": 10, "cifar+50": 50}[name]
            assert benchmark == "cifar+" or not set(classes) & set(split.known)


def test_fifty_unknown_classes_end_with_the_ten():
    for ten, fifty in zip(*UNKNOWN_OF_CIFAR100.values(), strict=True):
        assert fifty[-10:] == ten


def test_splits_of_the_same_classes_are_marked():
    marked = {b: [OpenSetSplit(b, i).same_classes_as for i in range(SPLITS)] for b in KNOWN}
    assert marked == {
        "svhn": [None, 0, None, None, None],
        "cifar10": [None, 0, None, None, None],
        "digits": [None] * 5,
        "cifar+": [None, None, 1, None, None],
    }


def test_splits_are_read_from_the_files_of_their_sources(tmp_path, write_cifar):
    write_cifar(tmp_path, "cifar10")
    write_cifar(tmp_path, "cifar100")
    data = Dataset.parse("osr_cifar+_0").read(tmp_path)
    assert data.name == "osr_cifar+_0"
    assert data.train.classes == ("class 4", "class 7", "class 9", "class 1")
    assert data.test.shape == (3, 32, 32)
    assert len(load_outliers("cifar+50", tmp_path, like="osr_cifar+_0")) == 50
    unknown = load_outliers("unknown", tmp_path, like="osr_cifar10_0")
    test = Dataset.parse("cifar10").read(tmp_path).test
    assert torch.equal(unknown.images, test.images[torch.isin(test.labels, torch.tensor([2, 3, 5, 8]))])


def test_no_image_of_the_classes():
    with pytest.raises(ValueError, match="images"):
        keep_classes(images([2, 0]), [1])
