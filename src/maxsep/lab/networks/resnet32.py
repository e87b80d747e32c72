"""The true ResNet-32 for CIFAR, as the long-tail literature (LDAM, MiSLAS) uses it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape
from maxsep.lab.networks.blocks import conv3x3, stages


class ResNet32(Network):
    """Three stages of 5 blocks, 16, 32 and 64 wide, with shortcuts that have no parameters.

    Convolutions start with Kaiming-normal weights (fan-in, gain of the ReLU), the linear head as PyTorch draws it. With
    100 outputs it has 470,004 parameters.

    Args:
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image; the pooling takes any size.
    """

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32)) -> None:
        super().__init__()
        self.num_features = 64
        self.stem = nn.Sequential(conv3x3(shape[0], 16), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = stages((5, 5, 5), (16, 32, 64), _PaddedSubsample)
        self.head = nn.Linear(self.num_features, num_outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to pooled features (B, 64)."""
        return F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1)


class _PaddedSubsample(nn.Module):
    """Every second pixel of both directions, and zero channels on either side (He et al.'s option A)."""

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (width - in_width) // 2
        self.after = width - in_width - self.before

    def forward(self, x: Tensor) -> Tensor:
        sampled = x[:, :, :: self.stride, :: self.stride]
        return F.pad(sampled, (0, 0, 0, 0, self.before, self.after))
