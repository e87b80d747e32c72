"""Where data lies: the data folder, and folders of one's own."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_VARIABLE = "MAXSEP_DATA"


def data_root(dataset: str, root: str | Path | None) -> Path:
    """Give the data folder: what was passed, or else $MAXSEP_DATA."""
    given = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if not given:
        raise ValueError(
            f"{dataset} needs a data folder: pass --data DIR or set {ROOT_VARIABLE}. DIR holds the official files: "
            "cifar-10-batches-py/, cifar-100-python/, svhn/train_32x32.mat and svhn/test_32x32.mat, "
            "imagenet/{train,val}/CLASS/*, imagenet-lt/*.txt; --download fetches what is missing there, but for "
            "ImageNet. (digits needs none.)"
        )
    return Path(given).expanduser()


def find_folder(path: str, root: str | Path | None) -> Path:
    """Look a folder up in the working directory, then in the data folder."""
    here = Path(path).expanduser()
    base = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if here.is_dir() or here.is_absolute() or not base:
        return here
    there = Path(base).expanduser() / here
    if not there.is_dir():
        raise FileNotFoundError(
            f"neither {here} nor {there} is a folder. Expected a folder with one sub-folder per class."
        )
    return there
