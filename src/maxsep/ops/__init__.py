"""x -> radius * P^T x and its gradient, in either basis: a dense reference, O(C) forms, and Triton kernels."""

from maxsep.ops.dispatch import Impl, adjoint, separate, wide_dtype, widened
from maxsep.ops.linear import separate_linear

__all__ = ["Impl", "adjoint", "separate", "separate_linear", "wide_dtype", "widened"]
