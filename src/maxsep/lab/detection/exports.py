"""Detection with an exported model, which gives logits and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.lab.data import ImageSet, Splits
from maxsep.lab.detection.judge import Wish, full_precision, judge
from maxsep.lab.detection.measures import logit_scores
from maxsep.lab.engine.evaluation import batch_of
from maxsep.lab.serving import Classifier


def detect_export(
    classifier: Classifier,
    data: Splits,
    wish: Wish,
    *,
    data_root: str | Path | None = None,
    tell: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Measure how well an exported model tells the test images of its run from outliers, as `detect` does for a run.

    Args:
        classifier: From `open_classifier`.
        data: From `export_data`.
        wish: What to measure, without Mahalanobis and ODIN: these need the run.
        data_root: Folder of the datasets; by default $MAXSEP_DATA.
        tell: Called with what is done next, and with how many images.
    """
    if wish.mahalanobis or wish.odin:
        raise ValueError(
            f"{classifier.source} gives logits, not the features or gradients that Mahalanobis and ODIN need. "
            "Leave both out, or ask the run it was exported from."
        )

    def scorer(images: ImageSet) -> tuple[dict[str, Tensor], dict[float, Tensor], Tensor]:
        logits = torch.cat([classifier.logits(batch) for batch in images.batches(batch_of(images.shape))])
        return logit_scores(logits, classifier.spec.softmax_scale), {}, logits

    with full_precision():
        return judge(classifier.spec, scorer, data, wish, data_root, tell)
