"""The estimator: a small network that ends in a head, trained by SGD, as the theorem in docs/theory.md assumes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from maxsep import heads
from maxsep.checks import check_count
from maxsep.detect import energy
from maxsep.sklearn.training import EarlyStopping, Samples, Training, hold_out, standardisation, weigh
from maxsep.surgery import fold

PREDICT_ROWS = 65_536  # samples that are predicted together, which bounds memory
FLOATS = (np.float64, np.float32)
# rectified features reach few vertices of an unrotated simplex
HEAD_OPTIONS: dict[str, dict[str, Any]] = {"etf": {"rotation": 0}}
POSITIVE = Interval(Real, 0, None, closed="neither")
COUNT = Interval(Integral, 1, None, closed="left")


def _takes_parts(estimator: Any) -> bool:
    """Return whether no parameter needs all samples at once."""
    if estimator.class_weight == "balanced" or estimator.loss == "logit_adjusted" or estimator.early_stopping:
        raise AttributeError("partial_fit takes no class_weight='balanced', loss='logit_adjusted' or early stopping")
    return True


class MaxSeparationClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A small network with maximum class separation, as a scikit-learn classifier.

    logits = head(hidden layers((x - mean) / scale)), trained by SGD on the mean loss of mini-batches.

    Args:
        hidden_layer_sizes: Widths of the hidden layers, each followed by a rectifier; () is a linear classifier.
        radius: Scale of the logits. With SGD it also sets the speed of the last layer: search it, as 0.1, 0.3, 1, 3.
        head: A name of `maxsep.heads.names()`, such as `maxsep`, its control `control`, or `plain` (radius 1 only).
            `etf` gets a rotation, and needs a hidden layer wide enough for rectified features to reach all classes.
        loss: `cross_entropy`, or `logit_adjusted` for imbalanced data: cross-entropy of logits + log(class priors).
            Probabilities are then those of equally frequent classes.
        class_weight: {label: weight} or `balanced`, times the sample weights; not with `logit_adjusted`.
        max_epochs: Passes over the data.
        batch_size: Samples in a step; `auto` is 200, or all of fewer. The parts of an epoch differ by one at most.
        learning_rate, momentum, weight_decay: Of SGD, constant and for all parameters.
        early_stopping: Hold a part of every class out, stop when its loss has not fallen for `patience` epochs, and
            keep the best epoch. Every class needs two samples or more.
        validation_fraction, patience: Of early stopping.
        device: Of training: `cpu`, `cuda`, ..., or `auto` for an accelerator if there is one. The fitted network is
            on the CPU.
        random_state: Seed, generator or None, as everywhere in scikit-learn. Pitfall: fits in several threads at once
            share torch's generator, which is left as it was, while they build their networks.
        verbose: Whether to print the loss of every epoch.

    Attributes:
        classes_: The labels, sorted; column j of logits and probabilities is classes_[j].
        module_: The network, in evaluation mode: raw features (n, n_features_in_) to logits (n, C).
        n_features_in_, n_iter_: Number of features and of epochs done.
        loss_curve_: Mean training loss of every epoch, each batch measured before its step.
        validation_curve_: Loss of the held-out part after every epoch; None without early stopping.

    float32 features are computed in float32, all others in float64. A sample of weight 0 is left out.

    Pitfall: at another radius another learning rate is best. Compare with head="control" at the same radius before
    crediting the matrix.

    >>> from sklearn.datasets import load_iris
    >>> classifier = MaxSeparationClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    >>> round(classifier.score(*load_iris(return_X_y=True)), 1)
    1.0
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like"],
        "radius": [POSITIVE],
        "head": [str],
        "loss": [StrOptions({"cross_entropy", "logit_adjusted"})],
        "class_weight": [StrOptions({"balanced"}), Mapping, None],
        "max_epochs": [COUNT],
        "batch_size": [StrOptions({"auto"}), COUNT],
        "learning_rate": [POSITIVE],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "patience": [COUNT],
        "device": [str, torch.device],
        "random_state": ["random_state"],
        "verbose": ["boolean"],
    }
    loss_curve_: list[float]
    validation_curve_: list[float] | None
    _momentum: dict[int, dict[str, Any]]

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
        self._validate_params()
        X, y = validate_data(self, X, y, dtype=FLOATS, order="C")
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        samples, total = weigh(X, index, self.classes_, self.class_weight, sample_weight)
        if samples.target.bincount().count_nonzero() < 2:
            raise ValueError("y must have at least 2 classes of positive weight, got one class")
        seed = self._seed()
        validation = None
        if self.early_stopping:
            samples, validation = hold_out(samples, self.validation_fraction, seed)
        self._start(samples, seed)
        self._train(samples, self._shift(total), self.max_epochs, validation)
        return self

    @available_if(_takes_parts)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these samples; the first call must name all classes.

        Not available with `balanced`, `logit_adjusted` and early stopping, which need all samples at once. Momentum is
        kept between calls. Pitfall: the first call fixes mean and scale of the features, so pass some hundred typical
        samples in it.
        """
        self._validate_params()
        is_first = not hasattr(self, "module_")
        X, y = validate_data(self, X, y, reset=is_first, dtype=FLOATS, order="C")
        check_classification_targets(y)
        _check_partial_fit_first_call(self, classes)
        if len(self.classes_) < 2:
            raise ValueError(f"classes must name at least 2 classes, got {self.classes_.tolist()}")
        if unknown := np.setdiff1d(y, self.classes_).tolist():
            raise ValueError(f"y must hold labels of the classes {self.classes_.tolist()}, got {unknown}")
        index = np.searchsorted(self.classes_, y)
        samples, total = weigh(X, index, self.classes_, self.class_weight, sample_weight)
        if is_first:
            if bool((samples.x == samples.x[0]).all()):
                text = "the first call of partial_fit fixes the scale of the features, and its samples are all alike"
                warnings.warn(text, stacklevel=2)
            self._start(samples, self._seed())
        self._train(samples, self._shift(total), 1)
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
        return self._logits(X).softmax(1).numpy()

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return log softmax(logits), (n, C)."""
        return self._logits(X).log_softmax(1).numpy()

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return log sum exp(logits), the negative energy, (n,): higher is more like the training data.

        Pitfall: it sees what lies between the classes, not what lies far beyond them, where logits grow with distance.
        """
        return energy(self._logits(X)).numpy()

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
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            parts = (torch.tensor(X[row : row + PREDICT_ROWS], device="cpu") for row in range(0, len(X), PREDICT_ROWS))
            return torch.cat([self.module_(part.to(like)).to(torch.float64) for part in parts])

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        return torch.device(self.device)

    @torch.inference_mode(False)
    def _start(self, data: Samples, seed: int) -> None:
        """Build the network on the CPU, with features standardised by the weighted mean and scale of the data."""
        options: dict[str, Any] = {"device": "cpu", "dtype": torch.float64}  # one start for every precision
        widths = [self.n_features_in_, *(check_count("hidden_layer_sizes", width) for width in self.hidden_layer_sizes)]
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for before, after in pairwise(widths):
                layers += [nn.Linear(before, after, **options), nn.ReLU()]
            options |= HEAD_OPTIONS.get(self.head, {})
            head = heads.build(self.head, widths[-1], len(self.classes_), float(self.radius), **options)
        if not any(True for _ in head.parameters()):
            self._check_fixed(head)
        dtype = torch.float32 if self._device().type == "mps" else data.x.dtype  # Apple's GPUs have no float64
        self.module_ = nn.Sequential(standardisation(data), *layers, head).to(dtype).eval()
        self.loss_curve_, self.validation_curve_, self._momentum = [], None, {}
        self._generator_state = torch.Generator("cpu").manual_seed(seed).get_state()

    def _check_fixed(self, head: heads.Head) -> None:
        """Refuse a head without parameters whose classes the last hidden layer cannot reach."""
        width = self.hidden_layer_sizes[-1] if len(self.hidden_layer_sizes) else 0
        # a class that is the largest logit of some feature can be reached with features of at least 0
        if not width or len(set(head.linear_form()[0].argmax(0).tolist())) < len(self.classes_):
            needs = f"needs a wider last hidden layer for {len(self.classes_)} classes, got {width} features"
            raise ValueError(f"head={self.head!r} trains nothing itself and {needs}")

    @torch.inference_mode(False)
    def _train(self, data: Samples, shift: Tensor, epochs: int, validation: Samples | None = None) -> None:
        """Train `module_` for some epochs; curve, momentum and generator go on from where they were."""
        device = self._device()
        self.module_.to(device)
        standardise, network = self.module_[0], self.module_[1:]
        with torch.autocast("cpu", enabled=False), torch.autocast(device.type, enabled=False):
            data = data.standardised(standardise)
            held = None if validation is None else validation.standardised(standardise)
            generator = torch.Generator("cpu")
            generator.set_state(self._generator_state)
            batch_size = 200 if self.batch_size == "auto" else int(self.batch_size)
            options = {
                "lr": float(self.learning_rate),
                "momentum": float(self.momentum),
                "weight_decay": float(self.weight_decay),
            }
            training = Training(network, shift.to(data.x), batch_size, generator, options, self._momentum)
            stopping = EarlyStopping(network, self.patience)
            for _ in range(epochs):
                self.loss_curve_.append(self._finite(training.epoch(data)))
                is_over = held is not None and stopping.should_stop(self._finite(training.validate(held)))
                if self.verbose:
                    held_out = f", validation loss {stopping.curve[-1]:.4f}" if stopping.curve else ""
                    print(f"epoch {len(self.loss_curve_)}: loss {self.loss_curve_[-1]:.4f}{held_out}")
                if is_over:
                    break
        if held is not None:
            stopping.restore()
            self.validation_curve_ = stopping.curve
        self.n_iter_ = len(self.loss_curve_)
        self.module_.eval().cpu()
        self._momentum, self._generator_state = training.state(), generator.get_state()

    def _shift(self, total: Tensor) -> Tensor:
        """Return what training adds to the logits, (C,): the log-priors of classes with these weights, or zeros."""
        if self.loss != "logit_adjusted":
            return torch.zeros_like(total)
        if not total.all():
            missing = self.classes_[int(total.argmin())].item()
            raise ValueError(f"loss='logit_adjusted' needs a positive weight for every class, got none of {missing!r}")
        return (total / total.sum()).log()

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            options = f"learning_rate={self.learning_rate}, radius={self.radius}"
            raise ValueError(f"training diverged: the loss is {loss} at {options}")
        return loss
