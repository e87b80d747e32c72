"""x -> radius * P^T x by the matrix itself: the reference, and the fastest form for few classes."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from maxsep.checks import Basis
from maxsep.ops.cache import cached_simplex
from maxsep.ops.modes import last_size


def separate_dense(x: Tensor, radius: float, basis: Basis = "recursive") -> Tensor:
    """Multiply by the dense matrix; x (..., C-1) in float32 or float64, result (..., C) in the same dtype.

    Autocast is switched off around the product: P rounded to bfloat16 is no simplex any more.

    >>> separate_dense(torch.tensor([[1.0, 0.0]]), 2.0)
    tensor([[ 2., -1., -1.]])
    """
    matrix = cached_simplex(last_size(x) + 1, x.dtype, x.device, basis)
    device = x.device.type
    with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
        return (x * radius if radius != 1 else x) @ matrix
