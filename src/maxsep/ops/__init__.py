"""x -> radius * P^T x and its gradient: a dense reference, the O(C) scan, and the place of the Triton kernel."""

from maxsep.ops.dispatch import Impl, separate, wide_dtype, widened
from maxsep.ops.linear import separate_linear

__all__ = ["Impl", "separate", "separate_linear", "wide_dtype", "widened"]
