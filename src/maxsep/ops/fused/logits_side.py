r"""The matrix applied to a chunk of logits instead of the weight: cheaper when the batch is smaller than the features.

forward   o_j = s_j z_j - carry - sum_{start<=i<j} r_i z_i       carry over earlier chunks, one number a sample
backward  h_i = s_i g_i - r_i (sum_{i<j<stop} g_j + later)       later over later chunks, so the last comes first
"""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.ops.fused.torch_form import slice_of_coefficients


def separated(outputs: Tensor, carry: Tensor, num_classes: int, radius: float, start: int) -> tuple[Tensor, Tensor]:
    """Turn outputs (B, c) of the classes from `start` into logits, in full precision, and return the next carry."""
    s, r = slice_of_coefficients(num_classes, radius, start, start + outputs.shape[1], carry)
    z = outputs.to(carry.dtype)
    logits = z * r.T
    until = logits.cumsum(1)
    following = carry + until[:, -1]
    logits.sub_(until).sub_(carry[:, None]).addcmul_(z, s.T)
    return logits, following


def unseparated_(gradient: Tensor, later: Tensor, num_classes: int, radius: float, start: int) -> Tensor:
    """Turn the gradient at logits (B, c) into that at outputs, in place, and add the chunk to `later`."""
    s, r = slice_of_coefficients(num_classes, radius, start, start + gradient.shape[1], later)
    until = gradient.cumsum(1)
    total = until[:, -1].clone()
    until.sub_((total + later)[:, None]).mul_(r.T)
    later += total
    return torch.addcmul(until, gradient, s.T, out=gradient)
