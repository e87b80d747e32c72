"""Where the numbers come from: what was run, on which machines, with which versions and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from maxsep.lab.estimate import format_seconds
from maxsep.lab.report import names
from maxsep.lab.report.controls import HEADS
from maxsep.lab.report.runs import Collection
from maxsep.lab.run import Run

_WORDS = (
    ("radius", "The length of the class vectors, \N{GREEK SMALL LETTER RHO} in the paper."),
    ("imbalance", "Size of the smallest class over that of the largest; the test set stays as it is."),
    ("earlier draw", "A long-tailed subset of CIFAR-100 from images in another order than the official one: shown, not "
     "counted among the three seeds."),
    ("best epoch", "Chosen on test data, as others report it; no claim uses it."),
    ("± ", "Sample standard deviation of the paper's five runs, not an interval."),
)  # fmt: skip


def definitions(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """Explain the heads that are on the page, and the words of its tables."""
    here = {run.spec.head for run in runs}
    return (*((label.format(radius="r"), text) for head, (label, text) in HEADS.items() if head in here), *_WORDS)


def facts(collection: Collection) -> tuple[tuple[str, str], ...]:
    """A few numbers about what was run."""
    runs = collection.runs
    seconds = sum(run.result.get("seconds") or 0.0 for run in runs)
    failed = sum(problem.folder.suffix != ".json" for problem in collection.problems)
    seeds = sorted({run.spec.seed for run in runs})
    return (
        ("finished runs", f"{len(runs):,}"),
        *([("folders without a result", f"{failed}")] if failed else []),
        ("datasets", _list(names.dataset_label(run.spec.dataset) for run in runs)),
        ("networks", _list(names.network_label(run.spec.network) for run in runs)),
        ("seeds", ", ".join(map(str, seeds)) if len(seeds) < 8 else f"{len(seeds)}"),
        ("training time", format_seconds(seconds)),
    )


def environment(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """Hardware, versions and settings of execution; every value that occurs, the most frequent first."""
    rows: dict[str, dict[str, int]] = {}
    for run in runs:
        result = run.result
        told: dict[str, Any] = {**(result.get("hardware") or {}), **(result.get("versions") or {})}
        told["precision"] = run.spec.precision
        told |= {key: value for key, value in (result.get("execution") or {}).items() if key not in told}
        for key, value in ((k, v) for k, v in told.items() if v not in (None, [], {}, "")):
            seen, words = rows.setdefault(str(key).replace("_", " "), {}), _in_words(value)
            seen[words] = seen.get(words, 0) + 1
    days = sorted(str(run.result.get("finished", ""))[:10] for run in runs if run.result.get("finished"))
    found = [(key, ", ".join(sorted(seen, key=lambda v: -seen[v]))) for key, seen in rows.items()]
    found += [("finished", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")] if days else []
    resumed = sum((run.result.get("resumed") or 0) > 0 for run in runs)
    return (*found, ("runs that were resumed", str(resumed))) if runs else ()


def commands(runs: Sequence[Run], folders: Sequence[str]) -> tuple[str, ...]:
    """The commands that trained the runs, as far as records hold them, and the one that writes the report."""
    stored = dict.fromkeys(str(command) for run in runs if (command := run.result.get("command")))
    return (*stored, f"maxsep report {' '.join(folders)}")


def _in_words(value: Any) -> str:
    """Write a value; options are pairs of a name and a value."""
    if not isinstance(value, list | tuple):
        return str(value)
    words = (" ".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value)
    return ", ".join(words).replace("_", " ")


def _list(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values)) or "none"
