r"""The Householder basis of the simplex: a plain layer, and one class that is no row of its weight.

Of k = C-1 outputs z with the sum S, and with a = radius sqrt(C / k), it makes the logits a (z_i - S / (C + sqrt C)) and
-a S / sqrt C. Cross-entropy does not see a shift that all logits of a sample share, so these do as well:

    o_i = a z_i  for i < k,    o_k = -a / (1 + sqrt C) S,    S = x . sum_i W_i

The first k are streamed over the weight as it lies: nothing is folded, nothing taken back from its gradient. The last
one needs the sum of all rows, one vector, and joins at the ends of the passes. Its gradient g_k is known before the
second pass, in which it is where the sums start: dx = coef g_k sum_i W_i, and coef g_k^T x in every row of dW.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maxsep.simplex import reflection

PIECE = 1 << 15
"""Numbers of a weight that are copied at once, at least; a 256th of it where that is more."""


def basis_factors(num_classes: int, radius: float) -> tuple[float, float]:
    """Return the factor of the outputs, and that of their sum in the last logit.

    >>> basis_factors(4, 3.0)
    (3.4641016151377544, -1.1547005383792515)
    """
    a, _, _ = reflection(num_classes)
    return radius * a, -radius * a / (1 + math.sqrt(num_classes))


def sum_of_rows(weight: Tensor, wide: torch.dtype) -> Tensor:
    """Return sum_i W_i, (D,), in the precision of the sums.

    >>> sum_of_rows(torch.ones(300, 2).bfloat16(), torch.float32)
    tensor([300., 300.])
    """
    if weight.dtype == wide or weight.is_cuda:
        return weight.sum(0, dtype=wide)
    # on a CPU torch would make a wide copy of the whole weight
    total = torch.zeros(weight.shape[1], dtype=wide, device=weight.device)
    for piece in torch.split(weight, max(1, max(PIECE, weight.numel() >> 8) // weight.shape[1])):
        total += piece.sum(0, dtype=wide)
    return total


class LastClass:
    """The class without a row: its logits, and its part in what the others give.

    Args:
        x: Features, (B, D).
        summed: sum_i W_i, (D,), in the precision of the sums.
        num_classes: C, of which it is number C-1.
        radius: Factor of all logits.
        target: Class indices, (B,).
        offset: Added to the logits, (C,).
        class_weight: Of the smoothing term, (C,).

    >>> LastClass(torch.ones(1, 2), torch.ones(2), 4, 3.0, torch.tensor([3]), None, None).logits
    tensor([-2.3094])
    """

    def __init__(
        self,
        x: Tensor,
        summed: Tensor,
        num_classes: int,
        radius: float,
        target: Tensor,
        offset: Tensor | None,
        class_weight: Tensor | None,
    ) -> None:
        self._x, self._summed = x, summed
        self._coefficient = basis_factors(num_classes, radius)[1]
        self._is_target = target == num_classes - 1
        self._share = 1.0 if class_weight is None else class_weight[-1]
        outputs = x.to(summed.dtype) @ summed * self._coefficient
        self.logits = outputs if offset is None else outputs + offset[-1]

    def merged(self, lse: Tensor, target_logit: Tensor, total: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Take this class into the log-sum-exp, the target logit and the weighted sum of the others, (B,) each."""
        total = None if total is None else total + self.logits * self._share
        return torch.logaddexp(lse, self.logits), torch.where(self._is_target, self.logits, target_logit), total

    def gradient(self, lse: Tensor, a: Tensor, u: Tensor, v: Tensor | None) -> Tensor:
        """Return g = a exp(z - lse) - u [y = k] - v w_k, (B,)."""
        g = a * (self.logits - lse).exp() - torch.where(self._is_target, u, 0)
        return g if v is None else g - v * self._share

    def for_features(self, g: Tensor) -> Tensor:
        """Return its part of the gradient of x, (B, D)."""
        return torch.outer(g * self._coefficient, self._summed)

    def for_rows(self, g: Tensor) -> Tensor:
        """Return its part of the gradient of the weight, (D,), which is that of every row."""
        return g @ self._x.to(g.dtype) * self._coefficient
