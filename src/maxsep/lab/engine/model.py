"""From a spec to a network with its head, and to the pipeline that takes raw images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from maxsep import heads
from maxsep.heads.controls import LogitScaledHead
from maxsep.lab import networks
from maxsep.lab.engine.seeds import derive
from maxsep.lab.networks import Network, Shape
from maxsep.lab.spec import RunSpec


def build_model(spec: RunSpec, shape: Shape, num_classes: int) -> Network:
    """Build the spec's network with the spec's head, seeded.

    The backbone is drawn first, always with the same plain head on it, and the generator is seeded anew before the
    real head: all heads of one seed share the backbone's initial weights. A network whose protocol has no bias in the
    last layer, or starts it in its own way, has it so under every head. Changes torch's global random state.

    >>> a = build_model(RunSpec(head="plain"), (1, 8, 8), 10)
    >>> b = build_model(RunSpec(head="maxsep"), (1, 8, 8), 10)
    >>> torch.equal(a.layers[1].weight, b.layers[1].weight)
    True
    """
    torch.manual_seed(derive(spec.seed, "network"))
    network = networks.build(spec.network, num_classes, shape=shape, **dict(spec.network_options))
    torch.manual_seed(derive(spec.seed, "head"))
    options = {**network.head_options, **dict(spec.head_options)}
    head = heads.build(spec.head, network.num_features, num_classes, radius=spec.radius, **options)
    network.start_head(head)
    network.head = LogitScaledHead(head) if spec.logit_scaling else head
    return network


class Pipeline(nn.Module):
    """A network behind its normalisation: takes uint8 images as they lie in memory.

    Normalisation and backbone are compiled together, so the copy from uint8 to float fuses with the first layer. The
    head is not: heads differ from run to run, while one compiled backbone serves all runs of a process.

    Args:
        network: Takes normalised images.
        mean: (C,), on the scale of 0 to 1.
        std: (C,).
        channels_last: Hand the images on in channels-last memory order.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Network, mean: Tensor, std: Tensor, *, channels_last: bool = False) -> None:
        super().__init__()
        self.network = network
        self.rests = False
        """Whether the backbone stays in evaluation mode while the head is trained."""
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self._compiled: Callable[[Tensor], Tensor] | None = None
        self._compiled_from = 0
        self.register_buffer("scale", (1 / (255 * std)).view(-1, 1, 1), persistent=False)
        self.register_buffer("shift", (-mean / std).view(-1, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation; a backbone that rests stays in evaluation."""
        super().train(mode)
        if mode and self.rests:
            self.network.eval()
            self.network.head.train()
        return self

    def normalise(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) on the scale of 0 to 255, bytes or mixtures of them, to (images / 255 - mean) / std."""
        return (images * self.scale + self.shift).contiguous(memory_format=self.layout)

    def compile_backbone(self, batch_size: int, mode: str | None = None, options: str = "") -> None:
        """Compile everything before the head, for batches of at least `batch_size`; with a mode, or with options.

        The short last batch of an epoch stays uncompiled: a program of its own would take longer than it saves.
        """
        chosen: dict[str, str | int | bool | Callable[..., Any]] = {name: True for name in options.split(",") if name}
        self._compiled = torch.compile(self.backbone, dynamic=False, mode=mode, options=chosen or None)
        self._compiled_from = batch_size

    def backbone(self, images: Tensor) -> Tensor:
        """Map uint8 images (B, C, H, W) to features (B, num_features)."""
        return self.network.features(self.normalise(images))

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 images (B, C, H, W) to logits (B, num_classes)."""
        whole = len(images) >= self._compiled_from
        features = self._compiled(images) if self._compiled and whole else self.backbone(images)
        logits: Tensor = self.network.head(features)
        return logits
