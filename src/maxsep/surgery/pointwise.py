"""A head in the place of a 1 x 1 convolution."""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from maxsep.heads.base import linear_from


class Pointwise(nn.Module):
    """Apply a layer to the channels of feature maps: (..., D, H, W) to (..., C, H, W)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of every pixel of x."""
        logits: Tensor = self.layer(x.movedim(-3, -1))
        return logits.movedim(-1, -3).clone(memory_format=torch.contiguous_format)  # no view: a ReLU may be in place

    def convolution(self) -> nn.Conv2d:
        """Return the Conv2d with the same result; the layer must have been folded to an nn.Linear."""
        if not isinstance(self.layer, nn.Linear):
            raise ValueError(f"only heads that fold to an nn.Linear become a Conv2d, got {self.layer}")
        bias = self.layer.bias
        conv = nn.Conv2d(*sizes(self.layer), 1, bias=bias is not None, device="meta").train(self.training)
        for name, old in self.layer.named_parameters():
            value = old.detach().clone().reshape(conv.get_parameter(name).shape)
            setattr(conv, name, nn.Parameter(value, old.requires_grad))
        return conv


def is_pointwise(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether a module is a 1 x 1 convolution over all channels; subclasses may compute something else."""
    if type(module) is not nn.Conv2d or module.padding not in ((0, 0), "same", "valid"):
        return False
    return (module.kernel_size, module.stride, module.groups) == ((1, 1), (1, 1), 1)


def sizes(layer: nn.Linear | nn.Conv2d) -> tuple[int, int]:
    """Return the numbers of features and of logits."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def as_linear(layer: nn.Linear | nn.Conv2d) -> nn.Linear:
    """Return an nn.Linear as it is, and a copy of a 1 x 1 convolution as one."""
    return layer if isinstance(layer, nn.Linear) else linear_from(layer.weight.flatten(1), layer.bias, layer)
