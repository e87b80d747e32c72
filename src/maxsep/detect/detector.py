"""What every detector does: fit on a data loader, score inputs or a data loader, give a threshold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from maxsep.detect.evaluating import device_of, evaluating
from maxsep.detect.out_of_distribution import threshold_at_tpr
from maxsep.detect.precision import precise
from maxsep.detect.reading import batches


class Detector(ABC):
    """A model together with a score of its inputs, higher = more in-distribution; one can stand in for another.

    s(x) is whatever `score_batch` makes of a batch, all that a detector of one's own has to define (and `fit`, if it
    learns). The model runs in evaluation mode on its own device, without gradients for its parameters, and is left as
    it was found. Data is streamed: nothing but scores is kept. A plain function is taken as a model too, but neither
    its mode nor its device can be known, so see to both yourself.

    Args:
        model: Maps inputs (B, ...) to logits (B, C), or what the detector asks for.

    >>> class Norm(Detector):
    ...     def score_batch(self, x):
    ...         return self.model(x).norm(dim=1)
    >>> Norm(nn.Identity()).score([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0], [0.0, 2.0]])]).tolist()
    [5.0, 1.0, 2.0]
    """

    def __init__(self, model: nn.Module | Callable[[Tensor], Any]) -> None:
        self.model = model

    @abstractmethod
    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) on the model's device: (B,). `score` calls it in evaluation mode, without gradients."""

    def fit(self, loader: Iterable[Any]) -> Self:
        """Learn from in-distribution training data; a detector that has nothing to learn leaves it unread.

        Args:
            loader: Yields (inputs, labels, ...) with labels (B,) of whole numbers.

        Returns:
            The detector itself.
        """
        return self

    @torch.no_grad()
    def score(self, data: Tensor | Iterable[Any]) -> Tensor:
        """Score inputs, higher = more in-distribution.

        Args:
            data: A tensor of inputs (N, ...), which is one batch (`x.split(256)` makes a loader of it), or a loader
                that yields inputs or (inputs, labels, ...), on any device. One pass is made, so a generator will do.

        Returns:
            (N,) in float64 on the CPU, in the order of the data.
        """
        with evaluating(self.model):
            return torch.cat([self._checked(self.score_batch(x), x) for x in self._inputs(data)]).cpu()

    def threshold(self, data: Tensor | Iterable[Any], tpr: float = 0.95) -> float:
        """Choose the score below which an input is called unknown: that of `threshold_at_tpr` on these data.

        Args:
            data: In-distribution data that was neither trained nor is tested on, as `score` takes it.
            tpr: Fraction to keep, in (0, 1].
        """
        return threshold_at_tpr(self.score(data), tpr)

    def _inputs(self, data: Tensor | Iterable[Any]) -> Iterator[Tensor]:
        loader = [data] if isinstance(data, Tensor) else data
        return (inputs for inputs, _ in batches(loader, device_of(self.model)))

    @staticmethod
    def _checked(scores: Tensor, x: Tensor) -> Tensor:
        if scores.shape != x.shape[:1]:
            raise ValueError(
                f"a batch of inputs {tuple(x.shape)} must have one score for each of its rows, got scores of shape "
                f"{tuple(scores.shape)}. Pass batches (B, ...), a single input as x[None], to a model that answers "
                "with one row for each input."
            )
        return precise(scores)
