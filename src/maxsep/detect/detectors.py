"""Detectors: a model with a score of its inputs, higher = more in-distribution."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from maxsep.checks import check_floating, check_number
from maxsep.detect.metrics import threshold_at_tpr
from maxsep.detect.scores import max_softmax, to_float64


class Detector(ABC):
    """Score the inputs of a model; subclasses define `score_batch`, and `fit` if they learn.

    The model runs in evaluation mode, on its device, without gradients for its parameters; afterwards every module
    has its previous mode. Data is streamed and only scores are kept. The model maps inputs (B, ...) to logits (B, C);
    it may be a plain function, whose mode and device are then up to the caller.

    >>> class Norm(Detector):
    ...     def score_batch(self, x):
    ...         return self.model(x).norm(dim=1)
    >>> Norm(nn.Identity()).score([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0], [0.0, 2.0]])]).tolist()
    [5.0, 1.0, 2.0]
    """

    def __init__(self, model: Callable[[Tensor], Any]) -> None:
        self.model = model

    @abstractmethod
    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) on the model's device: (B,). `score` calls it in evaluation mode under no_grad."""

    def fit(self, loader: Iterable[Any]) -> Self:
        """Learn from in-distribution training batches (inputs, labels, ...); by default there is nothing to learn."""
        return self

    @torch.no_grad()
    def score(self, data: Tensor | Iterable[Any]) -> Tensor:
        """Score inputs, higher = more in-distribution: (N,) in float64 on the CPU, in the order of the data.

        data is one batch (N, ...), or a loader that yields inputs or (inputs, labels, ...) on any device.
        """
        with evaluation_mode(self.model):
            return torch.cat([self._checked(self.score_batch(x), x) for x in self._inputs(data)]).cpu()

    def threshold(self, data: Tensor | Iterable[Any], tpr: float = 0.95) -> float:
        """Return the score below which an input counts as unknown, see `threshold_at_tpr`; data is as for `score`."""
        return threshold_at_tpr(self.score(data), tpr)

    def _inputs(self, data: Tensor | Iterable[Any]) -> Iterator[Tensor]:
        loader = [data] if isinstance(data, Tensor) else data
        return (inputs for inputs, _ in batches(loader, device_of(self.model)))

    @staticmethod
    def _checked(scores: Tensor, x: Tensor) -> Tensor:
        if scores.shape != x.shape[:1]:
            raise ValueError(f"the scores of inputs {tuple(x.shape)} must be (B,), got shape {tuple(scores.shape)}")
        return to_float64(scores)


class LogitDetector(Detector):
    """Score inputs by a function of their logits, such as `max_softmax`, `max_logit` or `energy`.

    The model maps inputs (B, ...) to logits (B, C) or to an object with `.logits`; `function` maps logits and `options`
    to scores (B,).

    Pitfall: compare a plain head with a maximum-separation head at `centre=True`, see `max_logit`.

    >>> from maxsep.detect import energy
    >>> detector = LogitDetector(nn.Linear(4, 3), energy, temperature=2.0, centre=True)
    >>> detector.score([torch.randn(8, 4), torch.randn(2, 4)]).shape
    torch.Size([10])
    """

    def __init__(self, model: Callable[[Tensor], Any], function: Callable[..., Tensor], **options: Any) -> None:
        super().__init__(model)
        self.function, self.options = function, options

    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) by their logits: (B,)."""
        return self.function(logits_of(self.model, x), **self.options)


class ODIN(Detector):
    """Score inputs by the softmax at a high temperature after a step towards the predicted class.

    x' = x - magnitude * sign(-d log S / dx) / std and score = max_c softmax(f(x') / T)_c, where S is the largest
    softmax probability at x and temperature T (S. Liang, Y. Li and R. Srikant. Enhancing the reliability of
    out-of-distribution image detection in neural networks. ICLR 2018).

    Args:
        model, temperature: As of `LogitDetector`, and T > 0.
        magnitude: Size of the step; 0 leaves the inputs unchanged. The published 0.0014 was chosen on validation
            OOD data: choose it on data that you do not report.
        std: Per-channel std of the input normalisation, so that the step has the same size in every channel of the
            image before normalisation.

    >>> ODIN(nn.Linear(2, 2), temperature=1000, magnitude=0.01).score(torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        temperature: float = 1000.0,
        magnitude: float = 0.0014,
        std: Any = None,
    ) -> None:
        super().__init__(model)
        self.temperature = check_number("temperature", temperature, "a positive number")
        self.magnitude = check_number("magnitude", magnitude, "a number >= 0")
        self.std = std

    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) after their step: (B,)."""
        if self.magnitude:
            x = x - self.magnitude * step_direction(self._objective, x, self.std)
        return max_softmax(to_float64(logits_of(self.model, x)) / self.temperature)

    def _objective(self, x: Tensor) -> Tensor:
        logits = to_float64(logits_of(self.model, x))
        # times T: the same signs, and the gradient does not underflow in a half-precision network
        return -self.temperature * (logits / self.temperature).log_softmax(-1).amax(-1)


def step_direction(objective: Callable[[Tensor], Tensor], x: Tensor, std: Any = None) -> Tensor:
    """Return sign(d objective / dx) / std per channel of x (B, channels, ...), with sign(0) = +1 as published."""
    x = check_floating(x, "x")
    with torch.inference_mode(False), torch.enable_grad():  # inference mode of the caller would forbid gradients
        leaf = x.detach().clone().requires_grad_()
        total = objective(leaf).sum()
        if not total.requires_grad:
            raise ValueError("the score must be differentiable in x (no no_grad, detach or numpy); or use magnitude 0")
        (gradient,) = torch.autograd.grad(total, leaf)
    if gradient.isnan().any():
        raise ValueError("the gradient of the score in x contains NaN")
    sign = torch.where(gradient >= 0, 1.0, -1.0).to(x.dtype)
    return sign if std is None else sign / _per_channel(std, x)


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Put a module, or the module of a bound method, into evaluation mode; then restore the mode of each part."""
    modes = [(part, part.training) for part in _module_of(model).modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def device_of(model: Any) -> torch.device | None:
    """Return the device of a module's first parameter, or None if there is none."""
    return next((parameter.device for parameter in _module_of(model).parameters()), None)


def batches(loader: Iterable[Any], device: torch.device | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the inputs of each batch on the device, with its labels or None."""
    empty = True
    for batch in loader:
        parts = batch if isinstance(batch, tuple | list) else (batch,)
        if not parts or not all(isinstance(part, Tensor) for part in parts[:2]):
            types = ", ".join(type(part).__name__ for part in parts)
            raise TypeError(f"a batch must be a tensor or (inputs, labels, ...), got {types}")
        yield parts[0] if device is None else parts[0].to(device), parts[1] if len(parts) > 1 else None
        empty = False
    if empty:
        raise ValueError("the loader yields no batches; a generator can be read only once")


def logits_of(model: Any, x: Tensor) -> Tensor:
    """Return the output of a model, or its attribute `logits`, as a tensor."""
    output = model(x)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(f"the model must return logits as a tensor or in `.logits`, got {type(output).__name__}")
    return logits


def _module_of(model: Any) -> nn.Module:
    """Return a module, or that of a bound method; an empty one for other functions."""
    module = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    return module if isinstance(module, nn.Module) else nn.Module()


def _per_channel(std: Any, x: Tensor) -> Tensor:
    values = torch.as_tensor(std, dtype=x.dtype, device=x.device)
    if values.ndim > 1 or (values.ndim == 1 and (x.ndim < 2 or len(values) != x.shape[1])):
        raise ValueError(f"std must be one number per channel of x {tuple(x.shape)}, got shape {tuple(values.shape)}")
    if not (values > 0).all():
        raise ValueError(f"std must be positive, got {values.tolist()}")
    return values if values.ndim == 0 else values.reshape(-1, *[1] * (x.ndim - 2))
