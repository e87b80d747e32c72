"""One name, `separate`, for every way to apply the matrix."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from maxsep.checks import Basis, check_basis, check_floating, check_radius
from maxsep.ops.cache import KEPT_DENSE_UP_TO
from maxsep.ops.dense import separate_dense
from maxsep.ops.householder import householder_adjoint, separate_householder
from maxsep.ops.modes import is_autocasting, is_traced, is_transformed
from maxsep.ops.scan import separate_adjoint, separate_scan
from maxsep.ops.triton_householder import householder_rows
from maxsep.ops.triton_scan import check_triton, separate_rows, takes

Impl = Literal["auto", "dense", "scan", "triton"]

DENSE_WORK = 4_000_000
"""Where one matrix product beats the O(C) form on a CPU: up to this many multiplications, not counting those that cost
what the O(C) form costs per number (benchmarks/head_cpu.py measures the crossing)."""
UNCOUNTED = {"recursive": 60, "householder": 0}
"""Of so many classes: a running sum is slower than a product there, one sum is not."""


def separate(x: Tensor, radius: float = 1.0, *, basis: Basis = "recursive", impl: Impl = "auto") -> Tensor:
    """Turn C-1 outputs into C logits whose class vectors are as far apart as geometry allows.

    logits = radius * P^T x for x of shape (..., C-1); the result has shape (..., C) and sums to zero along it.
    Time and memory are O(C) per sample. Half-precision input is summed in float32 and returned in half precision;
    under autocast the result is float32, as softmax's is.

    Args:
        x: Outputs of a network, real floating point, at least one in the last dimension.
        radius: The length of the class vectors; a positive number that scales all logits.
        basis: The coordinates of the simplex: `recursive` are the paper's; `householder` is the same simplex turned,
            for the streamed loss. `maxsep.change_basis` takes a trained head from one to the other.
        impl: `dense` multiplies by the matrix (the reference), `scan` is the O(C) form in plain torch, `triton` the
            kernel for CUDA (float64 and transforms of torch.func take the scan); `auto` takes the fastest that fits.

    Pitfall: the radius is also a learning rate. With a trained layer in front, SGD moves the composed classifier
    radius^2 C/(C-1) times as fast as a plain layer's.

    >>> separate(torch.tensor([[1.0, 0.0]]))
    tensor([[ 1.0000, -0.5000, -0.5000]])
    """
    radius = check_radius(radius)
    basis = check_basis(basis)
    check_floating(x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"the last dimension of x must hold the C-1 outputs, got shape {tuple(x.shape)}. "
            "C classes need C-1 numbers per sample: at least one, for two classes."
        )
    dtype = logits_dtype(x)
    chosen = _choose(x, impl, basis)
    if chosen == "triton":
        check_triton(x)
        result: Tensor = _KERNELS[basis](x, radius, dtype, 0)
        return result
    return _IMPLEMENTATIONS[basis][chosen](widened(x), radius).to(dtype)


def adjoint(g: Tensor, radius: float, basis: Basis = "recursive") -> Tensor:
    """Apply radius * P in plain torch; g (..., C) in float32 or float64, result (..., C-1).

    On the plane of zero-sum logits (C-1)/C times it undoes `separate` at radius 1.

    >>> adjoint(torch.tensor([[1.0, -0.5, -0.5]]), 2 / 3)
    tensor([[1., 0.]])
    """
    return _ADJOINTS[basis](g, radius)


def logits_dtype(x: Tensor) -> torch.dtype:
    """Return the precision that the logits of x have: its own, but float32 under autocast.

    >>> logits_dtype(torch.zeros(2, dtype=torch.float16))
    torch.float16
    """
    return torch.float32 if is_autocasting(x.device.type) and x.dtype != torch.float64 else x.dtype


def widened(x: Tensor) -> Tensor:
    """Return x in the precision that sums are made in: float64 stays, everything else becomes float32.

    >>> widened(torch.zeros(2, dtype=torch.float16)).dtype
    torch.float32
    """
    return x.to(wide_dtype(x))


def wide_dtype(x: Tensor) -> torch.dtype:
    """Return the precision that sums of x are made in.

    >>> wide_dtype(torch.zeros(2, dtype=torch.float16))
    torch.float32
    """
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _choose(x: Tensor, impl: str, basis: Basis = "recursive") -> str:
    if impl == "auto":
        if takes(x) and not is_transformed():
            return "triton"
        return "dense" if _dense_is_faster(x, basis) else "scan"
    if impl == "triton" and (x.dtype == torch.float64 or is_transformed()):
        return "scan"
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}. Leave it out for 'auto'.")
    return impl


def _dense_is_faster(x: Tensor, basis: Basis) -> bool:
    # Not on a GPU, where TensorFloat-32 would keep ten bits of P, nor in a traced graph, which would rebuild P.
    if x.device.type != "cpu" or is_traced() or x.shape[-1] >= KEPT_DENSE_UP_TO:
        return False
    return x.numel() * (x.shape[-1] - UNCOUNTED[basis]) < DENSE_WORK


_IMPLEMENTATIONS = {
    "recursive": {"dense": separate_dense, "scan": separate_scan},
    "householder": {
        "dense": lambda x, radius: separate_dense(x, radius, "householder"),
        "scan": separate_householder,
    },
}
_KERNELS = {"recursive": separate_rows, "householder": householder_rows}
_ADJOINTS = {"recursive": separate_adjoint, "householder": householder_adjoint}
