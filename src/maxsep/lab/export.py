"""Export a run for deployment: the folded model with labels, preprocessing and thresholds."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from maxsep import __version__
from maxsep.files import write_folder
from maxsep.lab.data.decoding import COLOURS
from maxsep.lab.engine import load_model
from maxsep.lab.networks import Shape
from maxsep.lab.predict import ONNX, open_onnx
from maxsep.lab.run import Run
from maxsep.packages import load_package
from maxsep.surgery import fold, save
from maxsep.surgery.save import DESCRIPTION

FORMATS = ("safetensors", "onnx")
TOLERANCE = 1e-5
"""Largest error of an ONNX file's logits, relative to the largest logit if that is above 1."""


def export(run: str | Path, out: str | Path, format: str = "safetensors") -> Path:
    """Fold a finished run's head, write the model with all that is needed to use it, and return the folder `out`.

    `maxsep.json` holds the labels, the preprocessing (size, mean, std), the threshold of the default score, and under
    `extra` all thresholds and the spec. The model takes normalised images and returns logits; probabilities are
    softmax(softmax_scale * logits) with `extra.softmax_scale`, which is 1 for every loss but `ldam`. The folder is
    written as a whole or not at all, and may replace an earlier export.

    Formats: `safetensors` for `maxsep.load` and `maxsep predict`; `onnx` for any batch size, with the input `images`
    and the output `logits`, which are compared with the model's before the file is written.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}.")
    result, out = Run(run), Path(out)
    description = _describe(result)
    model = fold(load_model(run)[0]).float().eval()
    if format == "safetensors":
        save(model, out, **description)
        return out
    channels, height, width = result.preprocessing["shape"]
    description |= {"maxsep_version": __version__, "torch_version": torch.__version__}

    def write(folder: Path) -> None:
        _write_onnx(model, (channels, height, width), folder / ONNX)
        _compare(model, (channels, height, width), folder / ONNX)
        text = json.dumps(description, indent=1, allow_nan=False, ensure_ascii=False)
        (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")

    write_folder(out, write)
    return out


def _describe(run: Run) -> dict[str, Any]:
    preprocessing, unknown = run.preprocessing, run.unknown
    channels, height, width = preprocessing["shape"]
    return {
        "labels": preprocessing["classes"],
        "preprocessing": {
            "shape": preprocessing["shape"],
            "colours": COLOURS.get(channels),
            "resize": f"bicubic, until it covers {height} x {width}; then the centre",
            "normalise": "(pixel / 255 - mean) / std",
            "mean": preprocessing["mean"],
            "std": preprocessing["std"],
        },
        "threshold": None if unknown is None else unknown["thresholds"][unknown["score"]],
        "extra": {"spec": run.spec.to_dict(), "unknown": unknown, "softmax_scale": run.spec.softmax_scale},
    }


def _write_onnx(model: nn.Module, shape: Shape, path: Path) -> None:
    load_package("onnxscript", "export")  # the exporter's own message is less clear
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from inside torch
        logger.setLevel(logging.ERROR)
        try:
            torch.onnx.export(
                model, (torch.zeros(2, *shape),), path, dynamo=True, input_names=["images"], output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False, verbose=False,
            )  # fmt: skip
        finally:
            logger.setLevel(level)


def _compare(model: nn.Module, shape: Shape, path: Path) -> None:
    """Compare logits at other batch sizes than the traced one."""
    session = open_onnx(path)
    generator = torch.Generator().manual_seed(0)
    for batch in (1, 3):
        images = torch.randn(batch, *shape, generator=generator)
        with torch.inference_mode():
            expected = model(images)
        error = (session(images) - expected).abs().max() / expected.abs().max().clamp_min(1)
        if not error <= TOLERANCE:  # NaN fails too
            raise ValueError(
                f"the ONNX file's logits differ from the run's by {float(error):.1e}, more than {TOLERANCE:.0e}; "
                "nothing was written."
            )
