r"""What `grow` does to the rows of a head, and to the optimiser's memory of them, in O(C).

Growing from C to C' = C + n classes is: compose with P, append n zero rows, undo P'. With k = C-1, c = (C'-1)/C' that
is the linear map G = c P' [I; 0] P^T on the rows; the radius cancels. Because every row of P sums to zero and is
constant right of its diagonal, G is a diagonal and a rank-one lower triangle:

    G[i, i] = d_i = c m (m + n + 1) r_i r'_i     m = k - i, for i < k
    G[i, l] = -u_i r_l                           l < i <= k, with u_i = c n r'_i
    G[i, l] = 0                                  l > i, and for rows i > k

so that one running sum over r_l x_l applies it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.simplex import coefficients

__all__ = ["grow_rows", "grow_squares", "pad_rows"]


def grow_rows(rows: Tensor, new_classes: int) -> Tensor:
    """Map the rows of a head's weight or bias, (C-1, ...), to those of the larger head, (C+n-1, ...).

    The composed classifier keeps its rows and gets n zero ones. Sums run in float64.

    >>> grow_rows(torch.tensor([1.0]), 1)  # logits (1, -1) become (1, -1, 0)
    tensor([ 1.0000, -0.5774])
    """
    diagonal, below, r = _coefficients(rows, new_classes)
    wide = rows.double()
    earlier = _earlier(wide * r)
    grown = pad_rows(wide * diagonal, 1) - earlier * below
    return pad_rows(grown, new_classes - 1).to(rows.dtype)


def grow_squares(rows: Tensor, new_classes: int) -> Tensor:
    """Map running means of squared gradients, (C-1, ...), which no linear map of the gradients determines.

    Uses the squared entries of the map: exact where the gradients of the old rows are uncorrelated, and never
    negative. Rows that no old row reaches start at the mean over the old rows: at zero, Adam, whose bias correction is
    over by then, would take its longest steps exactly there.

    >>> grow_squares(torch.ones(3), 2).min() > 0
    tensor(True)
    """
    diagonal, below, r = _coefficients(rows, new_classes)
    wide = rows.double()
    grown = pad_rows(wide * diagonal**2, 1) + _earlier(wide * r**2) * below**2
    unreached = wide.mean(0, keepdim=True).expand(new_classes - 1, *wide.shape[1:])
    return torch.cat([grown, unreached]).to(rows.dtype)


def _coefficients(rows: Tensor, new_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return d (C-1), u (C) and r (C-1), each shaped to multiply rows."""
    k, more = rows.shape[0], new_classes
    _, r = coefficients(k + 1, device=rows.device)
    _, r_new = coefficients(k + 1 + more, device=rows.device)
    scale = (k + more) / (k + 1 + more)
    m = torch.arange(k, 0, -1, dtype=torch.float64, device=rows.device)
    diagonal = scale * m * (m + more + 1) * r * r_new[:k]
    below = scale * more * r_new[: k + 1]
    shape = (-1, *[1] * (rows.dim() - 1))
    return diagonal.reshape(shape), below.reshape(shape), r.reshape(shape)


def _earlier(rows: Tensor) -> Tensor:
    """Return for every row, and for one more, the sum of the rows before it."""
    return torch.cat([rows.new_zeros(1, *rows.shape[1:]), rows.cumsum(0)])


def pad_rows(rows: Tensor, more: int) -> Tensor:
    """Append rows of zeros.

    >>> pad_rows(torch.ones(1, 2), 1)
    tensor([[1., 1.],
            [0., 0.]])
    """
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, more))
