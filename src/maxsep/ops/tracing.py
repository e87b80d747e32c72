"""Who observes a call: a compiler, a tracer, a transform of torch.func, a dispatch mode, a tensor subclass."""

import sys

import torch
from torch import Tensor

is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.6 cannot tell them apart


def is_traced() -> bool:
    """Return whether the call becomes part of a graph, by torch.compile, torch.export or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def is_transformed() -> bool:
    """Return whether torch.func or forward-mode differentiation is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


# Dynamo evaluates it while tracing, inside the transforms that it meets: what torch.compiler.assume_constant_result
# does, without importing the compiler.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse_second_derivatives(alternative: str) -> None:
    """Raise inside a backward pass that is to be differentiated again."""
    # torch's once_differentiable takes gradients for constants where the one that came in is a constant
    if torch.is_grad_enabled() and not is_traced():
        raise RuntimeError(f"this loss has first derivatives only; second ones need {alternative}")


def is_plain_eager(*tensors: Tensor) -> bool:
    """Return whether only torch's own kernels observe a call on these tensors."""
    if is_traced() or is_transformed() or torch._C._len_torch_dispatch_stack():
        return False
    return all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)


def is_dtensor(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded or replicated over ranks; imports nothing."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
