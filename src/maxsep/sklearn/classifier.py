"""The estimator: a small network that ends in a head, trained by Adam, or by SGD as in docs/theory.md."""

import copy
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
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from maxsep import heads
from maxsep.checks import check_count
from maxsep.detect import energy
from maxsep.sklearn.training import (
    BLOCK,
    OPTIMISERS,
    EarlyStopping,
    Samples,
    Training,
    as_tensor,
    pick_device,
    weigh,
)
from maxsep.surgery import fold

INPUT: dict[str, Any] = {"dtype": (np.float64, np.float32), "order": "C", "accept_sparse": "csr"}
NO_RADIUS = ("plain", "extra_layer")
RATES = {"adam": 2e-3, "sgd": 0.1}
LEAST_FALL = 1e-3  # parts of the first epoch's loss: a smaller fall is reported, and so is a loss that is still
HIGH, FALLING = 1 / 3, 0.01  # high and has fallen by this much in the last tenth of the epochs
SLOWER, LONGER = "try a smaller learning rate or radius", "try more epochs or another learning rate"
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

    logits = head(hidden layers((x - mean) / scale)), trained on the mean loss of mini-batches.

    Args:
        hidden_layer_sizes: Widths of the hidden layers, each followed by a rectifier; () is a linear classifier, 64
            means (64,).
        radius: Scale of the logits. With SGD it also sets the speed of the last layer: search it, as 0.1, 0.3, 1, 3.
        head: A name of `maxsep.heads.names()`, such as `maxsep`, its control `control`, or `plain`; that and
            `extra_layer` ignore the radius. `etf` gets a rotation, and needs a hidden layer wide enough for rectified
            features to reach all classes.
        loss: `cross_entropy`, or `logit_adjusted` for imbalanced data: cross-entropy of logits + log(class priors).
            Probabilities are then those of equally frequent classes.
        class_weight: {label: weight}, or `balanced`, not with `logit_adjusted`; times the sample weights.
        max_epochs: Passes over the data.
        batch_size: Samples in a step; `auto` is min(200, n). The batches of an epoch differ by one sample at most.
        optimiser: `adam` or `sgd`.
        learning_rate: Constant; `auto` is 0.002 for Adam and 0.1 for SGD.
        momentum: Momentum of SGD.
        weight_decay: Factor of the parameters that are added to their gradients.
        early_stopping: Hold a part of every class out, stop when its loss has not fallen for `patience` epochs, and
            keep the best epoch. Every class needs two samples or more.
        validation_fraction, patience: Options of early stopping.
        device: Where to train: `cpu`, `cuda`, ..., or `auto` for an accelerator if the machine has one. The fitted
            network is on the CPU.
        warm_start: Whether a further `fit` continues the last one.
        random_state: Seed, generator or None, as everywhere in scikit-learn. Pitfall: fits in several threads at once
            share torch's generator, which is left as it was, while they build their networks.
        verbose: Whether to print the loss of every epoch.

    Attributes:
        classes_: The labels, sorted; column j of logits and probabilities is classes_[j].
        module_: The network, in evaluation mode: raw features (n, n_features_in_) to logits (n, C).
        n_features_in_, n_iter_: Number of features and of epochs done.
        loss_curve_: Mean training loss of every epoch, each batch measured before its step.
        validation_curve_: Loss of the held-out part after every epoch; None without early stopping.

    float32 features are computed in float32, all others in float64. A sample of weight 0 is left out. Sparse X gives
    the results of dense X; only mini-batches become dense. A ConvergenceWarning says that the training loss grew,
    hardly fell, is high and still falling, or became NaN; then the weights are those from before.

    Pitfall: at another radius another learning rate is best. Compare with head="control" at the same radius before
    crediting the matrix.

    >>> from sklearn.datasets import load_iris
    >>> classifier = MaxSeparationClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    >>> round(classifier.score(*load_iris(return_X_y=True)), 1)
    1.0
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", COUNT],
        "radius": [POSITIVE],
        "head": [str],
        "loss": [StrOptions({"cross_entropy", "logit_adjusted"})],
        "class_weight": [StrOptions({"balanced"}), Mapping, None],
        "max_epochs": [COUNT],
        "batch_size": [StrOptions({"auto"}), COUNT],
        "optimiser": [StrOptions(set(OPTIMISERS))],
        "learning_rate": [StrOptions({"auto"}), POSITIVE],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "patience": [COUNT],
        "device": [str, torch.device],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["boolean"],
    }
    classes_: NDArray[Any]
    n_iter_: int
    loss_curve_: list[float]
    validation_curve_: list[float] | None
    _moments: dict[str, dict[int, dict[str, Any]]]

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = (100,),
        *,
        radius: float = 1.0,
        head: str = "maxsep",
        loss: str = "cross_entropy",
        class_weight: Mapping[Any, float] | str | None = None,
        max_epochs: int = 100,
        batch_size: int | str = "auto",
        optimiser: str = "adam",
        learning_rate: float | str = "auto",
        momentum: float = 0.9,
        weight_decay: float = 3e-3,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        device: str | torch.device = "cpu",
        warm_start: bool = False,
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
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a network on samples X (n, features), labels y (n,) and their weights, if any."""
        self._validate_params()
        is_first = not (self.warm_start and hasattr(self, "module_"))
        X, y = validate_data(self, X, y, reset=is_first, **INPUT)
        check_classification_targets(y)
        classes, index = np.unique(y, return_inverse=True)
        if not is_first and not np.array_equal(classes, self.classes_):
            raise ValueError(f"y must have the classes {self.classes_.tolist()} to go on, got {classes.tolist()}")
        self.classes_ = classes
        samples, total = weigh(X, index, self.classes_, self.class_weight, sample_weight)
        if self.loss == "logit_adjusted" and self.class_weight == "balanced":
            raise ValueError("class_weight must not be 'balanced' with loss='logit_adjusted': each corrects the priors")
        if samples.target.bincount().count_nonzero() < 2:
            raise ValueError("y must have at least 2 classes of positive weight, got one class")
        seed = self._seed()
        validation = None
        if self.early_stopping:
            samples, validation = samples.hold_out(self.validation_fraction, seed)
        if is_first:
            self._start(samples, seed)
        before = self.n_iter_ if self.loss_curve_ else 0
        problem = self._train(samples, self._shift(total), self.max_epochs, validation)
        self._warn(problem or self._doubt(self.n_iter_ - before == self.max_epochs))
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
        X, y = validate_data(self, X, y, reset=is_first, **INPUT)
        check_classification_targets(y)
        _check_partial_fit_first_call(self, classes)
        if len(self.classes_) < 2:
            raise ValueError(f"classes must name at least 2 classes, got {self.classes_.tolist()}")
        if unknown := np.setdiff1d(y, self.classes_).tolist():
            raise ValueError(f"y must hold labels of the classes {self.classes_.tolist()}, got {unknown}")
        index = np.searchsorted(self.classes_, y)
        samples, total = weigh(X, index, self.classes_, self.class_weight, sample_weight)
        if is_first:
            if not (samples.x != samples.rows(torch.zeros_like(samples.target)).x).sum():
                text = "the first call of partial_fit fixes the scale of the features, and its samples are all alike"
                warnings.warn(text, stacklevel=2)
            self._start(samples, self._seed())
        self._warn(self._train(samples, self._shift(total), 1))
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
        X = validate_data(self, X, reset=False, **INPUT)
        like = next(self.module_.buffers())
        step = max(1, BLOCK // X.shape[1])  # samples that are predicted together, which bounds memory
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            parts = (as_tensor(X[row : row + step]) for row in range(0, X.shape[0], step))
            return torch.cat([self.module_(part.to(like)).to(torch.float64) for part in parts])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _structure(self) -> dict[str, Any]:
        sizes: Any = self.hidden_layer_sizes
        sizes = [sizes] if isinstance(sizes, Integral) else sizes
        widths = [check_count("hidden_layer_sizes", width) for width in sizes]
        return {"hidden_layer_sizes": widths, "radius": float(self.radius), "head": self.head}

    @torch.inference_mode(False)
    def _start(self, data: Samples, seed: int) -> None:
        """Build the network on the CPU, with features standardised by the weighted mean and scale of the data."""
        options: dict[str, Any] = {"device": "cpu", "dtype": torch.float64}  # one start for every precision
        self._built = self._structure()
        widths = [self.n_features_in_, *self._built["hidden_layer_sizes"]]
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for before, after in pairwise(widths):
                layers += [nn.Linear(before, after, **options), nn.ReLU()]
            options |= HEAD_OPTIONS.get(self.head, {})
            radius = 1.0 if self.head in NO_RADIUS else float(self.radius)  # a grid of heads and radii has all pairs
            head = heads.build(self.head, widths[-1], len(self.classes_), radius, **options)
        if not any(True for _ in head.parameters()):
            self._check_fixed(head, widths[-1] if layers else 0)
        standardise = data.standardisation()
        like = torch.empty(0, dtype=torch.float32) if pick_device(self.device).type == "mps" else as_tensor(data.x[:1])
        self.module_ = nn.Sequential(standardise, *layers, head).to(like.dtype).eval()  # Apple's GPUs have no float64
        self.loss_curve_, self.validation_curve_, self._moments = [], None, {}
        self._generator_state = torch.Generator("cpu").manual_seed(seed).get_state()

    def _check_fixed(self, head: heads.Head, width: int) -> None:
        """Refuse a head without parameters whose classes the last hidden layer cannot reach."""
        # a class that is the largest logit of some feature can be reached with features of at least 0
        if not width or len(set(head.linear_form()[0].argmax(0).tolist())) < len(self.classes_):
            needs = f"needs a wider last hidden layer for {len(self.classes_)} classes, got {width or 'none'}"
            raise ValueError(f"head={self.head!r} trains nothing itself and {needs}")

    @torch.inference_mode(False)
    def _train(self, data: Samples, shift: Tensor, epochs: int, validation: Samples | None = None) -> str:
        """Train `module_` for some epochs, from where it was; return what went wrong, or ""."""
        if changed := [name for name, value in self._structure().items() if value != self._built[name]]:
            raise ValueError(f"{changed[0]} must be {self._built[changed[0]]}, as in the first fit, to go on from it")
        device = pick_device(self.device)
        self.module_.to(device)
        generator = torch.Generator("cpu")
        generator.set_state(self._generator_state)
        with torch.autocast("cpu", enabled=False), torch.autocast(device.type, enabled=False):
            training = self._training(shift, generator)
            data = training.prepare(data)
            held = None if validation is None else training.prepare(validation)
            stopping = EarlyStopping(training.network, self.patience)
            before: list[dict[str, Any]] = []
            problem = ""
            for _ in range(epochs):
                before = [*before[-1:], copy.deepcopy(training.network.state_dict())]
                loss = training.epoch(data)
                if not math.isfinite(loss):
                    training.network.load_state_dict(before[0])  # the last that had a finite loss
                    problem = f"the training loss became {loss}: {SLOWER}"
                    break
                self.loss_curve_.append(loss)
                is_over = held is not None and stopping.should_stop(training.validate(held))
                if self.verbose:
                    held_out = f", validation loss {stopping.curve[-1]:.4f}" if stopping.curve else ""
                    print(f"epoch {len(self.loss_curve_)}: loss {self.loss_curve_[-1]:.4f}{held_out}")
                if is_over:
                    break
        if held is not None:
            stopping.restore()
            self.validation_curve_ = [*(self.validation_curve_ or ()), *stopping.curve]
        self.n_iter_ = len(self.loss_curve_)
        self.module_.eval().cpu()
        self._moments, self._generator_state = {self.optimiser: training.state()}, generator.get_state()
        return problem

    def _training(self, shift: Tensor, generator: torch.Generator) -> Training:
        options = {
            "lr": float(RATES[self.optimiser] if self.learning_rate == "auto" else self.learning_rate),
            "weight_decay": float(self.weight_decay),
        }
        if self.optimiser == "sgd":
            options["momentum"] = float(self.momentum)
        batch_size = 200 if self.batch_size == "auto" else int(self.batch_size)
        moments = self._moments.get(self.optimiser, {})
        shift = shift.to(next(self.module_.buffers()))
        return Training(self.module_, shift, batch_size, generator, self.optimiser, options, moments)

    def _shift(self, total: Tensor) -> Tensor:
        """Return what training adds to the logits, (C,): the log-priors of classes with these weights, or zeros."""
        if self.loss != "logit_adjusted":
            return torch.zeros_like(total)
        if not total.all():
            missing = self.classes_[int(total.argmin())].item()
            raise ValueError(f"loss='logit_adjusted' needs a positive weight for every class, got none of {missing!r}")
        return (total / total.sum()).log()

    def _doubt(self, used_all_epochs: bool) -> str:
        """Say that the training loss did not fall, or that it is high and still falling; else ""."""
        curve = self.loss_curve_
        first, last, tenth = curve[0], curve[-1], math.ceil(len(curve) / 10)
        if len(curve) > 1 and last > (1 - LEAST_FALL) * first:
            return f"the training loss went from {first:.4g} to {last:.4g}: {SLOWER if last > first else LONGER}"
        is_falling = len(curve) > tenth and curve[-1 - tenth] - last > FALLING * first
        if used_all_epochs and is_falling and last > HIGH * first:
            return f"the training loss is still falling, {first:.4g} to {last:.4g} in {len(curve)} epochs: {LONGER}"
        return ""

    def _warn(self, problem: str) -> None:
        options = f"optimiser={self.optimiser!r}, learning_rate={self.learning_rate!r}, radius={self.radius}"
        if problem:
            warnings.warn(f"{problem} ({options})", ConvergenceWarning, stacklevel=3)
