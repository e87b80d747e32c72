"""Matrix products whose sums are wider than their factors."""

from __future__ import annotations

import torch
from torch import Tensor


def product(a: Tensor, b: Tensor, out: Tensor, factor: float = 1.0) -> None:
    """Write factor a b to `out`, which may be wider than a and b.

    >>> out = torch.empty(1, 2)
    >>> product(torch.ones(1, 3), torch.ones(3, 2), out, 0.5), out
    (None, tensor([[1.5000, 1.5000]]))
    """
    if out.dtype == a.dtype:
        if factor != 1:
            torch.addmm(out, a, b, beta=0, alpha=factor, out=out)
        else:
            torch.mm(a, b, out=out)
        return
    if out.device.type == "cuda" and out.dtype == torch.float32:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        out.copy_(a @ b)
    if factor != 1:
        out.mul_(factor)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to `total`, which may be wider than a and b.

    >>> total = torch.ones(1, 1)
    >>> add_product(total, torch.ones(1, 3), torch.ones(3, 1)), total
    (None, tensor([[4.]]))
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.device.type == "cuda" and total.dtype == torch.float32:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b
