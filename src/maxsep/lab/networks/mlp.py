"""A small multi-layer perceptron for the embedded digits: a run takes a second on one core."""

from __future__ import annotations

from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape


class MLP(Network):
    """Hidden layers with layer normalisation, ReLU and a little dropout, then a linear head.

    Layer rather than batch normalisation, so that a last batch of a single image can be trained on.

    Args:
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image.
        hidden: Widths of the hidden layers; the last one is `num_features`.
        dropout: Probability of dropping a hidden unit.
    """

    def __init__(
        self,
        num_outputs: int,
        *,
        shape: Shape = (1, 8, 8),
        hidden: tuple[int, ...] = (256, 128),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden must name at least one width, all positive, got {hidden!r}.")
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
