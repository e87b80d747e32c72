"""The Mahalanobis detector over a model: fitted on a data loader, with a step of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from maxsep.detect.detector import Detector
from maxsep.detect.evaluating import device_of, evaluating
from maxsep.detect.mahalanobis import MAGNITUDES, Mahalanobis
from maxsep.detect.precision import check_positive
from maxsep.detect.reading import Reader, batches


class MahalanobisDetector(Detector):
    """Score inputs by the closeness of their features to the nearest class of the training data.

    s(x) = max_c -(h(x') - mu_c)^T pinv(Sigma) (h(x') - mu_c) / 2 with the features h, and the input stepped towards its
    nearest class, x' = x - magnitude * sign(-d s / dx) / std. `Mahalanobis` does this for features that are at hand.
    Fit on training data as in testing, without augmentation. Choose the magnitude with `sweep`, on outsiders that you
    do not report: the best step for one kind of outsiders may harm with another.

    Args:
        model: Has a method `features` that maps inputs (B, ...) to (B, D), as for `collect`.
        magnitude: Size of the step, 0 or more, see `MAGNITUDES`; 0 leaves the inputs alone and needs no gradient.
        std: What the images were divided by, one number per channel, see `step_direction`.

    Attributes:
        distances: The fitted `Mahalanobis`, with `classes`, `means` and `covariance`.

    >>> from maxsep import MaxSeparationHead
    >>> network = MaxSeparationHead(4, 3)  # the smallest network with features
    >>> loader = [(torch.randn(12, 4), torch.arange(12) % 3) for _ in range(2)]
    >>> MahalanobisDetector(network).fit(loader).score(loader).shape
    torch.Size([24])
    """

    def __init__(self, model: nn.Module, magnitude: float = 0.0, std: Any = None) -> None:
        super().__init__(model)
        self._reader = Reader(model)
        if not self._reader.has_features:
            raise TypeError(
                f"the model must have a method `features` that gives (B, D), got {type(model).__name__} without one "
                "(a submodule of that name does not count). Wrap it in a module that has, or use Mahalanobis on "
                "features."
            )
        self.magnitude = check_positive("magnitude", magnitude, zero=True)
        self.std = std
        self._distances: Mahalanobis | None = None

    @property
    def distances(self) -> Mahalanobis:
        """The fitted detector of features."""
        if self._distances is None:
            raise ValueError(
                "this MahalanobisDetector is not fitted. Call fit(loader) with training batches (inputs, labels) first."
            )
        return self._distances

    def fit(self, loader: Iterable[Any]) -> Self:
        """Estimate class means and covariance anew, in one pass; returns the detector itself.

        Args:
            loader: Yields (inputs, labels, ...) with labels (B,) of whole numbers.
        """
        if isinstance(loader, Tensor):
            raise TypeError("fit takes a loader of (inputs, labels) batches, got a tensor. Pass [(inputs, labels)].")
        with evaluating(self.model), torch.no_grad():
            self._distances = Mahalanobis().fit(self._labelled(loader))
        return self

    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) after their step: (B,)."""
        stepped = self.distances.perturb(self._reader.features, x, self.magnitude, self.std)
        return self.distances.score(self._reader.features(stepped))

    @torch.no_grad()
    def sweep(self, data: Tensor | Iterable[Any], magnitudes: Sequence[float] = MAGNITUDES) -> dict[float, Tensor]:
        """Score at every magnitude of the step in one pass over the data, with one gradient for all of them.

        Args:
            data: As `score` takes it.
            magnitudes: Sizes to try, each 0 or more; that of the detector plays no part.

        Returns:
            {magnitude: (N,) scores in float64 on the CPU}.
        """
        if len(magnitudes) == 0:
            raise ValueError("magnitudes is empty. Pass at least one size of the step; 0 is no step.")
        with evaluating(self.model):
            rows = [self.distances.sweep(self._reader.features, x, magnitudes, self.std) for x in self._inputs(data)]
        return {magnitude: torch.cat([row[magnitude] for row in rows]).cpu() for magnitude in rows[0]}

    def _labelled(self, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in batches(loader, device_of(self.model)):
            if labels is None:
                raise ValueError("fit needs labels, and a batch has none. Let the loader yield (inputs, labels).")
            yield self._reader.features(inputs), labels
