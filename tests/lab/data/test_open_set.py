"""The open-set splits: their sizes from the official class counts, and which of them repeat each other."""

import pytest
import torch

from maxsep.lab.data import Dataset, load_outliers
from maxsep.lab.data.open_set import KNOWN, SPLITS, OpenSetSplit

TEST = {
    "svhn": [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
    "cifar10": [1000] * 10,
    "cifar100": [100] * 100,
}


@pytest.mark.parametrize(
    ("benchmark", "train", "unknown"),
    [
        ("cifar10", [30000] * 5, {"unknown": [4000] * 5}),
        ("cifar+", [20000] * 5, {"cifar+10": [1000] * 5, "cifar+50": [5000] * 5}),
        ("svhn", [42331, 42331, 47203, 41684, 47106], {"unknown": [10961, 10961, 8987, 11236, 8903]}),
    ],
)
def test_published_sizes(benchmark, train, unknown):
    splits = [OpenSetSplit(benchmark, number) for number in range(SPLITS)]
    assert [sum(Dataset.parse(split.name).train_counts()) for split in splits] == train
    for name, sizes in unknown.items():
        counts = TEST[splits[0].unknown_source]
        assert [sum(counts[label] for label in {*split.unknown[name]}) for split in splits] == sizes


def test_the_lists():
    for split in (OpenSetSplit(benchmark, number) for benchmark in KNOWN for number in range(SPLITS)):
        assert len(set(split.known)) == len(split.known) == (4 if split.benchmark == "cifar+" else 6)
        assert split.benchmark == "cifar+" or not {*split.unknown["unknown"]} & {*split.known}
    different = {benchmark: len(set(map(frozenset, lists))) for benchmark, lists in KNOWN.items()}
    assert different == {"svhn": 4, "cifar10": 4, "digits": 5, "cifar+": 4}, "the report says that two are the same"


def test_splits_are_read_from_the_files_of_their_sources(tmp_path, write_cifar):
    write_cifar(tmp_path, "cifar10")
    write_cifar(tmp_path, "cifar100")
    data = Dataset.parse("osr_cifar+_0").read(tmp_path)
    assert data.train.classes == ("class 4", "class 7", "class 9", "class 1")
    assert (data.name, data.train.class_counts) == ("osr_cifar+_0", [5] * 4)
    assert len(load_outliers("cifar+50", tmp_path, like="osr_cifar+_0")) == 50
    unknown = load_outliers("unknown", tmp_path, like="osr_cifar10_0")
    test = Dataset.parse("cifar10").read(tmp_path).test
    assert torch.equal(unknown.images, test.images[torch.isin(test.labels, torch.tensor([2, 3, 5, 8]))])
