"""The cost of the matrix: training and inference speed with and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.lab import recipes
from maxsep.lab.data.open_set import OpenSet, parse_open_set
from maxsep.lab.report.comparison import Entry, Setting
from maxsep.lab.report.labels import dataset_label, network_label
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Comparison, Summary, adjust, compare, summarise
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, seeds_text, signed

_HEADS = ("plain", "scaled", "maxsep")
_TOO_SMALL = ("mlp",)
"""Networks whose steps are over before a clock could tell two heads apart."""


def is_timing(setting: Setting) -> bool:
    """Whether a setting is the runtime recipe's: short runs, made to be timed and not to be accurate."""
    fields = ("dataset", "network", "imbalance", "schedule", "augmentation")
    timed = {tuple(getattr(spec, name) for name in fields) for spec in recipes.get("runtime").specs(1)}
    return tuple(getattr(setting.spec, name) for name in fields) in timed


def runtime_section(settings: Sequence[Setting], timings: Sequence[Mapping[str, Any]]) -> Section | None:
    """Tabulate images per second in training (from run records) and at inference (from timings)."""
    timed = [setting for setting in settings if setting.spec.network not in _TOO_SMALL]
    alone = [setting for setting in timed if is_timing(setting)]
    training = _training(alone or _first_splits(timed), comparable=bool(alone))
    tables = [table for table in (training, _inference(timings)) if table is not None]
    if not tables:
        return None
    text = (
        "The paper says that the matrix makes no measurable difference in time. Runs that shared a machine with other "
        "work, or ran one after the other on a warming machine, differ for reasons of their own.",
    )
    title = "The cost of the matrix" if alone or timings else "Speed of these runs"
    return Section("runtime", title, text, tuple(tables))


def _first_splits(settings: Sequence[Setting]) -> list[Setting]:
    """Keep one split of each open-set benchmark: the others train the same network on as many classes."""
    kept: dict[object, Setting] = {}
    for setting in settings:
        split = parse_open_set(setting.spec.dataset)
        key = setting.spec if split is None else setting.spec.replace(dataset=OpenSet(split.benchmark, 0).name)
        kept.setdefault(key, setting)
    return list(kept.values())


def speeds(entry: Entry) -> dict[int, float]:
    """Training images per second of each seed that recorded them."""
    found = {seed: record.images_per_second for seed, record in entry.records.items()}
    return {seed: float(speed) for seed, speed in found.items() if speed}


_COMPARED = "From the run records. In colour: what is still more than noise after correction."
_UNLIKE = (
    "From the run records. These runs shared the machine with others or did not, so their speeds say nothing about "
    "heads, and no difference is given; reproduce runtime makes runs that can be compared."
)


def _training(settings: Sequence[Setting], comparable: bool) -> Table | None:
    """Tabulate the speeds of training; only runs that were made to be timed can be compared."""
    found: list[tuple[str, str, Summary, Comparison | None]] = []
    block: list[tuple[str, str, Summary, Comparison | None]]
    for setting in settings:
        plain = next((speeds(e) for m, e in setting.entries.items() if m.head == "plain"), {})
        block = []
        for method, entry in setting.entries.items():
            values = speeds(entry)
            if method.head in _HEADS and values and plain:
                relative = _relative(values, plain) if comparable and method.head != "plain" else None
                label = "" if block else setting.label
                block.append((label, setting.full_name(method), summarise(list(values.values())), relative))
        found += block if len(block) > 1 else []
    if not found:
        return None
    corrected = adjust([comparison for *_, comparison in found])
    rows = [
        Row((Cell(name), _speed(summary), *([gain(comparison, 100, 1)] if comparable else [])), label)
        for (label, name, summary, _), comparison in zip(found, corrected, strict=True)
    ]
    columns = ("head", "images per second", *(["difference to plain, %"] if comparable else []))
    return Table("training-speed", "Training", columns, tuple(rows), _COMPARED if comparable else _UNLIKE)


def _relative(values: Mapping[int, float], plain: Mapping[int, float]) -> Comparison | None:
    base = summarise(list(plain.values())).mean
    return compare({s: v / base for s, v in values.items()}, {s: v / base for s, v in plain.items()})


def _inference(timings: Sequence[Mapping[str, Any]]) -> Table | None:
    rows: list[Row] = []
    for timing in timings:
        seen = ""
        plain = {_contest(r): r for r in timing["rows"] if r["head"] == "plain"}
        for row in timing["rows"]:
            device = row.get("device") or timing.get("device", "")
            label = f"{dataset_label(row['dataset'])}, {network_label(row['network'])}, {device}"
            base = plain.get(_contest(row))
            rows.append(Row(_inference_cells(row, base), label if label != seen else ""))
            seen = label
    if not rows:
        return None
    columns = ("head", "median of a batch, ms", "quartiles, ms", "difference to plain, %")
    caption = "Forward passes of whole batches, the heads taking turns; overlapping quartiles are within noise."
    return Table("inference-speed", "Inference", columns, tuple(rows), caption)


def _contest(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What heads must share to be compared: they took turns on one machine."""
    return tuple(row.get(key) for key in ("dataset", "network", "device", "name", "torch", "batch_size"))


def _inference_cells(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> tuple[Cell, ...]:
    low, high = row["quartiles"]
    difference = EMPTY
    if base is not None and row["head"] != "plain":
        overlap = low <= base["quartiles"][1] and base["quartiles"][0] <= high
        value = 100 * (row["median_seconds"] / base["median_seconds"] - 1)
        verdict = "quartiles overlap" if overlap else "quartiles apart"
        difference = Cell(signed(value, 1), verdict, "muted" if overlap else "", value)
    return (
        Cell(row["head"]),
        Cell(f"{1e3 * row['median_seconds']:.2f}", f"batch of {row['batch_size']}", "", row["median_seconds"]),
        Cell(f"{1e3 * low:.2f} to {1e3 * high:.2f}"),
        difference,
    )


def _speed(summary: Summary) -> Cell:
    spread = "" if summary.std is None else f" ± {summary.std:,.0f}"
    text = f"{summary.mean:,.0f}{spread}".replace(",", " ")
    return Cell(text, seeds_text(summary.n), "", summary.mean)
