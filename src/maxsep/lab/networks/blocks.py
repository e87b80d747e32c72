"""The residual block that both CIFAR ResNets are built of."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Shortcut = Callable[[int, int, int], nn.Module]
"""Builds the shortcut of a block from its input width, output width and stride."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to a shortcut of the input."""

    def __init__(self, in_width: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_width, width, stride)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.norm2 = nn.BatchNorm2d(width)
        same = stride == 1 and in_width == width
        self.shortcut = nn.Identity() if same else shortcut(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_width, H, W) to (B, width, H / stride, W / stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def conv3x3(in_width: int, width: int, stride: int = 1) -> nn.Conv2d:
    """A padded 3x3 convolution without bias: the batch normalisation after it has one."""
    return nn.Conv2d(in_width, width, 3, stride=stride, padding=1, bias=False)


def stages(depths: tuple[int, ...], widths: tuple[int, ...], shortcut: Shortcut) -> nn.Sequential:
    """Chain stages of blocks; every stage but the first halves the resolution in its first block."""
    blocks: list[nn.Module] = []
    in_width = widths[0]
    for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for block in range(depth):
            stride = 2 if number > 0 and block == 0 else 1
            blocks.append(BasicBlock(in_width, width, stride, shortcut))
            in_width = width
    return nn.Sequential(*blocks)
