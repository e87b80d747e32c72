"""Detection on a finished run: both kinds of images through its network once, and the record that stays beside it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.detect import MAGNITUDES, ODIN, auroc, average_precision, fpr_at_tpr
from maxsep.durable import replace_file
from maxsep.lab.data import Data, ImageSet, limit, load_outliers, origin, parse_open_set, prepare
from maxsep.lab.detection.distances import Distances, fit_distances
from maxsep.lab.detection.measures import (
    CONVENTIONS,
    DRAW,
    REPEATS,
    histogram,
    logit_scores,
    measure_scores,
)
from maxsep.lab.engine.evaluation import BATCH, predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.engine.record import RunFolder
from maxsep.lab.engine.runs import load_model, load_run
from maxsep.lab.spec import RunSpec

FILE = "detection.json"
SCHEMA = 1
_DATA = ("dataset", "imbalance", "subset_seed", "validation", "calibration", "max_train", "max_test")
_HISTOGRAMS = ("energy", "energy_centred")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to measure on a run.

    Args:
        outliers: Names of `load_outliers`; none means the unknown sets of the run's own open-set split.
        mahalanobis: Whether to fit the Mahalanobis detector on the training images.
        magnitudes: Its input steps; one gradient serves all, and every step but 0 is one more pass.
        odin: Whether to score with ODIN too, at its published temperature and step.
        draw: Outliers of a draw.
        repeats: Draws; 0 leaves them out.

    >>> Wish(repeats=0).sets("osr_cifar+_0")
    ('cifar+10', 'cifar+50')
    """

    outliers: tuple[str, ...] = ()
    mahalanobis: bool = True
    magnitudes: tuple[float, ...] = MAGNITUDES
    odin: bool = False
    draw: int = DRAW
    repeats: int = REPEATS

    def sets(self, dataset: str) -> tuple[str, ...]:
        """The outliers of a dataset."""
        split = parse_open_set(dataset)
        if not self.outliers and split is None:
            raise ValueError(f"name some outliers: {dataset!r} is no open-set split, so it has none of its own.")
        return self.outliers or tuple(split.unknown if split else ())

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores."""
        extra = ("mahalanobis_no_step", "mahalanobis") if self.mahalanobis else ()
        return (*logit_scores(torch.zeros(1, 2)), *extra, *(("odin",) if self.odin else ()))


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
    run = load_run(folder)
    if not (Path(folder) / "weights.safetensors").is_file():
        raise FileNotFoundError(f"{folder} was kept without its weights, so there is nothing to score with.")
    place = pick_device(device)
    data = _data(RunSpec(**{name: getattr(run.spec, name) for name in _DATA}), _text(data_root))
    with _full_precision():
        pipeline, scale = _pipeline(folder, run.preprocessing, place), run.spec.softmax_scale
        judge = _Judge(pipeline, data, wish, run.preprocessing, scale, tell)
        sets = {name: _measured(name, judge, run.spec, data, data_root) for name in wish.sets(data.name)}
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "run": run.spec.name,
        "softmax_scale": run.spec.softmax_scale,
        "in_distribution": {"dataset": data.name, "count": len(data.test), "top1": judge.top1},
        "positive": "id",
        "conventions": CONVENTIONS,
        "sets": sets,
    }
    if judge.distances is not None:
        record["mahalanobis"] = judge.distances.to_dict()
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
    with RunFolder(path.parent).lock():
        before, scale = read_detection(folder), load_run(folder).spec.softmax_scale
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


class _Judge:
    """One network, its in-distribution scores, and the measures of any outliers against them."""

    def __init__(
        self,
        pipeline: Pipeline,
        data: Data,
        wish: Wish,
        told: dict[str, Any],
        softmax_scale: float,
        tell: Callable[[str], None],
    ) -> None:
        self.pipeline, self.wish, self.softmax_scale, self.tell = pipeline, wish, softmax_scale, tell
        self.device = device = pipeline.scale.device
        mean, self.std = (torch.tensor(told[name], device=device) for name in ("mean", "std"))
        self.distances: Distances | None = None
        if wish.mahalanobis:
            tell(f"fitting Mahalanobis on {len(data.train):,} training images")
            self.distances = fit_distances(pipeline, data.train.to(device), mean, self.std, wish.magnitudes)
        test = data.test.to(device)
        tell(f"scoring {len(test):,} test images")
        self.known, self.steps, logits = self._scores(test)
        self.correct = logits.argmax(1) == test.labels
        self.top1 = int(self.correct.sum()) / len(test)

    def measure(self, outliers: ImageSet) -> dict[str, Any]:
        """Measure outliers against the in-distribution test images."""
        wish = self.wish
        self.tell(f"scoring {len(outliers):,} outliers")
        scores, steps, _ = self._scores(outliers.to(self.device))
        told: dict[str, Any] = {
            "count": len(outliers),
            "scores": measure_scores(self.known, scores, self.correct, draw=wish.draw, repeats=wish.repeats),
            "histograms": {name: histogram(self.known[name], scores[name]) for name in _HISTOGRAMS},
        }
        if steps:
            told["sweep"] = {f"{size:g}": _brief(self.steps[size], values) for size, values in steps.items()}
        return told

    def _scores(self, images: ImageSet) -> tuple[dict[str, Tensor], dict[float, Tensor], Tensor]:
        """Score images: by name, at every input step, and the logits."""
        outputs = predict(self.pipeline, images)
        found = logit_scores(outputs.logits, self.softmax_scale)
        steps = {} if self.distances is None else self.distances.scores(images.images, outputs.features)
        if self.distances is not None:
            found |= self.distances.named(steps)
        if self.wish.odin:
            odin = ODIN(self.pipeline.network, std=self.std)
            odin.temperature /= self.softmax_scale  # softmax(scale * logits / T)
            batches = torch.split(images.images, BATCH)
            found["odin"] = torch.cat([odin.score(self.pipeline.normalise(batch)) for batch in batches])
        return found, steps, outputs.logits


def _brief(known: Tensor, outside: Tensor) -> dict[str, float]:
    return {
        "auroc": auroc(known, outside),
        "aupr": average_precision(known, outside),
        "fpr95": fpr_at_tpr(known, outside),
    }


def _pipeline(folder: str | Path, told: dict[str, Any], device: torch.device) -> Pipeline:
    network, _ = load_model(folder)
    pipeline = Pipeline(network.float(), torch.tensor(told["mean"]), torch.tensor(told["std"])).to(device).eval()
    return pipeline.requires_grad_(False)


def _measured(name: str, judge: _Judge, spec: RunSpec, data: Data, root: str | Path | None) -> dict[str, Any]:
    images, unreadable = read_outliers(name, root, data.name, data.test.shape)
    if spec.max_test is not None:
        images = images.subset(limit(images.labels, spec.max_test, spec.subset_seed))
    told = {"origin": origin(name, root, like=data.name)} | judge.measure(images)
    return told | {"unreadable": [{"path": path, "reason": reason} for path, reason in unreadable]}


def read_outliers(
    name: str, root: str | Path | None, like: str, shape: Sequence[int]
) -> tuple[ImageSet, tuple[tuple[str, str], ...]]:
    """Read outliers, and say by path why files of a folder were left out; the last few sets are kept.

    Args:
        name: As in `load_outliers`.
        root: Folder of the datasets; by default $MAXSEP_DATA.
        like: The dataset that they are outside of.
        shape: (channels, height, width) of its images.
    """
    channels, height, width = shape
    return _read_outliers(name, _text(root), like, (channels, height, width))


@functools.lru_cache(maxsize=3)  # the runs of a recipe share them
def _read_outliers(
    name: str, root: str | None, like: str, shape: tuple[int, int, int]
) -> tuple[ImageSet, tuple[tuple[str, str], ...]]:
    unreadable: dict[Path, ValueError] = {}
    images = load_outliers(name, root, like=like, shape=shape, unreadable=unreadable)
    return images, tuple((str(path), str(error)) for path, error in unreadable.items())


@functools.lru_cache(maxsize=1)
def _data(spec: RunSpec, root: str | None) -> Data:
    return prepare(spec, root)


def _text(root: str | Path | None) -> str | None:
    return None if root is None else str(root)


def pick_device(device: str) -> torch.device:
    """Give the device of a name; auto is a GPU where there is one.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}. Known: auto, cpu, cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch finds no CUDA device. Use 'auto' or 'cpu'.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Compute convolutions in float32 proper: by default cuDNN rounds their inputs to ten bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
