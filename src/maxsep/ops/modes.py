"""What surrounds a call: autocast, function transforms, tracing. Each form of the product knows some of them."""

from __future__ import annotations

import torch


def is_autocasting(device: str) -> bool:
    """Return whether autocast is on for a kind of device.

    >>> is_autocasting("cpu"), is_autocasting("meta")
    (False, False)
    """
    return device != "meta" and torch.is_autocast_enabled(device)  # torch refuses to answer for the meta device


def is_transformed() -> bool:
    """Return whether torch.func or forward-mode differentiation is at work, which have rules of their own.

    >>> torch.func.vmap(lambda x: x + is_transformed())(torch.zeros(1))
    tensor([1.])
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0
