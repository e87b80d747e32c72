"""The paper's head: a trained layer to C-1 outputs, then the fixed matrix P."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.fx
from torch import Tensor, nn

from maxsep.checks import as_tensor, check_features
from maxsep.heads.base import FixedRadius, LayerHead
from maxsep.heads.registry import register
from maxsep.ops import adjoint, separate, separate_linear
from maxsep.ops.tracing import is_dtensor
from maxsep.simplex import simplex

# a symbolic trace keeps the product as one call
torch.fx.wrap("separate")
torch.fx.wrap("separate_linear")

ClassOrder = Sequence[int] | Tensor | None


class _Ordered(FixedRadius):
    """Columns of P in any order of classes: class_order[i] is the class that takes column i; None is the identity.

    `class_columns`, the inverse, is the column of each class. Both come from `_order`, on the CPU, since averages of
    models (AveragedModel, ModelEmaV2) overwrite buffers by truncated integers. So the buffer `class_order` gives torch
    a name and a device, but its values are not read.
    """

    def _set_class_order(self, class_order: ClassOrder, device: torch.device | str | None) -> None:
        self._order = None if class_order is None else _check_class_order(class_order, self.num_classes)
        self._columns: Tensor | None = None
        self._buffers["class_order"] = None
        self._place_class_order(device)

    def _place_class_order(self, device: torch.device | str | None) -> None:
        if self._order is not None:
            self._buffers["class_order"] = self._order.to(device, copy=True)
            self._columns = self._order.argsort().to(device)

    @property
    def class_order(self) -> Tensor | None:
        """The class of each column, a copy; None is the identity."""
        buffer = self._buffers["class_order"]
        return None if self._order is None or buffer is None else self._order.to(buffer.device, copy=True)

    @property
    def class_columns(self) -> Tensor | None:
        """The column of each class; None is the identity."""
        buffer = self._buffers["class_order"]
        if buffer is not None and self._columns is not None and self._columns.device != buffer.device:
            self._place_class_order(buffer.device)  # fully_shard moves buffers alone
        return self._columns

    def extra_repr(self) -> str:
        """Return the sizes, the radius and the class order, if any."""
        order = "" if self._order is None else f", class_order={describe_order(self._order.tolist())}"
        return super().extra_repr() + order

    def _in_class_order(self, values: Tensor, dim: int = -1) -> Tensor:
        """Turn one entry per column into one per class."""
        columns = self.class_columns
        if columns is not None and is_dtensor(values):
            from torch.distributed.tensor import DTensor

            columns = DTensor.from_local(columns, values.device_mesh, run_check=False)  # type: ignore[attr-defined]
        return values if columns is None else values.index_select(dim, columns)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's is not annotated
        if self.class_order is not None:  # to_empty leaves random numbers
            self._place_class_order(self.class_order.device)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.class_order is not None:
            destination[prefix + "class_order"] = self.class_order

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(prefix + "class_order")
        is_saved = any(prefix + name in state_dict for name in ("_extra_state", "weight", "class_order"))
        if is_saved and not equal_orders(saved, self._order):
            orders = f"is {describe_order(saved)}, the module's is {describe_order(self._order)}"
            raise ValueError(f"'{prefix}class_order' of the state dict {orders}")
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self.class_order is not None:  # with assign=True it may have left the device of class_columns
            self._place_class_order(self.class_order.device)


class MaxSeparation(_Ordered):
    """The fixed matrix as a layer: x (..., C-1) to logits (..., C), with nothing to train.

    logits = radius * P^T x. Without `class_order`, see `MaxSeparationHead`, it has no buffers either.

    Pitfall: it takes C-1 inputs. `MaxSeparationHead` includes the layer that makes them.

    >>> MaxSeparation(3)(torch.tensor([[1.0, 0.0]]))
    tensor([[ 1.0000, -0.5000, -0.5000]])
    >>> MaxSeparation(3, class_order=[2, 0, 1])(torch.tensor([[1.0, 0.0]]))
    tensor([[-0.5000, -0.5000,  1.0000]])
    """

    def __init__(self, num_classes: int, radius: float = 1.0, class_order: ClassOrder = None) -> None:
        super().__init__(num_classes, radius)
        self._set_class_order(class_order, torch.empty(0).device)  # get_default_device ignores contexts in torch 2.6

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        if isinstance(x, Tensor):
            check_features(x, self.num_classes - 1, "num_classes - 1")
        return self._in_class_order(separate(x, self.radius))


@register("maxsep")
class MaxSeparationHead(LayerHead, _Ordered):
    """A classifier with maximum class separation; it goes where the last nn.Linear was.

    logits = radius * P^T (weight x + bias), with weight (C-1, in_features) trained and P fixed.

    Args:
        in_features: Width of the features.
        num_classes: C, at least 2.
        radius: Length of the class vectors; the paper takes 0.1 for its long-tailed ResNets and 1 elsewhere.
        bias: Whether the trained layer has a bias.
        class_order: class_order[i] is the class that takes column i of P; None is the identity. It changes nothing
            under SGD and something under Adam.
        device, dtype: Of the parameters.

    Pitfall: it is not an nn.Linear, on purpose: a quantiser or adapter that treated it as one would lose P.
    Fold it first (`maxsep.fold`).

    >>> head = MaxSeparationHead(64, 10)
    >>> head(torch.randn(2, 64)).shape, head.features(torch.randn(2, 64)).shape
    (torch.Size([2, 10]), torch.Size([2, 9]))
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        bias: bool = True,
        *,
        class_order: ClassOrder = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, radius, bias, device=device, dtype=dtype)
        self._set_class_order(class_order, self.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return self._in_class_order(separate_linear(self._checked(x), self.weight, self.bias, self.radius))

    def class_vectors(self) -> Tensor:
        """Return the columns of P as rows, (C, C-1): the unit vectors that `features` is compared with."""
        columns = simplex(self.num_classes, dtype=self.weight.dtype, device=self.weight.device).T
        return self._in_class_order(columns, 0)

    def compose(self, rows: Tensor) -> Tensor:
        """Return radius * P^T rows, (C, ...) in class order, for rows (C-1, ...), in O(C) per column."""
        return self._in_class_order(separate(rows.movedim(0, -1), self.radius).movedim(-1, 0).contiguous(), 0)

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return radius * P^T weight and radius * P^T bias."""
        return self.compose(self.weight), None if self.bias is None else self.compose(self.bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear, radius: float = 1.0, *, class_order: ClassOrder = None) -> Self:
        """Convert a trained nn.Linear without changing a probability.

        weight = (C-1)/C / radius * P W: the exact inverse on the plane of zero-sum logits; the mean logit, which
        softmax ignores, is dropped.

        >>> linear, x = nn.Linear(8, 5), torch.randn(3, 8)
        >>> head = MaxSeparationHead.from_linear(linear)
        >>> torch.allclose(head(x).softmax(-1), linear(x).softmax(-1), atol=1e-6)
        True
        """

        def convert(head: Self, centred: Tensor) -> Tensor:
            rows = centred if head.class_order is None else centred[head.class_order]
            return adjoint(rows.movedim(0, -1), (head.num_classes - 1) / head.num_classes / head.radius).movedim(-1, 0)

        return cls._from_linear(linear, radius, convert, class_order=class_order)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        is_plain = prefix + "_extra_state" not in state_dict
        if is_plain and weight is not None and weight.shape == (self.num_classes, self.in_features):
            advice = "load a whole model before attach(keep_weights=True), a layer into an nn.Linear for from_linear"
            raise ValueError(f"'{prefix}weight' is a plain layer's: {advice}")
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _check_class_order(class_order: Sequence[int] | Tensor, num_classes: int) -> Tensor:
    try:
        order = as_tensor("class_order", class_order, device="cpu").detach()
    except TypeError:
        order = torch.empty(0, device="cpu")
    identity = torch.arange(num_classes, device="cpu")
    is_integer = not order.is_floating_point() and order.dtype != torch.bool
    if not is_integer or order.shape != identity.shape or not torch.equal(order.long().sort().values, identity):
        value = describe_order(class_order)
        raise ValueError(f"class_order must be a permutation of 0 to {num_classes - 1}, got {value}")
    return order.long().clone()


def describe_order(class_order: Any) -> str:
    """Return a class order in one short line."""
    if not isinstance(class_order, Tensor):
        return textwrap.shorten(repr(class_order), 80)
    return textwrap.shorten(repr(class_order.tolist()), 80) + f" in {str(class_order.dtype).removeprefix('torch.')}"


def equal_orders(saved: Tensor | None, current: Tensor | None) -> bool:
    """Return whether two orders hold the same numbers; averages of checkpoints are in floating point."""
    if saved is None or current is None:
        return saved is current
    return saved.is_meta or torch.equal(saved.cpu().double(), current.cpu().double())
