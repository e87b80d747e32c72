"""The paper's "ConvNet": an AlexNet for 32 x 32 images, without batch normalisation."""

from __future__ import annotations

from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape

_HALVINGS = 16
"""Stride and three poolings shrink each side of the image by this factor."""


class ConvNet(Network):
    """Five 3x3 convolutions, two dropped-out hidden layers of 4096, and a linear head.

    Weights start as PyTorch draws them. With 10 outputs it has 23,272,266 parameters at 3 x 32 x 32.

    Args:
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image; both sides at least 16.
        dropout: Probability of dropping a unit before each hidden layer.
    """

    def __init__(self, num_outputs: int, *, shape: Shape = (3, 32, 32), dropout: float = 0.5) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < _HALVINGS:
            raise ValueError(
                f"convnet needs images of at least {_HALVINGS} x {_HALVINGS} pixels, got {height} x {width}. "
                "Use the network mlp for smaller ones."
            )
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
            nn.Dropout(dropout),
            nn.Linear(flat, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
        )
        self.head = nn.Linear(self.num_features, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the last hidden layer (B, 4096)."""
        hidden: Tensor = self.hidden(self.convolutions(images))
        return hidden


def _convolution(in_width: int, width: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(in_width, width, 3, stride=stride, padding=1), nn.ReLU()
