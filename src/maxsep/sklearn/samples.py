"""From arrays of users to samples in memory: class indices, weights, what is held out, how features are scaled."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor, nn

__all__ = [
    "Samples",
    "agree_on_classes",
    "check_several",
    "check_spread",
    "class_positions",
    "hold_out",
    "standardisation",
    "weigh",
]


class Samples(NamedTuple):
    """Features (n, D), class indices (n,) and weights (n,), which have mean 1 over all that were given."""

    x: Tensor
    target: Tensor
    weight: Tensor

    def standardised(self, standardise: nn.Module) -> Samples:
        """Return the samples behind the network's first layer, on its device and in its precision.

        That layer is not trained, so it is applied once.
        """
        like = next(standardise.buffers())
        x = self.x.to(like)
        with torch.no_grad():
            return Samples(standardise(x), self.target.to(x.device), self.weight.to(x))


def standardisation(samples: Samples) -> nn.BatchNorm1d:
    """Return (x - mean) / scale as a layer, of the weighted mean and variance, in float64 and evaluation mode.

    A feature that does not vary is only centred.

    >>> x = torch.tensor([[0.0, 5.0], [2.0, 5.0]])
    >>> standardisation(Samples(x, torch.tensor([0, 1]), torch.ones(2)))(x.double())
    tensor([[-1.,  0.],
            [ 1.,  0.]], dtype=torch.float64)
    """
    x, weight = samples.x.double(), samples.weight.double()[:, None]
    mean = (weight * x).sum(0) / weight.sum()
    variance = (weight * (x - mean).square()).sum(0) / weight.sum()
    rounding = (10 * torch.finfo(x.dtype).eps * x.abs().amax(0)).square()
    least = torch.finfo(x.dtype).tiny  # some versions of torch refuse zero, which this is beside any variance
    layer = nn.BatchNorm1d(x.shape[1], eps=least, affine=False, device="cpu", dtype=x.dtype).eval()
    layer.get_buffer("running_mean").copy_(mean)
    layer.get_buffer("running_var").copy_(torch.where(variance > rounding, variance, 1))
    return layer


def weigh(
    X: NDArray[Any],
    index: NDArray[Any],
    classes: NDArray[Any],
    class_weight: Mapping[Any, float] | str | None = None,
    sample_weight: Any = None,
) -> tuple[Samples, Tensor]:
    """Return the samples that have a weight, and the sample weights of every class together, (C,).

    A sample's weight is its own times that of its class, `balanced` being total / (C total_c), over their mean.

    >>> X, index = np.array([[1.0], [2.0], [3.0]]), np.array([0, 0, 1])
    >>> samples, total = weigh(X, index, np.array(["a", "b"]), "balanced")
    >>> samples.weight.tolist(), total.tolist()
    ([0.75, 0.75, 1.5], [2.0, 1.0])
    """
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    total = np.bincount(index, weight, len(classes))
    if isinstance(class_weight, str):
        per_class = total.sum() / (len(total) * np.where(total > 0, total, 1))
    else:
        per_class = compute_class_weight(class_weight, classes=classes, y=classes[index])
    weight = weight * per_class[index]
    kept = weight > 0
    if not kept.any():
        raise ValueError(
            "every weight, sample_weight times class_weight, is zero: there is nothing to learn from. "
            "Give some samples a positive weight."
        )
    weight = weight / weight[kept].mean()
    samples = Samples(*(torch.tensor(values[kept], device="cpu") for values in (X, index, weight)))
    return samples, torch.tensor(total, device="cpu")


def check_several(count: int) -> None:
    """Raise unless there are two classes or more to tell apart.

    >>> check_several(2)
    """
    if count < 2:
        raise ValueError(
            "a classifier needs samples of at least 2 classes with a positive weight, got one class. "
            "Check y and the weights; for one-class problems use a detector."
        )


def check_spread(samples: Samples) -> None:
    """Warn if samples that shall tell the scale of the features are all alike, such as a single one.

    >>> check_spread(Samples(torch.eye(2), torch.tensor([0, 1]), torch.ones(2)))
    """
    if bool((samples.x == samples.x[0]).all()):
        count = len(samples.x)
        told = "has one sample" if count == 1 else f"has {count} samples that are all alike"
        warnings.warn(
            f"the first call of partial_fit fixes mean and scale of the features, and it {told}: features are centred "
            "on it and not scaled. Pass some hundred typical samples in the first call, or scale X beforehand, as "
            "StandardScaler does.",
            stacklevel=3,
        )


def agree_on_classes(named: Any, known: NDArray[Any] | None) -> NDArray[Any]:
    """Return the classes of all calls of partial_fit: named in the first, and in others the same or None.

    >>> agree_on_classes(["b", "a"], None)
    array(['a', 'b'], dtype='<U1')
    """
    if known is None:
        if named is None:
            raise ValueError(
                "the first call of partial_fit must name all classes, got classes=None. "
                "Pass classes=np.unique(y) of all labels that will come."
            )
        known = np.unique(named)
        check_several(len(known))
    elif named is not None and not np.array_equal(np.unique(named), known):
        raise ValueError(
            f"classes must be those of the first call, {known.tolist()}, got {np.unique(named).tolist()}. "
            "Leave them out, or train a clone for other classes."
        )
    return known


def class_positions(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[Any]:
    """Return the class index of every label.

    >>> class_positions(np.array(["b", "a"]), np.array(["a", "b", "c"]))
    array([1, 0])
    """
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(
            f"y must hold labels among the classes {classes.tolist()}, got {unknown.tolist()} too. "
            "Name all classes in the first call of partial_fit."
        )
    return np.searchsorted(classes, y)


def hold_out(samples: Samples, fraction: float, generator: torch.Generator) -> tuple[Samples, Samples]:
    """Split a fraction off at random, of every class its share; a class keeps at least one sample.

    Parts of samples go to the classes with the largest ones, so that something is held out of many small classes too.

    >>> samples = Samples(torch.zeros(9, 1), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2]), torch.ones(9))
    >>> hold_out(samples, 0.5, torch.Generator())[1].target
    tensor([0, 0, 0, 1])
    """
    target, number = samples.target, len(samples.target)
    counts = target.bincount()
    share = fraction * counts.double()
    taken = share.long().minimum((counts - 1).clamp(min=0))
    part = torch.where(taken < counts - 1, share - taken, -1)
    largest = part.argsort(descending=True, stable=True)[: max(1, round(fraction * number)) - int(taken.sum())]
    taken[largest] += part[largest] >= 0
    order = torch.randperm(number, generator=generator, device="cpu")
    grouped = order[target[order].argsort(stable=True)]  # class after class, each in a random order
    place = torch.arange(number, device="cpu") - (counts.cumsum(0) - counts)[target[grouped]]
    held = torch.zeros(number, dtype=torch.bool, device="cpu")
    held[grouped] = place < taken[target[grouped]]
    if not held.any():
        raise ValueError(
            f"no sample of {number} can be held out: every class has one, which it needs for training. "
            "Leave early_stopping off."
        )
    kept, others = (Samples(*(values[rows] for values in samples)) for rows in (~held, held))
    return kept, others
