"""One name, `separate`, for every way to apply the matrix."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from maxsep.checks import check_floating, check_radius
from maxsep.ops.dense import separate_dense
from maxsep.ops.scan import separate_scan

Impl = Literal["auto", "dense", "scan", "triton"]

DENSE_UP_TO = 200
"""Classes up to which one small matrix product beats the scan (benchmarks/head_cpu.py measures it)."""


def separate(x: Tensor, radius: float = 1.0, *, impl: Impl = "auto") -> Tensor:
    """Turn C-1 outputs into C logits whose class vectors are as far apart as geometry allows.

    logits = radius * P^T x for x of shape (..., C-1); the result has shape (..., C) and sums to zero along it.
    Time and memory are O(C) per sample. Half-precision input is summed in float32 and returned in half precision;
    under autocast the result is float32, as softmax's is.

    Args:
        x: Outputs of a network, real floating point, at least one in the last dimension.
        radius: The length of the class vectors; a positive number that scales all logits.
        impl: `dense` multiplies by the matrix (the reference), `scan` is the O(C) form in plain torch, `triton` the
            kernel for CUDA; `auto` takes the fastest that fits.

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
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    logits = _IMPLEMENTATIONS[_choose(x, impl)](x.to(wide), radius)
    return logits if _is_autocasting(x.device.type) else logits.to(x.dtype)


def _choose(x: Tensor, impl: str) -> str:
    if impl == "auto":
        return "dense" if x.shape[-1] < DENSE_UP_TO and _dense_is_exact(x) else "scan"
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}. Leave it out for 'auto'.")
    return impl


def _is_autocasting(device: str) -> bool:
    return device != "meta" and torch.is_autocast_enabled(device)  # torch refuses to answer for the meta device


def _dense_is_exact(x: Tensor) -> bool:
    # TensorFloat-32 products keep ten bits of P, and a traced graph would rebuild the matrix at every call.
    if torch.compiler.is_compiling():
        return False
    return x.device.type != "cuda" or torch.get_float32_matmul_precision() == "highest"


def _separate_triton(x: Tensor, radius: float) -> Tensor:
    raise RuntimeError(
        "impl='triton' is not available in this version of maxsep. Use impl='scan' or leave impl out: "
        "both give the same values."
    )


_IMPLEMENTATIONS = {"dense": separate_dense, "scan": separate_scan, "triton": _separate_triton}
