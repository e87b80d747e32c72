"""The networks of the experiments, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from maxsep.lab.networks.external import LIBRARIES, build_external, scaled_shape
from maxsep.lab.networks.pretrained import Inputs, expected_inputs, is_file, load_weights, split_name
from maxsep.lab.networks.resnet import ResNet32, ResNet34, ResNet50, ResNet152, WideResNet40
from maxsep.lab.networks.small import MLP, VGG32, ConvNet, Network, Shape, VisionTransformer

__all__ = [
    "MLP", "Inputs", "Network", "Shape", "build", "check_name", "expected_inputs", "is_file", "load_weights", "names",
    "scaled_shape", "split_name",
]  # fmt: skip

_NETWORKS: dict[str, Callable[..., Network]] = {
    "convnet": ConvNet,
    "mlp": MLP,
    "resnet32": ResNet32,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "resnet152": ResNet152,
    "vgg32": VGG32,
    "vit": VisionTransformer,
    "wrn40_2": WideResNet40,
}
_ALIASES = {"alexnet": "convnet", "resnet": "resnet34"}
"""The paper's names; its "ResNet-32" is the ResNet-34 of the released code, and `resnet32` that of He et al."""


def names() -> list[str]:
    """List the networks of this package; `torchvision/NAME` and `timm/NAME` work too."""
    return sorted(_NETWORKS)


def check_name(name: str, **options: Any) -> None:
    """Raise ValueError for an unknown network or option; torchvision and timm check theirs when they build."""
    if name.partition("/")[0] in LIBRARIES:
        return
    if _ALIASES.get(name, name) not in _NETWORKS:
        known = [*names(), *sorted(_ALIASES), *(f"{library}/NAME" for library in LIBRARIES)]
        raise ValueError(f"unknown network {name!r}. Known: {', '.join(known)}.")
    # the number of outputs and the shape of the images follow from the data
    _, _, *allowed = inspect.signature(_NETWORKS[_ALIASES.get(name, name)]).parameters
    if unknown := sorted(set(options) - set(allowed)):
        listed = ", ".join(allowed) or "none"
        raise ValueError(f"network {name!r} does not take the options {', '.join(unknown)}. It takes: {listed}.")


def build(name: str, num_outputs: int, **options: Any) -> Network:
    """Build a network with a linear head: one of `names()`, `torchvision/NAME` or `timm/NAME`.

    All take the option `shape`, the (channels, height, width) of an image; networks of torchvision and timm take
    `image_size`, the side to which they scale images.

    >>> network = build("resnet32", 10)
    >>> network.num_features, network.head
    (64, Linear(in_features=64, out_features=10, bias=True))
    """
    if num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}.")
    check_name(name, **{key: value for key, value in options.items() if key not in ("shape", "image_size")})
    if name.partition("/")[0] in LIBRARIES:
        return build_external(name, num_outputs, **options)
    if options.pop("image_size", 0):
        raise ValueError(f"image_size must be 0 for {name!r}: only torchvision/NAME and timm/NAME scale their images.")
    return _NETWORKS[_ALIASES.get(name, name)](num_outputs, **options)
