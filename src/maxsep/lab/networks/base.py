"""What every network of the lab has: a backbone that ends in features, and a head that can be exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

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
    head_options: ClassVar[Mapping[str, Any]] = {}
    """What a head for this network is built with unless it is told otherwise, such as `bias=False`."""

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the vectors (B, num_features) that the head sees."""
        raise NotImplementedError(f"{type(self).__name__} must define features(images).")

    def start_head(self, head: nn.Module) -> None:
        """Give the parameters of a new head the start that this network's protocol asks for; here, leave them alone."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to logits (B, num_outputs)."""
        logits: Tensor = self.head(self.features(images))
        return logits
