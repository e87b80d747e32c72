"""Hugging Face datasets with the columns image and label, from a folder, Parquet files or the hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from maxsep.lab.data.decoding import Source, Stored
from maxsep.lab.data.listing import FolderError, Listing
from maxsep.lab.data.tables import TEST, TRAIN, list_entries
from maxsep.packages import load_package

IMAGES, LABELS = ("image", "img"), ("label", "labels")
SAVED = ("state.json", "dataset_dict.json")
"""Files by which a folder of `Dataset.save_to_disk` is known."""


def list_hugging_face(name: str, *, download: bool = False) -> Listing:
    """List the images of what `save_to_disk` wrote, of Parquet files, or, with `download`, of a dataset on the hub.

    The splits are train and test (or validation); without a test split a fifth of every class is held out. Loading
    scripts are never run: release 4 of the package knows none any more, and older ones are refused.
    """
    package = load_package("datasets", "formats")
    if int(package.__version__.split(".")[0]) < 4:
        raise ImportError(f'datasets {package.__version__} may run code of a dataset: pip install "datasets>=4"')
    loaded = _load(package, name, download)
    splits = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    problems: list[str] = []
    parts = [next((s for s in known if s in splits), None) for known in (TRAIN, TEST)]
    if parts[0] is None:
        raise FolderError(name, [f"there is no split train, only {', '.join(splits)}"])
    train, test = (None if s is None else _entries(package, splits[s], f"{name} {s}", problems) for s in parts)
    return list_entries(Path(name), train or [], test, problems)


def _load(package: Any, name: str, download: bool) -> Any:
    path = Path(name)
    try:
        if any((path / file).is_file() for file in SAVED):
            return package.load_from_disk(name)
        if path.is_file():
            return package.load_dataset("parquet", data_files=name)
        if path.is_dir():
            return package.load_dataset(name)
        return package.load_dataset(name, download_config=package.DownloadConfig(local_files_only=not download))
    except Exception as error:  # whatever the package raises, the data are at fault
        hint = "" if path.exists() or download else " It is no path here; --download asks the hub."
        raise ValueError(f"{name} cannot be read ({type(error).__name__}: {error}).{hint}") from error


def _entries(package: Any, split: Any, name: str, problems: list[str]) -> list[tuple[str, Source]]:
    """Pair the class name and the picture of every row; the bytes of a picture are read when it is decoded."""
    image, label = (next((c for c in known if c in split.column_names), None) for known in (IMAGES, LABELS))
    if image is None or label is None:
        missing = "label" if image else "image"
        raise FolderError(name, [f"there is no column {missing}, only {', '.join(split.column_names)}"])
    time = max((Path(file["filename"]).stat().st_mtime_ns for file in split.cache_files), default=0)
    split = split.select_columns([image, label]).cast_column(image, package.Image(decode=False))
    split = split if split._indices is None else split.flatten_indices()  # rows that were chosen or shuffled
    names = getattr(split.features[label], "names", None)
    pictures, compute = split.data.column(image), load_package("pyarrow.compute", "formats")
    sizes = compute.binary_length(compute.struct_field(pictures, "bytes")).to_pylist()
    paths = compute.struct_field(pictures, "path").to_pylist()
    entries: list[tuple[str, Source]] = []
    for row, (value, size, path) in enumerate(zip(split[label], sizes, paths, strict=True)):
        if value is None or (names and not 0 <= value < len(names)):
            problems.append(f"row {row} of {name} has no label")
        elif size is None and not (path and Path(path).is_file()):
            problems.append(f"row {row} of {name} has no picture")
        else:
            title = f"{name}, row {row}" + (f" ({path})" if path else "")
            source = Path(path) if size is None else Stored(title, size, partial(_bytes, pictures, row), time)
            entries.append((names[value] if names else str(value), source))
    return entries


def _bytes(pictures: Any, row: int) -> bytes:
    content: bytes = pictures[row]["bytes"].as_py()
    return content
