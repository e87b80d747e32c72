"""The order of a dataset's training images: long-tailed subsets and shuffles depend on it, so it is part of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from maxsep.lab.data.cifar import load_cifar
from maxsep.lab.data.locations import data_root
from maxsep.lab.data.sources import ensure
from maxsep.lab.spec import ORDERED, RunSpec

_OFFICIAL = {"cifar100": "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3"}
"""Fingerprints of the training labels in the order of the official files."""


def fingerprint(labels: Tensor) -> str:
    """Compute the SHA-256 of labels below 256, one byte each, in their order.

    >>> fingerprint(torch.tensor([0, 1]))[:8], fingerprint(torch.tensor([1, 0]))[:8]
    ('b413f47d', '47dc540c')
    """
    return hashlib.sha256(labels.to(torch.uint8).cpu().numpy().tobytes()).hexdigest()


def name_order(dataset: str, labels: Tensor) -> str:
    """Name the order of a dataset's training labels: `official`, or "" for any other.

    >>> name_order("digits", torch.tensor([0, 1]))
    ''
    """
    return "official" if _OFFICIAL.get(dataset) == fingerprint(labels) else ""


def check_order(spec: RunSpec, labels: Tensor) -> None:
    """Raise if a spec names the official order and the training labels have another one."""
    if spec.data_order and name_order(spec.dataset, labels) != spec.data_order:
        raise ValueError(f"data_order is 'official', but the training images of {spec.dataset} have another order.")


def with_order(specs: Iterable[RunSpec], root: str | Path | None = None, *, download: bool = False) -> list[RunSpec]:
    """Set `data_order` in specs that leave it open, from the files that their runs would read.

    Where the files cannot be read, the order is the official one, which a download has: training reports the reason.

    Args:
        specs: The runs.
        root: Folder of the datasets; by default $MAXSEP_DATA.
        download: Whether a missing dataset may be fetched.

    >>> [spec.data_order for spec in with_order([RunSpec(dataset="digits"), RunSpec(dataset="cifar100")], "nowhere")]
    ['', 'official']
    """
    specs = list(specs)
    orders = dict.fromkeys(ORDERED, "official")
    for dataset in {spec.dataset for spec in specs if not spec.data_order} & set(ORDERED):
        with suppress(OSError, ValueError):
            base = data_root(dataset, root)
            ensure(dataset, base, fetch=download)
            orders[dataset] = name_order(dataset, load_cifar(dataset, base).train.labels)
    return [spec.replace(data_order=spec.data_order or orders.get(spec.dataset, "")) for spec in specs]
