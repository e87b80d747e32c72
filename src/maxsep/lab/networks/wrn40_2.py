"""WideResNet-40-2 for CIFAR, the classifier of the out-of-distribution table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape
from maxsep.lab.networks.blocks import conv3x3

_BLOCKS = 6
"""Of each group: 3 groups x 6 blocks x 2 convolutions, a stem and three shortcuts are 40 layers."""


class WideResNet40(Network):
    """Three groups of 6 pre-activated blocks, 32, 64 and 128 wide, with dropout between a block's convolutions.

    Convolutions start normal with variance 2 / fan-out, weights of a head as PyTorch draws them, its biases at 0.
    With 100 outputs it has 2,255,156 parameters.

    Args:
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image; the pooling takes any size.
        dropout: Probability of dropping a unit.
    """

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32), dropout: float = 0.3) -> None:
        super().__init__()
        self.num_features = 128
        self.stem = conv3x3(shape[0], 16)
        blocks, in_width = [], 16
        for width, stride in ((32, 1), (64, 2), (128, 2)):
            for number in range(_BLOCKS):
                blocks.append(_Block(in_width, width, stride if number == 0 else 1, dropout))
                in_width = width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(in_width)
        self.head = nn.Linear(self.num_features, num_outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.start_head(self.head)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to pooled features (B, 128), none of them negative."""
        activated = F.relu(self.norm(self.blocks(self.stem(images))))
        return F.adaptive_avg_pool2d(activated, 1).flatten(1)

    def start_head(self, head: nn.Module) -> None:
        """Set all biases of a head to 0."""
        for name, parameter in head.named_parameters():
            if name.rpartition(".")[2] == "bias":
                nn.init.zeros_(parameter)


class _Block(nn.Module):
    """Norm, ReLU, convolution, norm, ReLU, dropout, convolution; added to the input.

    Where the width changes the shortcut is a 1x1 convolution of the activated input, elsewhere the input as it came.
    """

    def __init__(self, in_width: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_width)
        self.conv1 = conv3x3(in_width, width, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv3x3(width, width)
        same = in_width == width
        self.shortcut = None if same else nn.Conv2d(in_width, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_width, H, W) to (B, width, H / stride, W / stride)."""
        activated = F.relu(self.norm1(x))
        change: Tensor = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(activated)))))
        return change + (x if self.shortcut is None else self.shortcut(activated))
