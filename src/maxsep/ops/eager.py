"""Operators as a compiler wants them, and a short way to the same code where nobody looks on.

A torch operator written in Python is found by a dispatcher that goes through Python four times, forward and backward:
on the host that costs more than the kernels do on a GPU. So where torch merely runs what it is told, the code of the
operator is called as it stands, inside a `torch.autograd.Function` if somebody wants derivatives. Compilers, tracers
and transforms meet the operator. Both have one implementation and one derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maxsep.ops.modes import is_watched


def with_derivative(
    op: Any,
    implementation: Callable[..., Any],
    backward: Callable[..., Any],
    remember: Callable[[Any, tuple[Any, ...], Any], None],
) -> Callable[..., Any]:
    """Give an operator its derivative, and return the function to call: the operator, or the short way to it.

    The function takes all arguments by position, those with defaults as well.

    Args:
        op: The operator, as torch.library.custom_op makes it.
        implementation: What it was made of.
        backward: From a context and gradients of the outputs to those of the inputs. It is differentiated in turn, so
            it should call functions that this one made, not operators.
        remember: Fills the context from the inputs and the outputs.

    >>> def double(x: Tensor) -> Tensor:
    ...     return 2 * x
    >>> op = torch.library.custom_op("maxsep_example::double", double, mutates_args=())
    >>> twice = with_derivative(op, double, lambda ctx, g: 2 * g, lambda ctx, inputs, output: None)
    >>> x = torch.ones(1, requires_grad=True)
    >>> torch.autograd.grad(twice(x), x)
    (tensor([2.]),)
    """
    op.register_autograd(backward, setup_context=remember)

    def forward(ctx: Any, *inputs: Any) -> Any:
        outputs = implementation(*inputs)
        remember(ctx, inputs, outputs)
        return outputs

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(implementation.__name__.strip("_"), (torch.autograd.Function,), methods)

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*inputs)
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        if is_watched(tensors):
            return op(*inputs)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return function.apply(*inputs)
        return implementation(*inputs)

    return call
