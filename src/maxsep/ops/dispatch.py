"""One name, `separate`, for every way to apply the matrix."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from maxsep.checks import check_floating, check_radius
from maxsep.ops.cache import KEPT_DENSE_UP_TO
from maxsep.ops.dense import separate_dense
from maxsep.ops.modes import is_autocasting, is_transformed
from maxsep.ops.scan import separate_scan
from maxsep.ops.triton_scan import separate_triton, takes

Impl = Literal["auto", "dense", "scan", "triton"]

DENSE_WORK = 4_000_000
"""Where one matrix product beats the scan on a CPU: up to this many multiplications beyond the first sixty classes,
which cost what the scan costs per number (benchmarks/head_cpu.py measures the crossing)."""


def separate(x: Tensor, radius: float = 1.0, *, impl: Impl = "auto") -> Tensor:
    """Turn C-1 outputs into C logits whose class vectors are as far apart as geometry allows.

    logits = radius * P^T x for x of shape (..., C-1); the result has shape (..., C) and sums to zero along it.
    Time and memory are O(C) per sample. Half-precision input is summed in float32 and returned in half precision;
    under autocast the result is float32, as softmax's is.

    Args:
        x: Outputs of a network, real floating point, at least one in the last dimension.
        radius: The length of the class vectors; a positive number that scales all logits.
        impl: `dense` multiplies by the matrix (the reference), `scan` is the O(C) form in plain torch, `triton` the
            kernel for CUDA (float64 and transforms of torch.func take the scan); `auto` takes the fastest that fits.

    Pitfall: the radius is also a learning rate. With a trained layer in front, SGD moves the composed classifier
    radius^2 C/(C-1) times as fast as a plain layer's.

    >>> separate(torch.tensor([[1.0, 0.0]]))
    tensor([[ 1.0000, -0.5000, -0.5000]])
    """
    radius = check_radius(radius)
    check_floating(x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"the last dimension of x must hold the C-1 outputs, got shape {tuple(x.shape)}. "
            "C classes need C-1 numbers per sample: at least one, for two classes."
        )
    dtype = logits_dtype(x)
    chosen = _choose(x, impl)
    if chosen == "triton":
        return separate_triton(x, radius, dtype)
    return _IMPLEMENTATIONS[chosen](widened(x), radius).to(dtype)


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


def _choose(x: Tensor, impl: str) -> str:
    if impl == "auto":
        if takes(x) and not is_transformed():
            return "triton"
        return "dense" if _dense_is_faster(x) else "scan"
    if impl == "triton" and (x.dtype == torch.float64 or is_transformed()):
        return "scan"
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}. Leave it out for 'auto'.")
    return impl


def _dense_is_faster(x: Tensor) -> bool:
    # Not on a GPU, where TensorFloat-32 would keep ten bits of P, nor in a traced graph, which would rebuild P.
    if x.device.type != "cpu" or torch.compiler.is_compiling() or x.shape[-1] >= KEPT_DENSE_UP_TO:
        return False
    return x.numel() * (x.shape[-1] - 60) < DENSE_WORK


_IMPLEMENTATIONS = {"dense": separate_dense, "scan": separate_scan}
