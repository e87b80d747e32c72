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
    if _meets_a_sigmoid(model, path):
        raise ValueError(
            f"{where} is followed by a Sigmoid: one decision per output, where a common shift of the logits means "
            "something. Maximum separation is for one label out of C; keep this head as it is."
        )


def _meets_a_sigmoid(model: nn.Module, path: str) -> bool:
    """Whether a Sigmoid is registered after a layer, beside it or beside a part that ends with it."""
    parts = path.split(".") if path else []
    for depth in range(len(parts), 0, -1):
        parent = submodule(model, ".".join(parts[: depth - 1]))
        children = list(parent.named_children()) if parent is not None else []
        names = [name for name, _ in children]
        later = children[names.index(parts[depth - 1]) + 1 :]
        if later:  # the layer is not the last of this part: what follows decides
            return any(isinstance(child, nn.Sigmoid) for _, child in later)
    return False


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
