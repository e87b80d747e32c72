"""Finished runs: read them, rebuild their model, evaluate it again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from maxsep.analysis import angular_fisher_score
from maxsep.lab.data import Data, prepare
from maxsep.lab.engine.calibration import with_rejected
from maxsep.lab.engine.evaluation import measure, predict
from maxsep.lab.engine.losses import last_loss
from maxsep.lab.engine.model import Pipeline, build_model
from maxsep.lab.engine.record import SCHEMA, read_metrics, read_weights
from maxsep.lab.networks import Network
from maxsep.lab.spec import RunSpec


@dataclass(frozen=True)
class RunResult:
    """A finished run as its folder tells it.

    Args:
        folder: Where it lies.
        spec: What was trained.
        metrics: The last epoch's numbers; accuracies are fractions.
        preprocessing: Image shape, mean, std and class names that the weights belong to.
        execution: How it was computed.
        versions: With which software.
        hardware: On which machine.
        seconds: How long it took in all.
        images_per_second: How fast it trained, without evaluation.
        started: ISO 8601, UTC.
        finished: Likewise.
        resumed: How often it was taken up again.
        history: The lines of `metrics.jsonl`.
        unknown: The thresholds that `calibration.calibrate` set; None for a run without calibration data.
    """

    folder: Path
    spec: RunSpec
    metrics: dict[str, Any]
    preprocessing: dict[str, Any]
    execution: dict[str, Any]
    versions: dict[str, Any]
    hardware: dict[str, Any]
    seconds: float
    images_per_second: float
    started: str
    finished: str
    resumed: int
    history: list[dict[str, Any]]
    unknown: dict[str, Any] | None = None


def load_run(folder: str | Path) -> RunResult:
    """Read a finished run.

    Raises:
        FileNotFoundError: There is no finished run in the folder.
        ValueError: `result.json` is damaged, or written by a newer version.
    """
    folder = Path(folder)
    path = folder / "result.json"
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}. Name the folder of a run, such as runs/NAME.")
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no finished run: there is no result.json. Give the folder that maxsep train printed, or "
            "train it to the end first."
        )
    try:
        result = json.loads(path.read_bytes())
        if result["schema"] != SCHEMA:
            raise ValueError(f"schema {result['schema']} is not {SCHEMA}, the one this version reads")
        fields = {key: result[key] for key in RunResult.__dataclass_fields__ if key in result}
        fields |= {
            "folder": folder,
            "spec": RunSpec.from_dict(result["spec"]),
            "history": read_metrics(folder / "metrics.jsonl"),
        }
        return RunResult(**fields)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a run's result: {error}") from error


def load_model(folder: str | Path) -> tuple[Network, RunSpec]:
    """Rebuild a finished run's network with its trained weights, on the CPU and in evaluation mode.

    The network takes images normalised with `load_run(folder).preprocessing`.
    """
    run = load_run(folder)
    weights = read_weights(run.folder)
    classes = len(run.preprocessing["classes"])
    channels, height, width = run.preprocessing["shape"]
    with torch.random.fork_rng(devices=[]):
        network = build_model(run.spec, (channels, height, width), classes)
    network.load_state_dict(weights)
    network.eval()
    return network, run.spec


def load_pipeline(folder: str | Path, device: torch.device | str = "cpu") -> Pipeline:
    """Rebuild a finished run's network behind the normalisation that it has recorded, in full precision, to evaluate.

    It takes uint8 images, and nothing of it is trained.
    """
    told = load_run(folder).preprocessing
    network, _ = load_model(folder)
    pipeline = Pipeline(network.float(), torch.tensor(told["mean"]), torch.tensor(told["std"])).to(device).eval()
    return pipeline.requires_grad_(False)


def evaluate(folder: str | Path, data_root: str | Path | None = None, *, device: str = "cpu") -> dict[str, Any]:
    """Evaluate a finished run's weights on its test data again, in full precision.

    What belongs to the weights, the normalisation and the training images of every class that the loss may go by, is
    what the run has recorded: a folder's training images may have changed since.

    Args:
        folder: The run's folder.
        data_root: Folder of the datasets; by default $MAXSEP_DATA.
        device: Where to compute.

    Returns:
        `top1`, `top5`, `loss`, `ece`, `softmax_scale`, `balanced`, `per_class` and `angular_fisher`; and `unknown`: the
        run's thresholds with the part of the test images that each of them rejects, None for a run without thresholds.
    """
    run = load_run(folder)
    pipeline, spec, told = load_pipeline(folder, device), run.spec, run.preprocessing
    data = prepare(spec, data_root)
    check_classes(data, told["classes"], told["shape"], folder, "Evaluate it on the data that it was trained on.")
    outputs = predict(pipeline, data.test.to(device, images=False))
    loss = last_loss(spec, run.metrics["class_counts"])
    if isinstance(loss, torch.nn.Module):
        loss = loss.to(device)
    metrics = measure(outputs, loss, spec.softmax_scale)
    metrics["angular_fisher"] = angular_fisher_score(outputs.features, outputs.labels)
    return metrics | {"unknown": with_rejected(run.unknown, outputs.logits)}


def check_classes(data: Data, classes: Sequence[str], shape: Sequence[int], source: str | Path, advice: str) -> None:
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
