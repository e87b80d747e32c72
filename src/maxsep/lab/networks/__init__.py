"""The networks of the experiments, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from maxsep.lab.networks.external import LIBRARIES, build_external
from maxsep.lab.networks.resnet import ResNet32, ResNet34, ResNet50, ResNet152, WideResNet40
from maxsep.lab.networks.small import MLP, VGG32, ConvNet, Network, Shape, VisionTransformer

__all__ = ["MLP", "Network", "Shape", "build", "check_name", "names"]

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
    """List the networks of this package; `torchvision/NAME` and `timm/NAME` work too.

    >>> names()[:4]
    ['convnet', 'mlp', 'resnet152', 'resnet32']
    """
    return sorted(_NETWORKS)


def check_name(name: str, **options: Any) -> None:
    """Raise ValueError for an unknown network or option; torchvision and timm check theirs when they build.

    >>> check_name("vgg32", feature_size=2)
    """
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
    """Build a network with a linear head.

    Args:
        name: One of `names()`, an alias (`resnet`, `alexnet`), `torchvision/NAME` or `timm/NAME`.
        num_outputs: Outputs of the head, at least 1.
        **options: The network's own; all take `shape`, the (channels, height, width) of an image.

    >>> network = build("resnet32", 10)
    >>> network.num_features, network.head
    (64, Linear(in_features=64, out_features=10, bias=True))
    """
    if num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}.")
    check_name(name, **{key: value for key, value in options.items() if key != "shape"})
    if name.partition("/")[0] in LIBRARIES:
        return build_external(name, num_outputs, **options)
    return _NETWORKS[_ALIASES.get(name, name)](num_outputs, **options)
