"""What surrounds a call: autocast, function transforms, tracing. Each form of the product knows some of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


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
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


# What torch.compiler.assume_constant_result does, without importing the compiler: it asks while it traces, inside the
# transforms that it meets, and what it then makes serves under these alone.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Return whether a call becomes part of a graph, by torch.compile, torch.export or torch.jit.trace.

    >>> is_traced()
    False
    """
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def last_size(x: Tensor) -> int:
    """Return the size of the last dimension, for which torch.jit.trace gives a tensor; its graph holds for this one.

    >>> last_size(torch.zeros(2, 3))
    3
    """
    size: int | Tensor = x.shape[-1]
    return int(size) if isinstance(size, Tensor) else size


def is_watched(tensors: Iterable[Tensor]) -> bool:
    """Return whether more than torch's own kernels is to see a call: a compiler, a tracer, a transform, a mode.

    Tensors of other types have rules of their own as well, and so have batches of gradients (`is_grads_batched`), which
    pass for ordinary tensors in Python.

    >>> is_watched([torch.zeros(2)]), is_watched([torch.zeros(2).as_subclass(type("Other", (Tensor,), {}))])
    (False, True)
    """
    if is_traced() or torch._C._len_torch_dispatch_stack():
        return True
    return is_transformed() or any(
        type(tensor) not in _OWN or torch._C._functorch.is_legacy_batchedtensor(tensor) for tensor in tensors
    )


_OWN = (Tensor, torch.nn.Parameter)
