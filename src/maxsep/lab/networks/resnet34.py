"""The paper's "ResNet-32", which in the authors' code is a ResNet-34 for 32 x 32 images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape
from maxsep.lab.networks.blocks import conv3x3, stages


class ResNet34(Network):
    """Four stages of 3, 4, 6 and 3 blocks, 64 to 512 wide, after a 3x3 stem without pooling.

    Shortcuts between stages are 1x1 convolutions with batch normalisation; weights start as PyTorch draws
    them. With 10 outputs it has 21,282,122 parameters.

    Args:
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image; the pooling takes any size.
    """

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32)) -> None:
        super().__init__()
        self.num_features = 512
        self.stem = nn.Sequential(conv3x3(shape[0], 64), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks = stages((3, 4, 6, 3), (64, 128, 256, 512), _projection)
        self.head = nn.Linear(self.num_features, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to pooled features (B, 512)."""
        return F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1)


def _projection(in_width: int, width: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(in_width, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))
