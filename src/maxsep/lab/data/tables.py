"""CSV and Parquet files with a column of paths and one of labels."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from maxsep.files import expanded, parse_file
from maxsep.lab.data.decoding import IMAGE_SUFFIXES, Source
from maxsep.lab.data.listing import FolderError, Listing, Pictures, clean_listing
from maxsep.packages import load_package

PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABELS = ("label", "class", "class_name", "category", "target")
TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def list_table(path: Path) -> Listing:
    """List the pictures that a table names: a path, from the table's folder, and a label in every row.

    The columns are called `path` and `label`, or one of `PATHS` and `LABELS`. A column `split` says train or test (or
    val) in every row; without it a fifth of every class is held out. Classes are sorted by name.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file. Expected a table with the columns path and label.")
    is_parquet = path.suffix.lower() == ".parquet"
    parquet = load_package("pyarrow.parquet", "formats") if is_parquet else None
    names, rows = parse_file(path, partial(_read_parquet, parquet) if is_parquet else _read_csv)
    columns = {name.strip().lower(): name for name in names}
    source, label = (_column(columns, known, path) for known in (PATHS, LABELS))
    split, problems = columns.get("split"), list[str]()
    entries: dict[str, list[tuple[str, Source]]] = {"train": [], "test": []}
    for number, row in enumerate(rows, start=2):
        file, name = str(row[source] or "").strip(), "" if row[label] is None else str(row[label]).strip()
        part = "train" if split is None else str(row[split] or "").strip().lower()
        picture = path.parent / expanded(file)
        if not file or not name:
            problems.append(f"row {number} of {path} has no {'label' if file else 'path'}")
        elif part not in (*TRAIN, *TEST):
            problems.append(f"row {number} of {path} has the split {part!r}, which is neither train nor test")
        elif not picture.is_file():
            problems.append(f"{picture}, of row {number}, is missing")
        elif picture.suffix.lower() not in IMAGE_SUFFIXES:
            problems.append(f"{picture}, of row {number}, has the suffix of no image that can be read")
        else:
            entries["train" if part in TRAIN else "test"].append((name, picture))
    return list_entries(path, entries["train"], entries["test"] if split is not None else None, problems)


def list_entries(
    name: Path, train: Iterable[tuple[str, Source]], test: Iterable[tuple[str, Source]] | None, problems: Sequence[str]
) -> Listing:
    """List pairs of a class name and a picture; classes are sorted by name, pictures keep their order."""
    listing = clean_listing(name, _by_class(train), None if test is None else _by_class(test), problems)
    return replace(listing, has_labels=True)


def _by_class(entries: Iterable[tuple[str, Source]]) -> Pictures:
    pictures: dict[str, list[Source]] = {}
    for name, picture in entries:
        pictures.setdefault(name, []).append(picture)
    return Pictures(tuple(sorted(pictures)), tuple(tuple(pictures[name]) for name in sorted(pictures)))


def _column(columns: dict[str, str], known: Sequence[str], path: Path) -> str:
    if (name := next((name for name in known if name in columns), None)) is None:
        raise FolderError(
            path, [f"there is no column {known[0]} (or {', '.join(known[1:])}), only {', '.join(columns)}"]
        )
    return columns[name]


def _read_csv(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        sample = file.readline()
        file.seek(0)
        mark = max((",", ";", "\t"), key=sample.count)
        reader = csv.DictReader(file, delimiter=mark)
        return list(reader.fieldnames or ()), list(reader)


def _read_parquet(parquet: Any, path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    table = parquet.read_table(path)
    known = [name for name in table.column_names if name.strip().lower() in (*PATHS, *LABELS, "split")]
    return table.column_names, table.select(known).to_pylist()
