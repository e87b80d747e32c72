"""From a spec to a network with its head, the weights it starts from, and the pipeline that takes raw images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from maxsep import heads
from maxsep.heads import Head
from maxsep.heads.controls import LogitScaledHead
from maxsep.lab import networks
from maxsep.lab.data import Splits, normalisation
from maxsep.lab.networks import Network, Shape
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec


def derive(seed: int, purpose: str, rank: int = 0) -> int:
    """Derive the seed of one purpose, such as `network`, `head` or `order`: purposes share no stream of numbers."""
    digest = hashlib.sha256(f"maxsep/{seed}/{purpose}/{rank}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def build_model(spec: RunSpec, shape: Shape, num_classes: int, class_counts: Sequence[int] = ()) -> Network:
    """Build the spec's network with the spec's head, seeded; changes torch's global random state.

    The backbone is drawn first, always with the same plain head on it, and the generator is seeded anew before the
    real head: all heads of one seed share the backbone's initial weights. A network's own rules for its last layer hold
    for every head. A `class_order` by frequency needs `class_counts`, the training images of every class.
    """
    torch.manual_seed(derive(spec.seed, "network"))
    settings = dict(spec.network_options) | {"shape": shape, "image_size": spec.image_size}
    network = networks.build(spec.network, num_classes, **settings)
    torch.manual_seed(derive(spec.seed, "head"))
    options = {**network.head_options, **dict(spec.head_options)}
    if (columns := spec.columns(class_counts)) is not None:
        options["class_order"] = columns
    head = heads.build(spec.head, network.num_features, num_classes, radius=spec.radius, **options)
    network.start_head(head)
    if spec.head_start != 1:
        _centre(head, spec.head_start)
    network.head = LogitScaledHead(head) if spec.logit_scaling else head
    return network


@torch.no_grad()
def _centre(head: Head, factor: float) -> None:
    """Subtract the mean over classes from weight and bias, and multiply them by a factor."""
    for name, parameter in head.named_parameters():
        if name not in ("weight", "bias") or len(parameter) != head.num_classes:
            raise ValueError(f"head_start needs a head with one row of weights for each class, got {head!r}.")
        parameter.copy_((parameter - parameter.mean(0)) * factor)


def load_pretrained(spec: RunSpec, network: Network, shape: Shape, path: Path | None) -> None:
    """Load the weights that a spec names, if any, into the backbone; `path` is their file, if they have one.

    All methods start from the same backbone and differ in the head alone.
    """
    if spec.weights:
        seen = networks.scaled_shape(shape, spec.image_size) or shape
        how = {"options": dict(spec.network_options), "names": dict(spec.weights_options)}
        networks.load_weights(network, spec.network, spec.weights, path, seen, **how)


def statistics_of(spec: RunSpec, data: Splits) -> tuple[Tensor, Tensor]:
    """Return mean and std of the channels by `normalisation`; "auto" is that of pretrained weights, if any.

    Grey images get the means over the channels.
    """
    known = networks.expected_inputs(spec.network, spec.weights) if spec.weights else None
    if spec.normalisation != "auto" or known is None:
        return normalisation(spec.normalisation, data)
    mean, std = torch.tensor(known.mean), torch.tensor(known.std)
    return (mean, std) if len(mean) == data.train.shape[0] else (mean.mean(0, keepdim=True), std.mean(0, keepdim=True))


def load_start(spec: RunSpec, network: Network, shape: Shape, runs: Path, path: Path | None = None) -> None:
    """Load what a run starts from: pretrained weights, or those of the stage before, and freeze as the spec says.

    The weights are those of the last epoch: the best epoch would be a choice by test data. Logit factors that the stage
    before did not have keep their start.
    """
    first = spec.start_from
    if first is None:
        load_pretrained(spec, network, shape, path)
        return
    weights = Run(runs / first.name).weights()
    if spec.logit_scaling and not first.logit_scaling:  # the head is now inside another one
        weights = {("head." + key if key.startswith("head.") else key): value for key, value in weights.items()}
        initial = network.state_dict()
        weights |= {key: initial[key] for key in ("head.scale", "head._extra_state")}
    network.load_state_dict(weights)
    if spec.backbone != "trained":
        network.requires_grad_(False)
        network.head.requires_grad_(True)


class Pipeline(nn.Module):
    """A network behind its normalisation by mean and std (C,): takes uint8 images.

    Normalisation and backbone are compiled together, so the conversion from uint8 fuses with the first layer. The head
    is not compiled: heads differ from run to run, while one compiled backbone serves all runs of a process. With
    `freeze_backbone` the backbone stays in evaluation mode while the head is trained.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, network: Network, mean: Tensor, std: Tensor, *, channels_last: bool = False, freeze_backbone: bool = False
    ) -> None:
        super().__init__()
        self.network = network
        self.freeze_backbone = freeze_backbone
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self._compiled: Callable[[Tensor], Tensor] | None = None
        self._compiled_from = 0
        self.register_buffer("scale", (1 / (255 * std)).view(-1, 1, 1), persistent=False)
        self.register_buffer("shift", (-mean / std).view(-1, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if mode and self.freeze_backbone:
            self.network.eval()
            self.network.head.train()
        return self

    def normalise(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) on the scale of 0 to 255, bytes or mixtures of them, to (images / 255 - mean) / std."""
        return (images * self.scale + self.shift).contiguous(memory_format=self.layout)

    def compile_backbone(self, batch_size: int) -> None:
        """Compile everything before the head, for batches of at least `batch_size`.

        The short last batch of an epoch stays uncompiled: its compilation would take longer than it saves.
        """
        self._compiled = torch.compile(self.backbone, dynamic=False)
        self._compiled_from = batch_size

    def backbone(self, images: Tensor) -> Tensor:
        """Map uint8 images (B, C, H, W) to features (B, num_features)."""
        return self.network.features(self.normalise(images))

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map uint8 images (B, C, H, W) to logits (B, num_classes) and features (B, num_features), not compiled."""
        features = self.backbone(images)
        return self.network.head(features), features

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 images (B, C, H, W) to logits (B, num_classes)."""
        whole = len(images) >= self._compiled_from
        features = self._compiled(images) if self._compiled and whole else self.backbone(images)
        logits: Tensor = self.network.head(features)
        return logits
