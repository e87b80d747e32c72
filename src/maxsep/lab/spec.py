"""What a training run is (`RunSpec`), from which its name follows, and how it is computed (`Execution`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLERS = ("instance", "class_balanced")
ORDERED = ("cifar100",)
"""Datasets whose files exist in more than one order of images."""
BACKBONES = ("trained", "frozen", "frozen_shifted_norm")
CLASS_ORDERS = ("frequency", "reversed_frequency")
RATES = {"sgd": 0.1, "adamw": 1e-3}
"""Default learning rate of each optimiser on the command line."""
LDAM_SCALE = 30.0
"""Default factor of the cosines in the loss `ldam`."""
SHARED_BY_STAGES = (
    *("dataset", "imbalance", "subset_seed", "data_order", "validation", "calibration", "max_train", "max_test"),
    *("normalisation", "network", "network_options", "weights", "weights_options", "image_size"),
    *("head", "radius", "class_order", "head_options", "precision", "seed"),
)
"""Fields that must agree in all stages of a run: the data, the network and the seed."""

Options = tuple[tuple[str, Any], ...]
"""Keyword options as sorted pairs: hashable, and the same on disk in whatever order they were written."""
_TYPES: dict[str, Any] = {"str": str, "bool": bool, "int": int, "int | None": int | None, "float": int | float}


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that decides the numbers of a run; `Execution` says how fast it is computed.

    >>> RunSpec(dataset="digits", head="maxsep", radius=0.5).name[:26]
    'digits-mlp-maxsep-r0.5-s0-'
    """

    dataset: str = "digits"
    imbalance: float = 1.0
    """Smallest over largest class size; 1 leaves the data as they are."""
    subset_seed: int = 0
    """Seed of the long-tailed subset; protocols share 0 for all seeds of a run."""
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
    """Alpha of mixup: images are mixed with shares from Beta(alpha, alpha); 0 is no mixup."""
    sampler: str = "instance"
    """instance: every image once an epoch; class_balanced: every class equally often, four images at a time."""

    network: str = "mlp"
    network_options: Options = ()
    """Arguments of the network's constructor, such as `feature_size` of vgg32."""
    weights: str = ""
    """Where the backbone starts: "" is drawn from the seed; the SHA-256 of a file of weights (`Execution.weights` says
    where it is); "pretrained" for timm's own weights; a name such as DEFAULT for torchvision's."""
    weights_options: Options = ()
    """Key map: a tensor of the file whose name begins with a key gets a name that begins with its value."""
    image_size: int = 0
    """If positive: torchvision and timm networks scale the images to squares of this side, on the device."""
    head: str = "maxsep"
    radius: float = 1.0
    class_order: str | tuple[int, ...] | None = None
    """Of the head maxsep: class_order[i] is the class that takes column i of the matrix. "frequency": classes by
    falling training count, so that rare classes come last; "reversed_frequency": rare classes first."""
    head_options: Options = ()
    head_start: float = 1.0
    """If not 1: the head's weight and bias are centred over classes and multiplied by it after initialisation."""
    loss: str = "cross_entropy"
    loss_options: Options = ()

    epochs: int = 20
    stop_after: int | None = None
    """Train only this many epochs; the schedule stays that of `epochs`."""
    batch_size: int = 512
    optimiser: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    freeze_epochs: int = 0
    """The head alone is trained in this many epochs, at most half of all, before the backbone is trained too."""
    stem_rate: float = 1.0
    """The first layer's learning rate over that of the head; between them the rate rises in equal ratios."""
    clip_norm: float = 0.0
    """If positive: the gradient is scaled down to this norm where it is longer."""
    schedule: str = "cosine"
    schedule_options: Options = ()
    evaluate_every: int = 10
    """Epochs between evaluations; 0: once, after the last epoch, so that nobody can choose an epoch by test images."""
    precision: str = "32-true"
    seed: int = 0

    start_from: RunSpec | None = None
    """The run whose weights this one starts from: its first stage, which is trained first if it is missing."""
    backbone: str = "trained"
    """trained; frozen; or frozen_shifted_norm: frozen, but batch normalisation still follows the batches."""
    logit_scaling: bool = False
    """Whether every logit has a trained factor, started at 1 (learnable weight scaling)."""
    head_rate: float = 1.0
    """The head's learning rate over that of all other parameters, logit factors included."""
    head_decay: float = 1.0
    """The head's weight decay over that of all other parameters, logit factors included."""
    features_at: tuple[int, ...] = ()
    """Epochs, counted from 1, after which features of known and unknown test images are kept; their mean norms are
    logged in every epoch. For open-set splits."""

    def __post_init__(self) -> None:
        """Normalise types, so that equal specs have one name, and refuse values that no run can have."""
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            kind = _TYPES.get(str(field.type))
            if kind and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
                raise ValueError(f"{field.name} must be of type {field.type}, got {value!r}.")
            if field.type == "float":
                value = float(value)
            elif field.type == "Options":
                value = options(**dict(value))
            object.__setattr__(self, field.name, _freeze(value))
        for name, (holds, allowed) in self._rules().items():
            if not holds:
                raise ValueError(f"{name} must be {allowed}, got {getattr(self, name)!r}.")
        first = self.start_from
        if not isinstance(first, RunSpec | None):
            raise ValueError(f"start_from must be a RunSpec or None, got {first!r}.")
        if first and (differing := [name for name in SHARED_BY_STAGES if getattr(first, name) != getattr(self, name)]):
            raise ValueError(f"a run and the run it starts from must agree in {', '.join(differing)}.")

    def _rules(self) -> dict[str, tuple[bool, str]]:
        """Return for every field with a rule whether it holds, and what is allowed."""
        orders = ("", "official") if self.dataset in ORDERED else ("",)
        columns, backbones = self.class_order, BACKBONES if self.start_from else BACKBONES[:1]
        known = columns in CLASS_ORDERS or (type(columns) is tuple and sorted(columns) == [*range(len(columns))])
        rules = {
            "imbalance": (0 < self.imbalance <= 1, "a number in (0, 1]; 1 is balanced"),
            "data_order": (self.data_order in orders, f"one of {orders} for {self.dataset}"),
            "class_order": (
                columns is None or (known and self.head == "maxsep"),
                f"None, or for the head maxsep a permutation or one of {', '.join(CLASS_ORDERS)}",
            ),
            "stop_after": (self.stop_after is None or 1 <= self.stop_after <= self.epochs, "None or from 1 to epochs"),
            "momentum": (
                0 <= self.momentum < 1 and (self.momentum > 0 or not self.nesterov),
                "a number in [0, 1), and above 0 with nesterov",
            ),
            "sampler": (self.sampler in SAMPLERS, f"one of {', '.join(SAMPLERS)}"),
            "backbone": (self.backbone in backbones, f"one of {', '.join(BACKBONES)}; trained without start_from"),
            "features_at": (all(isinstance(e, int) and e >= 1 for e in self.features_at), "epochs, counted from 1"),
        }
        for name in ("validation", "calibration"):
            rules[name] = 0 <= getattr(self, name) < 1, "a fraction in [0, 1)"
        for name in ("radius", "head_rate", "head_start", "stem_rate"):
            rules[name] = 0 < getattr(self, name) < math.inf, "a positive finite number"
        for name in ("mixup", "clip_norm", "head_decay", "learning_rate", "weight_decay"):
            rules[name] = 0 <= getattr(self, name) < math.inf, "0 or a positive finite number"
        for name in ("epochs", "batch_size"):
            rules[name] = getattr(self, name) >= 1, "a whole number of at least 1"
        for name in ("image_size", "freeze_epochs", "evaluate_every"):
            rules[name] = getattr(self, name) >= 0, "a whole number of at least 0"
        for name in ("max_train", "max_test"):
            value = getattr(self, name)
            rules[name] = value is None or value >= 1, "None or a whole number of at least 1"
        rules["subset_seed"] = 0 <= self.subset_seed < 2**32, "a whole number from 0 to 2^32 - 1"
        return rules

    @property
    def trained_epochs(self) -> int:
        """How many epochs are trained: `epochs`, or `stop_after` of them."""
        return self.stop_after or self.epochs

    def is_frozen(self, epoch: int) -> bool:
        """Whether the head alone is trained in an epoch, counted from 0."""
        return epoch < min(self.freeze_epochs, self.epochs // 2)

    @property
    def reweights(self) -> bool:
        """Whether classes get weights from some epoch on: any option of deferred re-weighting asks for it."""
        return self.loss == "ldam" and any(name.startswith("reweight") for name, _ in self.loss_options)

    @property
    def name(self) -> str:
        """The run's folder name: readable parts, then a digest of the whole spec."""
        tail = "" if self.imbalance == 1 else f"-lt{self.imbalance:g}"
        head = self.head if self.radius == 1 else f"{self.head}-r{self.radius:g}"
        title = re.sub(r"^\w+:(.*/)?(?=[^/?])", "", self.dataset)[:60]  # of a path the last part
        dataset = "".join(c if c.isalnum() or c in "._+" else "_" for c in title)
        network = self.network.replace("/", "_")
        stage = "" if self.start_from is None else f"-stage{self.stage}"
        return f"{dataset}{tail}-{network}-{head}{stage}-s{self.seed}-{self.digest}"

    @property
    def title(self) -> str:
        """The name for people: with the loss and its options, unless it is mere cross-entropy."""
        parts = [self.loss, *(f"{key}={value}" for key, value in self.loss_options)]
        return self.name if parts == ["cross_entropy"] else f"{self.name} ({', '.join(parts)})"

    @property
    def stage(self) -> int:
        """1, or one more than the run it starts from."""
        return 1 if self.start_from is None else 1 + self.start_from.stage

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits of the fields that are not at their default: a new field renames no finished run."""
        return hashlib.sha256(json.dumps(self.changed_fields(), sort_keys=True).encode()).hexdigest()[:10]

    def changed_fields(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as plain JSON types; likewise of the first stage."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        changed = {key: value for key, value in self.to_dict().items() if _freeze(value) != defaults[key]}
        return changed if self.start_from is None else changed | {"start_from": self.start_from.changed_fields()}

    @property
    def softmax_scale(self) -> float:
        """The factor of logits in probabilities, softmax(softmax_scale * logits): ldam trains scale * cosines."""
        return float(dict(self.loss_options).get("scale", LDAM_SCALE)) if self.loss == "ldam" else 1.0

    def columns(self, class_counts: Sequence[int]) -> tuple[int, ...] | None:
        """Return the class of every column of the matrix, or None, from the training images of every class."""
        if not isinstance(self.class_order, str):
            return self.class_order
        if not class_counts:
            raise ValueError(f"class_order {self.class_order!r} needs the training images of every class.")
        sign = -1 if self.class_order == "frequency" else 1
        return tuple(sorted(range(len(class_counts)), key=lambda label: sign * class_counts[label]))

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain JSON types; `from_dict` is its inverse."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunSpec:
        """Rebuild a spec from `to_dict`'s result; an unknown field is an error."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown fields in a run spec: {', '.join(unknown)}. A newer version may know them.")
        first = values.get("start_from")
        return cls(**values | ({"start_from": cls.from_dict(first)} if isinstance(first, dict) else {}))

    def replace(self, **changes: Any) -> RunSpec:
        """Return a copy with some fields changed; fields that stages share change in the first stage too."""
        if self.start_from is not None and "start_from" not in changes:
            shared = {name: value for name, value in changes.items() if name in SHARED_BY_STAGES}
            changes = changes | {"start_from": self.start_from.replace(**shared)}
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is computed: it changes the time, and at most the last bits, of the result.

    None stands for what suits the device: on a GPU compilation, channels-last memory and a CUDA graph, on a CPU none
    but channels-last memory with a file of weights.
    """

    device: str = "auto"
    """auto, cpu or cuda."""
    devices: int = 1
    """Number of processes of this machine; more than one, or more machines under torchrun, train with DDP."""
    sharded: bool = False
    """Shard weights, gradients and optimiser state over all processes (FSDP2); under torchrun, without `compile`."""
    accumulate: int = 1
    """Parts into which every process splits its batch, to save memory: their gradients add up to that of the batch.
    Batch normalisation sees a part at a time, as it sees the share of one process."""
    compile: bool | None = None
    channels_last: bool | None = None
    cuda_graph: bool | None = None
    """Capture the whole training step, from augmentation to optimiser, in a CUDA graph; on one GPU."""
    threads: int | None = None
    """Threads of the CPU; None: torch's own number, and 1 for the network mlp, whose layers are small."""
    checkpoint_every: int = 10
    """Epochs between resume points, unless saving them would take more than a fiftieth of the time."""
    checkpoint_steps: int | None = None
    """If set: steps between resume points, whatever they cost."""
    weights: Path | None = None
    """Path of the file whose SHA-256 is `RunSpec.weights`; not recorded."""
    tensorboard: bool = False
    """Write the numbers of every epoch for TensorBoard too; not recorded."""

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        for name in ("devices", "accumulate", "threads", "checkpoint_every", "checkpoint_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}.")

    def resolve(self, device_type: str, processes: int | None = None) -> Execution:
        """Replace None by what suits a device, "cuda" or "cpu", and the number of processes on all machines."""
        on_gpu = device_type == "cuda"
        suited: dict[str, Any] = {
            "compile": on_gpu and not self.sharded,
            # pretrained convolutional networks are half as fast without it on a CPU, too
            "channels_last": on_gpu or self.weights is not None,
            "cuda_graph": on_gpu and (processes or self.devices) == 1 and not self.sharded,
        }
        return dataclasses.replace(self, **{name: v for name, v in suited.items() if getattr(self, name) is None})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types, without those that say nothing on another machine."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if name not in ("weights", "tensorboard")
        }


def options(**values: Any) -> Options:
    """Freeze keyword options for a spec, as sorted pairs."""
    return tuple(sorted((key, _freeze(value)) for key, value in values.items()))


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value
