"""Predict a split, measure it, set thresholds of "unknown", and evaluate finished runs again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from maxsep.analysis import angular_fisher_score, expected_calibration_error
from maxsep.detect import energy, max_logit, max_softmax, threshold_at_tpr
from maxsep.files import replace_file
from maxsep.lab.data import Dataset, ImageSet, Splits, limit, load_outliers, prepare
from maxsep.lab.engine.losses import last_loss
from maxsep.lab.engine.model import Pipeline, build_model
from maxsep.lab.engine.processes import Processes
from maxsep.lab.networks import Network
from maxsep.lab.run import WEIGHTS, Run, RunError
from maxsep.lab.spec import RunSpec
from maxsep.surgery import fold

BATCH = 1000
"""Images of one evaluation batch; fixed, so that results do not depend on the training batch."""
PIXELS = {"cuda": 256 * 224 * 224, "cpu": 256 * 32 * 32}
"""Pixels of an evaluation batch at most. Activations of a few images stay in a CPU's caches: three times as fast."""
SCORES: dict[str, Callable[..., Tensor]] = {"max_logit": max_logit, "max_softmax": max_softmax, "energy": energy}
"""Scores of the logits (N, C): higher is more like the training data."""
SCORE = "max_logit"
"""The default score: softmax cancels how large the logits are together, and unfamiliar images have small logits."""
TPR = 0.95
"""The part of known images that a threshold accepts."""
KEPT = 100
"""Features kept of every known class; four times as many of the unknown ones."""


@dataclass(frozen=True)
class Outputs:
    """Logits (N, C), features (N, D) and labels (N,) of a whole split."""

    logits: Tensor
    features: Tensor
    labels: Tensor


def predict(
    pipeline: Pipeline,
    images: ImageSet,
    precision: AbstractContextManager[Any] | None = None,
    processes: Processes | None = None,
) -> Outputs:
    """Run a pipeline over a split in evaluation mode, in a context such as Fabric's autocast.

    The labels must be on the pipeline's device; the images may lie on the host. Several processes take turns with the
    images and all return the outputs of the whole split, each image once.
    """
    was_training = pipeline.training
    pipeline.eval()
    logits, features = [], []
    with torch.no_grad(), precision or nullcontext():
        side = pipeline.network.image_size
        kind = pipeline.scale.device.type
        size = min(batch_of(images.shape, kind), batch_of((1, side, side), kind))
        for batch in (
            images.batches(size) if processes is None or processes.count == 1 else _share(images, size, processes)
        ):
            outputs = pipeline.outputs(batch)
            logits.append(outputs[0].float())
            features.append(outputs[1].float())
    pipeline.train(was_training)
    parts = torch.cat(logits), torch.cat(features)
    if processes is not None:
        parts = processes.join(parts[0], len(images)), processes.join(parts[1], len(images))
    return Outputs(*parts, images.labels)


def _share(images: ImageSet, size: int, processes: Processes) -> Iterator[Tensor]:
    """Yield this process's share of the images, `size` at a time."""
    for positions in torch.split(processes.share(len(images)), size):
        yield images.batch(positions.to(images.images.device))[0]


def batch_of(shape: tuple[int, int, int], device_type: str) -> int:
    """Return how many images of this shape are evaluated at a time."""
    _, height, width = shape
    pixels = PIXELS.get(device_type, PIXELS["cuda"])
    return min(BATCH, max(1, pixels // max(1, height * width)))


def measure(outputs: Outputs, loss: nn.Module, softmax_scale: float = 1.0) -> dict[str, Any]:
    """Compute the metrics of a split; accuracies are fractions, probabilities softmax(softmax_scale * logits).

    `top5` is top C if there are fewer than five classes, `ece` has 15 bins, `per_class` has None for a class without
    images; `balanced` and `macro_f1` are means over the classes that have images. The loss scales logits itself.
    """
    logits, labels = outputs.logits, outputs.labels
    num_classes = logits.shape[1]
    top = logits.topk(min(5, num_classes), dim=1).indices
    hits = top == labels[:, None]
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    correct = torch.bincount(labels[hits[:, 0]], minlength=num_classes).tolist()
    per_class = [right / count if count else None for right, count in zip(correct, counts, strict=True)]
    present = [accuracy for accuracy in per_class if accuracy is not None]
    predicted = torch.bincount(top[:, 0], minlength=num_classes).tolist()
    f1 = [2 * right / (count + n) for right, count, n in zip(correct, counts, predicted, strict=True) if count]
    return {
        "top1": sum(correct) / len(labels),
        "top5": int(hits.any(dim=1).sum()) / len(labels),
        "loss": loss(logits, labels).item(),
        "ece": expected_calibration_error((softmax_scale * logits).softmax(dim=1), labels),
        "softmax_scale": softmax_scale,
        "balanced": sum(present) / len(present),
        "macro_f1": sum(f1) / len(f1),
        "per_class": per_class,
    }


def known_ece(spec: RunSpec, metrics: Mapping[str, Any]) -> float | None:
    """Return the calibration error of a record; None if it is not that of the probabilities which the loss trains.

    Records without `softmax_scale` are of the bare logits, which is right for every loss but `ldam`.
    """
    ece = metrics.get("ece")
    if metrics.get("softmax_scale", 1.0) != spec.softmax_scale:
        return None
    return float(ece) if isinstance(ece, int | float) and math.isfinite(ece) else None


def scores_of(name: str, logits: Tensor, softmax_scale: float = 1.0, **options: bool) -> Tensor:
    """Score logits (N, C); the scores that contain a softmax take softmax_scale * logits."""
    return SCORES[name](logits if name == "max_logit" else softmax_scale * logits, **options)


def check_score(name: str) -> None:
    """Raise if there is no score of this name."""
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}. Known: {', '.join(SCORES)}.")


def calibrate(
    network: Network, mean: Tensor, std: Tensor, images: ImageSet, softmax_scale: float = 1.0
) -> dict[str, Any]:
    """Set the threshold of every score so that 95 % of these images, which are not used otherwise, reach it.

    A copy of the network is folded and computes in full precision, as in use: a threshold found in bfloat16 would be
    that of another model. Below 20 images the threshold is the lowest score among them.
    """
    plain = cast(Network, fold(network).float())
    logits = predict(Pipeline(plain, mean, std).to(images.labels.device), images).logits
    thresholds = {name: threshold_at_tpr(scores_of(name, logits, softmax_scale), TPR) for name in SCORES}
    record = {"score": SCORE, "tpr": TPR, "images": len(images), "softmax_scale": softmax_scale}
    return record | {"thresholds": thresholds}


def with_rejected(unknown: Mapping[str, Any] | None, logits: Tensor | None) -> dict[str, Any] | None:
    """Add to thresholds the part of images that each of them rejects, as `rejected`; None stays None.

    A score that is not a number is rejected. Records without a `softmax_scale` are of bare logits. Without the logits
    (N, C) of the images, `rejected` is None.
    """
    if unknown is None or logits is None:
        return None if unknown is None else {**unknown, "rejected": None}
    scale = float(unknown.get("softmax_scale", 1.0))
    passed = {name: scores_of(name, logits, scale) >= limit for name, limit in unknown["thresholds"].items()}
    return {**unknown, "rejected": {name: 1 - int(is_known.sum()) / len(logits) for name, is_known in passed.items()}}


@dataclass
class Observer:
    """Record the features of known and unknown test images in `features.json`; draws no random numbers."""

    spec: RunSpec
    known: ImageSet
    unknown: ImageSet
    folder: Path

    def __call__(self, pipeline: Pipeline, epoch: int, precision: Any = None) -> dict[str, float]:
        """Keep the features if `features_at` has this epoch, counted from 1; return the mean norms, for the log."""
        known, unknown = (predict(pipeline, images, precision).features for images in (self.known, self.unknown))
        if epoch in self.spec.features_at:
            record = Run(self.folder).read("features.json") or {"schema": 1, "epochs": {}}
            kept = limit(self.known.labels, KEPT * self.known.num_classes)
            record["classes"] = list(self.known.classes)
            record["epochs"][str(epoch)] = {
                "known": _points(known, kept),
                "labels": self.known.labels.cpu()[kept].tolist(),
                "unknown": _points(unknown, limit(self.unknown.labels, 4 * KEPT)),
            }
            replace_file(self.folder / "features.json", (json.dumps(record) + "\n").encode())
        return {"norm_known": float(known.norm(dim=1).mean()), "norm_unknown": float(unknown.norm(dim=1).mean())}


def _points(features: Tensor, positions: Tensor) -> list[list[float]]:
    rows: list[list[float]] = features.cpu()[positions].to(torch.float64).tolist()
    return [[round(value, 4) for value in row] for row in rows]


def make_observer(spec: RunSpec, root: str | Path | None, folder: Path, data: Splits) -> Observer | None:
    """Build the observer that a spec asks for, if it does; reads the unknown images."""
    split = Dataset.parse(spec.dataset).open_set
    if not spec.features_at or split is None:
        return None
    unknown = load_outliers(next(iter(split.unknown)), root, like=spec.dataset, shape=data.test.shape)
    if spec.max_test is not None:
        unknown = unknown.subset(limit(unknown.labels, spec.max_test, spec.subset_seed))
    return Observer(spec, data.test, unknown.to(data.test.labels.device), folder)


def load_model(folder: str | Path) -> tuple[Network, RunSpec]:
    """Rebuild a finished run's network with its trained weights, on the CPU and in evaluation mode.

    The network takes images normalised with `Run(folder).preprocessing`.
    """
    run = Run(folder)
    (channels, height, width), classes = run.preprocessing["shape"], run.preprocessing["classes"]
    weights = run.weights()
    with torch.random.fork_rng(devices=[]):
        counts = run.metrics.get("class_counts", ())
        network = build_model(run.spec, (channels, height, width), len(classes), counts)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{run.folder / WEIGHTS} is of another network: {' '.join(str(error).split())}") from error
    network.eval()
    return network, run.spec


def load_pipeline(folder: str | Path, device: torch.device | str = "cpu") -> Pipeline:
    """Rebuild a finished run as a pipeline that takes uint8 images, in full precision and without gradients."""
    record = Run(folder).preprocessing
    network, _ = load_model(folder)
    pipeline = Pipeline(network.float(), torch.tensor(record["mean"]), torch.tensor(record["std"])).to(device).eval()
    return pipeline.requires_grad_(False)


def evaluate(
    folder: str | Path, data_root: str | Path | None = None, *, device: str = "cpu", dataset: str | None = None
) -> dict[str, Any]:
    """Evaluate a finished run's weights on its test data again, in full precision.

    Returns the metrics of `measure`, `angular_fisher`, and `unknown`: thresholds with the part of images that each
    rejects. The normalisation and the training images of every class are those that the run has recorded: a folder's
    images may have changed since. `dataset` names the run's data if their folder has moved.
    """
    run = Run(folder)
    pipeline, spec = load_pipeline(folder, device), run.spec
    data = prepare(moved(spec, dataset, data_root, run.preprocessing["shape"]), data_root)
    for name, values in (("classes", data.test.classes), ("shape", data.test.shape)):
        if list(values) != run.preprocessing[name]:
            raise ValueError(
                f"the {name} of {data.name} differ from {folder}: {list(values)[:5]} instead of "
                f"{run.preprocessing[name][:5]}."
            )
    outputs = predict(pipeline, data.test.to(device, images=False))
    metrics = measure(outputs, last_loss(spec, run.metrics["class_counts"]).to(device), spec.softmax_scale)
    metrics["angular_fisher"] = angular_fisher_score(outputs.features, outputs.labels)
    return metrics | {"unknown": with_rejected(run.unknown, outputs.logits)}


def moved(spec: RunSpec, dataset: str | None, data_root: str | Path | None, shape: Sequence[int]) -> RunSpec:
    """Return the spec with another name of its dataset, for images of the run's size; None keeps the name."""
    if dataset is None:
        return spec
    skips = Dataset.parse(spec.dataset).skip_broken
    return spec.replace(dataset=Dataset.find(dataset, data_root, skip_broken=skips).with_default_size(shape[1]).name)
