"""Carry what SGD and Adam remember of a head over to the head that it has grown into."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from maxsep.heads import ETFHead, Head
from maxsep.surgery.growth import grow_rows, grow_squares, pad_rows

__all__ = ["carry_optimiser_state", "check_can_carry", "check_trains", "has_state", "replace_parameter"]

LINEAR = ("momentum_buffer", "exp_avg")
SQUARED = ("exp_avg_sq", "max_exp_avg_sq")


def carry_optimiser_state(optimiser: torch.optim.Optimizer, old_head: Head, new_head: Head) -> None:
    """Point an optimiser to a grown head, in place, with its momentum; `grow(..., optimiser=...)` calls it.

    Momentum (SGD's buffer, Adam's first moment) is mapped by the same linear map as the weight, so the next step moves
    the old rows of the composed classifier as it would have without growth. Adam's second moment is mapped by that
    map's squared entries and is never negative; rows without a past start at the mean of the others. Step counts and
    the options of every parameter group stay.

    Args:
        optimiser: SGD, Adam or AdamW; any other as long as it has not taken a step yet.
        old_head: The head that it has been training.
        new_head: What `grow` made of it.

    >>> from maxsep import MaxSeparationHead, grow
    >>> head = MaxSeparationHead(4, 3)
    >>> optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    >>> grown = grow(head, 2)
    >>> carry_optimiser_state(optimiser, head, grown)
    >>> optimiser.param_groups[0]["params"][0] is grown.weight
    True
    """
    check_can_carry(optimiser, old_head)
    added = new_head.num_classes - old_head.num_classes
    if type(old_head) is not type(new_head) or added < 1:
        raise ValueError(
            f"new_head must be what grow made of old_head, got {new_head} for {old_head}. "
            "Call new_head = maxsep.grow(old_head, new_classes) first."
        )
    rows, squares = (pad_rows, _pad_with_mean) if isinstance(old_head, ETFHead) else (grow_rows, grow_squares)
    for name, old in old_head.named_parameters():
        new = new_head.get_parameter(name)
        if replace_parameter(optimiser, old, new) and old in optimiser.state:
            state = optimiser.state.pop(old)
            optimiser.state[new] = {key: _mapped(key, value, added, rows, squares, new) for key, value in state.items()}


def check_can_carry(optimiser: torch.optim.Optimizer, head: Head) -> None:
    """Raise unless the optimiser trains the head and its state is of a kind that can be carried.

    >>> from maxsep import MaxSeparationHead
    >>> head = MaxSeparationHead(4, 3)
    >>> check_can_carry(torch.optim.SGD(head.parameters(), lr=0.1), head)
    """
    check_trains(optimiser, head)
    if not isinstance(optimiser, torch.optim.SGD | torch.optim.Adam) and has_state(optimiser, head):
        raise TypeError(
            f"the state of {type(optimiser).__name__} cannot be carried over: only that of SGD, Adam and AdamW can. "
            "Grow without optimiser= and build a new one."
        )


def has_state(optimiser: torch.optim.Optimizer, head: Head) -> bool:
    """Return whether the optimiser remembers something of the head.

    >>> from maxsep import MaxSeparationHead
    >>> head = MaxSeparationHead(4, 3)
    >>> has_state(torch.optim.Adam(head.parameters()), head)
    False
    """
    if isinstance(optimiser, torch.optim.LBFGS):  # what it knows of all parameters it keeps under its first one
        return bool(optimiser.state)
    return any(optimiser.state.get(parameter) for parameter in head.parameters())


def check_trains(optimiser: torch.optim.Optimizer, head: Head) -> None:
    """Raise unless the optimiser trains the head.

    >>> from maxsep import MaxSeparationHead
    >>> head = MaxSeparationHead(4, 3)
    >>> check_trains(torch.optim.SGD(head.parameters(), lr=0.1), head)
    """
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise TypeError(f"optimiser must be a torch.optim.Optimizer, got {type(optimiser).__name__}.")
    parameters = list(head.parameters())
    held = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    if parameters and not any(id(parameter) in held for parameter in parameters):
        raise ValueError(
            f"this {type(optimiser).__name__} trains no parameter of {head}, so it has nothing to carry over. "
            "Pass the optimiser that was built after maxsep.attach, or leave it out."
        )


def replace_parameter(optimiser: torch.optim.Optimizer, old: Tensor, new: nn.Parameter) -> bool:
    """Let an optimiser train a parameter in place of another; return whether it trained that one."""
    for group in optimiser.param_groups:
        for index, parameter in enumerate(group["params"]):
            if parameter is old:
                group["params"][index] = new
                return True
    return False


def _mapped(
    key: str,
    value: Tensor | None,
    added: int,
    rows: Callable[[Tensor, int], Tensor],
    squares: Callable[[Tensor, int], Tensor],
    new: Tensor,
) -> Tensor | None:
    if value is None or not isinstance(value, Tensor) or key not in LINEAR + SQUARED:
        return value  # the step count
    mapped = (rows if key in LINEAR else squares)(value, added)
    assert mapped.shape == new.shape
    return mapped


def _pad_with_mean(rows: Tensor, more: int) -> Tensor:
    return torch.cat([rows, rows.mean(0, keepdim=True).expand(more, *rows.shape[1:])])
