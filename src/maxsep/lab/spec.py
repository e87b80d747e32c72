"""What one training run is: a frozen record from which its folder name, and so its identity, follows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

SAMPLERS = ("instance", "class_balanced")
ORDERED = ("cifar100",)
"""Datasets whose files exist in more than one order of images."""
BACKBONES = ("trained", "frozen", "frozen_shifted_norm")
RATES = {"sgd": 0.1, "adamw": 1e-3}
"""The learning rate of each optimiser where a user names none."""
LDAM_SCALE = 30.0
"""By what the loss `ldam` multiplies its cosines where its options name no `scale`."""
SHARED_BY_STAGES = (
    *("dataset", "imbalance", "subset_seed", "data_order", "validation", "calibration", "max_train", "max_test"),
    *("normalisation", "network", "network_options", "head", "radius", "head_options", "precision", "seed"),
)
"""What the stages of a run have in common: the data, the network and the seed."""

Options = tuple[tuple[str, Any], ...]
"""Keyword options as sorted pairs: hashable, and the same on disk whatever order they were written in."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that decides the numbers of a run.

    How fast it is computed (device, compilation, threads) is no part of it: see `Execution`.

    >>> RunSpec(dataset="digits", head="maxsep", radius=0.5).name[:26]
    'digits-mlp-maxsep-r0.5-s0-'
    """

    dataset: str = "digits"
    imbalance: float = 1.0
    """Smallest over largest class size; 1 leaves the data as it is."""
    subset_seed: int = 0
    """Seed of the long-tailed subset; protocols share 0, whatever the run's seed."""
    data_order: str = ""
    """"official": the training images of CIFAR-100 have the order of its authors' files. "" for all other data, and for
    the recorded runs, whose files had another order. `data.with_order` sets it from the files."""
    validation: float = 0.0
    """If positive: this part of every training class is held out and evaluated; the test set is not read."""
    calibration: float = 0.0
    """If positive: this part of every training class is not trained on but sets the threshold of "unknown"."""
    max_train: int | None = None
    """Keep at most this many training images (for smoke runs)."""
    max_test: int | None = None
    augmentation: str = "none"
    normalisation: str = "auto"
    mixup: float = 0.0
    """Alpha of mixup: batches are mixed with a share from Beta(alpha, alpha); 0 leaves them as they are."""
    sampler: str = "instance"
    """instance: every image once an epoch; class_balanced: every class equally often, four images at a time."""

    network: str = "mlp"
    network_options: Options = ()
    """What the network's constructor takes besides the shape of the images, such as `feature_size` of vgg32."""
    head: str = "maxsep"
    radius: float = 1.0
    head_options: Options = ()
    loss: str = "cross_entropy"
    loss_options: Options = ()

    epochs: int = 20
    batch_size: int = 512
    optimiser: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    schedule_options: Options = ()
    evaluate_every: int = 10
    precision: str = "32-true"
    seed: int = 0

    start_from: RunSpec | None = None
    """The run whose weights this one starts from: its first stage. It is trained first, if it is not there."""
    backbone: str = "trained"
    """trained; frozen; or frozen_shifted_norm: frozen, but batch normalisation still follows the batches."""
    logit_scaling: bool = False
    """Whether every logit has a trained factor, started at 1 (learnable weight scaling)."""
    head_rate: float = 1.0
    """The head's learning rate over that of all other parameters, logit factors included."""
    features_at: tuple[int, ...] = ()
    """Epochs, counted from 1, after which features of known and unknown test images are kept; then the mean norms of
    both are logged in every epoch. For open-set splits, which have unknown images."""

    def __post_init__(self) -> None:
        """Refuse values that no run could mean."""
        _require(0 < self.imbalance <= 1, "imbalance", self.imbalance, "a number in (0, 1]; 1 is balanced")
        orders = ("", "official") if self.dataset in ORDERED else ("",)
        allowed = " or ".join(map(repr, orders)) + f" for {self.dataset}"
        _require(self.data_order in orders, "data_order", self.data_order, allowed)
        _require(0 <= self.validation < 1, "validation", self.validation, "a fraction in [0, 1)")
        _require(0 <= self.calibration < 1, "calibration", self.calibration, "a fraction in [0, 1)")
        _require(self.radius > 0 and math.isfinite(self.radius), "radius", self.radius, "a positive finite number")
        for name in ("epochs", "batch_size", "evaluate_every"):
            value = getattr(self, name)
            _require(isinstance(value, int) and value >= 1, name, value, "a whole number of at least 1")
        for name in ("network_options", "head_options", "loss_options", "schedule_options"):
            value = getattr(self, name)
            frozen = tuple(sorted((str(key), _freeze(item)) for key, item in dict(value).items()))
            object.__setattr__(self, name, frozen)
        self._check_training()

    def _check_training(self) -> None:
        least = "a number in (0, 1), as Nesterov's form needs it" if self.nesterov else "a number in [0, 1)"
        _require(0 <= self.momentum < 1 and (self.momentum > 0 or not self.nesterov), "momentum", self.momentum, least)
        _require(0 <= self.mixup < math.inf, "mixup", self.mixup, "0 or a positive finite number")
        _require(self.sampler in SAMPLERS, "sampler", self.sampler, f"one of {', '.join(SAMPLERS)}")
        _require(self.backbone in BACKBONES, "backbone", self.backbone, f"one of {', '.join(BACKBONES)}")
        at = self.features_at
        _require(all(isinstance(e, int) and e >= 1 for e in at), "features_at", at, "epochs, counted from 1")
        rate = self.head_rate
        _require(rate > 0 and math.isfinite(rate), "head_rate", rate, "a positive finite number")
        first = self.start_from
        if first is None:
            allowed = "'trained' unless start_from (--from) names a run"
            _require(self.backbone == "trained", "backbone", self.backbone, allowed)
            return
        if differing := [name for name in SHARED_BY_STAGES if getattr(first, name) != getattr(self, name)]:
            raise ValueError(
                f"a run and the run it starts from must agree in {', '.join(SHARED_BY_STAGES)}; these differ in "
                f"{', '.join(differing)}. Change both, as RunSpec.replace does."
            )

    @property
    def reweights(self) -> bool:
        """Whether classes get weights from some epoch on: any option of deferred re-weighting asks for it.

        >>> RunSpec(loss="ldam", loss_options=(("reweight_from", 160),)).reweights
        True
        """
        return self.loss == "ldam" and any(name.startswith("reweight") for name, _ in self.loss_options)

    @property
    def name(self) -> str:
        """The run's folder name: readable parts, then a digest of the whole spec."""
        tail = "" if self.imbalance == 1 else f"-lt{self.imbalance:g}"
        head = self.head if self.radius == 1 else f"{self.head}-r{self.radius:g}"
        dataset = "".join(c if c.isalnum() or c in "._+" else "_" for c in self.dataset)
        network = self.network.replace("/", "_")
        stage = "" if self.start_from is None else f"-stage{self.stage}"
        return f"{dataset}{tail}-{network}-{head}{stage}-s{self.seed}-{self.digest}"

    @property
    def title(self) -> str:
        """The name as it is told to people: with the loss and its options, unless it is mere cross-entropy.

        >>> RunSpec(loss="ldam", loss_options=options(max_margin=0.4)).title.split("-")[-1][10:]
        ' (ldam, max_margin=0.4)'
        """
        told = [self.loss, *(f"{key}={value}" for key, value in self.loss_options)]
        return self.name if told == ["cross_entropy"] else f"{self.name} ({', '.join(told)})"

    @property
    def stage(self) -> int:
        """1, or one more than the run it starts from.

        >>> RunSpec(start_from=RunSpec()).stage
        2
        """
        return 1 if self.start_from is None else 1 + self.start_from.stage

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that change with any field that differs from its default.

        Fields at their default are left out, so a field added later does not rename finished runs.
        """
        return hashlib.sha256(json.dumps(self._told(), sort_keys=True).encode()).hexdigest()[:10]

    def _told(self) -> dict[str, Any]:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        told = {key: value for key, value in self.to_dict().items() if _freeze(value) != defaults[key]}
        # likewise for the first stage: its own fields at their default are left out too
        return told if self.start_from is None else told | {"start_from": self.start_from._told()}

    @property
    def softmax_scale(self) -> float:
        """By what logits are multiplied before their softmax is a probability: p = softmax(softmax_scale * logits).

        The loss decides: `ldam` trains scale * cosines, and the logits are the bare cosines; all others take the logits
        as they are. No part of the digest: it follows from the loss and its options.

        >>> RunSpec(loss="ldam").softmax_scale, RunSpec().softmax_scale
        (30.0, 1.0)
        """
        return float(dict(self.loss_options).get("scale", LDAM_SCALE)) if self.loss == "ldam" else 1.0

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain JSON types; `from_dict` is its inverse."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunSpec:
        """Rebuild a spec from `to_dict`'s result; an unknown field is an error."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(
                f"unknown fields in a run spec: {', '.join(unknown)}. Known: {', '.join(sorted(known))}. "
                "The run was probably written by a newer version of maxsep."
            )
        told = {key: _freeze(value) for key, value in values.items()}
        if isinstance(told.get("start_from"), dict):
            told["start_from"] = cls.from_dict(told["start_from"])
        return cls(**told)

    def replace(self, **changes: Any) -> RunSpec:
        """A copy with some fields changed; what both stages share is changed in the first stage too.

        >>> RunSpec(start_from=RunSpec()).replace(head="plain", epochs=3).start_from.head
        'plain'
        """
        if self.start_from is not None and "start_from" not in changes:
            shared = {name: value for name, value in changes.items() if name in SHARED_BY_STAGES}
            changes = changes | {"start_from": self.start_from.replace(**shared)}
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is computed. It changes the time, and at most the last bits, of the result."""

    device: str = "auto"
    """auto, cpu or cuda."""
    devices: int = 1
    """How many processes; more than one trains with DDP."""
    compile: bool = False
    channels_last: bool = False
    cuda_graph: bool = False
    """Capture the whole training step (augmentation to optimiser) in a CUDA graph."""
    checkpoint_every: int = 10
    """Epochs between resume points (seconds are cheap, a lost hour is not)."""
    extra: Options = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]


def options(**values: Any) -> Options:
    """Freeze keyword options for a spec.

    >>> options(rotation=0, normalise=True)
    (('normalise', True), ('rotation', 0))
    """
    return tuple(sorted(values.items()))


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list | tuple) else value


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} must be {allowed}, got {value!r}.")
