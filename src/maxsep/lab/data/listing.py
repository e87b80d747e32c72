"""Lists of pictures, from folders, tables or other packages: their problems, all at once, and reading them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from maxsep.files import read_json
from maxsep.lab.data.decoding import (
    MOST_BYTES,
    Source,
    decode,
    decode_once,
    find_unreadable,
    open_decoded,
    write_decoded,
)
from maxsep.lab.data.download import Progress
from maxsep.lab.data.images import ImageSet, Splits, held_counts, hold_out, labels_of
from maxsep.packages import printable

TEST_FRACTION = 0.2
LEAST_TEST = 2  # of a class with four images or more
MAPPED = 1 << 28
"""A dataset of more bytes (256 MiB) is decoded into a folder and mapped, so that memory does not limit its size."""
_SHOWN = 200
_BAD: dict[tuple[str, int], tuple[dict[int, str], dict[int, str]]] = {}  # what `Listing.check` found, by its state


class FolderError(ValueError):
    """All that is wrong with a dataset, a line for each problem, and whether it can be read without these pictures."""

    def __init__(self, name: object, problems: Sequence[object], can_skip: bool = False) -> None:
        lines = [f"- {printable(str(problem))}" for problem in problems[:_SHOWN]]
        more = [f"- and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        advice = " (--skip-broken goes on without them)" if can_skip else ""
        super().__init__("\n".join([f"{count} in {printable(str(name))}{advice}:", *lines, *more]))
        self.name, self.problems, self.can_skip = name, tuple(map(str, problems)), can_skip

    def __reduce__(self) -> tuple[type[FolderError], tuple[object, tuple[str, ...], bool]]:
        return type(self), (self.name, self.problems, self.can_skip)


@dataclass(frozen=True)
class Pictures:
    """The pictures of a split, class by class."""

    classes: tuple[str, ...]
    by_class: tuple[tuple[Source, ...], ...]

    @property
    def files(self) -> list[Source]:
        """All pictures, in the order of their labels."""
        return [source for sources in self.by_class for source in sources]

    @property
    def counts(self) -> list[int]:
        """The number of pictures of every class."""
        return list(map(len, self.by_class))

    def keep(self, classes: Collection[str]) -> Pictures:
        """Keep some classes."""
        chosen = {name: some for name, some in zip(self.classes, self.by_class, strict=True) if name in classes}
        return Pictures(tuple(chosen), tuple(chosen.values()))

    def without(self, positions: Collection[int]) -> Pictures:
        """Leave out the pictures at these positions of `files`; the classes stay."""
        kept = torch.tensor([i for i in range(len(self.files)) if i not in positions], dtype=torch.int64)
        files, counts = self.take(kept)
        ends = [*itertools.accumulate(counts)]
        return Pictures(self.classes, tuple(tuple(files[end - n : end]) for end, n in zip(ends, counts, strict=True)))

    def take(self, positions: Tensor) -> tuple[list[Source], list[int]]:
        """Return the pictures at sorted positions, and how many each class has."""
        files, labels = self.files, labels_of(self.counts)[positions]
        counts: list[int] = torch.bincount(labels, minlength=len(self.classes)).tolist()
        return [files[position] for position in positions.tolist()], counts


@dataclass(frozen=True, eq=False)
class Listing:
    """The pictures of a dataset, what is wrong with it, and its fingerprint."""

    folder: Path
    train: Pictures
    test: Pictures | None  # None: a fifth of every class is held out of `train`
    problems: tuple[str, ...] = ()
    """What stands in the way of reading all; the pictures that are listed here are those without."""
    skipped: int = 0  # pictures and files that were left out as broken
    has_labels: bool = False  # labels come from a list; in class folders they are part of the paths

    @property
    def train_counts(self) -> list[int]:
        """Training images of every class."""
        held = [0] * len(self.train.counts) if self.test else held_counts(self.train.counts, TEST_FRACTION, LEAST_TEST)
        return [count - out for count, out in zip(self.train.counts, held, strict=True)]

    @property
    def parts(self) -> dict[str, tuple[list[Source], list[int]]]:
        """The pictures of `train` and `test` and their counts; without a test split a fixed seed draws it."""
        if self.test is not None:
            return {"train": (self.train.files, self.train.counts), "test": (self.test.files, self.test.counts)}
        kept, held = hold_out(labels_of(self.train.counts), TEST_FRACTION, least=LEAST_TEST)
        return {"train": self.train.take(kept), "test": self.train.take(held)}

    @property
    def fingerprint(self) -> str:
        """Twelve digits of a digest of the names, sizes and labels of all files; where they lie does not matter."""
        return self.state[0]

    @functools.cached_property
    def state(self) -> tuple[str, int]:
        """The fingerprint, and the sum of the times at which files were changed."""
        digest, times = hashlib.sha256(), 0
        splits = [zip(split.classes, split.by_class, strict=True) for split in (self.train, self.test) if split]
        for name, source in ((name, source) for name, sources in itertools.chain(*splits) for source in sources):
            relative = os.path.relpath(source, self.folder) if isinstance(source, Path) else ""
            path = Path(relative or str(source).removeprefix(str(self.folder))).as_posix()
            text, (size, time) = f"{path}\0{name}" if self.has_labels else path, size_of(source)
            digest.update(text.encode("utf-8", "surrogateescape") + b"\0%d\0" % size)
            times += time
        return digest.hexdigest()[:12], times

    def check(self) -> tuple[dict[int, str], dict[int, str]]:
        """Open every picture: return what is wrong, by position in the training and the test pictures."""
        errors_by_part = []
        for part in (self.train, self.test):
            errors = {} if part is None else find_unreadable(part.files)
            errors_by_part.append({position: str(error) for position, error in sorted(errors.items())})
        train, test = self.train.files, None if self.test is None else self.test.files
        for place, text in _repeated([] if test is None else train, train if test is None else test):
            errors_by_part[0 if test is None else 1].setdefault(place, text)
        return errors_by_part[0], errors_by_part[1]

    def write(self, folder: Path, size: int, progress: Progress | None = None) -> list[ValueError]:
        """Decode all pictures into a folder; return the errors."""
        counts = {part: counts for part, (_, counts) in self.parts.items()}
        facts = {"classes": self.train.classes, "fingerprint": self.fingerprint, "state": self.state, **counts}
        return write_decoded(folder, {part: files for part, (files, _) in self.parts.items()}, size, facts, progress)


def size_of(source: Source) -> tuple[int, int]:
    """Return the size of a picture in bytes, and the time of its last change."""
    if not isinstance(source, Path):
        return source.size, source.time
    stat = source.stat()
    return stat.st_size, stat.st_mtime_ns


def _repeated(train: Sequence[Source], test: Sequence[Source]) -> list[tuple[int, str]]:
    """Name the test pictures whose bytes are those of a training picture; without any, of an earlier test picture."""
    sizes = [size_of(source)[0] for source in (*train, *test)]
    often, first, repeated = Counter(sizes), dict[bytes, Source](), list[tuple[int, str]]()
    for place, (source, size) in enumerate(zip((*train, *test), sizes, strict=True), start=-len(train)):
        if often[size] > 1 and 0 < size <= MOST_BYTES:
            try:
                key = hashlib.sha256(source.read_bytes()).digest()
            except OSError:  # an error of its own
                continue
            if place >= 0 and key in first:
                repeated.append((place, f"{source} is the same picture as {first[key]}"))
            elif place < 0 or not train:
                first.setdefault(key, source)
    return repeated


def clean_listing(folder: Path, train: Pictures, test: Pictures | None, problems: Sequence[str]) -> Listing:
    """Leave out the classes that cannot be used, as problems; fewer than two are an error, alone if no more exist."""
    all_problems = list(problems)
    usable = {name: count for name, count in zip(train.classes, train.counts, strict=True) if count}
    if test is None:
        single = [name for name, count in usable.items() if count == 1]
        all_problems += [f"class {name!r} has one image; 2 are needed, one to train and one to test" for name in single]
        usable = {name: count for name, count in usable.items() if count > 1}
    else:
        tested = {name for name, count in zip(test.classes, test.counts, strict=True) if count}
        both = sorted({*usable, *tested})
        all_problems += [f"class {name!r} is only in one of the training and the test split"
                  for name in both if name not in usable or name not in tested]  # fmt: skip
        usable = {name: count for name, count in usable.items() if name in tested}
    if len(usable) < 2:
        names = ", ".join(usable) or "none"
        wanted = "class folders with images in them" if folder.is_dir() else "classes with images"
        error = f"{folder} needs at least two {wanted}, got {names}."
        is_list = all_problems and (len(train.classes) > 1 or not folder.is_dir())
        raise FolderError(folder, [error, *all_problems]) if is_list else ValueError(error)
    return Listing(folder, train.keep(usable), None if test is None else test.keep(usable), tuple(all_problems))


def without_broken(listing: Listing) -> Listing:
    """Leave out what is broken: the listing has no problems and counts what it skipped. Opens every picture once."""
    if listing.state not in _BAD:
        _BAD[listing.state] = listing.check()
    bad = _BAD[listing.state]
    train, test = listing.train.without(bad[0]), None if listing.test is None else listing.test.without(bad[1])
    rest = clean_listing(listing.folder, train, test, [*listing.problems, *bad[0].values(), *bad[1].values()])
    return replace(rest, problems=(), skipped=len(rest.problems), has_labels=listing.has_labels)


def read_listed(listing: Listing, size: int, name: str, cache: Path, progress: Progress | None = None) -> Splits:
    """Read listed pictures; any problem with any of them is an error that names all.

    More than `MAPPED` bytes are decoded once into the folder `cache` and mapped into memory.
    """
    parts = listing.parts
    if 3 * size * size * sum(len(files) for files, _ in parts.values()) > MAPPED:
        splits = _read_mapped(listing, size, cache, progress)
    else:
        splits, errors = {}, list[ValueError]()
        for part, (files, counts) in parts.items():
            array, broken = decode(files, (3, size, size))
            errors += [broken[i] for i in sorted(broken)]
            splits[part] = ImageSet(torch.from_numpy(array), labels_of(counts), listing.train.classes)
        _check(listing, errors)
    train, test = (replace(splits[part], files=tuple(parts[part][0])) for part in ("train", "test"))
    return Splits(name, train, test, fingerprint=listing.fingerprint)


def _read_mapped(listing: Listing, size: int, cache: Path, progress: Progress | None) -> dict[str, ImageSet]:
    def is_current() -> bool:
        with contextlib.suppress(OSError, ValueError):
            return read_json(cache / "splits.json").get("state") == list(listing.state)
        return False

    decode_once(cache, lambda new: _check(listing, listing.write(new, size, progress)), is_current=is_current)
    return open_decoded(cache)[0]


def _check(listing: Listing, errors: Sequence[ValueError]) -> None:
    """Raise if there is any problem, with all of them."""
    train, test = (listing.parts[name][0] for name in ("train", "test"))
    twice = [f"{text}: one is for training, one for testing" for _, text in _repeated(train, test)]
    if problems := [*listing.problems, *map(str, errors), *twice]:
        raise FolderError(listing.folder, problems, can_skip=True)
