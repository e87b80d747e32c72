"""Channel means and standard deviations that training subtracts and divides by."""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.lab.data.imagenet import parse_imagenet
from maxsep.lab.data.imageset import Data, ImageSet

STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar10_255": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar100": ((0.5070752, 0.4865489, 0.4409178), (0.2673343, 0.2564385, 0.2761505)),
    "digits": ((0.3053,), (0.3759,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Published constants (CIFAR, ImageNet), and those of all 1,797 digits, on the scale of 0 to 1."""

_BATCH = 1024
"""Images that are counted at a time."""
NAMES = ("auto", *STATISTICS, "half", "train")


def normalisation(name: str, data: Data) -> tuple[Tensor, Tensor]:
    """Give the (mean, std) of each channel, on the scale of 0 to 1.

    Args:
        name: `cifar10`, `cifar10_255` (of CIFAR-10 too, with the larger stds that out-of-distribution work uses),
            `cifar100`, `digits`, `imagenet`: fixed constants. `half`: 0.5 and 0.5. `train`: measured on
            `data.train` (a constant channel gets std 1). `auto`: the constants of the dataset's own name if there
            are any, else `train`. Long-tailed CIFAR-100 is by custom normalised with `cifar10`: name it.
        data: The data to be normalised.

    Returns:
        Two float32 tensors of shape (C,), to be used as (images / 255 - mean) / std.

    >>> from maxsep.lab.data import load
    >>> mean, std = normalisation("auto", load("digits"))
    >>> [round(v, 2) for v in (mean.item(), std.item())]
    [0.31, 0.38]
    """
    if name == "auto":
        name = data.name if data.name in STATISTICS else "imagenet" if parse_imagenet(data.name) else "train"
    channels = data.train.shape[0]
    if name == "half":
        return torch.full((channels,), 0.5), torch.full((channels,), 0.5)
    if name == "train":
        return _measure(data.train)
    if name not in STATISTICS:
        raise ValueError(f"unknown normalisation {name!r}. Known: {', '.join(NAMES)}.")
    mean, std = STATISTICS[name]
    if len(mean) != channels:
        raise ValueError(
            f"normalisation {name!r} is for images with {len(mean)} channels, {data.name} has {channels}. "
            "Use 'train' or 'half'."
        )
    return torch.tensor(mean), torch.tensor(std)


def _measure(images: ImageSet) -> tuple[Tensor, Tensor]:
    """Measure exactly: 256 counts per channel, so no rounding and no float copy of the images."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    counts = torch.zeros(images.shape[0], 256, dtype=torch.int64)
    for batch in torch.split(images.images, _BATCH):
        counts += torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in batch.unbind(1)]).cpu()
    for count in counts:
        share = count.double() / count.sum()
        mean = (share * values).sum()
        std = (share * (values - mean) ** 2).sum().sqrt()
        means.append(mean)
        stds.append(std if std > 0 else torch.ones_like(std))
    return torch.stack(means).float(), torch.stack(stds).float()
