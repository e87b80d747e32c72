"""Detection on a finished run: both kinds of images through its network once, and the record that stays beside it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.detect import ODIN
from maxsep.files import replace_file
from maxsep.lab.data import ImageSet, Splits, prepare
from maxsep.lab.detection.distances import Distances, fit_distances
from maxsep.lab.detection.judge import SCHEMA, Wish, full_precision, judge
from maxsep.lab.detection.measures import logit_scores
from maxsep.lab.engine.evaluation import batch_of, predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.engine.runs import load_pipeline
from maxsep.lab.environment import pick_device
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

FILE = "detection.json"
_DATA = ("dataset", "imbalance", "subset_seed", "data_order", "validation", "calibration", "max_train", "max_test")


def detect(
    folder: str | Path,
    wish: Wish,
    *,
    data_root: str | Path | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Measure how well a finished run tells its own test images from outliers; writes nothing.

    Everything is computed in float32 from the trained weights, scores in float64. With `spec.max_test` as many
    outliers are taken.

    Args:
        folder: The run's folder, with its weights.
        wish: What to measure.
        data_root: Folder of the datasets; by default $MAXSEP_DATA.
        device: auto, cpu or cuda.
        tell: Called with what is done next, and with how many images.

    Returns:
        The content of `detection.json`: closed-set accuracy, and for each set its origin, every score's measures on
        all images and on draws, the sweep over input steps, histograms of the negative energy, and the files of a
        folder that could not be read and were left out.
    """
    run = Run(folder)
    if run.state == "finished" and not run.has_weights:
        raise FileNotFoundError(f"{folder} was kept without its weights, so there is nothing to score with.")
    place = pick_device(device)
    root = None if data_root is None else str(data_root)
    data = _data(RunSpec(**{name: getattr(run.spec, name) for name in _DATA}), root)
    with full_precision():
        pipeline = load_pipeline(folder, place)
        scorer = _RunScorer(pipeline, data, wish, run.preprocessing, run.spec.softmax_scale, tell)
        record = judge(run.spec, scorer, data, wish, data_root, tell)
    if scorer.distances is not None:
        record["mahalanobis"] = scorer.distances.to_dict()
    return record


def ensure_detection(
    folder: str | Path, wish: Wish, *, data_root: str | Path | None = None, device: str = "auto"
) -> bool:
    """Write `detection.json` into a run's folder unless it is there and holds all that is wished.

    Sets that it holds already stay in it, unless they were scored with another `softmax_scale`.

    Returns:
        Whether something was computed.

    Raises:
        BlockingIOError: Another process has the run in its hands.
    """
    path = Path(folder) / FILE
    with Run(folder).lock():
        before, scale = read_detection(folder), Run(folder).spec.softmax_scale
        if before is not None and covers(before, wish, scale):
            return False
        record = detect(folder, wish, data_root=data_root, device=device)
        if before is not None and before.get("run") == record["run"] and _scale(before) == scale:
            record["sets"] = before["sets"] | record["sets"]
        replace_file(path, (json.dumps(record) + "\n").encode())
    return True


def read_detection(folder: str | Path) -> dict[str, Any] | None:
    """Read a run's `detection.json`; None if there is none or it is damaged, and so to be written anew."""
    try:
        record = json.loads((Path(folder) / FILE).read_bytes())
        sets = record["sets"] if record["schema"] == SCHEMA else None
        return record if isinstance(sets, dict) and isinstance(record["in_distribution"]["dataset"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def covers(record: Mapping[str, Any], wish: Wish, softmax_scale: float = 1.0) -> bool:
    """Whether a record holds every set, score and draw that is wished, of logits scaled as the run's loss does it."""
    if _scale(record) != softmax_scale:
        return False
    try:
        for name in wish.sets(record["in_distribution"]["dataset"]):
            found = record["sets"][name]["scores"]
            for score in wish.scores:
                if wish.repeats and found[score]["draws"]["repeats"] != wish.repeats:
                    return False
                found[score]["full"]["auroc"]
        tried = record["mahalanobis"]["magnitudes"] if wish.mahalanobis else wish.magnitudes
    except (KeyError, TypeError):
        return False
    return set(wish.magnitudes) <= set(tried)


def _scale(record: Mapping[str, Any]) -> object:
    """A record that does not say it took the logits as they are."""
    return record.get("softmax_scale", 1.0)


class _RunScorer:
    """One network, with its features and gradients: all scores that are wished."""

    def __init__(
        self,
        pipeline: Pipeline,
        data: Splits,
        wish: Wish,
        told: dict[str, Any],
        softmax_scale: float,
        tell: Callable[[str], None],
    ) -> None:
        self.pipeline, self.wish, self.softmax_scale = pipeline, wish, softmax_scale
        self.device = device = pipeline.scale.device
        mean, self.std = (torch.tensor(told[name], device=device) for name in ("mean", "std"))
        self.distances: Distances | None = None
        if wish.mahalanobis:
            tell(f"fitting Mahalanobis on {len(data.train):,} training images")
            held_out = None if data.calibration is None else data.calibration.to(device)
            self.distances = fit_distances(pipeline, data.train.to(device), mean, self.std, wish.magnitudes, held_out)

    def __call__(self, images: ImageSet) -> tuple[dict[str, Tensor], dict[float, Tensor], Tensor]:
        """Score images: by name, at every input step, and the logits."""
        images = images.to(self.device)
        outputs = predict(self.pipeline, images)
        found = logit_scores(outputs.logits, self.softmax_scale)
        steps = {} if self.distances is None else self.distances.scores(images.images, outputs.features)
        if self.distances is not None:
            found |= self.distances.named(steps)
        if self.wish.odin:
            odin = ODIN(self.pipeline.network, std=self.std)
            odin.temperature /= self.softmax_scale  # softmax(scale * logits / T)
            found["odin"] = odin.score(map(self.pipeline.normalise, images.batches(batch_of(images.shape))))
        return found, steps, outputs.logits


@functools.lru_cache(maxsize=1)  # the runs of a recipe share it
def _data(spec: RunSpec, root: str | None) -> Splits:
    return prepare(spec, root)
