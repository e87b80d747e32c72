"""A trained run as a folder to give away: the plain model, its labels, how images are prepared, its thresholds."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maxsep import __version__
from maxsep.files import write_folder
from maxsep.lab.data.decode import COLOURS
from maxsep.lab.engine import load_model
from maxsep.lab.networks import Shape
from maxsep.lab.run import Run
from maxsep.lab.serving.classifier import ONNX, open_onnx
from maxsep.surgery import fold, save
from maxsep.surgery.save import DESCRIPTION

TOLERANCE = 1e-5
"""How far the logits of an ONNX file may be from those of the run, relative to the largest one if that is above 1."""


def export(run: str | Path, out: str | Path, format: str = "safetensors") -> Path:
    """Fold a finished run's head and write the plain model with all that is needed to use it.

    `maxsep.json` holds the labels, the preprocessing (size, mean, std), the threshold of the run, its other thresholds,
    its spec, its training images of every class and, for a folder of pictures, the mark of their names and sizes. The
    model takes normalised images and gives logits; probabilities are softmax(softmax_scale * logits) with the number in
    `extra`, which is 1 for every loss but `ldam`. The folder appears as a whole or not at all.

    Args:
        run: The run's folder.
        out: Where to write; it may hold an earlier export, but nothing else.
        format: `safetensors`: weights, for `maxsep.load` or `maxsep predict`. `onnx`: a graph for any batch size, with
            the input `images` and the output `logits`; it is run and compared with the model before it is given out.

    Returns:
        The folder.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}. Known: {', '.join(FORMATS)}.")
    result = Run(run)
    if result.state == "finished" and not result.has_weights:
        raise FileNotFoundError(f"{run} was kept without its weights, so it cannot be exported. Train it again.")
    model = fold(load_model(run)[0]).float().eval()
    FORMATS[format](model, result, Path(out))
    return Path(out)


def _to_safetensors(model: nn.Module, run: Run, out: Path) -> None:
    save(model, out, **_described(run))


def _to_onnx(model: nn.Module, run: Run, out: Path) -> None:
    channels, height, width = run.preprocessing["shape"]
    description = _described(run) | {"maxsep_version": __version__, "torch_version": torch.__version__}

    def write(place: Path) -> None:
        _write_onnx(model, (channels, height, width), place / ONNX)
        _compare(model, (channels, height, width), place / ONNX)
        text = json.dumps(description, indent=1, allow_nan=False, ensure_ascii=False)
        (place / DESCRIPTION).write_text(text + "\n", encoding="utf-8")

    write_folder(out, write)


FORMATS: dict[str, Callable[[nn.Module, Run, Path], None]] = {"safetensors": _to_safetensors, "onnx": _to_onnx}


def _described(run: Run) -> dict[str, Any]:
    told, unknown = run.preprocessing, run.unknown
    channels, height, width = told["shape"]
    preprocessing = {
        "shape": told["shape"],
        "colours": COLOURS.get(channels),
        "resize": f"bicubic, until it covers {height} x {width}; then the centre",
        "normalise": "(pixel / 255 - mean) / std",
        "mean": told["mean"],
        "std": told["std"],
    }
    return {
        "labels": told["classes"],
        "preprocessing": preprocessing,
        "threshold": None if unknown is None else unknown["thresholds"][unknown["score"]],
        "extra": {
            "spec": run.spec.to_dict(),
            "unknown": unknown,
            "softmax_scale": run.spec.softmax_scale,
            "class_counts": run.metrics["class_counts"],
            "files": run.metrics.get("files"),
        },
    }


def _write_onnx(model: nn.Module, shape: Shape, path: Path) -> None:
    try:
        import onnxscript  # noqa: F401 - the exporter needs it and would say so less clearly
    except ImportError as error:
        raise ImportError('ONNX files need onnx and onnxscript: pip install "maxsep[export]"') from error
    talk = logging.getLogger("torch.onnx")
    level = talk.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the exporter's own, about the inside of torch
        talk.setLevel(logging.ERROR)
        try:
            torch.onnx.export(
                model,
                (torch.zeros(2, *shape),),
                path,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=["logits"],
                external_data=False,
                verbose=False,
            )
        finally:
            talk.setLevel(level)


def _compare(model: nn.Module, shape: Shape, path: Path) -> None:
    """Run the file on batches of other sizes than it was traced with."""
    session = open_onnx(path)
    generator = torch.Generator().manual_seed(0)
    for batch in (1, 3):
        images = torch.randn(batch, *shape, generator=generator)
        with torch.inference_mode():
            expected = model(images)
        error = (session(images) - expected).abs().max() / expected.abs().max().clamp_min(1)
        if not error <= TOLERANCE:
            raise ValueError(
                f"the ONNX file gives other logits than the run: they differ by {float(error):.1e}, allowed are "
                f"{TOLERANCE:.0e}. Nothing was written. Export to safetensors instead."
            )
