r"""Take a trained head from one basis of the simplex to the other: the same logits, other coordinates before them.

Two bases are one simplex, turned: P_B = Q P_A with the orthogonal Q = (k/C) P_B P_A^T. So P_B^T (Q W) = P_A^T W, and
turning the rows of the weight and of the bias by Q changes no logit. Both factors are applied in O(C) per column.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from maxsep.checks import Basis, check_basis
from maxsep.heads import MaxSeparation, MaxSeparationHead
from maxsep.ops import adjoint, separate
from maxsep.surgery.locate import find_heads
from maxsep.surgery.optimiser_state import check_trains, has_state, replace_parameter
from maxsep.surgery.own_parameters import ROWS, refuse_computed, refuse_shared
from maxsep.surgery.tree import refuse_wrapped, swap

__all__ = ["change_basis", "check_turnable", "turn_rows"]

NUMBERS = 1 << 24
"""How many numbers are turned at a time: their copies in float64 take a few hundred megabytes, at any size."""


def change_basis(
    model_or_head: nn.Module, basis: Basis, *, optimiser: torch.optim.Optimizer | None = None
) -> nn.Module:
    """Turn trained heads into the other basis of the simplex; no logit changes, to rounding.

    weight_B = (k/C) P_B P_A^T weight_A, and the bias likewise, with sums in float64, in O(C) per column. Dtype, device,
    train mode and requires_grad are kept. A model is changed in place and returned, all its MaxSeparationHeads
    together; a bare head is left alone and a new one returned. A head that is in this basis already stays as it is.

    Args:
        model_or_head: A model with a MaxSeparationHead, or such a head itself.
        basis: `recursive`, the paper's, or `householder`.
        optimiser: SGD that trains it: it is pointed to the new parameters, and its momentum is turned with them, so
            that training goes on as if nothing had happened. Gradients that wait for its step are turned too.

    Pitfall: Adam's second moments belong to single coordinates and cannot be turned. Change the basis before training,
    or build a new optimiser, which starts its moments anew. Without `optimiser=`, one that exists goes on training the
    old parameters.

    >>> head, x = MaxSeparationHead(8, 5), torch.randn(3, 8)
    >>> turned = change_basis(head, "householder")
    >>> turned, torch.allclose(turned(x), head(x), atol=1e-6)
    (MaxSeparationHead(in_features=8, num_classes=5, radius=1, basis='householder'), True)
    """
    check_basis(basis)
    if not isinstance(model_or_head, nn.Module):
        raise TypeError(f"change_basis takes a model or a head, got {type(model_or_head).__name__}. Pass an nn.Module.")
    refuse_wrapped(model_or_head)
    heads = _heads_to_turn(model_or_head, basis)
    refuse_shared(model_or_head, heads, "turned")
    if optimiser is not None:
        for head in heads:  # all before any is turned
            _check_optimiser(optimiser, head)
    with torch.inference_mode(False), torch.no_grad():  # what is made can be trained on, wherever the call stands
        turned = _turned(heads, basis)
        for head, new in zip(heads, turned, strict=True):
            if optimiser is not None:
                _turn_optimiser(optimiser, head, new)
            for place, module in list(model_or_head.named_modules(remove_duplicate=False)):
                if module is head and place:
                    swap(model_or_head, place, new)
    return turned[0] if turned and isinstance(model_or_head, MaxSeparationHead) else model_or_head


def turn_rows(rows: Tensor, source: Basis, target: Basis) -> Tensor:
    """Turn the rows of a head's weight (C-1, D) or bias (C-1,) from one basis into another, with sums in float64.

    >>> turn_rows(torch.ones(3), "householder", "recursive")
    tensor([0.5774, 0.8165, 1.4142])
    """
    if source == target:
        return rows.clone()
    k = rows.shape[0]
    columns = rows.reshape(k, -1).T
    turned = torch.empty_like(rows)
    out = turned.reshape(k, -1).T
    for part, place in zip(*(torch.split(matrix, max(1, NUMBERS // k)) for matrix in (columns, out)), strict=True):
        logits = separate(part.double(), basis=source, impl="scan")
        place.copy_(adjoint(logits, k / (k + 1), target))
    return turned


def _heads_to_turn(model: nn.Module, basis: Basis) -> list[MaxSeparationHead]:
    for path, module in model.named_modules():
        if isinstance(module, MaxSeparation) and module.basis != basis:
            raise TypeError(
                f"the MaxSeparation at {path!r} has no layer of its own that could be turned. Put a MaxSeparationHead "
                f"in the place of it and the layer before it, or build it with basis={basis!r} and train."
            )
    heads = [head for _, head in find_heads(model) if isinstance(head, MaxSeparationHead)]
    if not heads:
        raise ValueError(
            f"{type(model).__name__} has no MaxSeparationHead, the only head with a choice of basis. "
            "Pass the model that maxsep.attach returned, or leave the basis as it is."
        )
    for head in heads:
        check_turnable(head)
    return [head for head in heads if head.basis != basis]


def check_turnable(head: MaxSeparationHead) -> None:
    """Raise if a subclass computes its logits in a way of its own, or something else computes its weight or bias.

    >>> check_turnable(MaxSeparationHead(4, 3))
    """
    refuse_computed(head, "turned")
    for name in ("forward", "layer"):
        if getattr(type(head), name) is not getattr(MaxSeparationHead, name):
            raise TypeError(
                f"{type(head).__name__} has a {name}() of its own, so turned weights may give other logits. "
                "Turn the MaxSeparationHead that it is made from."
            )


def _turned(heads: list[MaxSeparationHead], basis: Basis) -> list[MaxSeparationHead]:
    copies = copy.deepcopy(heads)  # together: what they share stays shared
    for head, new in zip(heads, copies, strict=True):
        new._basis = basis
        for name in ROWS:  # a subclass may have further parameters, which stay as they are
            rows = getattr(head, name)
            if rows is not None:
                new.get_parameter(name).copy_(turn_rows(rows, head.basis, basis))
    return copies


def _check_optimiser(optimiser: torch.optim.Optimizer, head: MaxSeparationHead) -> None:
    check_trains(optimiser, head)
    if not isinstance(optimiser, torch.optim.SGD) and has_state(optimiser, head):
        raise TypeError(
            f"the state of {type(optimiser).__name__} cannot be turned with the head as SGD's momentum can: Adam's "
            "belongs to single coordinates, that of L-BFGS to all parameters together. Change the basis without "
            "optimiser= and build a new one."
        )


def _turn_optimiser(optimiser: torch.optim.Optimizer, old: MaxSeparationHead, new: MaxSeparationHead) -> None:
    for name, parameter in old.named_parameters():
        target = old.basis if name not in ROWS else new.basis
        its_new = new.get_parameter(name)
        replace_parameter(optimiser, parameter, its_new)
        if parameter.grad is not None:
            its_new.grad = turn_rows(parameter.grad, old.basis, target)
        state = optimiser.state.pop(parameter, {})
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"] = turn_rows(state["momentum_buffer"], old.basis, target)
        if state:
            optimiser.state[its_new] = state
