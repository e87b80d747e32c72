"""Datasets as whole uint8 tensors: readers of the official formats, long tails, splits, augmentation on the device."""

from __future__ import annotations

from maxsep.lab.data.augment import augmentation
from maxsep.lab.data.datasets import NORMALISATIONS, Dataset, fingerprints_differ, list_once, normalisation
from maxsep.lab.data.download import DownloadError
from maxsep.lab.data.images import ImageSet, Splits, held_counts, hold_out
from maxsep.lab.data.official import DataError
from maxsep.lab.data.open_set import OpenSetSplit
from maxsep.lab.data.outliers import check_outliers, load_outliers, name_outliers, origin
from maxsep.lab.data.subsets import limit, long_tail_counts, long_tail_indices, prepare, with_order

__all__ = [
    "NORMALISATIONS",
    "DataError",
    "Dataset",
    "DownloadError",
    "ImageSet",
    "OpenSetSplit",
    "Splits",
    "augmentation",
    "check_outliers",
    "fingerprints_differ",
    "held_counts",
    "hold_out",
    "limit",
    "list_once",
    "load_outliers",
    "long_tail_counts",
    "long_tail_indices",
    "name_outliers",
    "normalisation",
    "origin",
    "prepare",
    "with_order",
]
