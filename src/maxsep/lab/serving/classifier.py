"""A trained model ready for use, from a run folder or from an exported one: bytes in, logits out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.files import verify_folder
from maxsep.lab.engine import load_model
from maxsep.lab.engine.calibration import SCORE, check_score, scores_of
from maxsep.lab.engine.model import build_model
from maxsep.lab.environment import pick_device
from maxsep.lab.networks import Shape
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec
from maxsep.surgery import fold, load
from maxsep.surgery.save import DESCRIPTION, WEIGHTS

ONNX = "model.onnx"


@dataclass(frozen=True)
class Classifier:
    """A trained model with everything that belongs to it.

    Args:
        source: The folder it came from.
        labels: Names of the classes, in the order of the logits.
        shape: (channels, height, width) of an image.
        mean: (C,), on the scale of 0 to 1.
        std: (C,).
        unknown: The thresholds of the run, as `calibration.calibrate` gives them, or None.
        forward: Maps normalised images (B, C, H, W) to logits (B, classes), both float32 and on the CPU.
        spec: What was trained.
        class_counts: Its training images of every class; empty for an export that does not tell them.
        files: `Splits.fingerprint` of its images, if that is known.
    """

    source: Path
    labels: tuple[str, ...]
    shape: Shape
    mean: Tensor
    std: Tensor
    unknown: dict[str, Any] | None
    forward: Callable[[Tensor], Tensor]
    spec: RunSpec
    class_counts: tuple[int, ...] = ()
    files: str | None = None

    def logits(self, images: Tensor) -> Tensor:
        """Map uint8 images (B, C, H, W) to logits (B, classes), float32, on the CPU."""
        return self.forward((images / 255 - self.mean.view(-1, 1, 1)) / self.std.view(-1, 1, 1))

    def probabilities(self, logits: Tensor) -> Tensor:
        """The probabilities (B, classes), float64, that logits stand for: softmax(spec.softmax_scale * logits)."""
        return (self.spec.softmax_scale * logits.double()).softmax(1)

    def scores(self, score: str, logits: Tensor) -> Tensor:
        """Score logits (B, classes) on the scale of the thresholds: (B,), float64.

        Thresholds of `ldam` that do not say their scale were set on the bare cosines, and are compared with these.
        """
        scale = self.spec.softmax_scale if self.unknown is None else float(self.unknown.get("softmax_scale", 1.0))
        return scores_of(score, logits, scale)

    @property
    def score(self) -> str:
        """The score to judge by unless another is asked for."""
        return SCORE if self.unknown is None else str(self.unknown["score"])

    def threshold(self, score: str) -> float | None:
        """The threshold that was set for a score on held-out data, or None."""
        check_score(score)
        return None if self.unknown is None else float(self.unknown["thresholds"][score])


def is_export(folder: str | Path) -> bool:
    """Whether a folder holds what `export` wrote, and no run; only its names are looked at."""
    folder = Path(folder)
    return (folder / DESCRIPTION).is_file() and not (folder / "result.json").is_file()


def open_classifier(folder: str | Path, device: str = "auto") -> Classifier:
    """Open a finished run, or what `export` made of one.

    From all of them the same model answers, folded and in float32. An ONNX file runs on the CPU.

    Raises:
        FileNotFoundError: The folder or one of its files is not there.
        ValueError: The folder holds something else, or is damaged.
    """
    folder = Path(folder)
    place = pick_device(device).type
    if (folder / "result.json").is_file():
        return _from_run(folder, place)
    if not (folder / DESCRIPTION).is_file():
        raise FileNotFoundError(
            f"{folder} is neither a finished run (it would hold result.json) nor an exported model ({DESCRIPTION}). "
            "Give the folder that maxsep train or maxsep export printed."
        )
    if (folder / ONNX).is_file():
        if device == "cuda":
            raise ValueError(f"{folder / ONNX} runs on the CPU here. Use --device cpu, or export to safetensors.")
        return _from_onnx(folder)
    return _from_safetensors(folder, place)


def _from_run(folder: Path, device: str) -> Classifier:
    run = Run(folder)
    if not run.has_weights:
        raise FileNotFoundError(
            f"{folder} was kept without its weights, so it cannot predict or be exported. "
            "Train it again, or copy weights.safetensors to it."
        )
    network, _ = load_model(folder)
    told = run.preprocessing
    extra = run.metrics | {"unknown": run.unknown, "spec": run.spec.to_dict()}
    return _classifier(folder, told["classes"], told, extra, _in_torch(fold(network), device))


def _from_safetensors(folder: Path, device: str) -> Classifier:
    description = read_description(folder, WEIGHTS)
    told, labels, extra = description["preprocessing"], description["labels"], description["extra"]
    channels, height, width = told["shape"]
    with torch.random.fork_rng(devices=[]):
        network = build_model(RunSpec.from_dict(extra["spec"]), (channels, height, width), len(labels))
    plain = fold(network)
    load(folder, plain)
    return _classifier(folder, labels, told, extra, _in_torch(plain, device))


def _from_onnx(folder: Path) -> Classifier:
    description = read_description(folder, ONNX)
    session = open_onnx(folder / ONNX)
    return _classifier(folder, description["labels"], description["preprocessing"], description["extra"], session)


def open_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Open an ONNX file as a function from normalised images to logits, on the CPU."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError('ONNX files need onnxruntime. Install it with: pip install "maxsep[export]"') from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def read_description(folder: Path, model: str) -> dict[str, Any]:
    """Check an exported folder bit by bit and give its `maxsep.json`."""
    verify_folder(folder, (model, DESCRIPTION))
    description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    if "spec" not in (description.get("extra") or {}):
        raise ValueError(
            f"{folder / DESCRIPTION} does not say which network it belongs to or how images are prepared: "
            "maxsep.save wrote it. maxsep predict reads runs, and what maxsep export made of them."
        )
    return description


def _classifier(
    folder: Path,
    labels: list[str],
    told: dict[str, Any],
    extra: dict[str, Any],
    forward: Callable[[Tensor], Tensor],
) -> Classifier:
    """Put a classifier together from what its folder tells: of images, and, under `extra`, of its training."""
    channels, height, width = told["shape"]
    mean, std = torch.tensor(told["mean"]), torch.tensor(told["std"])
    spec, counts = RunSpec.from_dict(extra["spec"]), tuple(extra.get("class_counts") or ())
    shape, files = (channels, height, width), extra.get("files")
    return Classifier(folder, tuple(labels), shape, mean, std, extra["unknown"], forward, spec, counts, files)


def _in_torch(model: nn.Module, device: str) -> Callable[[Tensor], Tensor]:
    model = model.float().eval().to(device)

    def forward(images: Tensor) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(images.to(device))
            return logits.cpu()

    return forward
