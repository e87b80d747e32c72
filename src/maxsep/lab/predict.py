"""Classify image files with a trained run or an exported model: class, probability, and whether it is unknown."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from maxsep.files import read_json, verify_folder
from maxsep.lab.data.decoding import IMAGE_SUFFIXES, decode
from maxsep.lab.engine import load_model
from maxsep.lab.engine.evaluate import SCORE, check_score, scores_of
from maxsep.lab.engine.model import build_model
from maxsep.lab.environment import pick_device
from maxsep.lab.networks import Shape
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec
from maxsep.packages import load_package
from maxsep.surgery import fold, load
from maxsep.surgery.save import DESCRIPTION, WEIGHTS

ONNX = "model.onnx"
BATCH = 256


@dataclass(frozen=True)
class Classifier:
    """A trained model with its labels, preprocessing and thresholds (`unknown`, None if no data was held out).

    `forward` maps normalised images (B, C, H, W) to logits (B, classes), both float32 and on the CPU.
    """

    source: Path
    labels: tuple[str, ...]
    shape: Shape
    mean: Tensor
    std: Tensor
    unknown: dict[str, Any] | None
    forward: Callable[[Tensor], Tensor]
    spec: RunSpec

    def logits(self, images: Tensor) -> Tensor:
        """Map uint8 images (B, C, H, W) to logits (B, classes), float32, on the CPU."""
        return self.forward((images / 255 - self.mean.view(-1, 1, 1)) / self.std.view(-1, 1, 1))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return softmax(spec.softmax_scale * logits): (B, classes), float64."""
        return (self.spec.softmax_scale * logits.double()).softmax(1)

    def scores(self, score: str, logits: Tensor) -> Tensor:
        """Score logits (B, classes) on the scale of the thresholds: (B,), float64.

        Pitfall: old thresholds of `ldam` that record no scale were set on bare cosines and are compared with these.
        """
        scale = self.spec.softmax_scale if self.unknown is None else float(self.unknown.get("softmax_scale", 1.0))
        return scores_of(score, logits, scale)

    @property
    def score(self) -> str:
        """The default score."""
        return SCORE if self.unknown is None else str(self.unknown["score"])

    def threshold(self, score: str) -> float | None:
        """Return the threshold of a score that was set on held-out data, or None."""
        check_score(score)
        return None if self.unknown is None else float(self.unknown["thresholds"][score])


def open_model(folder: str | Path, device: str = "auto") -> Classifier:
    """Open a finished run or an exported model, folded and in float32; an ONNX file runs on the CPU.

    Raises FileNotFoundError if a file is missing, ValueError if the folder holds something else or is damaged.
    """
    folder, place = Path(folder), pick_device(device)
    if (folder / "result.json").is_file():
        run = Run(folder)
        extra: dict[str, Any] = {"spec": run.spec.to_dict(), "unknown": run.unknown}
        description = {"labels": run.preprocessing["classes"], "preprocessing": run.preprocessing, "extra": extra}
        forward = _in_torch(fold(load_model(folder)[0]), place)
    elif not (folder / DESCRIPTION).is_file():
        raise FileNotFoundError(f"{folder} is neither a finished run (result.json) nor an export ({DESCRIPTION}).")
    elif (folder / ONNX).is_file():
        if device == "cuda":
            raise ValueError(f"{folder / ONNX} runs on the CPU: device must be auto or cpu, got 'cuda'.")
        description, forward = _read_description(folder, ONNX), open_onnx(folder / ONNX)
    else:
        description = _read_description(folder, WEIGHTS)
        forward = _in_torch(_load_folded(folder, description), place)
    preprocessing, extra = description["preprocessing"], description["extra"]
    channels, height, width = preprocessing["shape"]
    mean, std = torch.tensor(preprocessing["mean"]), torch.tensor(preprocessing["std"])
    labels, spec = tuple(description["labels"]), RunSpec.from_dict(extra["spec"])
    return Classifier(folder, labels, (channels, height, width), mean, std, extra["unknown"], forward, spec)


def _load_folded(folder: Path, description: dict[str, Any]) -> nn.Module:
    channels, height, width = description["preprocessing"]["shape"]
    spec = RunSpec.from_dict(description["extra"]["spec"]).replace(class_order=None)  # folded rows are in class order
    with torch.random.fork_rng(devices=[]):
        folded = fold(build_model(spec, (channels, height, width), len(description["labels"])))
    load(folder, folded)
    return folded


def open_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Open an ONNX file as a function from normalised images to logits, on the CPU."""
    session = load_package("onnxruntime", "export").InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def _read_description(folder: Path, model: str) -> dict[str, Any]:
    """Verify every byte of an exported folder and read its `maxsep.json`."""
    verify_folder(folder, (model, DESCRIPTION))
    description = read_json(folder / DESCRIPTION)
    if "spec" not in (description.get("extra") or {}):
        raise ValueError(f"{folder / DESCRIPTION} was written by maxsep.save, not by maxsep export: it has no spec.")
    return description


def _in_torch(model: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor]:
    model = model.float().eval().to(device)

    def forward(images: Tensor) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(images.to(device))
            return logits.cpu()

    return forward


@dataclass(frozen=True)
class Unreadable:
    """A path that cannot be classified, with the reason: a sentence that names the path."""

    path: str
    reason: str


class ImageFiles(NamedTuple):
    """Image files; paths without any; and files of folders that were skipped for their suffix."""

    images: list[Path]
    missing: list[Unreadable]
    skipped: list[Path]


def find_images(paths: Iterable[str | Path]) -> ImageFiles:
    """List image files in the order of the arguments.

    A file is taken whatever its name. A folder stands for the images in it and its sub-folders, by suffix and sorted;
    other files in it are skipped and listed, hidden ones are ignored. Anything else is a pattern such as
    `photos/**/*.png`.

    >>> find_images(["nowhere/*.png"]).missing[0].reason
    'nowhere/*.png matches no file.'
    """
    files = ImageFiles([], [], [])
    for item in map(str, paths):
        matches = [item] if Path(item).exists() else sorted(glob.glob(item, recursive=True))  # noqa: PTH207
        if not matches:
            reason = "matches no file." if glob.has_magic(item) else "does not exist."
            files.missing.append(Unreadable(item, f"{item} {reason}"))
        for path in map(Path, matches):
            images, others = _list_folder(path) if path.is_dir() else ([path], [])
            if not images:
                known = ", ".join(sorted(IMAGE_SUFFIXES))
                files.missing.append(Unreadable(str(path), f"{path} is a folder without images ({known})."))
            files.images.extend(images)
            files.skipped.extend(others)
    return files


def _list_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    images: list[Path] = []
    others: list[Path] = []
    # a link to nothing is listed too, so that it is named when it cannot be read
    for path in sorted(path for path in folder.rglob("*") if path.is_file() or not path.exists()):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            (images if path.suffix.lower() in IMAGE_SUFFIXES else others).append(path)
    return images, others


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image with their probabilities, best first, and its score.

    `unknown` is whether the score is below the threshold; None without a threshold.
    """

    path: Path
    top: tuple[tuple[str, float], ...]
    score: float
    unknown: bool | None


def classify(
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    score: str | None = None,
    threshold: float | None = None,
    top: int = 1,
) -> Iterator[Prediction | Unreadable]:
    """Classify image files in their order, with the `top` classes; an unreadable file does not stop the others.

    Images whose `score` (`max_logit`, `max_softmax` or `energy`; by default the classifier's) is below the threshold
    are unknown. `classifier.threshold(score)` is the one that was set on held-out data; None calls nothing unknown.
    """
    score = classifier.score if score is None else score
    check_score(score)
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"threshold must be a finite number, got {threshold}.")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}.")
    return _classify(classifier, paths, score, threshold, min(top, len(classifier.labels)))


def _classify(
    classifier: Classifier, paths: Sequence[Path], score: str, threshold: float | None, top: int
) -> Iterator[Prediction | Unreadable]:
    for start in range(0, len(paths), BATCH):
        part = paths[start : start + BATCH]
        array, errors = decode(part, classifier.shape)
        array[list(errors)] = 0  # an unreadable file stays in the batch as a black image: no neighbour is shifted
        logits = classifier.logits(torch.from_numpy(array))
        scores = classifier.scores(score, logits).tolist()
        best = classifier.probabilities(logits).topk(top)
        for row, path in enumerate(part):
            if row in errors:
                yield Unreadable(str(path), str(errors[row]))
                continue
            pairs = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
            classes = tuple((classifier.labels[index], probability) for index, probability in pairs)
            unknown = None if threshold is None else not scores[row] >= threshold  # NaN is unknown
            yield Prediction(path, classes, scores[row], unknown)
