"""List where the numbers come from: runs, machines, versions and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from maxsep.lab.estimate import format_seconds
from maxsep.lab.report import names
from maxsep.lab.report.controls import HEADS
from maxsep.lab.report.runs import Collection
from maxsep.lab.report.statistics import plural
from maxsep.lab.run import Run
from maxsep.packages import printable

_WORDS = (
    ("radius", "The length of the class vectors, \N{GREEK SMALL LETTER RHO} in the paper."),
    ("imbalance", "Size of the smallest class over that of the largest; the test set stays as it is."),
    ("earlier draw", "A long-tailed subset of CIFAR-100 from images in another order than the official one: shown, not "
     "counted among the three seeds."),
    ("best epoch", "Chosen on test data, as others report it; no claim uses it."),
    ("± ", "Sample standard deviation of the paper's five runs, not an interval."),
)  # fmt: skip


def definitions(runs: Sequence[Run], page: str) -> tuple[tuple[str, str], ...]:
    """Explain the heads of the runs, and the words that occur in the text of a page."""
    here, page = {run.spec.head for run in runs}, page.replace("\N{NO-BREAK SPACE}", " ")
    heads = ((label.format(radius="r"), text) for head, (label, text) in HEADS.items() if head in here)
    return (*heads, *((word, text) for word, text in _WORDS if word in page))


def facts(collection: Collection) -> tuple[tuple[str, str], ...]:
    """Count what was run."""
    runs = collection.runs
    seconds = sum(run.result.get("seconds") or 0.0 for run in runs)
    failed = sum(problem.folder.suffix != ".json" for problem in collection.problems)
    seeds = sorted({run.spec.seed for run in runs})
    silent = sum(not run.result.get("command") for run in runs)
    return (
        ("finished runs", f"{len(runs):,}"),
        *([("folders without a result", f"{failed}")] if failed else []),
        ("datasets", _list(_dataset(run) for run in runs)),
        ("networks", _list(names.network_label(run.spec.network) for run in runs)),
        ("seeds", ", ".join(map(str, seeds)) if len(seeds) < 8 else f"{len(seeds)}"),
        ("training time", format_seconds(seconds)),
        *([("without a command", f"{plural(silent, 'run')}, recorded before commands were stored")] if silent else []),
    )


def environment(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """List hardware, versions and settings of execution; every value that occurs, the most frequent first."""
    rows: dict[str, dict[str, int]] = {}
    for run in runs:
        result = run.result
        record: dict[str, Any] = {**(result.get("hardware") or {}), **(result.get("versions") or {})}
        record["precision"] = run.spec.precision
        record |= {key: value for key, value in (result.get("execution") or {}).items() if key not in record}
        for key, value in ((k, v) for k, v in record.items() if v not in (None, [], {}, "")):
            seen, words = rows.setdefault(str(key).replace("_", " "), {}), _in_words(value)
            seen[words] = seen.get(words, 0) + 1
    days = sorted(str(run.result.get("finished", ""))[:10] for run in runs if run.result.get("finished"))
    lines = [(key, ", ".join(sorted(seen, key=lambda v: -seen[v]))) for key, seen in rows.items()]
    lines += [("finished", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")] if days else []
    resumed = sum((run.result.get("resumed") or 0) > 0 for run in runs)
    return (*lines, ("runs that were resumed", str(resumed))) if runs else ()


def commands(runs: Sequence[Run]) -> tuple[str, ...]:
    """List the different commands that trained the runs, as far as records hold them."""
    return tuple(dict.fromkeys(printable(str(command)) for run in runs if (command := run.result.get("command"))))


def _dataset(run: Run) -> str:
    return names.dataset_label(run.spec.dataset) + " (open set)" * bool(names.open_set(run.spec.dataset))


def _in_words(value: Any) -> str:
    """Write a value; options are pairs of a name and a value."""
    if not isinstance(value, list | tuple):
        return str(value)
    words = (" ".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value)
    return ", ".join(words).replace("_", " ")


def _list(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values)) or "none"
