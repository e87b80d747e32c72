"""Whether embeddings of two runs that were trained apart can be compared: retrieval from one's gallery by the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.analysis import recall_at_1
from maxsep.durable import replace_file
from maxsep.lab.data import Data, ImageSet, limit, load, parse_open_set, prepare
from maxsep.lab.data.open_set import keep_classes
from maxsep.lab.detection import pick_device
from maxsep.lab.detection.judge import full_precision
from maxsep.lab.engine.evaluation import predict
from maxsep.lab.engine.runs import load_pipeline, load_run
from maxsep.lab.spec import RunSpec

FILE = "compatibility.json"
SCHEMA = 1
EMBEDDINGS = ("features", "logits", "aligned")
"""What is compared by cosine: what the head sees; the logits less their mean; and features of the one model turned onto
those of the other by the orthogonal map that fits best on the training images, which whoever has both models can do."""
PARTS = ("known", "unseen")
"""Test images of the classes that were trained on, and of the others."""


def partner(spec: RunSpec) -> RunSpec | None:
    """Give the run that one is paired with: that of the seed before, for every second seed. No run is in two pairs.

    >>> partner(RunSpec(seed=3)).seed, partner(RunSpec(seed=2))
    (2, None)
    """
    return spec.replace(seed=spec.seed - 1) if spec.seed % 2 else None


def is_done(folder: Path, other: RunSpec) -> bool:
    """Whether a run's folder has the comparison with another one already."""
    try:
        told = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    try:
        check_compatibility(told)
    except (ValueError, KeyError, TypeError):
        return False
    return bool(told.get("schema") == SCHEMA and told["partner"] == other.name)


def check_compatibility(record: dict[str, Any]) -> None:
    """Raise if what was read from a `compatibility.json` lacks something."""
    if not isinstance(record["partner"], str):
        raise ValueError("it does not name the other run")
    for part in PARTS:
        for kind in EMBEDDINGS:
            for which, value in record[part][kind].items():
                if not isinstance(value, int | float) or not 0 <= value <= 1:
                    raise ValueError(f"{which} of {kind}, {part}, must be a fraction in [0, 1], got {value!r}")
            if {*record[part][kind]} != {"self", "across"}:
                raise ValueError(f"{kind}, {part}, must say self and across")


def compare_runs(
    folder: Path, other: Path, *, data_root: str | Path | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Let two finished runs of one open-set split retrieve test images from each other, and keep what comes of it.

    A model's gallery and its queries are the same test images, of which none finds itself. `self` is the recall at 1
    within one model, the mean of both; `across` has the queries of one and the gallery of the other, the mean of both
    ways.

    Args:
        folder: The run that `compatibility.json` is written to.
        other: The other run.
        data_root: Folder of the datasets; by default $MAXSEP_DATA.
        device: auto, cpu or cuda.

    Returns:
        The content of that file: for the known and the unseen classes, and for all of `EMBEDDINGS`, both recalls.
    """
    spec = load_run(folder).spec
    _check_alike(spec, load_run(other).spec)
    train, known, unseen = _images(spec, data_root)
    place = pick_device(device)
    models = [load_pipeline(path, place) for path in (folder, other)]
    with full_precision():
        turn = rotation_onto(*(predict(model, train.to(place, images=False)).features for model in models))
    record: dict[str, Any] = {"schema": SCHEMA, "partner": other.name}
    for part, images in zip(PARTS, (known, unseen), strict=True):
        with full_precision():
            outputs = [predict(model, images.to(place, images=False)) for model in models]
        features, logits = [found.features for found in outputs], [found.logits for found in outputs]
        pairs = {
            "features": features,
            "logits": [found - found.mean(1, keepdim=True) for found in logits],
            "aligned": [F.normalize(features[0], dim=1) @ turn, features[1]],
        }
        labels = images.labels.to(place)
        record[part] = {"images": len(images)} | {kind: _recalls(pairs[kind], labels) for kind in EMBEDDINGS}
    replace_file(folder / FILE, (json.dumps(record, indent=1) + "\n").encode())
    return record


def _check_alike(spec: RunSpec, other: RunSpec) -> None:
    """Refuse runs that saw other classes, or would be tested on other images."""
    for name in ("dataset", "subset_seed", "validation", "calibration", "max_train", "max_test"):
        ours, theirs = getattr(spec, name), getattr(other, name)
        if ours != theirs:
            raise ValueError(
                f"the two runs differ in {name}: {ours!r} and {theirs!r}. Compare runs that know the same classes and "
                "are tested on the same images."
            )


def rotation_onto(one: Tensor, two: Tensor) -> Tensor:
    """Give the orthogonal map Q, (D, D), for which |one Q - two| is least, rows of length 1 (Procrustes).

    With the singular value decomposition one^T two = U S V^T it is Q = U V^T.

    >>> rows, turn = torch.eye(3), torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> torch.allclose(rotation_onto(rows, rows @ turn), turn)
    True
    """
    if one.shape != two.shape:
        raise ValueError(
            f"features of {one.shape[1]} and {two.shape[1]} numbers cannot be compared. Take networks with as many "
            "features."
        )
    u, _, vt = torch.linalg.svd(F.normalize(one, dim=1).T @ F.normalize(two, dim=1))
    turn: Tensor = u @ vt
    return turn


def _recalls(both: list[Tensor], labels: Tensor) -> dict[str, float]:
    one, two = both
    within, across = ((one, one), (two, two)), ((one, two), (two, one))
    return {
        name: sum(recall_at_1(query, labels, gallery, labels, same_images=True) for query, gallery in pairs) / 2
        for name, pairs in (("self", within), ("across", across))
    }


def _images(spec: RunSpec, data_root: str | Path | None) -> tuple[ImageSet, ImageSet, ImageSet]:
    """Read the training images, the test images of the known classes, and those of the unseen ones."""
    split = parse_open_set(spec.dataset)
    if split is None:
        raise ValueError(
            f"only runs of open-set splits have unseen classes, and {spec.dataset!r} is none. Train on one such as "
            "osr_digits_0."
        )
    data: Data = prepare(spec, data_root)
    rest = load(split.unknown_source, data_root).test
    unseen = keep_classes(rest, next(iter(split.unknown.values())))
    if spec.max_test is not None:
        unseen = unseen.subset(limit(unseen.labels, spec.max_test, spec.subset_seed))
    return data.train, data.test, unseen
