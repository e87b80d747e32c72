"""Layers that look like a classifier and must not be replaced."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.utils import parametrize

from maxsep.surgery.tree import submodule

__all__ = ["vet"]


def vet(model: nn.Module, path: str, layer: nn.Linear) -> None:
    """Raise if the layer at a path shares, computes or packs its weight, or gives no class logits.

    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> vet(model, "0", model[0])
    """
    where = f"the classifier at {path!r}" if path else "the layer"
    for wrong, told in _REFUSED:
        if wrong(layer):
            raise ValueError(f"{where}, {layer}, {told}")
    tied = [
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if (parameter is layer.weight or parameter is layer.bias) and name.rpartition(".")[0] != path
    ]
    if tied:
        raise ValueError(
            f"{where} shares its parameters with {', '.join(map(repr, tied))}, and a head of its own would untie them. "
            "Give the classifier parameters of its own first."
        )
    parent = submodule(model, path.rpartition(".")[0])
    after = [child for name, child in parent.named_children()] if isinstance(parent, nn.Sequential) else []
    if layer in after and any(isinstance(child, nn.Sigmoid) for child in after[after.index(layer) :]):
        raise ValueError(
            f"{where} is followed by a Sigmoid: one decision per output, where a common shift of the logits means "
            "something. Maximum separation is for one label out of C; keep this head as it is."
        )


_REFUSED: tuple[tuple[Callable[[nn.Linear], bool], str], ...] = (
    (
        lambda layer: isinstance(layer, nn.LazyLinear),
        "has not seen an input yet. Run one batch through the model first.",
    ),
    (
        lambda layer: parametrize.is_parametrized(layer) or not isinstance(layer.weight, nn.Parameter),
        "computes its weight from other parameters (weight or spectral normalisation), which a head would drop. "
        "Remove that first, for example with torch.nn.utils.parametrize.remove_parametrizations.",
    ),
    (
        lambda layer: (
            layer.weight.shape != (layer.out_features, layer.in_features) or not layer.weight.is_floating_point()
        ),
        "keeps a packed or quantised weight. Load the model in floating point first.",
    ),
    (
        lambda layer: layer.out_features == 1,
        "has one output, which is a regression or a yes-or-no score, not class logits. "
        "Maximum separation needs at least 2 classes; give the model a layer with one output per class first.",
    ),
)
