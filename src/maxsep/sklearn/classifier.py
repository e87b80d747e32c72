"""The estimator: a small network and a head of the registry, trained by SGD.

The network standardises the features, applies hidden layers with rectifiers and ends in the head. It is SGD because
that is what the twin theorem is about (docs/theory.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from maxsep import heads
from maxsep.detect import energy
from maxsep.sklearn.parameters import check_parameters, check_partial, find_device
from maxsep.sklearn.samples import (
    Samples,
    agree_on_classes,
    check_several,
    check_spread,
    class_positions,
    hold_out,
    standardisation,
    weigh,
)
from maxsep.sklearn.training import Best, DrawnFrom, Training, own_modes
from maxsep.surgery import fold

__all__ = ["MaxSeparationClassifier"]

ROWS_AT_ONCE = 65_536
"""Samples that are predicted together: the hidden layers of millions would not fit in memory."""

FLOATS = (np.float64, np.float32)
SGD_OPTIONS = {"lr": "learning_rate", "momentum": "momentum", "weight_decay": "weight_decay"}


class MaxSeparationClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A small network with maximum class separation, as a scikit-learn classifier.

    logits = head(hidden layers((x - mean) / scale)), trained by SGD on the mean loss of mini-batches.

    Args:
        hidden_layer_sizes: Widths of the hidden layers, each followed by a rectifier; () is a linear classifier.
        radius: Scale of the logits. With SGD it also sets the speed of the last layer: search it, as 0.1, 0.3, 1, 3.
        head: A name of `maxsep.heads.names()`: `maxsep`, its control `scaled`, `plain` (radius 1 only), `twin`, ...
        loss: `cross_entropy`, or `logit_adjusted` for imbalanced data: cross-entropy of logits + log(class priors),
            with the priors of y and its sample weights. Probabilities are then those of equally frequent classes.
        class_weight: Weights of the classes, {label: weight}, or `balanced`; they multiply the sample weights.
            `balanced` and `logit_adjusted` together would correct twice.
        max_epochs: Passes over the data.
        batch_size: Samples in a step; `auto` is 200, or all of fewer. The parts of an epoch differ by one at most.
        learning_rate: Of SGD, constant.
        momentum: Of SGD, from 0 to below 1.
        weight_decay: Of SGD, on all parameters.
        early_stopping: Hold a part of every class out, stop when its loss no longer falls, keep the best epoch.
        validation_fraction: The part that early stopping holds out.
        patience: Epochs without a smaller loss after which early stopping stops.
        device: Where it is trained: `cpu`, `cuda`, ..., or `auto` for an accelerator if there is one. The fitted
            network is on the CPU, so that it can be pickled for, and used on, any machine.
        random_state: Seed, generator or None, as everywhere in scikit-learn. Torch's own generator is neither used nor
            moved.
        verbose: Whether to print the loss of every epoch.

    Attributes:
        classes_: The labels, sorted; column j of logits and probabilities is classes_[j].
        module_: The network, in evaluation mode: raw features (n, n_features_in_) to logits (n, C).
        n_features_in_: Number of features; `feature_names_in_` are their names, if X had names.
        n_iter_: Epochs done.
        loss_curve_: Mean training loss of every epoch, each batch measured before its step.
        validation_curve_: Loss of the held-out part after every epoch; None without early stopping.

    float32 features are computed in float32, all others in float64. A weight of 0 is as good as no sample. While one
    batch holds all samples, a weight of 2 is the sample twice; with more batches it is so on average.

    Pitfall: at another radius another learning rate is best. Compare with head="scaled" at the same radius before
    thanking the matrix.

    >>> from sklearn.datasets import load_iris
    >>> classifier = MaxSeparationClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    >>> round(classifier.score(*load_iris(return_X_y=True)), 1)
    1.0
    """

    classes_: NDArray[Any]
    module_: nn.Sequential
    n_features_in_: int
    n_iter_: int
    loss_curve_: list[float]
    validation_curve_: list[float] | None
    _momentum: dict[int, dict[str, Any]]
    _generator_state: Tensor

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (100,),
        *,
        radius: float = 1.0,
        head: str = "maxsep",
        loss: str = "cross_entropy",
        class_weight: Mapping[Any, float] | str | None = None,
        max_epochs: int = 100,
        batch_size: int | str = "auto",
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        device: str | torch.device = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.radius = radius
        self.head = head
        self.loss = loss
        self.class_weight = class_weight
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network on samples X (n, features), labels y (n,) and their weights, if any."""
        check_parameters(self)
        X, y = validate_data(self, X, y, dtype=FLOATS, order="C")
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        generator = self._new_generator()
        with own_modes():
            samples, total = weigh(X, index, self.classes_, self.class_weight, sample_weight)
            check_several(int(samples.target.bincount().count_nonzero()))
            shift = self._shift(total)
            validation = None
            if self.early_stopping:
                samples, validation = hold_out(samples, self.validation_fraction, generator)
            self._start(samples, generator)
            self._train(samples, shift, self.max_epochs, generator, validation)
        return self

    @available_if(check_partial)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these samples; the first call must name all classes.

        It is there unless a parameter needs all samples at once: `balanced`, `logit_adjusted`, early stopping. The
        momentum goes on from call to call. Pitfall: the first call fixes mean and scale of the features, so let its
        samples be typical, some hundred of them; a single one is warned of.
        """
        check_parameters(self)
        is_first = not hasattr(self, "module_")
        X, y = validate_data(self, X, y, reset=is_first, dtype=FLOATS, order="C")
        check_classification_targets(y)
        self.classes_ = agree_on_classes(classes, None if is_first else self.classes_)
        index = class_positions(y, self.classes_)
        generator = self._new_generator()
        with own_modes():
            samples, total = weigh(X, index, self.classes_, self.class_weight, sample_weight)
            if is_first:
                check_spread(samples)
                self._start(samples, generator)
            else:
                generator.set_state(self._generator_state)
            self._train(samples, self._shift(total), 1, generator)
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the logits, (n, C); of two classes the logit of the second minus that of the first, (n,)."""
        logits: NDArray[np.float64] = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label of the largest logit, (n,)."""
        best = self._logits(X).argmax(1).numpy()
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return softmax(logits), (n, C)."""
        probabilities: NDArray[np.float64] = self._logits(X).softmax(1).numpy()
        return probabilities

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return log softmax(logits), (n, C)."""
        log_probabilities: NDArray[np.float64] = self._logits(X).log_softmax(1).numpy()
        return log_probabilities

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return log sum exp(logits), the negative energy, (n,): higher is more like the training data.

        Pitfall: it sees what lies between the classes, not what lies far beyond them, where logits grow with distance.
        `maxsep.detect.threshold_at_tpr` makes a threshold for "unknown" of the scores of held-out samples.
        """
        scores: NDArray[np.float64] = energy(self._logits(X)).numpy()
        return scores

    def fold(self) -> nn.Module:
        """Return plain torch layers with the logits of `module_`: raw features in, one column for each of classes_.

        Pitfall: it computes in the precision of the training data, float64 unless X was float32; `.float()` changes
        that. The standardisation is a BatchNorm1d: leave the module in evaluation mode, as it is returned.
        """
        check_is_fitted(self)
        return fold(self.module_)

    def _logits(self, X: Any) -> Tensor:
        """Return the logits of X, (n, C), in float64 on the CPU: rows of probabilities then sum to 1."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=FLOATS, order="C")
        like = next(self.module_.buffers())
        with own_modes(), torch.no_grad():
            parts = (torch.tensor(X[row : row + ROWS_AT_ONCE], device="cpu") for row in range(0, len(X), ROWS_AT_ONCE))
            return torch.cat([self.module_(part.to(like)).to("cpu", torch.float64) for part in parts])

    def _new_generator(self) -> torch.Generator:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return torch.Generator("cpu").manual_seed(int(seed))

    def _start(self, data: Samples, generator: torch.Generator) -> None:
        """Build the network on the CPU, with features standardised by the weighted mean and variance of the data."""
        options: dict[str, Any] = {"device": "cpu", "dtype": torch.float64}  # one start for every precision
        widths = [self.n_features_in_, *(int(width) for width in self.hidden_layer_sizes)]
        layers: list[nn.Module] = [standardisation(data)]
        with DrawnFrom(generator):
            for before, after in pairwise(widths):
                layers += [nn.Linear(before, after, **options), nn.ReLU()]
            layers.append(heads.build(self.head, widths[-1], len(self.classes_), float(self.radius), **options))
        if not any(True for layer in layers for _ in layer.parameters()):
            raise ValueError(
                f"the head {self.head!r} trains nothing, and neither does hidden_layer_sizes=(). "
                "Give the network a hidden layer, or take the head 'maxsep'."
            )
        on_mps = find_device(self.device).type == "mps"  # Apple's GPUs know no float64
        self.module_ = nn.Sequential(*layers).to(torch.float32 if on_mps else data.x.dtype).eval()
        self.loss_curve_, self.validation_curve_, self._momentum = [], None, {}

    def _train(
        self,
        data: Samples,
        shift: Tensor,
        epochs: int,
        generator: torch.Generator,
        validation: Samples | None = None,
    ) -> None:
        """Train `module_` for some epochs; curve, momentum and generator go on from where they were."""
        self.module_.to(find_device(self.device))
        data = data.standardised(self.module_[0])
        network = self.module_[1:]
        training = Training(
            network,
            shift.to(data.x),
            200 if self.batch_size == "auto" else int(self.batch_size),
            generator,
            {name: float(getattr(self, given)) for name, given in SGD_OPTIONS.items()},
            self._momentum,
        )
        best = Best(network, self.patience)
        held = None if validation is None else validation.standardised(self.module_[0])
        for _ in range(epochs):
            self.loss_curve_.append(self._finite(training.epoch(data)))
            is_over = held is not None and best.is_over_after(self._finite(training.validate(held)))
            self._tell(best.curve)
            if is_over:
                break
        if held is not None:
            best.restore()
            self.validation_curve_ = best.curve
        self.n_iter_ = len(self.loss_curve_)
        self.module_.eval().cpu()
        self._momentum, self._generator_state = training.state(), generator.get_state()

    def _shift(self, total: Tensor) -> Tensor:
        """Return what training adds to the logits, (C,): the log-priors of classes with these weights, or zeros."""
        if self.loss != "logit_adjusted":
            return torch.zeros_like(total)
        if not total.all():
            raise ValueError(
                f"loss='logit_adjusted' needs samples of every class with a positive weight, got none of "
                f"{self.classes_[int(total.argmin())].item()!r}. "
                "Leave the class out of y, or use loss='cross_entropy'."
            )
        return (total / total.sum()).log()

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise ValueError(
                f"training diverged: the loss is {loss} in epoch {len(self.loss_curve_) + 1}, at "
                f"learning_rate={self.learning_rate} and radius={self.radius}. Lower the learning rate, or look for "
                "extreme values in X."
            )
        return loss

    def _tell(self, validation_curve: list[float]) -> None:
        if self.verbose:
            told = f", validation loss {validation_curve[-1]:.4f}" if validation_curve else ""
            print(f"epoch {len(self.loss_curve_)}: loss {self.loss_curve_[-1]:.4f}{told}")
