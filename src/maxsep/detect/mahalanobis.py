"""The Mahalanobis detector: distance to the nearest class mean under one shared covariance.

Reference: K. Lee, K. Lee, H. Lee and J. Shin. A simple unified framework for detecting out-of-distribution samples and
adversarial attacks. NeurIPS 2018.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from maxsep.checks import check_floating, check_number, check_samples
from maxsep.detect.detectors import Detector, batches, device_of, evaluation_mode, step_direction
from maxsep.detect.scores import to_float64

MAGNITUDES = (0.0, 0.01, 0.005, 0.002, 0.0014, 0.001, 0.0005)
"""Input steps of the energy benchmark (Liu et al. 2020); choose one on validation OOD data and report 0 as well."""

_ROWS = 4096  # rows compared with all class means at once: bounds memory


class Mahalanobis:
    """Score features by the distance to the nearest class mean.

    score(h) = max_c -(h - mu_c)^T pinv(Sigma) (h - mu_c) / 2 with the class means mu_c and the shared covariance
    Sigma = sum_i (h_i - mu_{y_i})(h_i - mu_{y_i})^T / N of the training features, in float64. Batches are streamed:
    features need not fit in memory. The pseudo-inverse ignores directions in which no class varies, however far a
    sample lies out.

    `classes` (C,) are the labels that occurred, in increasing order, and `means` (C, D) their class means.

    >>> h = torch.tensor([[0.0, 1.0], [0.0, -1.0], [9.0, 1.0], [9.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> detector = Mahalanobis().fit(h, torch.tensor([0, 0, 1, 1, 0, 0]))
    >>> detector.score(torch.tensor([[0.0, 1.0], [0.0, 2.0]])).round(decimals=4).tolist()
    [-0.75, -3.0]
    """

    def __init__(self) -> None:
        self._clear()

    def fit(self, features: Tensor | Iterable[tuple[Tensor, Tensor]], labels: Tensor | None = None) -> Self:
        """Estimate means and covariance from features (N, D) and labels (N,), or from batches of both, anew."""
        if not isinstance(features, Tensor) and labels is None:
            pairs = features
        elif isinstance(features, Tensor) and labels is not None:
            pairs = [(features, labels)]
        else:
            raise TypeError("fit takes features with labels, or an iterable of (features, labels) batches alone")
        self._clear()
        for x, y in pairs:
            self.partial_fit(x, y)
        if not self._count:
            raise ValueError("fit needs at least one sample, got none")
        return self

    @torch.no_grad()
    def partial_fit(self, features: Tensor, labels: Tensor) -> Self:
        """Add a batch, features (B, D) and labels (B,), to the estimate; return the detector itself."""
        self._check_batch(features, labels)
        if len(features):
            with torch.inference_mode(False):  # the estimate must serve gradients later
                x = to_float64(features)
                self._merge(x, labels.to(device=x.device, dtype=torch.int64))
        return self

    @property
    def covariance(self) -> Tensor:
        """The shared covariance (D, D), divided by the number of samples."""
        return self._scatter / max(self._count, 1)

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """Score features (N, D): (N,) in float64, at most 0, higher = more in-distribution."""
        return torch.cat([self._closeness(rows) for rows in torch.split(self._checked(features), _ROWS)])

    def sweep(
        self,
        model_features: Callable[[Tensor], Tensor],
        x: Tensor,
        magnitudes: Sequence[float] = MAGNITUDES,
        std: Any = None,
    ) -> dict[float, Tensor]:
        """Score inputs x (B, channels, ...) after steps towards their nearest class: {magnitude: (B,) scores}.

        A step is x - magnitude * sign(-d score / dx) / std; one gradient serves all. model_features maps inputs to
        features (B, D), such as `network.features`; its network runs in evaluation mode.
        """
        steps = [check_number("magnitude", magnitude, "a number >= 0") for magnitude in magnitudes]
        direction = x.new_zeros(())
        with evaluation_mode(model_features), torch.no_grad():
            if any(steps):
                direction = step_direction(lambda x: -self._closeness(self._checked(model_features(x))), x, std)
            return {step: self.score(model_features(x - step * direction if step else x)) for step in steps}

    def _clear(self) -> None:
        self.classes = torch.zeros(0, dtype=torch.int64)
        self.means = torch.zeros(0, 0, dtype=torch.float64)
        self._counts = torch.zeros(0, dtype=torch.float64)
        self._scatter = torch.zeros(0, 0, dtype=torch.float64)
        self._count = 0
        self._whitening: Tensor | None = None  # (D, R); times its transpose it is pinv(covariance)

    def _check_batch(self, features: Tensor, labels: Tensor) -> None:
        check_samples("features", features, labels, least=0)
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(f"labels must be integers, got dtype {labels.dtype}")
        if self._count and features.shape[1] != self.means.shape[1]:
            raise ValueError(f"features must be (N, {self.means.shape[1]}) as before, got {tuple(features.shape)}")
        if not features.isfinite().all():
            raise ValueError("features must be finite, got NaN or infinite values")

    def _merge(self, x: Tensor, labels: Tensor) -> None:
        """Merge a batch by its means; sums of squares would lose digits far from the origin."""
        width = x.shape[1]
        if not self._count:
            self.means, self._scatter = x.new_zeros(0, width), x.new_zeros(width, width)
        classes, index = torch.unique(torch.cat([self.classes.to(x.device), labels]), return_inverse=True)
        old, rows = index[: len(self.classes)], index[len(self.classes) :]
        counts = x.new_zeros(len(classes)).index_copy_(0, old, self._counts.to(x.device))
        means = x.new_zeros(len(classes), width).index_copy_(0, old, self.means.to(x.device))

        added = torch.bincount(rows, minlength=len(classes)).to(x.dtype)
        origin = x.mean(0)  # sums of differences from it keep their digits
        sums = torch.zeros_like(means).index_add_(0, rows, x - origin)
        batch_means = origin + sums / added.clamp_min(1)[:, None]
        within = x - batch_means[rows]
        total = counts + added
        common = (counts > 0) & (added > 0)  # classes of both sides
        shift = (batch_means - means)[common]
        weight = (counts * added / total)[common, None]

        self._scatter = self._scatter.to(x.device) + within.T @ within + (shift * weight).T @ shift
        self.means = torch.where(counts[:, None] > 0, means, batch_means)
        self.means[common] += shift * (added / total)[common, None]
        self.classes, self._counts = classes, total
        self._count += len(x)
        self._whitening = None

    def _checked(self, features: Tensor) -> Tensor:
        check_floating(features, "features")
        if not self._count:
            raise ValueError("this Mahalanobis is not fitted; call fit(features, labels) first")
        width = self.means.shape[1]
        if features.ndim != 2 or features.shape[1] != width:
            raise ValueError(f"features must be (N, {width}) as in fit, got shape {tuple(features.shape)}")
        return to_float64(features)

    def _closeness(self, features: Tensor) -> Tensor:
        """Find the nearest class by one product and its distance by differences, which do not cancel."""
        whitening, means = self._whiten().to(features.device), self.means.to(features.device)
        centre = means.mean(0)
        points, anchors = (features - centre) @ whitening, (means - centre) @ whitening
        with torch.no_grad():
            nearest = (points @ anchors.T - anchors.square().sum(1) / 2).argmax(1)
        return -(points - anchors[nearest]).square().sum(1) / 2

    @torch.no_grad()
    def _whiten(self) -> Tensor:
        if self._whitening is None:
            with torch.inference_mode(False):
                values, vectors = torch.linalg.eigh(self.covariance)
                kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]  # as torch.linalg.matrix_rank
                if not kept.any():
                    raise ValueError("features must vary inside at least one class, got zero covariance")
                self._whitening = vectors[:, kept] / values[kept].sqrt()
        return self._whitening


class MahalanobisDetector(Detector):
    """Score the inputs of a model by the Mahalanobis distance of their features, with an optional input step.

    Fit on training data with the transforms of testing. Choose the magnitude with `sweep`, on OOD data that you do
    not report: the best step for one kind of outliers may harm with another.

    The model has a method `features` that maps inputs (B, ...) to (B, D); magnitude and std are as in `ODIN`.

    >>> from maxsep import MaxSeparationHead
    >>> network = MaxSeparationHead(4, 3)  # the smallest network with features
    >>> loader = [(torch.randn(12, 4), torch.arange(12) % 3) for _ in range(2)]
    >>> MahalanobisDetector(network).fit(loader).score(loader).shape
    torch.Size([24])
    """

    model: Any  # a module with a method `features`

    def __init__(self, model: nn.Module, magnitude: float = 0.0, std: Any = None) -> None:
        super().__init__(model)
        # a submodule of this name, a stack of convolutions in some libraries, gives no feature vectors
        if isinstance(features := getattr(model, "features", None), nn.Module) or not callable(features):
            raise TypeError(f"the model must have a method `features`, got {type(model).__name__} without one")
        self.magnitude = check_number("magnitude", magnitude, "a number >= 0")
        self.std = std
        self._distances: Mahalanobis | None = None

    @property
    def distances(self) -> Mahalanobis:
        """The fitted `Mahalanobis`."""
        if self._distances is None:
            raise ValueError("this MahalanobisDetector is not fitted; call fit(loader) first")
        return self._distances

    def fit(self, loader: Iterable[Any]) -> Self:
        """Estimate class means and covariance from batches (inputs, labels, ...) in one pass; return the detector."""
        with evaluation_mode(self.model), torch.no_grad():
            self._distances = Mahalanobis().fit(self._labelled_features(loader))
        return self

    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) after their step: (B,)."""
        return self.distances.sweep(self.model.features, x, [self.magnitude], self.std)[self.magnitude]

    @torch.no_grad()
    def sweep(self, data: Tensor | Iterable[Any], magnitudes: Sequence[float] = MAGNITUDES) -> dict[float, Tensor]:
        """Score data, as for `score`, at each magnitude >= 0 with one gradient per batch: {magnitude: (N,) scores}."""
        with evaluation_mode(self.model):
            rows = [self.distances.sweep(self.model.features, x, magnitudes, self.std) for x in self._inputs(data)]
        return {magnitude: torch.cat([row[magnitude] for row in rows]).cpu() for magnitude in rows[0]}

    def _labelled_features(self, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in batches(loader, device_of(self.model)):
            if labels is None:
                raise ValueError("fit needs batches (inputs, labels), got one without labels")
            yield self.model.features(inputs), labels
