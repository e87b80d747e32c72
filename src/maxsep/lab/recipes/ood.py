"""Out-of-distribution detection, open-set recognition and features in the plane.

- `ood`: the classifier of the released script behind the energy benchmark. The paper gives no radius: it is 1. "Plain,
  centred" is no run of its own: the mean logit is subtracted from a trained plain head's logits.
- `openset`: the settings of the released script of Vaze et al. (ICLR 2022). A split is a repetition, so there is one
  seed. CIFAR+10 and CIFAR+50 differ in the unknown classes alone and share their trained models.
- `features2d`: the paper names neither the split nor the schedule: the first split of CIFAR10, and one cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maxsep.lab.data import Dataset, OpenSetSplit, load_outliers
from maxsep.lab.data.open_set import SPLITS
from maxsep.lab.ood import OODProtocol, covers, ensure_detection, read_detection
from maxsep.lab.recipes.cifar import PAIR, SGD
from maxsep.lab.recipes.recipe import Block, Recipe
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec, options


@dataclass(frozen=True)
class Detect:
    """Score outliers with every run and write `detection.json` into its folder."""

    protocol: OODProtocol

    def check(self, specs: Sequence[RunSpec], runs: Path, data_root: str | Path | None, download: bool) -> None:
        """Read every set of outliers once, so that a missing one is one error before the first run."""
        needed: dict[tuple[str, str], str] = {}
        for spec in specs:
            run, split = Run(runs / spec.name), Dataset.parse(spec.dataset).open_set
            if run.state != "finished" or not self.is_done(run):
                for name in self.protocol.sets(spec.dataset):
                    source = split.unknown_source if split and name in split.unknown else name
                    needed[name, source] = spec.dataset
        for (name, source), dataset in needed.items():
            if download and source in ("svhn", "cifar10", "cifar100"):
                Dataset.parse(source).read(data_root, download=True)
            load_outliers(name, data_root, like=dataset)

    def is_done(self, run: Run) -> bool:
        """Return whether the run's `detection.json` holds all that the protocol measures."""
        record = read_detection(run.folder)
        return record is not None and covers(record, self.protocol, run.spec.softmax_scale)

    def __call__(self, run: Run, *, data_root: str | Path | None, device: str) -> str:
        """Score the outliers with a run."""
        if not run.has_weights:
            return "Some runs were kept without weights, so detection cannot be measured with them."
        with suppress(BlockingIOError):  # another process that shares these runs is at it
            ensure_detection(run.folder, self.protocol, data_root=data_root, device=device)
        return ""


_WRN = SGD.replace(
    dataset="cifar100",
    augmentation="crop_flip",
    normalisation="cifar10_255",
    network="wrn40_2",
    epochs=100,
    batch_size=128,
    nesterov=True,
    schedule="cosine_steps",
)

OOD = Recipe(
    name="ood",
    about="Table on out-of-distribution detection: "
    "does a network trained with the matrix tell images from outside its classes better?",
    blocks=(Block(settings=(_WRN,), arms=PAIR),),
    seeds=(1, 2, 3, 4, 5),
    after=Detect(OODProtocol(outliers=("svhn", "places", "cifar10"))),
)

_VGG = SGD.replace(
    dataset="osr_cifar10_0",
    augmentation="rand_augment_m6",
    normalisation="cifar10",
    network="vgg32",
    epochs=600,
    batch_size=128,
    weight_decay=1e-4,
    schedule="restarts",
    schedule_options=options(cycles=3),
    evaluate_every=50,
)
_AUGMENTATION = {"cifar10": "rand_augment_m6", "cifar+": "rand_augment_m6", "svhn": "rand_augment_digits_m18"}

OPEN_SET = Recipe(
    name="openset",
    about="Table on open-set recognition: does the matrix help to tell classes that were never trained on?",
    blocks=(
        Block(
            settings=tuple(  # all benchmarks of the first split, then of the next
                _VGG.replace(dataset=OpenSetSplit(benchmark, split).name, augmentation=augmentation)
                for split in range(SPLITS)
                for benchmark, augmentation in _AUGMENTATION.items()
            ),
            arms=PAIR,
        ),
    ),
    seeds=(0,),
    after=Detect(OODProtocol(mahalanobis=False, repeats=0)),
)

_PLANE = {"network_options": options(feature_size=2), "schedule_options": options(cycles=1)}
FEATURES2D = Recipe(
    name="features2d",
    about="Supplementary material, two-dimensional features: "
    "do features of unknown classes become shorter than those of known ones?",
    blocks=(Block(settings=(_VGG.replace(epochs=200, features_at=(15, 200), **_PLANE),), arms=PAIR),),
    seeds=(0,),
)
