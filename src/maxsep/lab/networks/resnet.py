"""Residual networks: ResNet-32 and -34 for CIFAR, WideResNet-40-2, ResNet-50 and -152 for ImageNet.

References: He et al., Deep Residual Learning for Image Recognition, CVPR 2016; Zagoruyko and Komodakis, Wide Residual
Networks, BMVC 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from maxsep.lab.networks.small import Network, Shape, average_pool, conv3x3


class _ResNet(Network):
    """Average what `blocks` make of the output of `stem`."""

    stem: nn.Module
    blocks: nn.Module

    def features(self, images: Tensor) -> Tensor:
        return average_pool(self.blocks(self.stem(images)))


class ResNet32(_ResNet):
    """ResNet-32 for CIFAR, as LDAM and MiSLAS use it: 3 stages of 5 blocks, 16, 32 and 64 wide.

    Shortcuts have no parameters; convolutions start Kaiming normal by fan-in.
    """

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32)) -> None:
        super().__init__()
        self.num_features = 64
        self.stem = nn.Sequential(conv3x3(shape[0], 16), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = _stages(partial(_BasicBlock, shortcut=_PaddedSubsample), (5, 5, 5), 16, (16, 32, 64))
        self.head = nn.Linear(self.num_features, num_outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)


class ResNet34(_ResNet):
    """The paper's "ResNet-32": in the authors' code, a ResNet-34 with a 3x3 stem and no pooling.

    Shortcuts between stages are 1x1 convolutions with batch normalisation; weights start as PyTorch draws them.
    """

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32)) -> None:
        super().__init__()
        self.num_features = 512
        self.stem = nn.Sequential(conv3x3(shape[0], 64), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks = _stages(partial(_BasicBlock, shortcut=_projection), (3, 4, 6, 3), 64, (64, 128, 256, 512))
        self.head = nn.Linear(self.num_features, num_outputs)


class WideResNet40(Network):
    """WideResNet-40-2 for CIFAR: 3 stages of 6 pre-activated blocks, 32, 64 and 128 wide, with dropout inside.

    Convolutions start normal with variance 2 / fan-out, biases of a head at 0.
    """

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32), dropout: float = 0.3) -> None:
        super().__init__()
        self.num_features = 128
        self.stem = conv3x3(shape[0], 16)
        self.blocks = _stages(partial(_WideBlock, dropout=dropout), (6, 6, 6), 16, (32, 64, 128))
        self.norm = nn.BatchNorm2d(self.num_features)
        self.head = nn.Linear(self.num_features, num_outputs)
        _start_by_fan_out(self)
        self.start_head(self.head)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to pooled features (B, 128), none of them negative."""
        return average_pool(F.relu(self.norm(self.blocks(self.stem(images)))))

    def start_head(self, head: nn.Module) -> None:
        """Set all biases of a head to 0."""
        for name, parameter in head.named_parameters():
            if name.rpartition(".")[2] == "bias":
                nn.init.zeros_(parameter)


class ResNet50(_ResNet):
    """ResNet-50 for ImageNet; convolutions start Kaiming normal by fan-out, as torchvision's do."""

    depths = (3, 4, 6, 3)

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 224, 224)) -> None:
        super().__init__()
        self.num_features = 2048
        convolution = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        self.stem = nn.Sequential(convolution, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
        self.blocks = _stages(_Bottleneck, self.depths, 64, (256, 512, 1024, 2048))
        self.head = nn.Linear(self.num_features, num_outputs)
        _start_by_fan_out(self)


class ResNet152(ResNet50):
    """ResNet-152 for ImageNet."""

    depths = (3, 8, 36, 3)


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to a shortcut of the input."""

    def __init__(self, in_width: int, width: int, stride: int, shortcut: Callable[[int, int, int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(in_width, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv3x3(width, width), nn.BatchNorm2d(width)
        same = stride == 1 and in_width == width
        self.shortcut = nn.Identity() if same else shortcut(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class _WideBlock(nn.Module):
    """Pre-activated: norm and ReLU before each convolution, dropout before the second.

    Where the width changes, the shortcut is a 1x1 convolution of the activated input.
    """

    def __init__(self, in_width: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(in_width), conv3x3(in_width, width, stride)
        self.norm2, self.dropout = nn.BatchNorm2d(width), nn.Dropout(dropout)
        self.conv2 = conv3x3(width, width)
        self.shortcut = None if in_width == width else _conv1x1(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x))
        change: Tensor = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(activated)))))
        return change + (x if self.shortcut is None else self.shortcut(activated))


class _Bottleneck(nn.Module):
    """A 1x1, a 3x3 (with the stride) and a 1x1 convolution with batch normalisation, added to a shortcut."""

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        middle = width // 4
        self.conv1, self.norm1 = _conv1x1(in_width, middle), nn.BatchNorm2d(middle)
        self.conv2, self.norm2 = conv3x3(middle, middle, stride), nn.BatchNorm2d(middle)
        self.conv3, self.norm3 = _conv1x1(middle, width), nn.BatchNorm2d(width)
        projection = _projection(in_width, width, stride)  # drawn even if unused, so that seeds keep their weights
        self.shortcut = nn.Identity() if stride == 1 and in_width == width else projection

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class _PaddedSubsample(nn.Module):
    """Every second pixel of both directions, and zero channels on either side (He et al.'s option A)."""

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, (width - in_width) // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))


def _stages(
    block: Callable[[int, int, int], nn.Module], depths: tuple[int, ...], in_width: int, widths: tuple[int, ...]
) -> nn.Sequential:
    """Chain stages of blocks; every stage but the first halves the resolution in its first block."""
    blocks: list[nn.Module] = []
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for number in range(depth):
            blocks.append(block(in_width, width, 2 if stage > 0 and number == 0 else 1))
            in_width = width
    return nn.Sequential(*blocks)


def _projection(in_width: int, width: int, stride: int) -> nn.Module:
    return nn.Sequential(_conv1x1(in_width, width, stride), nn.BatchNorm2d(width))


def _conv1x1(in_width: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_width, width, 1, stride=stride, bias=False)


def _start_by_fan_out(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
