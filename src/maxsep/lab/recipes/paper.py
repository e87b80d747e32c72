"""The paper's numbers, looked up cell by cell, and its own inconsistencies."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from maxsep.lab.spec import RunSpec

_NETWORKS = {"resnet34": "resnet", "convnet": "convnet"}
_AUGMENTATIONS = ("none", "crop_flip", "crop_flip_rotate")
"""With a stronger one it is another experiment than the paper's."""


@dataclass(frozen=True)
class PaperNumber:
    """A number the paper prints: percent for accuracies, with a spread where several runs stand behind it."""

    value: float
    source: str
    std: float | None = None


@functools.cache
def tables() -> dict[str, Any]:
    """Read every table that ships with the package.

    >>> tables()["table1_cifar"]["cifar10"]["resnet"]["maxsep"]["0.01"]
    69.7
    """
    text = resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8")
    return json.loads(text)["tables"]  # type: ignore[no-any-return]


def table1(spec: RunSpec) -> PaperNumber | None:
    """Look up a run's accuracy in Table 1, if the paper has that cell.

    >>> table1(RunSpec(dataset="cifar10", network="resnet34", head="maxsep", radius=0.1, imbalance=0.01)).value
    69.7
    """
    return _number("table1_cifar", spec.dataset, _network(spec), _paper_head(spec), _factor(spec))


def best_of_table1(spec: RunSpec) -> PaperNumber | None:
    """Look up the better of the paper's two heads in a run's cell of Table 1, whatever the run itself was.

    >>> best_of_table1(RunSpec(dataset="cifar100", network="resnet34", imbalance=0.2, loss="logit_adjusted")).value
    66.01
    """
    heads = ("plain", "maxsep")
    cells = [_number("table1_cifar", spec.dataset, _network(spec), head, _factor(spec)) for head in heads]
    return max((cell for cell in cells if cell is not None), key=lambda cell: cell.value, default=None)


def error_bar(spec: RunSpec) -> PaperNumber | None:
    """Look up a run's mean and spread over the paper's five runs."""
    return _number("table1_error_bars", spec.dataset, _network(spec), _paper_head(spec), _factor(spec))


def fisher(spec: RunSpec) -> PaperNumber | None:
    """Look up a run's angular Fisher score; the paper has it for the ResNet."""
    if _network(spec) != "resnet":
        return None
    return _number("angular_fisher_score", spec.dataset, _paper_head(spec), _factor(spec))


def prototypes(spec: RunSpec) -> PaperNumber | None:
    """Look up a run's accuracy in the comparison with optimised prototypes."""
    if _network(spec) != "resnet":
        return None
    head = "hpn" if spec.head == "hpn" and spec.loss == "squared_cosine" else _paper_head(spec)
    return _number("optimised_prototypes", spec.dataset, head, _factor(spec))


def long_tailed(spec: RunSpec) -> PaperNumber | None:
    """Look up a run's accuracy in the table of LDAM and MiSLAS.

    The paper has one row "with the matrix" for LDAM, at a largest margin of 0.4 and without saying where the cosines
    are taken: both readings are set beside it. Plain LDAM has 0.5.

    >>> spec = RunSpec(dataset="cifar100", imbalance=0.01, network="resnet32", head="plain", mixup=1.0)
    >>> long_tailed(spec).value
    40.29
    """
    if spec.network != "resnet32" or spec.dataset != "cifar100" or _held_out(spec) or spec.head_options:
        return None
    method, head = _ldam_row(spec) if spec.loss == "ldam" else _mislas_row(spec)
    return None if method is None else _number("long_tailed_methods", method, head, _factor(spec))


def imagenet(spec: RunSpec, metric: str = "top1") -> PaperNumber | None:
    """Look up a run's accuracy, `top1` or `top5`, in the table of ImageNet and ImageNet-LT.

    The paper does not say with which radius: the number stands beside radius 1.

    >>> imagenet(RunSpec(dataset="imagenet_lt", network="resnet50", head="maxsep"), "top5").value
    73.6
    """
    if spec.loss != "cross_entropy" or spec.mixup or not _is_unit(spec):
        return None
    return _number("imagenet", spec.dataset, spec.network, spec.head, metric)


UNTOLD = (
    "The paper does not say epochs, batch size, augmentation or radius for ImageNet, and no code was released: these "
    "are our choice."
)


def detection(spec: RunSpec, outliers: str, score: str) -> dict[str, float]:
    """Look up what the paper has on a run's outliers: `fpr95`, `auroc` and `aupr` in percent; nothing if it has not.

    >>> run = RunSpec(dataset="cifar100", network="wrn40_2", head="maxsep")
    >>> detection(run, "svhn", "energy")["auroc"]
    85.42
    """
    if (spec.dataset, spec.network, spec.optimiser) != ("cifar100", "wrn40_2", "sgd") or not _is_unit(spec):
        return {}
    table, names = tables()["ood"], {"places": "places365", "max_softmax": "softmax"}
    cell = table.get(names.get(outliers, outliers), {}) if outliers in ("svhn", "places") else {}
    return dict(cell.get(names.get(score, score), {}).get(spec.head, {}))


def open_set(spec: RunSpec, benchmark: str, score: str) -> PaperNumber | None:
    """Look up the AUROC, in percent and over five splits, of MSP (`max_softmax`) or MLS (`max_logit`).

    >>> open_set(RunSpec(dataset="osr_cifar+_0", network="vgg32", head="plain"), "cifar+50", "max_logit").value
    96.48
    """
    row = {"max_softmax": "msp", "max_logit": "mls"}.get(score)
    return _number("open_set", row, spec.head, benchmark) if spec.network == "vgg32" and _is_unit(spec) else None


BEST_EPOCH = (
    "The scripts of LDAM and MiSLAS report the best epoch on test data, and the paper ran them: compare its number "
    "with our best epoch. Claims here rest on the last one."
)


def inconsistencies(spec: RunSpec) -> tuple[str, ...]:
    """Say where the paper contradicts itself about this cell.

    >>> cell = RunSpec(dataset="cifar10", network="resnet34", head="maxsep", radius=0.1)
    >>> "96.12" in inconsistencies(cell)[0]
    True
    """
    if long_tailed(spec) is not None and (*_ldam_row(spec), spec.imbalance) == ("ldam_sgd", "maxsep", 0.01):
        return ("The paper prints a gain of 2.20 for this cell; its two numbers differ by 2.15.",)
    key = (spec.dataset, _network(spec), _paper_head(spec), _factor(spec))
    text = _CONTRADICTIONS.get(key)  # type: ignore[arg-type]
    return () if text is None else (text,)


PATTERN = (
    "The values of Table 1 are mostly at or above the mean of the paper's own five runs, as the best of several "
    "runs would be."
)

_CONTRADICTIONS = {
    ("cifar100", "resnet", "maxsep", "-"): (
        "The paper gives three values for this cell: 76.54 in Table 1, 76.23 beside the optimised prototypes, and "
        "76.41 ± 0.21 over five runs."
    ),
    ("cifar10", "resnet", "maxsep", "-"): (
        "The paper gives 95.09 in Table 1 but 96.12 ± 0.19 over five runs: more than five standard deviations apart."
    ),
    ("cifar10", "convnet", "maxsep", "0.02"): ("The paper gives 55.25 in Table 1 but 56.98 ± 1.16 over five runs."),
    ("cifar100", "resnet", "maxsep", "0.01"): ("The paper gives 38.85 in Table 1 but 37.65 ± 0.81 over five runs."),
}


def _number(table: str, *keys: str | None) -> PaperNumber | None:
    found: Any = tables()[table]
    for key in keys:
        found = found.get(key) if isinstance(found, dict) and key is not None else None
    if found is None:
        return None
    source = tables()[table]["source"]
    if isinstance(found, dict):
        return PaperNumber(found["mean"], source, found["std"])
    return PaperNumber(float(found), source)


def _ldam_row(spec: RunSpec) -> tuple[str | None, str | None]:
    """The method and head under which the paper has an LDAM run."""
    given = dict(spec.loss_options)
    method = "ldam_drw" if spec.reweights else "ldam_sgd"
    margin = given.get("max_margin", 0.5)
    if spec.radius == 1 and spec.head == "cosine" and margin == 0.5:
        return method, "plain"
    if spec.radius == 1 and spec.head in ("cosine_maxsep", "maxsep_cosine") and margin == 0.4:
        return method, "maxsep"
    return None, None


def _mislas_row(spec: RunSpec) -> tuple[str | None, str | None]:
    """The stage and head under which the paper has a MiSLAS run."""
    first = spec.start_from or spec
    if spec.radius != 1 or spec.head not in ("plain", "maxsep") or first.mixup != 1 or first.loss != "cross_entropy":
        return None, None
    if spec.start_from is None:
        return "mislas_stage1", spec.head
    return ("mislas_stage2", spec.head) if spec.loss == "label_aware_smoothing" else (None, None)


def _is_unit(spec: RunSpec) -> bool:
    """Whether a run is what the paper ran outside of Table 1: radius 1, all of the training data."""
    options = spec.head_options or spec.network_options
    return spec.radius == 1 and spec.imbalance == 1 and not _held_out(spec) and not options


def _factor(spec: RunSpec) -> str:
    return "-" if spec.imbalance == 1 else f"{spec.imbalance:g}"


def _held_out(spec: RunSpec) -> bool:
    """Whether a run trains on less than the paper did."""
    return spec.validation > 0 or spec.calibration > 0


def _network(spec: RunSpec) -> str | None:
    return _NETWORKS.get(spec.network)


def _paper_head(spec: RunSpec) -> str | None:
    """The paper's row: it has no control, and `maxsep` at the radius it used alone."""
    if spec.loss != "cross_entropy" or _held_out(spec) or spec.head_options or spec.mixup:
        return None
    if spec.augmentation not in _AUGMENTATIONS:
        return None
    if spec.head == "plain":
        return "plain"
    radius = {"resnet34": 0.1, "convnet": 1.0}.get(spec.network)
    return "maxsep" if spec.head == "maxsep" and spec.radius == radius else None
