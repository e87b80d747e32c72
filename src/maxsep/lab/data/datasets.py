"""Every dataset by name: its facts, known without reading an image, and how it is read."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from maxsep.files import MANIFEST, expanded, read_json
from maxsep.lab.data.download import SOURCES, Progress, ensure
from maxsep.lab.data.folder import list_folder, read_imagenet
from maxsep.lab.data.hugging_face import SAVED, list_hugging_face
from maxsep.lab.data.images import ImageSet, Splits
from maxsep.lab.data.listing import Listing, read_listed, without_broken
from maxsep.lab.data.official import read_digits, read_official
from maxsep.lab.data.open_set import OpenSetSplit, known_classes
from maxsep.lab.data.tables import TABLE_SUFFIXES, list_table

ROOT_VARIABLE = "MAXSEP_DATA"
CACHE_VARIABLE = "MAXSEP_CACHE"
FOLDER, TABLE, HUGGING_FACE = "folder:", "table:", "hf:"
SCHEMES = (FOLDER, TABLE, HUGGING_FACE)
"""How the names of a user's own data begin."""
SKIP_BROKEN = "skip_broken=1"
Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # means and stds of the channels, on the scale of 0 to 1
STATISTICS: dict[str, Statistics] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar10_255": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar100": ((0.5070752, 0.4865489, 0.4409178), (0.2673343, 0.2564385, 0.2761505)),
    "digits": ((0.3053,), (0.3759,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
NORMALISATIONS = ("auto", *STATISTICS, "train")


@dataclass(frozen=True)
class _Facts:
    label: str
    train_counts: tuple[int, ...]
    size: int
    statistics: Statistics | None = None
    network: str = "resnet32"
    augmentation: str = "crop_flip"
    sizes: range = range(0)  # at which its pictures can be read


_PICTURES = (224, STATISTICS["imagenet"], "resnet50", "resized_crop_flip", range(32, 513))
_FACTS = {
    "digits": _Facts(
        "Digits", (119, 121, 118, 122, 121, 121, 121, 119, 116, 120), 8, STATISTICS["digits"], "mlp", "none"
    ),
    "cifar10": _Facts("CIFAR-10", (5000,) * 10, 32, STATISTICS["cifar10"]),
    "cifar100": _Facts("CIFAR-100", (500,) * 100, 32, STATISTICS["cifar100"]),
    "svhn": _Facts(
        "SVHN", (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659), 32, augmentation="none"
    ),  # mirrored numbers are no numbers
    "imagenet": _Facts("ImageNet", (1282,) * 167 + (1281,) * 833, *_PICTURES),
    "imagenet_lt": _Facts("ImageNet-LT", (116,) * 846 + (115,) * 154, *_PICTURES),  # the mean of its classes
}
_OF_FOLDER = _Facts("", (), 32, sizes=range(4, 1025))
NAMES = tuple(_FACTS)
_LAST: dict[Hashable, Splits] = {}  # the dataset read last, by everything it depends on


@dataclass(frozen=True)
class Dataset:
    """What `RunSpec.dataset` names.

    A user's own pictures are `folder:PATH` (class folders), `table:PATH` (CSV or Parquet with the columns path and
    label) or `hf:PATH_OR_NAME` (a Hugging Face dataset), with `?size=64`, `?skip_broken=1` or `?size=64&skip_broken=1`.

    >>> Dataset.parse("imagenet_lt?size=64").label, Dataset.parse("digits").read().train.num_classes
    ('ImageNet-LT, 64 pixels', 10)
    """

    name: str  # exactly what the spec says: the identity, never rewritten
    source: str  # a name of `NAMES`, or `folder`, `table` or `hf`
    size: int
    path: str = ""  # of a user's own data
    open_set: OpenSetSplit | None = None  # the split whose known classes this is
    skip_broken: bool = False

    @classmethod
    def parse(cls, name: str) -> Dataset:
        """Read a name such as `cifar10`, `imagenet?size=64`, `osr_cifar+_3` or `folder:PATH?size=64`, without I/O."""
        if split := OpenSetSplit.parse(name):
            return cls(name, split.source, _FACTS[split.source].size, open_set=split)
        stem, size, skip_broken = _split_name(name)
        scheme = _scheme_of(stem)
        is_own = bool(scheme) and len(stem) > len(scheme)
        if not is_own and stem not in _FACTS:
            known = f"{', '.join(NAMES)}, osr_BENCHMARK_SPLIT, {', '.join(f'{scheme}PATH' for scheme in SCHEMES)}"
            raise ValueError(f"unknown dataset {name!r}. Known: {known}.")
        facts = _OF_FOLDER if is_own else _FACTS[stem]
        if size is not None and int(size) not in facts.sizes:
            allowed = f"{facts.sizes[0]} to {facts.sizes[-1]}" if facts.sizes else f"{facts.size}, which is fixed"
            raise ValueError(f"the size of the images of {stem} must be {allowed}, got {size}.")
        if skip_broken and not is_own:
            raise ValueError(f"broken pictures can be skipped in one's own data only, not in {stem}.")
        source, path = (scheme.rstrip(":"), stem.removeprefix(scheme)) if is_own else (stem, "")
        return cls(name, source, int(size or facts.size), path, skip_broken=skip_broken)

    @classmethod
    def find(
        cls,
        typed: str,
        root: str | Path | None = None,
        size: int | None = None,
        *,
        skip_broken: bool = False,
        download: bool = False,
    ) -> Dataset:
        """Take what a user typed: a name, or a path in the working directory or the data folder.

        The result has the absolute path, however it was typed. `size` is the side of the square images that pictures
        are cut to; by default 32, and 224 for ImageNet. `skip_broken` leaves out pictures that cannot be used.
        """
        stem, own_size, skips = _split_name(typed)
        if size is not None and own_size is not None:
            raise ValueError(f"the size is named twice, in {typed!r} and as {size}.")
        settings = [f"size={size or own_size}"] if size or own_size else []
        settings += [SKIP_BROKEN] if skips or skip_broken else []
        suffix = f"?{'&'.join(settings)}" if settings else ""
        if not _scheme_of(stem) and (stem in _FACTS or OpenSetSplit.parse(stem)):
            return cls.parse(f"{stem}{suffix}")
        dataset = cls.parse(f"{_find_own(stem, root)}{suffix}")
        dataset.listing(root, download=download)  # what has no classes is refused before anything is planned for it
        return dataset

    def listing(self, root: str | Path | None = None, *, download: bool = False) -> Listing:
        """List the pictures of a user's own data; inside `list_once` at most once."""
        kept = _LISTINGS.get()
        key = (self.source, self.path, self.skip_broken)
        if kept is not None and key in kept:
            return kept[key]
        if self.source == "hf":
            local = find_folder(self.path, root)
            listing = list_hugging_face(str(local if local.exists() else self.path), download=download)
        else:
            listing = (list_table if self.source == "table" else list_folder)(find_folder(self.path, root))
        listing = without_broken(listing) if self.skip_broken else listing
        if kept is not None:
            kept[key] = listing
        return listing

    def with_default_size(self, size: int) -> Dataset:
        """Return the same pictures at another size, unless the name has a size or the images have a fixed one."""
        fixed = not self._facts.sizes or _split_name(self.name)[1] is not None
        if fixed:
            return self
        stem, mark, rest = self.name.partition(f"?{SKIP_BROKEN}")
        return Dataset.parse(f"{stem}?size={size}" + (f"&{SKIP_BROKEN}{rest}" if mark else ""))

    @property
    def _facts(self) -> _Facts:
        return _FACTS.get(self.source, _OF_FOLDER)

    @property
    def label(self) -> str:
        """The name as people write it."""
        if self.open_set:
            return f"{self.open_set.label} split {self.open_set.split}"
        label = self._facts.label or self.path.rstrip("/").split("/")[-1]
        return label if self.size == self._facts.size else f"{label}, {self.size} pixels"

    @property
    def statistics(self) -> Statistics | None:
        """Published means and standard deviations; None where they are measured, as on every open-set split."""
        return None if self.open_set else self._facts.statistics

    @property
    def default_network(self) -> str:
        """The network of a comparison that names none."""
        return self._facts.network

    @property
    def default_augmentation(self) -> str:
        """The augmentation of a comparison that names none."""
        return self._facts.augmentation

    @property
    def is_own(self) -> bool:
        """Whether these are a user's own pictures."""
        return self.source not in _FACTS

    @property
    def is_imagenet(self) -> bool:
        """Whether this is ImageNet or ImageNet-LT."""
        return self.source in ("imagenet", "imagenet_lt")

    @property
    def test_description(self) -> str:
        """Where the test images come from, to be put behind their number."""
        if self.source == "digits":
            return "a third of every class, set aside by a fixed seed"
        if not self.is_own:
            return "the dataset's own"
        return "a fifth of every class, set aside by a fixed seed" if self.draws_test() else f"those of {self.path}"

    def draws_test(self, root: str | Path | None = None) -> bool:
        """Whether the test images are a part of a folder's own, which is drawn anew where pictures come or go."""
        with suppress(OSError, ValueError):
            return self.is_own and self.listing(root).test is None
        return True

    def train_counts(self, root: str | Path | None = None) -> list[int] | None:
        """Count the training images of every class without reading one; None for a folder that cannot be listed."""
        counts = self._facts.train_counts
        if self.open_set:
            return [counts[label] for label in self.open_set.known]
        if not self.is_own:
            return list(counts)
        with suppress(OSError, ValueError):
            return self.listing(root).train_counts
        return None

    def test_counts(self, root: str | Path | None = None) -> list[int]:
        """Count the test images of every class of a user's own data; empty for other data."""
        return self.listing(root).parts["test"][1] if self.is_own else []

    def fingerprint(self, root: str | Path | None = None) -> str | None:
        """Digest the names and sizes of picture files; None without files, or before ImageNet is decoded."""
        with suppress(OSError, ValueError, KeyError):
            if self.is_own:
                return self.listing(root).fingerprint
            if self.is_imagenet:
                return str(read_json(self._decoded(root) / "splits.json")["fingerprint"])
        return None

    def read(
        self, root: str | Path | None = None, *, download: bool = False, progress: Progress | None = None
    ) -> Splits:
        """Read all images. The dataset read last is kept, and read again only if its files have changed.

        The data folder `root`, by default $MAXSEP_DATA, holds `cifar-10-batches-py/`, `cifar-100-python/`, `svhn/`,
        `imagenet/{train,val}/CLASS/`, `imagenet-lt/*.txt`; an official `.tar.gz` is unpacked. `download` fetches what
        is missing but ImageNet; `progress` is called with (bytes so far, bytes in all).
        """
        reader, state = self._reader(root, download, progress)
        key = (self, state)
        if key not in _LAST:
            _LAST.clear()  # first, so that two datasets are never in memory
            _LAST[key] = reader()
        return _LAST[key]

    def _reader(
        self, root: str | Path | None, download: bool, progress: Progress | None
    ) -> tuple[Callable[[], Splits], Hashable]:
        """Return what reads this dataset, and the state of the files that it would read."""
        if split := self.open_set:
            reader, state = Dataset.parse(split.source)._reader(root, download, progress)
            return lambda: known_classes(split, reader()), state
        if self.is_own:
            listing = self.listing(root, download=download)
            state = (listing.folder.resolve(), listing.state)
            digest = hashlib.sha256(repr((self.source, str(state[0]), self.size, self.skip_broken)).encode())
            cache = cache_root() / f"{listing.folder.name}-{digest.hexdigest()[:10]}"
            return lambda: read_listed(listing, self.size, self.name, cache, progress), state
        if self.source == "digits":
            return read_digits, None
        if self.is_imagenet:
            folder = self._decoded(root)
            return lambda: read_imagenet(self.name, self.source, folder, self.size, progress), _stat(folder)
        base = data_root(self.name, root)
        ensure(self.source, base, fetch=download, progress=progress)
        state = _stat(base / SOURCES[self.source].folder)
        return lambda: read_official(self.source, base), state

    def _decoded(self, root: str | Path | None) -> Path:
        return data_root(self.name, root) / "decoded" / f"{self.source}-{self.size}"


_LISTINGS: ContextVar[dict[Hashable, Listing] | None] = ContextVar("listings", default=None)


@contextmanager
def list_once() -> Iterator[None]:
    """List a user's data at most once inside this block: what is planned and what is read are the same files."""
    token = _LISTINGS.set({})
    try:
        yield
    finally:
        _LISTINGS.reset(token)


def _split_name(name: str) -> tuple[str, str | None, bool]:
    """Split a name into its stem, the size and whether broken pictures are skipped; a path may have a ? too."""
    match = re.fullmatch(rf"(.*)\?(?:size=(\d+)&?)?({SKIP_BROKEN})?", name)
    if match is None or not (match[2] or match[3]):
        return name, None, False
    return match[1], match[2], match[3] is not None


def _scheme_of(stem: str) -> str:
    return next((scheme for scheme in SCHEMES if stem.startswith(scheme)), "")


def _find_own(stem: str, root: str | Path | None) -> str:
    """Name the data at a path, with its absolute path; without a scheme its kind is seen."""
    scheme = _scheme_of(stem)
    path = find_folder(stem.removeprefix(scheme), root) if stem != scheme else None
    if path is not None and scheme == HUGGING_FACE and not path.exists():
        return stem
    if path is None or not (path.is_file() if scheme == TABLE else path.exists()):
        known = f"a known dataset ({', '.join(NAMES)})"
        raise ValueError(f"{stem.removeprefix(scheme)!r} is neither {known} nor a folder or a table of pictures.")
    if not scheme:
        is_saved = any((path / name).is_file() for name in SAVED)
        scheme = TABLE if path.suffix.lower() in TABLE_SUFFIXES else HUGGING_FACE if is_saved else FOLDER
    return f"{scheme}{path.resolve()}"


def cache_root() -> Path:
    """Return the folder of decoded images: $MAXSEP_CACHE, or `maxsep` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(os.environ.get(CACHE_VARIABLE) or Path(base) / "maxsep")


def data_root(name: str, root: str | Path | None) -> Path:
    """Return the data folder: what was passed, or else $MAXSEP_DATA."""
    folder = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if not folder:
        raise ValueError(f"{name} needs a data folder: pass --data DIR or set {ROOT_VARIABLE}. (digits needs none.)")
    return expanded(folder)


def find_folder(path: str, root: str | Path | None = None) -> Path:
    """Look a folder up in the working directory, then in the data folder; it may be in neither.

    A data folder on another machine may hold a copy of an absolute path.
    """
    here, base = expanded(path), root if root is not None else os.environ.get(ROOT_VARIABLE)
    if here.exists() or not base:
        return here
    below = expanded(base) / here.relative_to(here.anchor)
    return here if here.is_absolute() and not below.exists() else below


def fingerprints_differ(*fingerprints: str | None) -> bool:
    """Return whether fingerprints are of different files; None is not known and differs from nothing."""
    return len({*fingerprints} - {None}) > 1


def normalisation(name: str, splits: Splits) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each channel, for (images / 255 - mean) / std.

    `name` is one of `STATISTICS`; `train`: measured on the training images (a constant channel gets std 1); `auto`: the
    published constants of the dataset if there are any, else `train`. Long-tailed CIFAR-100 is by custom normalised
    with `cifar10`, and `cifar10_255` has the larger stds of out-of-distribution work. Results are float32 (C,).
    """
    if name not in NORMALISATIONS:
        raise ValueError(f"unknown normalisation {name!r}. Known: {', '.join(NORMALISATIONS)}.")
    constants = Dataset.parse(splits.name).statistics if name == "auto" else STATISTICS.get(name)
    if constants is None:
        return _measure(splits.train)
    mean, std = constants
    if len(mean) != splits.train.shape[0]:
        raise ValueError(f"normalisation {name!r} is for {len(mean)} channels, got {splits.train.shape[0]}.")
    return torch.tensor(mean), torch.tensor(std)


def _measure(images: ImageSet) -> tuple[Tensor, Tensor]:
    """Measure exactly: 256 counts per channel, so no rounding and no float copy of the images."""
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.zeros(images.shape[0], 256, dtype=torch.int64)
    for batch in images.batches(1024):
        counts += torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in batch.unbind(1)]).cpu()
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = (share * values).sum(1)
    std = (share * (values - mean.unsqueeze(1)) ** 2).sum(1).sqrt()
    return mean.float(), torch.where(std > 0, std, 1.0).float()


def _stat(folder: Path) -> Hashable:
    """Return where a folder is, and the names, sizes and times of its files but for the manifest."""
    paths = [path for path in folder.iterdir() if path.name != MANIFEST] if folder.is_dir() else []
    files = sorted((path.name, path.stat()) for path in paths)
    return folder.resolve(), tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
