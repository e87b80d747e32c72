"""What every network of the lab has: a backbone that ends in features, and a head that can be exchanged."""

from __future__ import annotations

from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height and width of one image."""


class Network(nn.Module):
    """A backbone with `features`, followed by `head`.

    A network sets `num_features` and `head` in its constructor and implements `features`. Whatever replaces
    `head` must map (..., num_features) to logits.
    """

    num_features: int
    head: nn.Module

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the vectors (B, num_features) that the head sees."""
        raise NotImplementedError(f"{type(self).__name__} must define features(images).")

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to logits (B, num_outputs)."""
        logits: Tensor = self.head(self.features(images))
        return logits
