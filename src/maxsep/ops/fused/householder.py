r"""The Householder basis of the simplex: a plain layer, and one class that is no row of its weight.

Of k = C-1 outputs z with the sum S, and with a = radius sqrt(C / k), it makes the logits a (z_i - S / (C + sqrt C)) and
-a S / sqrt C. Cross-entropy does not see a shift that all logits of a sample share, so these do as well:

    o_i = a z_i  for i < k,    o_k = -a / (1 + sqrt C) S,    S = x . sum_i W_i

The first k are streamed over the weight as it lies: nothing is folded, nothing taken back from its gradient. The last
one needs the sum of all rows, one vector, and joins at the end of the first pass. Its gradient g_k is known before the
second, and reaches every z_i alike: dz_i = a (g_i - g_k / (1 + sqrt C)), one number more for each sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maxsep.simplex import reflection


def basis_factors(num_classes: int, radius: float) -> tuple[float, float]:
    """Return the factor of the outputs, and that of their sum in the last logit.

    >>> basis_factors(4, 3.0)
    (3.4641016151377544, -1.1547005383792515)
    """
    a, _, _ = reflection(num_classes)
    return radius * a, -radius * a / (1 + math.sqrt(num_classes))


@dataclass(frozen=True)
class LastClass:
    """The class without a row: its part in the loss, and in what the other classes give.

    >>> LastClass(torch.zeros(1), 4, torch.tensor([3]), None).merged(torch.zeros(1), torch.ones(1), None)
    (tensor([0.6931]), tensor([0.]), None)
    """

    logits: Tensor
    """(B,)."""
    num_classes: int
    """C, of which it is number C-1."""
    target: Tensor
    """Class indices, (B,)."""
    class_weight: Tensor | None
    """Of the smoothing term, (C,)."""

    @property
    def reach(self) -> float:
        """What its gradient adds to that of every other logit, as a factor: o_k = - sum_i o_i / (1 + sqrt C)."""
        return -1 / (1 + math.sqrt(self.num_classes))

    @property
    def _share(self) -> Tensor | float:
        return 1.0 if self.class_weight is None else self.class_weight[-1]

    def merged(self, lse: Tensor, target_logit: Tensor, total: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Take this class into the log-sum-exp, the target logit and the weighted sum of the others, (B,) each."""
        total = None if total is None else total + self.logits * self._share
        is_target = self.target == self.num_classes - 1
        return torch.logaddexp(lse, self.logits), torch.where(is_target, self.logits, target_logit), total

    def gradient(self, lse: Tensor, a: Tensor, u: Tensor, v: Tensor | None) -> Tensor:
        """Return g = a exp(z - lse) - u [y = k] - v w_k, (B,)."""
        g = a * (self.logits - lse).exp() - torch.where(self.target == self.num_classes - 1, u, 0)
        return g if v is None else g - v * self._share
