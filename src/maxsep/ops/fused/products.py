"""Matrix products whose sums are wider than their factors."""

from __future__ import annotations

import torch
from torch import Tensor


def product(a: Tensor, b: Tensor, out: Tensor, row: Tensor | None = None, factor: float = 1.0) -> None:
    """Write factor a b, and `row` added to each of its rows, to `out`, which may be wider than a and b.

    Where nothing is wider, the product itself starts from the row: no further pass is made over `out`.

    >>> out = torch.empty(1, 2)
    >>> product(torch.ones(1, 3), torch.ones(3, 2), out, torch.tensor([1.0, 2.0]), 0.5), out
    (None, tensor([[2.5000, 3.5000]]))
    """
    if out.dtype == a.dtype:
        if row is not None:
            torch.addmm(row, a, b, alpha=factor, out=out)
        elif factor != 1:
            torch.addmm(out, a, b, beta=0, alpha=factor, out=out)
        else:
            torch.mm(a, b, out=out)
        return
    if out.device.type == "cuda" and out.dtype == torch.float32:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        out.copy_(a @ b)
    if row is not None:
        torch.add(row, out, alpha=factor, out=out)
    elif factor != 1:
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
