"""The Mahalanobis detector: distance to the nearest class mean under one shared covariance (Lee et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from maxsep.checks import check_floating
from maxsep.detect.class_moments import ClassMoments
from maxsep.detect.evaluating import evaluating
from maxsep.detect.perturbation import step_direction
from maxsep.detect.precision import check_positive, precise

MAGNITUDES = (0.0, 0.01, 0.005, 0.002, 0.0014, 0.001, 0.0005)
"""Steps of the input that the energy benchmark tries; choose one on validation outsiders and report 0 as well."""

_ROWS = 4096  # rows compared with all class means at once: bounds the memory of a score, not its value


class Mahalanobis:
    """Score features by the closeness of the nearest class.

    g_c(h) = -(h - mu_c)^T pinv(Sigma) (h - mu_c) / 2 and score = max_c g_c, with the class means mu_c and the tied
    covariance Sigma = sum_i (h_i - mu_{y_i})(h_i - mu_{y_i})^T / N of the training features, in float64 and in one
    pass over batches. The pseudo-inverse ignores directions in which no class varies, however far a sample lies out.

    >>> h = torch.tensor([[0.0, 1.0], [0.0, -1.0], [9.0, 1.0], [9.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> detector = Mahalanobis().fit(h, torch.tensor([0, 0, 1, 1, 0, 0]))
    >>> detector.score(torch.tensor([[0.0, 1.0], [0.0, 2.0]])).round(decimals=4).tolist()
    [-0.75, -3.0]

    The features of a data loader need not fit in memory:

    >>> network, loader = torch.nn.Linear(4, 2), [(torch.randn(8, 4), torch.arange(8) % 2) for _ in range(3)]
    >>> Mahalanobis().fit((network(x), y) for x, y in loader).score(network(torch.randn(5, 4))).shape
    torch.Size([5])
    """

    def __init__(self) -> None:
        self._moments = ClassMoments()
        self._white: Tensor | None = None  # (D, R), its product with itself is the precision

    def fit(self, features: Tensor | Iterable[tuple[Tensor, Tensor]], labels: Tensor | None = None) -> Mahalanobis:
        """Estimate means and covariance anew.

        Args:
            features: (N, D), or an iterable of (features, labels) batches, then without `labels`.
            labels: (N,) whole numbers; only classes that occur have a mean.

        Returns:
            The detector itself.
        """
        self._moments, self._white = ClassMoments(), None
        if isinstance(features, Tensor):
            if labels is None:
                raise TypeError("fit takes features with labels, or one iterable of (features, labels) batches.")
            return self.partial_fit(features, labels)
        if labels is not None:
            raise TypeError("labels were given beside an iterable; let the iterable yield (features, labels) batches.")
        for batch_features, batch_labels in features:
            self.partial_fit(batch_features, batch_labels)
        if not self._moments.count:
            raise ValueError("fit was given no batches. Pass an iterable that yields (features, labels).")
        return self

    def partial_fit(self, features: Tensor, labels: Tensor) -> Mahalanobis:
        """Add one batch, features (B, D) and labels (B,), to the estimate; returns the detector itself."""
        self._moments.add(features, labels)
        self._white = None
        return self

    @property
    def classes(self) -> Tensor:
        """The labels that were seen, in increasing order."""
        return self._moments.classes

    @property
    def means(self) -> Tensor:
        """The class means (C, D), in the order of `classes`."""
        return self._moments.means

    @property
    def covariance(self) -> Tensor:
        """The tied covariance (D, D), divided by the number of samples."""
        return self._moments.scatter / max(self._moments.count, 1)

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """Score features (N, D); returns (N,) in float64, at most 0, higher = more in-distribution."""
        return torch.cat([self._closeness(rows) for rows in torch.split(self._checked(features), _ROWS)])

    def perturb(
        self, model_features: Callable[[Tensor], Tensor], x: Tensor, magnitude: float, std: Any = None
    ) -> Tensor:
        """Step the inputs towards their nearest class; score the features of the result.

        x' = x - magnitude * sign(d(-max_c g_c)/dx) / std per channel, with sign(0) = +1. The network runs in
        evaluation mode and its parameters receive no gradient.

        Args:
            model_features: Maps inputs (B, ...) to features (B, D), such as `network.features`.
            x: (B, channels, ...) inputs as the network takes them.
            magnitude: Size of the step, 0 or more, see `MAGNITUDES`.
            std: What the images were divided by, one number per channel.

        Returns:
            A tensor like `x`.
        """
        if not check_positive("magnitude", magnitude, zero=True):
            return x
        return x.detach() - magnitude * self._direction(model_features, x, std)

    def sweep(
        self,
        model_features: Callable[[Tensor], Tensor],
        x: Tensor,
        magnitudes: Sequence[float] = MAGNITUDES,
        std: Any = None,
    ) -> dict[float, Tensor]:
        """Score inputs at every magnitude of the step, with one gradient for all; returns {magnitude: (B,) scores}."""
        steps = [check_positive("magnitude", magnitude, zero=True) for magnitude in magnitudes]
        direction = self._direction(model_features, x, std) if any(steps) else None
        with evaluating(model_features), torch.no_grad():
            return {
                step: self.score(model_features(x if direction is None or not step else x - step * direction))
                for step in steps
            }

    def _direction(self, model_features: Callable[[Tensor], Tensor], x: Tensor, std: Any) -> Tensor:
        with evaluating(model_features):
            return step_direction(lambda inputs: -self._closeness(self._checked(model_features(inputs))), x, std)

    def _checked(self, features: Tensor) -> Tensor:
        features = check_floating(features, "features")
        if not self._moments.count:
            raise ValueError("the Mahalanobis detector has no means yet. Call fit(features, labels) first.")
        width = self.means.shape[1]
        if features.ndim != 2 or features.shape[1] != width:
            raise ValueError(
                f"features must be (N, {width}) as in fit, got shape {tuple(features.shape)}. "
                "Pool over space first, and take both from the same layer."
            )
        return precise(features)

    def _closeness(self, features: Tensor) -> Tensor:
        """Return max_c g_c: the nearest class by one product, its distance by differences, free of cancellation."""
        white, means = self._whitening().to(features.device), self.means.to(features.device)
        centre = means.mean(0)
        points, anchors = (features - centre) @ white, (means - centre) @ white
        with torch.no_grad():
            nearest = (points @ anchors.T - anchors.square().sum(1) / 2).argmax(1)
        return -(points - anchors[nearest]).square().sum(1) / 2

    @torch.no_grad()
    def _whitening(self) -> Tensor:
        if self._white is None:
            with torch.inference_mode(False):
                values, vectors = torch.linalg.eigh(self.covariance)
                kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
                if not bool(kept.any()):
                    raise ValueError(
                        f"the {self._moments.count} features do not vary inside their {len(self.classes)} classes, so "
                        "the covariance is zero and no distance is defined. Fit on several samples per class."
                    )
                self._white = vectors[:, kept] / values[kept].sqrt()
        return self._white
