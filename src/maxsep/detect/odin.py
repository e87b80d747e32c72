"""ODIN: temperature and a small step of the input (Liang, Li and Srikant 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from maxsep.detect.detector import Detector
from maxsep.detect.evaluating import logits_of
from maxsep.detect.logit_scores import max_softmax
from maxsep.detect.perturbation import step_direction
from maxsep.detect.precision import check_positive, precise


class ODIN(Detector):
    """Score inputs by the tempered softmax after a step towards the predicted class.

    x' = x - magnitude * sign(-d log S / dx) / std and score = max_c softmax(f(x') / T)_c, where S is the largest
    tempered probability at x. The model runs in evaluation mode and is left as it was found; its parameters receive
    no gradient.

    Args:
        model: Maps inputs (B, ...) to logits (B, C).
        temperature: T above zero; the published 1000 makes the probabilities nearly uniform, and their differences
            those of the logits.
        magnitude: Size of the step; 0 leaves the inputs alone. The published 0.0014 was chosen on a validation set of
            outsiders, so choose it on data that you do not report.
        std: What the images were divided by, per channel, see `step_direction`.

    >>> import torch
    >>> model = nn.Linear(2, 2)
    >>> ODIN(model, temperature=1000, magnitude=0.01).score(torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        model: nn.Module | Callable[[Tensor], Any],
        temperature: float = 1000.0,
        magnitude: float = 0.0014,
        std: Any = None,
    ) -> None:
        super().__init__(model)
        self.temperature = check_positive("temperature", temperature)
        self.magnitude = check_positive("magnitude", magnitude, zero=True)
        self.std = std

    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) after their step: (B,)."""
        if self.magnitude:
            x = x - self.magnitude * step_direction(self._surprise, x, self.std)
        return max_softmax(precise(logits_of(self.model, x)) / self.temperature)

    def _surprise(self, x: Tensor) -> Tensor:
        logits = precise(logits_of(self.model, x))
        # times T: the same signs, and no gradient that underflows on its way through a half-precision network
        return -self.temperature * (logits / self.temperature).log_softmax(-1).amax(-1)
