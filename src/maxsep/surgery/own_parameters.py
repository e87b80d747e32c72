"""Heads whose rows are to be changed must own them: nothing computes them, and no other layer uses them as they are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from maxsep.heads import Head
from maxsep.surgery.tree import join

__all__ = ["ROWS", "refuse_computed", "refuse_shared"]

ROWS = ("weight", "bias")
"""The parameters of a head that have a row for every output."""


def refuse_computed(head: nn.Module, done: str) -> None:
    """Raise if something else computes the weight or the bias of a head, which is to be `done`.

    >>> from maxsep import MaxSeparationHead
    >>> refuse_computed(MaxSeparationHead(4, 3), "turned")
    """
    for name in ROWS:
        if name not in head._parameters:
            raise ValueError(
                f"{type(head).__name__} computes its {name} from other parameters (weight or spectral normalisation, "
                f"pruning), which cannot be {done}. Make it a plain parameter first, with "
                "torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils.prune.remove."
            )


def refuse_shared(model: nn.Module, heads: Sequence[Head], done: str) -> None:
    """Raise if a module beside the heads that are to be `done` uses a parameter of theirs.

    >>> from maxsep import MaxSeparationHead
    >>> model = nn.Sequential(MaxSeparationHead(4, 3))
    >>> refuse_shared(model, [model[0]], "turned")
    """
    inside = {module for head in heads for module in head.modules()}
    places = {
        id(parameter): path for path, head in model.named_modules() if head in inside for parameter in head.parameters()
    }
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in places and module not in inside:
                raise ValueError(
                    f"the head at {places[id(parameter)]!r} shares a parameter with {join(path, name)!r}, for which it "
                    f"would be wrong once it is {done}. Give the head parameters of its own first."
                )
