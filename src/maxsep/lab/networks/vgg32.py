"""The "VGG32" of open-set recognition: nine convolutions for images of 32 x 32 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape
from maxsep.lab.networks.blocks import conv3x3


class VGG32(Network):
    """Three groups of three convolutions, each group behind channel dropout, its last convolution of stride 2.

    The first dropout takes whole channels off the image itself. Every convolution has batch normalisation and a
    leaky ReLU (slope 0.2) behind it; no layer has a bias, and no head on this network gets one. Convolutions start as
    N(0, 0.05), scales of the normalisation as N(1, 0.02), the head as PyTorch draws it. With 6 outputs it has 999,872
    parameters.

    Args:
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image; the pooling takes any size.
        feature_size: Channels of the last convolution, and so `num_features`: 2 to draw features in the plane.
        dropout: Probability of dropping a channel.
    """

    head_options: ClassVar[Mapping[str, Any]] = {"bias": False}

    def __init__(
        self, num_outputs: int, *, shape: Shape = (3, 32, 32), feature_size: int = 128, dropout: float = 0.2
    ) -> None:
        super().__init__()
        if feature_size < 1:
            raise ValueError(
                f"feature_size must be at least 1, got {feature_size}. The protocol's is 128, or 2 to plot."
            )
        self.num_features = feature_size
        self.groups = nn.Sequential(
            _group(shape[0], (64, 64, 128), dropout),
            _group(128, (128, 128, 128), dropout),
            _group(128, (128, 128, feature_size), dropout),
        )
        self.head = nn.Linear(feature_size, num_outputs, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.05)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to pooled features (B, feature_size)."""
        return F.adaptive_avg_pool2d(self.groups(images), 1).flatten(1)


def _group(in_width: int, widths: tuple[int, int, int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Dropout2d(dropout)]
    for width, stride in zip(widths, (1, 1, 2), strict=True):
        layers += [conv3x3(in_width, width, stride), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
        in_width = width
    return nn.Sequential(*layers)
