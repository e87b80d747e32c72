"""The paper's networks, one file each, and one registry of their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maxsep.lab.networks.base import Network, Shape
from maxsep.lab.networks.convnet import ConvNet
from maxsep.lab.networks.external import LIBRARIES, build_external
from maxsep.lab.networks.mlp import MLP
from maxsep.lab.networks.resnet32 import ResNet32
from maxsep.lab.networks.resnet34 import ResNet34

__all__ = ["MLP", "ConvNet", "Network", "ResNet32", "ResNet34", "Shape", "build", "check_name", "names"]

_NETWORKS: dict[str, Callable[..., Network]] = {
    "convnet": ConvNet,
    "mlp": MLP,
    "resnet32": ResNet32,
    "resnet34": ResNet34,
}
_ALIASES = {"alexnet": "convnet", "resnet": "resnet34"}
"""The paper's own words; its "ResNet-32" is the ResNet-34, and `resnet32` the true one."""


def names() -> list[str]:
    """Name the networks of this package; `torchvision/NAME` and `timm/NAME` come on top.

    >>> names()
    ['convnet', 'mlp', 'resnet32', 'resnet34']
    """
    return sorted(_NETWORKS)


def check_name(name: str) -> None:
    """Raise if no network has this name; the models of torchvision and timm are known to these libraries only.

    >>> check_name("resnet")
    >>> check_name("timm/resnet18")
    """
    if _ALIASES.get(name, name) not in _NETWORKS and not _is_external(name):
        known = ", ".join([*names(), *sorted(_ALIASES), *(f"{library}/NAME" for library in LIBRARIES)])
        raise ValueError(f"unknown network {name!r}. Known: {known}.")


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
    check_name(name)
    if _is_external(name):
        return build_external(name, num_outputs, **options)
    return _NETWORKS[_ALIASES.get(name, name)](num_outputs, **options)


def _is_external(name: str) -> bool:
    library, slash, _ = name.partition("/")
    return bool(slash) and library in LIBRARIES
