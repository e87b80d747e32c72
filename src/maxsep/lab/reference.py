"""Logistic regression on small pixels or frozen features: what a trained network must reach, and whether it does."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from maxsep.files import read_json, verify_folder, write_file, write_folder
from maxsep.lab.data import Dataset, ImageSet, Splits, limit, prepare
from maxsep.lab.engine.evaluate import Outputs, measure, predict
from maxsep.lab.engine.model import Pipeline, build_model, load_pretrained, statistics_of
from maxsep.lab.environment import pick_device
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec
from maxsep.packages import load_package

ADVICE = "Train longer (--epochs), or change --learning-rate, --optimiser, --batch-size or --network."
FILE = "reference.json"
SIDE = 12
"""Images are shrunk to squares of at most this side."""
MOST_IMAGES, MOST_LOGITS = 5_000, 200_000
"""Training images, and training images times classes: with these it takes seconds."""
HARDLY = 0.9
"""A training loss above this part of what it was, or of what the class frequencies alone give, has hardly fallen."""
UNEQUAL = 1.5
"""Classes are unequal if the largest has more than this many times the images of the smallest."""
_DATA = ("dataset", "imbalance", "subset_seed", "data_order", "validation", "calibration", "max_train", "max_test")
_NETWORK = ("network", "network_options", "weights", "weights_options", "image_size", "normalisation")


@dataclass(frozen=True)
class Reference:
    """The test metrics of multinomial logistic regression on pixels or pretrained features, as fractions."""

    top1: float
    balanced: float
    macro_f1: float
    num_train: int
    side: int
    """The side of the small images; 0 for the frozen features of a network with pretrained weights."""

    def __str__(self) -> str:
        inputs = f"{self.side} x {self.side} pixels" if self.side else "the frozen features"
        return f"logistic regression on {inputs} of {self.num_train:,} images"

    def least(self, metric: str, num_test: int) -> float:
        """What a network must reach: the same, or with frozen features as much but for two standard errors.

        Fine-tuning is often no better than these features, so that chance alone would decide.
        """
        value: float = getattr(self, metric)
        return value if self.side else value - 2 * math.sqrt(value * (1 - value) / num_test)


def decisive_metric(class_counts: Sequence[int]) -> str:
    """Name the metric by which methods are compared: the mean over classes where one is half as large again as another.

    >>> decisive_metric([100, 100]), decisive_metric([100, 5])
    ('top1', 'balanced')
    """
    return "balanced" if class_counts and max(class_counts) > UNEQUAL * min(class_counts) else "top1"


def load_reference(
    spec: RunSpec,
    runs: str | Path,
    data_root: str | Path | None = None,
    *,
    download: bool = False,
    execution: Execution | None = None,
) -> Reference:
    """Fit the reference to a run's data, or read what an earlier call left in the folder of runs.

    A file that was changed since is a ValueError. With pretrained weights, which `execution` finds, it sees the
    features of the network before it is trained.
    """
    fields = _DATA + (_NETWORK if spec.weights else ())
    data = [getattr(spec, name) for name in fields] + [Dataset.parse(spec.dataset).fingerprint(data_root)]
    folder = Path(runs) / f"reference-{hashlib.sha256(json.dumps(data).encode()).hexdigest()[:10]}"
    if not folder.exists():
        splits = prepare(spec, data_root, download=download)
        features = _frozen_features(spec, splits, execution or Execution()) if spec.weights else None
        content = json.dumps(asdict(fit(splits.train, splits.test, features))).encode()
        write_folder(folder, lambda new: write_file(new / FILE, content))
    verify_folder(folder, (FILE,))
    return Reference(**read_json(folder / FILE))


def fit(train: ImageSet, test: ImageSet, features: Callable[[ImageSet], Tensor] | None = None) -> Reference:
    """Fit standardised pixels, or other features, of some training images, and evaluate all test images."""
    most = max(train.num_classes, min(MOST_IMAGES, MOST_LOGITS // train.num_classes))
    chosen, inputs_of = train.subset(limit(train.labels, most)), features or _pixels
    pixels = inputs_of(chosen)
    mean, std = pixels.mean(0), pixels.std(0, correction=0).clamp(min=1e-6)
    linear = load_package("sklearn.linear_model", "lab")
    model = linear.LogisticRegression(C=0.1, max_iter=100, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: a hundred iterations are enough for a reference
        model.fit(((pixels - mean) / std).numpy(), chosen.labels.numpy())
    logits = torch.full((len(test), train.num_classes), -math.inf)
    scores = torch.from_numpy(model.predict_log_proba(((inputs_of(test) - mean) / std).numpy())).float()
    logits[:, torch.from_numpy(model.classes_)] = scores  # a class without training images is never predicted
    metrics = measure(Outputs(logits, logits, test.labels), torch.nn.CrossEntropyLoss())
    _, height, width = test.shape
    fractions = {name: float(metrics[name]) for name in ("top1", "balanced", "macro_f1")}
    return Reference(**fractions, num_train=len(chosen), side=0 if features else min(SIDE, height, width))


def _pixels(images: ImageSet) -> Tensor:
    """Shrink images by taking means; float32 (N, features) on the scale of 0 to 1."""
    _, height, width = images.shape
    size = min(SIDE, height), min(SIDE, width)
    return torch.cat([F.adaptive_avg_pool2d(batch.float() / 255, size).flatten(1) for batch in images.batches(256)])


def _frozen_features(spec: RunSpec, splits: Splits, execution: Execution) -> Callable[[ImageSet], Tensor]:
    """Return a function that maps images to the features of the pretrained network, float32 (N, features)."""
    train, device = splits.train, pick_device(execution.device)
    with torch.random.fork_rng(devices=[]):
        network = build_model(spec, train.shape, train.num_classes, train.class_counts)
    load_pretrained(spec, network, train.shape, execution.weights)
    channels_last = bool(execution.resolve(device.type).channels_last)
    pipeline = Pipeline(network, *statistics_of(spec, splits), channels_last=channels_last).to(device)
    return lambda images: predict(pipeline, images.to(device, images=False)).features.cpu()


def shortfall(runs: Sequence[Run]) -> str:
    """Say in a few words what is wrong with runs of which `why_untrained` is not empty."""
    return "did not train" if any(map(_loss_hardly_fell, runs)) else "is worse than logistic regression"


def why_untrained(runs: Sequence[Run], reference: Reference | None) -> list[str]:
    """Say in sentences why the runs of one method cannot be called trained, or are worse than the reference."""
    metric, reasons = decisive_metric(runs[0].metrics.get("class_counts") or ()), []
    ours = fmean(run.metrics[metric] for run in runs)
    if reference is not None and ours < reference.least(metric, runs[0].metrics["num_test"]):
        name = "accuracy" if metric == "top1" else "mean accuracy over classes"
        reasons.append(f"Its {name} is {ours:.1%}; {reference} reaches {getattr(reference, metric):.1%}.")
    if any(map(_loss_hardly_fell, runs)):
        first, last = (fmean(run.history[epoch]["train_loss"] for run in runs) for epoch in (0, -1))
        chance = _chance(runs[0])
        reasons.append(
            f"Its training loss is {first:.2f} in the first epoch and {last:.2f} in the last; guessing by the class "
            f"frequencies gives {chance:.2f}."
        )
    return reasons


def _loss_hardly_fell(run: Run) -> bool:
    """Whether the last epoch's mean loss is near the first one's, or near that of predicting the class frequencies."""
    losses = [row["train_loss"] for row in run.history]
    chance = _chance(run)
    if run.spec.loss != "cross_entropy" or not losses or not chance:
        return len(losses) > 1 and losses[-1] > HARDLY * losses[0]
    # a network may have learnt nearly all in its first epoch
    return losses[-1] > HARDLY * chance or (len(losses) > 1 and losses[-1] > max(HARDLY * losses[0], chance / 2))


def _chance(run: Run) -> float:
    """The cross-entropy of predicting the class frequencies."""
    counts = [count for count in run.metrics.get("class_counts") or () if count]
    return float(-sum(n / sum(counts) * math.log(n / sum(counts)) for n in counts))
