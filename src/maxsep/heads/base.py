"""What every head is: features in, logits out, a radius that travels with the checkpoint, and a plain form."""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import Basis, check_count, check_floating, check_last_dimension, check_num_classes, check_radius

__all__ = ["Head", "Identified", "LayerHead", "default_init", "linear_from"]


class Identified(nn.Module):
    """A module whose state dict says for how many classes, at which radius and in which basis it was trained.

    All are plain values of the module, not buffers: `.half()` cannot round them and DDP does not broadcast them.
    A state dict of another size, radius or basis is refused when it is loaded.
    """

    num_classes: int
    radius: float
    _basis: Basis = "recursive"

    @property
    def basis(self) -> Basis:
        """The basis of the matrix, where there is one; `maxsep.change_basis` gives a head in another."""
        return self._basis

    def get_extra_state(self) -> Tensor:
        """Return [num_classes, radius] for the state dict, as a tensor so that any file format can hold it.

        In another basis than the paper's its number follows: 1 is `householder`.
        """
        number = get_args(Basis).index(self.basis)
        told = [self.num_classes, self.radius, *([number] if number else [])]
        return torch.tensor(told, dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Compare with the numbers of a state dict that is being loaded."""
        if state.is_meta:
            return
        if state.numel() not in (2, 3):
            raise ValueError(
                "this state dict is one rank's part of a ClassParallelHead. Load what its full_state_dict() gives, or "
                "what maxsep.surgery.save_shards wrote."
            )
        slack = torch.finfo(state.dtype).eps  # somebody may have rounded the whole file to half precision
        classes, radius, *number = state.tolist()
        if not math.isclose(classes, self.num_classes, rel_tol=slack, abs_tol=0.0):
            raise ValueError(
                f"this state dict is of a head with {classes:.0f} classes, but the head has {self.num_classes}. "
                f"Build it with num_classes={classes:.0f}, load, and use grow() if classes are to be added."
            )
        # who averages the state dicts of several models does so in float32, whatever it is cast to afterwards
        if not math.isclose(radius, self.radius, rel_tol=max(slack, 1e-6), abs_tol=0.0):
            raise ValueError(
                f"this state dict was trained at radius {radius}, but the head has radius {self.radius}: "
                f"its logits would be {self.radius / radius:.3g} times what they were. Build it with radius={radius}."
            )
        known = dict(enumerate(get_args(Basis)))
        basis = known.get(number[0] if number else 0)
        if basis is None:
            raise ValueError(
                f"this state dict is of a head in basis number {number[0]:g}, but this version knows "
                f"{', '.join(f'{place} ({name})' for place, name in known.items())}. Load it with the version that "
                "wrote it, and save it there in one of these."
            )
        if basis != self.basis:
            raise ValueError(
                f"this state dict is of a head in the basis {basis!r}, but the head is in {self.basis!r}: its logits "
                f"would be other ones. Load it into a MaxSeparationHead with basis={basis!r}, and turn that with "
                f"maxsep.change_basis(head, {self.basis!r})."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        state = state_dict.get(prefix + "_extra_state")
        if state is not None:  # before anything of this module is copied
            self.set_extra_state(state)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Head(Identified):
    """Features (..., in_features) to logits (..., num_classes).

    A subclass sets its parameters, `forward`, `features`, `class_vectors` and `linear_form`; the contract that all of
    them meet is `maxsep.check_head`.
    """

    def __init__(self, in_features: int, num_classes: int, radius: float = 1.0) -> None:
        super().__init__()
        self.in_features = check_count("in_features", in_features)
        self.num_classes = check_num_classes(num_classes)
        self.radius = check_radius(radius)

    @property
    def out_features(self) -> int:
        """The number of logits, under the name that nn.Linear gives it."""
        return self.num_classes

    def features(self, x: Tensor) -> Tensor:
        """Return what is compared with the class vectors; for a plain head the input itself."""
        return x

    def class_vectors(self) -> Tensor:
        """Return one vector per class, (num_classes, width of `features`), without the radius."""
        raise NotImplementedError(f"{type(self).__name__} must define class_vectors().")

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return weight (num_classes, in_features) and bias of the nn.Linear with the same logits."""
        raise NotImplementedError(f"{type(self).__name__} must define linear_form().")

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return plain torch layers with the same logits."""
        weight, bias = self.linear_form()
        return linear_from(weight, bias)

    def extra_repr(self) -> str:
        """Say the sizes and the radius."""
        return f"in_features={self.in_features}, num_classes={self.num_classes}, radius={self.radius:g}"

    def _checked(self, x: Tensor) -> Tensor:
        given: object = x
        if not isinstance(given, torch.fx.Proxy):  # a symbolic trace has no shapes to check
            check_last_dimension(check_floating(given), self.in_features, "in_features")
        return x


class LayerHead(Head):
    """A head with one trained layer of its own: weight (outputs, in_features) and, unless switched off, bias."""

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, radius)
        rows = self.layer_outputs()
        self.weight = nn.Parameter(torch.empty(rows, self.in_features, device=device, dtype=dtype))
        self.register_parameter("bias", nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def layer_outputs(self) -> int:
        """Return how many outputs the trained layer has: C-1 where class vectors follow, C where none do."""
        return self.num_classes - 1

    def reset_parameters(self) -> None:
        """Draw new parameters as nn.Linear does."""
        default_init(self.weight, self.bias)

    def layer(self, x: Tensor) -> Tensor:
        """Return weight x + bias."""
        return F.linear(self._checked(x), self.weight, self.bias)


def linear_from(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Wrap a weight and a bias in an nn.Linear of the same device and dtype.

    >>> linear_from(torch.ones(3, 2), None)
    Linear(in_features=2, out_features=3, bias=False)
    """
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, bias is not None, device=weight.device, dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear


def default_init(weight: Tensor, bias: Tensor | None, generator: torch.Generator | None = None) -> None:
    """Initialise as nn.Linear does: uniform within 1/sqrt(in_features).

    >>> weight = torch.empty(3, 4)
    >>> default_init(weight, None)
    >>> bool(weight.abs().max() <= 0.5)
    True
    """
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound, generator)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound, generator)
