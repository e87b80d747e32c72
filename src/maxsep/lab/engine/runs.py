"""Finished runs: read them, rebuild their model, evaluate it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from maxsep.analysis import angular_fisher_score
from maxsep.lab.data import Dataset, Splits, prepare
from maxsep.lab.engine.calibration import with_rejected
from maxsep.lab.engine.evaluation import measure, predict
from maxsep.lab.engine.losses import last_loss
from maxsep.lab.engine.model import Pipeline, build_model
from maxsep.lab.networks import Network
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec


def load_model(folder: str | Path) -> tuple[Network, RunSpec]:
    """Rebuild a finished run's network with its trained weights, on the CPU and in evaluation mode.

    The network takes images normalised with `Run(folder).preprocessing`.
    """
    run = Run(folder)
    classes, (channels, height, width) = len(run.preprocessing["classes"]), run.preprocessing["shape"]
    weights = run.weights()
    with torch.random.fork_rng(devices=[]):
        network = build_model(run.spec, (channels, height, width), classes)
    network.load_state_dict(weights)
    network.eval()
    return network, run.spec


def load_pipeline(folder: str | Path, device: torch.device | str = "cpu") -> Pipeline:
    """Rebuild a finished run's network behind the normalisation that it has recorded, in full precision, to evaluate.

    It takes uint8 images, and nothing of it is trained.
    """
    told = Run(folder).preprocessing
    network, _ = load_model(folder)
    pipeline = Pipeline(network.float(), torch.tensor(told["mean"]), torch.tensor(told["std"])).to(device).eval()
    return pipeline.requires_grad_(False)


def evaluate(
    folder: str | Path, data_root: str | Path | None = None, *, device: str = "cpu", dataset: str | None = None
) -> dict[str, Any]:
    """Evaluate a finished run's weights on its test data again, in full precision.

    What belongs to the weights, the normalisation and the training images of every class that the loss may go by, is
    what the run has recorded: a folder's training images may have changed since.

    Args:
        folder: The run's folder.
        data_root: Folder of the datasets; by default $MAXSEP_DATA.
        device: Where to compute.
        dataset: The run's data, if their folder has moved; by default `spec.dataset`.

    Returns:
        `top1`, `top5`, `loss`, `ece`, `softmax_scale`, `balanced`, `per_class` and `angular_fisher`; and `unknown`: the
        run's thresholds with the part of the test images that each of them rejects, None for a run without thresholds.
    """
    run = Run(folder)
    pipeline, spec, told = load_pipeline(folder, device), run.spec, run.preprocessing
    data = prepare(moved(spec, dataset, data_root, told["shape"]), data_root)
    check_classes(data, told["classes"], told["shape"], folder, "Evaluate it on the data that it was trained on.")
    outputs = predict(pipeline, data.test.to(device, images=False))
    loss = last_loss(spec, run.metrics["class_counts"])
    if isinstance(loss, torch.nn.Module):
        loss = loss.to(device)
    metrics = measure(outputs, loss, spec.softmax_scale)
    metrics["angular_fisher"] = angular_fisher_score(outputs.features, outputs.labels)
    return metrics | {"unknown": with_rejected(run.unknown, outputs.logits)}


def moved(spec: RunSpec, dataset: str | None, data_root: str | Path | None, shape: Sequence[int]) -> RunSpec:
    """Return the spec with another name of its dataset, for images of the run's size; None keeps the name."""
    if dataset is None:
        return spec
    return spec.replace(dataset=Dataset.find(dataset, data_root).with_default_size(shape[1]).name)


def check_classes(data: Splits, classes: Sequence[str], shape: Sequence[int], source: str | Path, advice: str) -> None:
    """Raise if data have other classes, or images of another shape, than a model was trained on.

    Args:
        data: What the model is to be tested on.
        classes: The model's, in the order of its logits.
        shape: (channels, height, width) of its images.
        source: Where the model lies.
        advice: What to do, a sentence.
    """
    for what, ours, theirs in (("classes", classes, data.test.classes), ("images", shape, data.test.shape)):
        if list(ours) != list(theirs):
            told, wanted = (
                _few(items) if what == "classes" else " x ".join(map(str, items)) for items in (theirs, ours)
            )
            raise ValueError(f"{data.name} has other {what} than {source}: {told}, not {wanted}. {advice}")


def _few(names: Sequence[Any]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
