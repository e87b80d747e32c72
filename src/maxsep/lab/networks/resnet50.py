"""The ResNets of ImageNet: 50 and 152 layers, of bottleneck blocks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape
from maxsep.lab.networks.blocks import conv3x3

_EXPANSION = 4
"""By how much a block's output is wider than the convolution in its middle."""


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution with batch normalisation, added to a shortcut of the input.

    The 3x3 convolution has the stride, as in every library since the authors' own code; the paper of 2015 has it in the
    first.
    """

    def __init__(self, in_width: int, middle: int, stride: int) -> None:
        super().__init__()
        width = _EXPANSION * middle
        self.conv1, self.norm1 = _conv1x1(in_width, middle), nn.BatchNorm2d(middle)
        self.conv2, self.norm2 = conv3x3(middle, middle, stride), nn.BatchNorm2d(middle)
        self.conv3, self.norm3 = _conv1x1(middle, width), nn.BatchNorm2d(width)
        same = stride == 1 and in_width == width
        projection = (_conv1x1(in_width, width, stride), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if same else nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_width, H, W) to (B, 4 middle, H / stride, W / stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(Network):
    """Four stages of 3, 4, 6 and 3 bottlenecks after a 7x7 stem with pooling: 2,048 features.

    Convolutions start Kaiming-normal by their outputs. With 1,000 outputs it has 25,557,032 parameters, as
    torchvision's.

    Args:
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image; the pooling takes any size from 32 up.
    """

    depths = (3, 4, 6, 3)

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 224, 224)) -> None:
        super().__init__()
        self.num_features = 2048
        self.stem = nn.Sequential(
            nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.blocks = _stages(self.depths)
        self.head = nn.Linear(self.num_features, num_outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to pooled features (B, 2048)."""
        return F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1)


class ResNet152(ResNet50):
    """The same with stages of 3, 8, 36 and 3 bottlenecks: 60,192,808 parameters with 1,000 outputs."""

    depths = (3, 8, 36, 3)


def _stages(depths: tuple[int, ...]) -> nn.Sequential:
    """Chain stages of bottlenecks; every stage but the first halves the resolution in its first block."""
    blocks: list[nn.Module] = []
    in_width = 64
    for number, depth in enumerate(depths):
        middle = 64 << number
        for block in range(depth):
            blocks.append(Bottleneck(in_width, middle, stride=2 if number > 0 and block == 0 else 1))
            in_width = _EXPANSION * middle
    return nn.Sequential(*blocks)


def _conv1x1(in_width: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_width, width, 1, stride=stride, bias=False)
