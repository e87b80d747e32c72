"""x -> radius * P^T x and its adjoint in O(C), alone and together with a linear layer and its cross-entropy."""

from maxsep.ops.separate import adjoint, separate, separate_linear, wide_dtype, widened

__all__ = ["adjoint", "separate", "separate_linear", "wide_dtype", "widened"]
