"""`Network`, the base class of all networks, and the small ones: MLP, ConvNet, VGG32 and a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height and width of one image."""


class Network(nn.Module):
    """A backbone with `features`, followed by `head`.

    A network sets `num_features` and `head` in its constructor and implements `features`. Any module that maps
    (..., num_features) to logits may replace `head`.
    """

    num_features: int
    head: nn.Module
    image_size: int = 0
    """The side to which the network scales its images; 0 if it takes them as they are."""
    head_options: ClassVar[Mapping[str, Any]] = {}
    """Default options of a head on this network, such as `bias=False`."""

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the features (B, num_features) that the head sees."""
        raise NotImplementedError(f"{type(self).__name__} must define features(images).")

    def start_head(self, head: nn.Module) -> None:
        """Initialise a new head as this network's protocol asks; by default leave it alone."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to logits (B, num_outputs)."""
        logits: Tensor = self.head(self.features(images))
        return logits


class MLP(Network):
    """Hidden layers with layer normalisation, ReLU and dropout, for the digits of scikit-learn.

    Layer rather than batch normalisation allows a last batch of one image.
    """

    def __init__(
        self, num_outputs: int, *, shape: Shape = (1, 8, 8), hidden: tuple[int, ...] = (256, 128), dropout: float = 0.1
    ) -> None:
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden must hold at least one width, all positive, got {hidden!r}.")
        layers: list[nn.Module] = [nn.Flatten()]
        width = shape[0] * shape[1] * shape[2]
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.LayerNorm(next_width), nn.ReLU(), nn.Dropout(dropout)]
            width = next_width
        self.num_features = width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the last hidden layer (B, num_features)."""
        hidden: Tensor = self.layers(images)
        return hidden


class ConvNet(Network):
    """The paper's ConvNet: an AlexNet for images of 32 x 32 (at least 16 x 16), without batch normalisation."""

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32), dropout: float = 0.5) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 16:
            raise ValueError(f"convnet needs images of at least 16 x 16 pixels, got {height} x {width}; use mlp.")
        self.num_features = 4096
        self.convolutions = nn.Sequential(
            *_convolution(channels, 64, stride=2),
            nn.MaxPool2d(2),
            *_convolution(64, 192),
            nn.MaxPool2d(2),
            *_convolution(192, 384),
            *_convolution(384, 256),
            *_convolution(256, 256),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        # the stride rounds a side up and the poolings round it down
        flat = 256 * ((height + 1) // 2 // 8) * ((width + 1) // 2 // 8)
        self.hidden = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(flat, 4096), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU()
        )
        self.head = nn.Linear(self.num_features, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the last hidden layer (B, 4096)."""
        hidden: Tensor = self.hidden(self.convolutions(images))
        return hidden


class VGG32(Network):
    """The VGG of open-set recognition: three groups of three convolutions, each group behind channel dropout.

    No layer has a bias, and no head on this network gets one. Convolutions start as N(0, 0.05), scales of the
    normalisation as N(1, 0.02). Reference: Vaze et al., Open-Set Recognition: A Good Closed-Set Classifier Is All You
    Need, ICLR 2022.
    """

    head_options: ClassVar[Mapping[str, Any]] = {"bias": False}

    def __init__(
        self, num_outputs: int, *, shape: Shape = (3, 32, 32), feature_size: int = 128, dropout: float = 0.2
    ) -> None:
        super().__init__()
        if feature_size < 1:
            raise ValueError(f"feature_size must be at least 1, got {feature_size}.")
        self.num_features = feature_size
        self.groups = nn.Sequential(
            _vgg_group(shape[0], (64, 64, 128), dropout),
            _vgg_group(128, (128, 128, 128), dropout),
            _vgg_group(128, (128, 128, feature_size), dropout),
        )
        self.head = nn.Linear(feature_size, num_outputs, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.05)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to pooled features (B, feature_size)."""
        return average_pool(self.groups(images))


class VisionTransformer(Network):
    """A pre-norm vision transformer with learned positions, mean pooling and 64 channels per attention head.

    Weight matrices and positions start as truncated N(0, 0.02), biases at 0, the head as PyTorch draws it.
    """

    def __init__(
        self, num_outputs: int, *, shape: Shape = (3, 32, 32), depth: int = 6, width: int = 192, patch: int = 4
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        if height % patch or breadth % patch:
            raise ValueError(f"vit needs image sides that are multiples of patch={patch}, got {height} x {breadth}.")
        if width % 64:
            raise ValueError(f"width must be a multiple of 64, got {width}.")
        self.num_features = width
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, (height // patch) * (breadth // patch), width))
        self.blocks = nn.Sequential(*(_TransformerBlock(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        self.head = nn.Linear(width, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to normalised tokens (B, width), averaged over the patches."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        normalised: Tensor = self.norm(self.blocks(tokens))
        return normalised.mean(1)


class _TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        # (B, T, 3 width) to three of (B, width / 64, T, 64)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
        x = x + self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed


def average_pool(maps: Tensor) -> Tensor:
    """Average maps (B, C, H, W) of any size to (B, C)."""
    return F.adaptive_avg_pool2d(maps, 1).flatten(1)


def conv3x3(in_width: int, width: int, stride: int = 1) -> nn.Conv2d:
    """A padded 3x3 convolution without bias: the batch normalisation after it has one."""
    return nn.Conv2d(in_width, width, 3, stride=stride, padding=1, bias=False)


def _convolution(in_width: int, width: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(in_width, width, 3, stride=stride, padding=1), nn.ReLU()


def _vgg_group(in_width: int, widths: tuple[int, int, int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Dropout2d(dropout)]
    for width, stride in zip(widths, (1, 1, 2), strict=True):
        layers += [conv3x3(in_width, width, stride), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
        in_width = width
    return nn.Sequential(*layers)
