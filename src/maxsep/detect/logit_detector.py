"""A score of the logits as a detector over a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from maxsep.detect.detector import Detector
from maxsep.detect.evaluating import logits_of


class LogitDetector(Detector):
    """Score inputs by a function of their logits: `max_softmax`, `max_logit`, `energy`, or one's own.

    s(x) = function(f(x)). There is nothing to learn, so `fit` returns at once. Options are those of the function and
    are checked when it is called. `max_logit` and `energy` see a common shift of the logits, in which a plain head
    differs from a maximum-separation head: compare such heads with `centre=True`.

    Args:
        model: Maps inputs (B, ...) to logits (B, C), or to an object that holds them as `.logits`.
        function: Maps logits (B, C) to scores (B,), higher = more in-distribution.
        options: Passed on to the function, such as `temperature=2.0` or `centre=True`.

    >>> import torch
    >>> from maxsep.detect import energy
    >>> detector = LogitDetector(nn.Linear(4, 3), energy, temperature=2.0, centre=True)
    >>> detector.score([torch.randn(8, 4), torch.randn(2, 4)]).shape
    torch.Size([10])
    """

    def __init__(
        self, model: nn.Module | Callable[[Tensor], Any], function: Callable[..., Tensor], **options: Any
    ) -> None:
        super().__init__(model)
        if not callable(function):
            raise TypeError(
                f"function must map logits (B, C) to scores (B,), got {type(function).__name__} {function!r}. "
                "Pass maxsep.detect.energy, for example."
            )
        self.function, self.options = function, options

    def score_batch(self, x: Tensor) -> Tensor:
        """Score inputs (B, ...) by their logits: (B,)."""
        return self.function(logits_of(self.model, x), **self.options)
