"""An exported model's numbers on the test images of the run that it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from maxsep.lab.data import Dataset, Splits, prepare
from maxsep.lab.engine.calibration import with_rejected
from maxsep.lab.engine.evaluation import Outputs, batch_of, measure
from maxsep.lab.engine.losses import last_loss
from maxsep.lab.engine.runs import check_classes
from maxsep.lab.serving.classifier import Classifier


def export_data(classifier: Classifier, root: str | Path | None = None, dataset: str | None = None) -> Splits:
    """Load the data that an exported model was trained and tested on: its description says which, not where they lie.

    Args:
        classifier: From `open_classifier`.
        root: Folder of the datasets; by default $MAXSEP_DATA.
        dataset: What to take instead of the dataset that the description names: a folder that was moved, for instance.

    Raises:
        FileNotFoundError: The data are not there.
        ValueError: They have other classes than the model.
    """
    spec, (_, height, _) = classifier.spec, classifier.shape
    if dataset is not None:
        spec = spec.replace(dataset=Dataset.find(dataset, root).with_default_size(height).name, data_order="")
    try:
        data = prepare(spec, root)
    except FileNotFoundError as error:
        if not Dataset.parse(spec.dataset).is_own:
            raise
        raise FileNotFoundError(
            f"{classifier.source} was trained on {spec.dataset}, and its numbers are those of the test images there: "
            f"{error} Say with --dataset where it is now."
        ) from error
    advice = "Name the data that the model was trained on with --dataset."
    check_classes(data, classifier.labels, classifier.shape, classifier.source, advice)
    return data


def evaluate_export(classifier: Classifier, data: Splits) -> dict[str, Any]:
    """Evaluate an exported model on the test images of its data, as `evaluate` does a run, without its features.

    A loss that goes by the training images of every class takes those that the export tells; one of before they were
    told takes those of `data`.

    Returns:
        `top1`, `top5`, `loss`, `ece`, `softmax_scale`, `balanced`, `per_class` and `unknown`.
    """
    logits = torch.cat([classifier.logits(batch) for batch in data.test.batches(batch_of(data.test.shape))])
    loss = last_loss(classifier.spec, classifier.class_counts or data.train.class_counts)
    metrics = measure(Outputs(logits, logits, data.test.labels), loss, classifier.spec.softmax_scale)
    return metrics | {"unknown": with_rejected(classifier.unknown, logits)}
