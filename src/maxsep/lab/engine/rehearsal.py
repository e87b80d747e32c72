"""What can go wrong before the first step of a run, met once and early: many runs would fail alike."""

from __future__ import annotations

from pathlib import Path

import torch

from maxsep.lab.data import Splits, prepare
from maxsep.lab.engine.launch import make_fabric
from maxsep.lab.engine.losses import build_loss
from maxsep.lab.engine.model import build_model
from maxsep.lab.engine.names import check_names
from maxsep.lab.spec import Execution, RunSpec


def rehearse(
    spec: RunSpec, execution: Execution, data_root: str | Path | None = None, *, download: bool = False
) -> Splits:
    """Read a run's data, build its network and loss, and let one image through; nothing is trained or written.

    Args:
        spec: The run.
        execution: How it would be computed; whether the device is there is asked, too.
        data_root: Where the datasets lie.
        download: Whether a missing dataset may be fetched.

    Returns:
        The data as the run would see them.

    >>> len(rehearse(RunSpec(), Execution(device="cpu")).test)
    599
    """
    check_names(spec)
    make_fabric(spec, execution)
    data = prepare(spec, data_root, download=download)
    build_loss(spec, data.train.class_counts)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = build_model(spec, data.train.shape, data.train.num_classes).eval()
        try:
            network(data.train.images[:1].float())
        except (RuntimeError, AssertionError) as error:  # a kernel larger than the image, patches that do not fit
            _, height, width = data.train.shape
            raise ValueError(
                f"the network {spec.network!r} does not take images of {width} x {height}: {error}. Take another "
                "network, or another size of the images."
            ) from error
    return data
