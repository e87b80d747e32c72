"""The paper's networks, one file each, and one registry of their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from maxsep.lab.networks.base import Network, Shape
from maxsep.lab.networks.convnet import ConvNet
from maxsep.lab.networks.external import LIBRARIES, build_external
from maxsep.lab.networks.mlp import MLP
from maxsep.lab.networks.resnet32 import ResNet32
from maxsep.lab.networks.resnet34 import ResNet34
from maxsep.lab.networks.resnet50 import ResNet50, ResNet152
from maxsep.lab.networks.vgg32 import VGG32
from maxsep.lab.networks.wrn40_2 import WideResNet40

__all__ = [
    "MLP",
    "VGG32",
    "ConvNet",
    "Network",
    "ResNet32",
    "ResNet34",
    "ResNet50",
    "ResNet152",
    "Shape",
    "WideResNet40",
    "build",
    "check_name",
    "names",
]

_NETWORKS: dict[str, Callable[..., Network]] = {
    "convnet": ConvNet,
    "mlp": MLP,
    "resnet32": ResNet32,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "resnet152": ResNet152,
    "vgg32": VGG32,
    "wrn40_2": WideResNet40,
}
_ALIASES = {"alexnet": "convnet", "resnet": "resnet34"}
"""The paper's own words; its "ResNet-32" is the ResNet-34, and `resnet32` the true one."""


def names() -> list[str]:
    """Name the networks of this package; `torchvision/NAME` and `timm/NAME` come on top.

    >>> names()
    ['convnet', 'mlp', 'resnet152', 'resnet32', 'resnet34', 'resnet50', 'vgg32', 'wrn40_2']
    """
    return sorted(_NETWORKS)


def check_name(name: str, **options: Any) -> None:
    """Raise if no network has this name or it does not take these options.

    The models of torchvision and timm, and what they take, are known to these libraries only.

    >>> check_name("resnet")
    >>> check_name("timm/resnet18")
    >>> check_name("vgg32", feature_size=2)
    """
    if _is_external(name):
        return
    if _ALIASES.get(name, name) not in _NETWORKS:
        known = ", ".join([*names(), *sorted(_ALIASES), *(f"{library}/NAME" for library in LIBRARIES)])
        raise ValueError(f"unknown network {name!r}. Known: {known}.")
    # the number of outputs and the shape of the images follow from the data
    _, _, *taken = inspect.signature(_NETWORKS[_ALIASES.get(name, name)]).parameters
    if unknown := sorted(set(options) - set(taken)):
        told = ", ".join(taken) or "none"
        raise ValueError(f"network {name!r} does not take the options {', '.join(unknown)}. It takes: {told}.")


def build(name: str, num_outputs: int, **options: Any) -> Network:
    """Build a network with a plain linear head.

    Args:
        name: One of `names()`, an alias (`resnet`, `alexnet`), `torchvision/NAME` or `timm/NAME`.
        num_outputs: Outputs of the head, at least 1.
        **options: What the network takes; all take `shape`, the (channels, height, width) of an image.

    Returns:
        A module with `num_features`, `features(images)` and an exchangeable `head`.

    >>> network = build("resnet32", 10)
    >>> network.num_features, network.head
    (64, Linear(in_features=64, out_features=10, bias=True))
    """
    if num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}. It is the number of classes.")
    check_name(name, **{key: value for key, value in options.items() if key != "shape"})
    if _is_external(name):
        return build_external(name, num_outputs, **options)
    return _NETWORKS[_ALIASES.get(name, name)](num_outputs, **options)


def _is_external(name: str) -> bool:
    library, slash, _ = name.partition("/")
    return bool(slash) and library in LIBRARIES
