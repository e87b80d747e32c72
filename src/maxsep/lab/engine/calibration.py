"""The scores below which a trained run says "unknown", set on data that it was neither trained nor tested on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from maxsep.detect import energy, max_logit, max_softmax, threshold_at_tpr
from maxsep.lab.data import ImageSet
from maxsep.lab.engine.evaluation import predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.networks import Network
from maxsep.surgery import fold

SCORES: dict[str, Callable[..., Tensor]] = {"max_logit": max_logit, "max_softmax": max_softmax, "energy": energy}
"""What an image can be judged by: functions of the logits (N, C), higher = more like the training data."""

SCORE = "max_logit"
"""The one used unless another is named. Softmax cancels how large the logits are together, and small logits are what
unfamiliar images give; the energy differs little from the largest logit and cannot be read off the logits."""

TPR = 0.95
"""The part of known images that a threshold lets pass."""


def scores_of(name: str, logits: Tensor, softmax_scale: float = 1.0, **options: bool) -> Tensor:
    """Score logits (N, C): those that go through a softmax or its denominator take softmax_scale * logits.

    The largest logit is one of the model's own outputs, whatever they are multiplied by later. Options are those of the
    score, such as `centre`.

    >>> from torch import tensor
    >>> [round(scores_of(name, tensor([[0.1, 0.0]]), 30.0).item(), 4) for name in SCORES]
    [0.1, 0.9526, 3.0486]
    """
    return SCORES[name](logits if name == "max_logit" else softmax_scale * logits, **options)


def calibrate(
    network: Network, mean: Tensor, std: Tensor, images: ImageSet, softmax_scale: float = 1.0
) -> dict[str, Any]:
    """Set the threshold of every score so that 95 % of these images reach it.

    The network is folded and computes in full precision, as it does in use: a threshold found in bfloat16 would be
    that of another model.

    Args:
        network: The trained network; it is left as it is.
        mean: (C,), on the scale of 0 to 1.
        std: (C,).
        images: In-distribution images, on the network's device, that no other number of the run depends on.
        softmax_scale: `RunSpec.softmax_scale`.

    Returns:
        Plain JSON types: the `score` to use by default, the `tpr`, the number of `images`, the `softmax_scale`, and the
        `thresholds` by score. The fewer the images, the rougher: below 20 the threshold is the lowest score among them.
    """
    plain = cast(Network, fold(network).float())
    logits = predict(Pipeline(plain, mean, std).to(images.labels.device), images).logits
    thresholds = {name: threshold_at_tpr(scores_of(name, logits, softmax_scale), TPR) for name in SCORES}
    told = {"score": SCORE, "tpr": TPR, "images": len(images), "softmax_scale": softmax_scale}
    return told | {"thresholds": thresholds}


def with_rejected(unknown: Mapping[str, Any] | None, logits: Tensor | None) -> dict[str, Any] | None:
    """Add to thresholds what part of images each of them calls unknown, as `rejected`; None stays None.

    Of known images that nobody trained on it is about 1 - `tpr`; if it is much more, these are not like those that set
    the thresholds. A score that is no number is below every threshold.

    Args:
        unknown: What `calibrate` returned, with its scale or, in old records, for bare logits.
        logits: (N, C) of the images; None if they cannot be computed any more, and then `rejected` is None.

    >>> from torch import tensor
    >>> told = with_rejected({"thresholds": {"max_logit": 2.0}}, tensor([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]]))
    >>> round(told["rejected"]["max_logit"], 4)
    0.3333
    """
    if unknown is None:
        return None
    if logits is None:
        return {**unknown, "rejected": None}
    scores = {name: scores_of(name, logits, float(unknown.get("softmax_scale", 1.0))) for name in unknown["thresholds"]}
    kept = {name: int((scores[name] >= limit).sum()) for name, limit in unknown["thresholds"].items()}
    return {**unknown, "rejected": {name: 1 - count / len(logits) for name, count in kept.items()}}


def check_score(name: str) -> None:
    """Raise if there is no score of this name.

    >>> check_score("entropy")
    Traceback (most recent call last):
        ...
    ValueError: unknown score 'entropy'. Known: max_logit, max_softmax, energy.
    """
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}. Known: {', '.join(SCORES)}.")
