"""What every head is: features in, logits out, a radius that travels with the checkpoint, and a plain form."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import check_count, check_features, check_number
from maxsep.ops import separate, widened

torch.fx.wrap("separate")  # a symbolic trace keeps the product as one call


class FixedRadius(nn.Module):
    """A module whose num_classes and radius are saved in the state dict and checked when one is loaded.

    Both are plain values, not buffers: `.half()` cannot round them and DDP does not broadcast them.
    """

    min_classes: ClassVar[int] = 2
    """3 where C-1 outputs are normalised: a single one becomes a sign, which has no gradient."""

    def __init__(self, num_classes: int, radius: float) -> None:
        super().__init__()
        self.num_classes = check_count("num_classes", num_classes, least=self.min_classes)
        self.radius = check_number("radius", radius, "a positive number")

    def get_extra_state(self) -> Tensor:
        """Return [num_classes, radius] in float64 on the CPU, as a tensor so that any file format can hold it."""
        return torch.tensor([self.num_classes, self.radius], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Raise ValueError unless the state dict is of a head with these classes at this radius."""
        if state.is_meta:
            return
        classes, radius = state.tolist()
        slack = torch.finfo(state.dtype).eps  # the whole file may have been rounded to half precision
        if not math.isclose(classes, self.num_classes, rel_tol=slack):
            raise ValueError(f"the state dict has num_classes={classes:.0f}, the head has {self.num_classes}")
        # state dicts are averaged in float32, whatever they are cast to afterwards
        if not math.isclose(radius, self.radius, rel_tol=max(slack, 1e-6)):
            raise ValueError(f"the state dict was trained at radius={radius:g}, the head has {self.radius:g}")

    def extra_repr(self) -> str:
        """Return the number of classes and the radius."""
        return f"num_classes={self.num_classes}, radius={self.radius:g}"

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        state = state_dict.get(prefix + "_extra_state")
        if state is not None:  # before anything of this module is copied
            self.set_extra_state(state)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Head(FixedRadius):
    """Features (..., in_features) to logits (..., num_classes).

    A subclass defines its parameters, `forward`, `linear_form` or `folded`, and `features` if class vectors are not
    compared with x.
    """

    def __init__(self, in_features: int, num_classes: int, radius: float = 1.0) -> None:
        super().__init__(num_classes, radius)
        self.in_features = check_count("in_features", in_features)

    @property
    def out_features(self) -> int:
        """The number of logits, under nn.Linear's name for it."""
        return self.num_classes

    def features(self, x: Tensor) -> Tensor:
        """Return what is compared with the class vectors: here x itself."""
        return x

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return weight (num_classes, in_features) and bias of the nn.Linear with the same logits, if there is one."""
        raise ValueError(f"{type(self).__name__} has no linear form; folded() keeps a normalisation as a layer")

    def folded(self) -> nn.Module:
        """Return plain torch layers with the same logits."""
        return linear_from(*self.linear_form())

    def extra_repr(self) -> str:
        """Return the sizes and the radius."""
        return f"in_features={self.in_features}, {super().extra_repr()}"

    def _checked(self, x: Any) -> Any:
        if not isinstance(x, torch.fx.Proxy):  # a symbolic trace has no shapes to check
            check_features(x, self.in_features, "in_features")
        return x


class LayerHead(Head):
    """A head with a trained layer: weight (C-1, in_features) and, unless switched off, a bias; P follows by default."""

    has_matrix: ClassVar[bool] = True
    """Whether class vectors of C-1 numbers follow the layer; if not, it has C outputs."""
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
        rows = self.num_classes - self.has_matrix
        self.weight = nn.Parameter(torch.empty(rows, self.in_features, device=device, dtype=dtype))
        self.register_parameter("bias", nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters as nn.Linear does."""
        default_init(self.weight, self.bias)

    @classmethod
    def like(cls, layer: Any, num_classes: int, radius: float, **options: Any) -> Self:
        """Build a new head with the width, bias, device, dtype and train mode of another layer or head."""
        options |= {"device": layer.weight.device, "dtype": layer.weight.dtype}
        return cls(layer.in_features, num_classes, radius, layer.bias is not None, **options).train(layer.training)

    @classmethod
    @torch.no_grad()
    def _from_linear(
        cls, linear: nn.Linear, radius: float, convert: Callable[[Self, Tensor], Tensor], **options: Any
    ) -> Self:
        """Build a head like an nn.Linear; `convert` maps the layer's centred rows, (C, ...), to the head's."""
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        head = cls.like(linear, linear.out_features, radius, **options)
        for name, trained in head.named_parameters():
            plain = linear.get_parameter(name)
            rows = widened(plain)
            # P ignores a common shift, but a large one would cost the differences their last digits
            trained.copy_(convert(head, rows - rows.mean(0))).requires_grad_(plain.requires_grad)
        return head

    def layer(self, x: Tensor) -> Tensor:
        """Return weight x + bias."""
        return F.linear(self._checked(x), self.weight, self.bias)

    def features(self, x: Tensor) -> Tensor:
        """Return what is compared with the class vectors, (..., C-1)."""
        return self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return separate(self.features(x), self.radius)


def linear_from(weight: Tensor, bias: Tensor | None, like: nn.Module | None = None) -> nn.Linear:
    """Wrap copies of a weight and a bias in an nn.Linear, with the train mode and requires_grad of the layer `like`."""
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, bias is not None, device="meta")  # draws no random numbers
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    if like is not None:
        linear.train(like.training)
        for new, old in zip(linear.parameters(), like.parameters(), strict=True):
            new.requires_grad_(old.requires_grad)
    return linear


def unit_norm_then_linear(weight: Tensor, bias: Tensor | None) -> nn.Sequential:
    """Return plain torch layers for weight (x / |x|) + bias; RMSNorm divides by |x| / sqrt(width)."""
    width = weight.shape[1]
    norm = nn.RMSNorm(width, eps=torch.finfo(torch.float32).tiny, elementwise_affine=False)
    return nn.Sequential(norm, linear_from(weight / width**0.5, bias))


def default_init(weight: Tensor, bias: Tensor | None, generator: torch.Generator | None = None) -> None:
    """Initialise as nn.Linear does: uniform within 1/sqrt(in_features)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound, generator)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound, generator)
