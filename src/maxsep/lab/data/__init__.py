"""Datasets as whole uint8 tensors: readers of the official formats, long tails, splits, augmentation on the device."""

from __future__ import annotations

from pathlib import Path

from maxsep.lab.data.augment import Augmentation, augmentation
from maxsep.lab.data.cifar import load_cifar
from maxsep.lab.data.digits import load_digits
from maxsep.lab.data.download import DownloadError, Progress
from maxsep.lab.data.folder import FOLDER, load_folder, parse_address
from maxsep.lab.data.given import NAMES, describe_test, is_folder, is_known, name_data
from maxsep.lab.data.imagenet import IMAGENET, IMAGENET_LT, load_imagenet, parse_imagenet
from maxsep.lab.data.imageset import Data, ImageSet
from maxsep.lab.data.locations import data_root, find_folder
from maxsep.lab.data.long_tail import long_tail_counts, long_tail_indices
from maxsep.lab.data.normalise import normalisation
from maxsep.lab.data.open_set import OpenSet, known_data, parse_open_set
from maxsep.lab.data.order import check_order, with_order
from maxsep.lab.data.outliers import OUTLIERS, check_outliers, load_outliers, name_outliers, origin
from maxsep.lab.data.sources import ensure
from maxsep.lab.data.split import hold_out, limit
from maxsep.lab.data.svhn import load_svhn
from maxsep.lab.spec import RunSpec

__all__ = [
    "FOLDER",
    "NAMES",
    "OUTLIERS",
    "Augmentation",
    "Data",
    "DownloadError",
    "ImageSet",
    "OpenSet",
    "augmentation",
    "check_name",
    "check_outliers",
    "describe_test",
    "hold_out",
    "is_known",
    "limit",
    "load",
    "load_outliers",
    "long_tail_counts",
    "long_tail_indices",
    "name_data",
    "name_outliers",
    "normalisation",
    "origin",
    "parse_open_set",
    "prepare",
    "with_order",
]


def check_name(dataset: str) -> None:
    """Raise if there is no dataset of this name; reads nothing.

    >>> check_name("cifar10")
    >>> check_name("mnist")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: unknown dataset 'mnist'. Known: digits, ... osr_BENCHMARK_SPLIT, folder:PATH.
    """
    if dataset.startswith(FOLDER):
        parse_address(dataset.removeprefix(FOLDER))
    elif dataset.startswith("osr_") and parse_open_set(dataset) is None:
        raise ValueError(
            f"unknown open-set split {dataset!r}. Write osr_BENCHMARK_SPLIT: the benchmark is svhn, cifar10, cifar+ "
            "or digits, the split 0 to 4, such as osr_cifar+_3."
        )
    elif dataset.startswith((f"{IMAGENET}?", f"{IMAGENET_LT}?")) and parse_imagenet(dataset) is None:
        raise ValueError(
            f"unknown dataset {dataset!r}. Write imagenet or imagenet_lt, or imagenet?size=64 for another size than "
            "224 (32 to 512)."
        )
    elif not is_known(dataset) and parse_open_set(dataset) is None:
        there = f" There is a folder {dataset}: write {FOLDER}{dataset}." if is_folder(dataset) else ""
        known = f"{', '.join(NAMES)}, osr_BENCHMARK_SPLIT, {FOLDER}PATH"
        raise ValueError(f"unknown dataset {dataset!r}. Known: {known}.{there}")


def load(
    dataset: str,
    root: str | Path | None = None,
    *,
    download: bool = False,
    progress: Progress | None = None,
) -> Data:
    """Load a dataset by name.

    Args:
        dataset: `digits` (embedded), `cifar10`, `cifar100`, `svhn`, or `folder:PATH` for a folder of class folders
            (`folder:PATH?size=64` for images of another size than 32). A relative PATH is looked up in the working
            directory, then in `root`. `osr_cifar10_0` and the like: the known classes of an open-set split.
            `imagenet` and `imagenet_lt` (`imagenet?size=64`: of another size than 224).
        root: Folder with the official files: `cifar-10-batches-py/`, `cifar-100-python/`, `svhn/*.mat`; an official
            `.tar.gz` there is unpacked; `imagenet/{train,val}/CLASS/*`, `imagenet-lt/*.txt`. By default $MAXSEP_DATA.
        download: Fetch what is missing into `root`; ImageNet is not to be had that way.
        progress: Called with (bytes so far, bytes in all) while downloading or decoding.

    >>> load("digits").train.num_classes
    10
    """
    check_name(dataset)
    if dataset.startswith(FOLDER):
        path, size = parse_address(dataset.removeprefix(FOLDER))
        return load_folder(find_folder(path, root), size, name=dataset)
    if split := parse_open_set(dataset):
        return known_data(split, load(split.source, root, download=download, progress=progress))
    if dataset == "digits":
        return load_digits()
    base = data_root(dataset, root)
    if imagenet := parse_imagenet(dataset):
        name, size = imagenet
        return load_imagenet(name, base, size, progress=progress)
    ensure(dataset, base, fetch=download, progress=progress)
    return load_svhn(base) if dataset == "svhn" else load_cifar(dataset, base)


def prepare(
    spec: RunSpec,
    root: str | Path | None = None,
    *,
    download: bool = False,
    progress: Progress | None = None,
) -> Data:
    """Load a run's data and cut it as its spec says: long tail, hold-outs, then limits.

    With `spec.validation` the result's `test` is the part held out of the (long-tailed) training set, and the real
    test set plays no role. With `spec.calibration` a part of what is then left becomes `calibration`: validation is
    cut first, so that it is the same with and without. A class with two images or more gives at least one to a
    hold-out and keeps at least one; a class with a single image keeps it. The limits leave the calibration alone.

    All choices depend on `spec.subset_seed` only, so that runs with other seeds share them.

    >>> prepare(RunSpec(dataset="digits", imbalance=0.1)).train.class_counts
    [119, 94, 73, 56, 43, 33, 26, 20, 15, 12]
    """
    data = load(spec.dataset, root, download=download, progress=progress)
    train, test = data.train, data.test
    check_order(spec, train.labels)
    if spec.imbalance < 1:
        chosen = long_tail_indices(train.labels, spec.imbalance, spec.subset_seed, num_classes=train.num_classes)
        train = train.subset(chosen)
    calibration = None
    if spec.validation > 0:
        train, test = _set_aside(train, spec, "validation")
    if spec.calibration > 0:
        train, calibration = _set_aside(train, spec, "calibration")
    if spec.max_train is not None:
        present = sum(count > 0 for count in train.class_counts)
        if spec.max_train < present:
            raise ValueError(
                f"max_train must be at least {present}, one image for every class of {spec.dataset}, "
                f"got {spec.max_train}."
            )
        train = train.subset(limit(train.labels, spec.max_train, spec.subset_seed))
    if spec.max_test is not None:
        test = test.subset(limit(test.labels, spec.max_test, spec.subset_seed))
    return Data(data.name, train, test, calibration, data.files)


def _set_aside(train: ImageSet, spec: RunSpec, purpose: str) -> tuple[ImageSet, ImageSet]:
    """Cut the part of every class that `spec` names for a purpose out of the training set."""
    kept, held = hold_out(train.labels, getattr(spec, purpose), spec.subset_seed)
    if not len(held):
        raise ValueError(
            f"no class of {spec.dataset} has two training images, so none can be held out for {purpose}. "
            f"Use {purpose}=0."
        )
    return train.subset(kept), train.subset(held)
