"""Where the numbers come from: what was run, on which machines, with which versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maxsep.lab.data.open_set import OpenSetSplit
from maxsep.lab.estimate import format_seconds
from maxsep.lab.report.collect import Collection, Record
from maxsep.lab.report.comparison import HEADS, Method
from maxsep.lab.report.labels import benchmark_label, dataset_label, network_label
from maxsep.lab.report.statistics import LEVEL, MIN_SEEDS, TEST
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, rounded

DEFINITIONS = (
    ("plain", "A linear layer from the features to the classes: the usual head."),
    (
        "maxsep",
        "A linear layer to C \N{MINUS SIGN} 1 numbers, then the fixed matrix P: logits = radius · Pᵀx.",
    ),
    (
        "scaled",
        "The control: a plain head with its logits multiplied by the same radius. At radius 1 it is plain.",
    ),
    ("control", "The plain layer that trains exactly as maxsep does under SGD: its scale, and a centred start."),
    ("learnable matrix", "The matrix as the starting point of a trained one."),
    ("extra layer", "One more trained layer with a random start in place of the matrix."),
    ("etf", "The matrix directly on the features, or on fixed directions of them, with no trained layer between."),
    ("hpn", "Class vectors pushed apart by gradient descent before training (Mettes et al.)."),
    ("cosine", "A plain head that compares directions: logits are cosines with trained vectors (LDAM's head)."),
    ("cosine maxsep", "The matrix behind a cosine layer of one output less: LDAM with the matrix, first reading."),
    ("maxsep cosine", "Cosines with the columns of the matrix: LDAM with the matrix, second reading."),
    ("centred cosine", "The control of maxsep cosine: a plain head with centred and normalised logits."),
    (
        "centred",
        "The mean logit of every image is taken off the logits of a trained plain head, as the matrix does by "
        "construction; no run of its own.",
    ),
    (
        "AUROC, AUPR, FPR95",
        "In-distribution images are positive. AUPR is average precision. FPR95 is the share of outliers let in at the "
        "threshold whose recall of in-distribution images is closest to 95 %.",
    ),
    ("MSP, MLS", "Maximum softmax probability and maximum logit: scores for known classes."),
    (
        "OSCR",
        "The chance that a known image is classified correctly and scores above an unknown one.",
    ),
    ("radius", "The length of the class vectors, \N{GREEK SMALL LETTER RHO} in the paper."),
    ("imbalance", "Size of the smallest class over that of the largest; the test set stays as it is."),
    ("± ", "Sample standard deviation over seeds (n \N{MINUS SIGN} 1), not a confidence interval."),
    (
        "more than noise",
        f"A {TEST} has p < {LEVEL:g}, and keeps it under Holm's correction for the number of tests in the same tables. "
        "Where only the first is true, the two p-values stand without a verdict. With fewer than "
        f"{MIN_SEEDS} common seeds a difference is not testable, and no p-value is given. "
        "Seeds change initial weights and the order of images; the training images stay the same.",
    ),
    (
        "stage 2",
        "A run that starts from the weights of a finished one (its first stage); the backbone trains on unless it is "
        "frozen.",
    ),
    ("last epoch", "Accuracy after the last epoch, never the best epoch, which would be a choice by test data."),
)


def facts(collection: Collection) -> tuple[tuple[str, str], ...]:
    """A few numbers about what was run."""
    records = collection.records
    seeds = sorted({record.spec.seed for record in records})
    seconds = sum(record.seconds or 0.0 for record in records)
    images = sum((record.value("num_train") or 0.0) * record.spec.epochs for record in records)
    found = [
        ("runs finished", str(len(records))),
        ("runs without a result", str(sum(problem.is_run for problem in collection.problems))),
        ("datasets", _datasets(records)),
        ("networks", _list(network_label(record.spec.network) for record in records)),
        ("heads", _list(head for head in HEADS if head in {record.spec.head for record in records})),
        ("seeds", ", ".join(map(str, seeds)) if len(seeds) < 8 else f"{len(seeds)}"),
        ("training time", format_seconds(seconds)),
    ]
    if images:
        found.append(("training images seen", f"{images / 1e6:.1f} million" if images >= 1e6 else f"{images:,.0f}"))
    return tuple(found)


def _datasets(records: Sequence[Record]) -> str:
    """Name the datasets, and of open-set benchmarks how many splits."""
    splits: dict[str, set[int]] = {}
    names = []
    for dataset in (record.spec.dataset for record in records):
        if (split := OpenSetSplit.parse(dataset)) is None:
            names.append(dataset_label(dataset))
        else:
            splits.setdefault(benchmark_label(split.benchmark), set()).add(split.split)
    names += [f"{name} ({len(n)} split{'' if len(n) == 1 else 's'})" for name, n in sorted(splits.items())]
    return _list(names)


def environment(records: Sequence[Record]) -> tuple[tuple[str, str], ...]:
    """Hardware, versions and settings of execution; every value that occurs, the rule first."""
    rows: dict[str, dict[str, int]] = {}
    for record in records:
        told: dict[str, Any] = {**record.hardware, **record.versions, "precision": record.spec.precision}
        told |= {key: value for key, value in record.execution.items() if key not in told}  # measured wins over asked
        for key, value in ((k, v) for k, v in told.items() if v not in (None, [], {}, "")):
            seen = rows.setdefault(str(key).replace("_", " "), {})
            words = _in_words(value)
            seen[words] = seen.get(words, 0) + 1
    days = sorted(record.finished[:10] for record in records if record.finished)
    found = [(key, ", ".join(sorted(seen, key=lambda v: -seen[v]))) for key, seen in rows.items()]
    if days:
        found.append(("finished", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"))
    resumed = sum(record.resumed > 0 for record in records)
    return (*found, ("runs that were resumed", str(resumed))) if records else ()


def runs_table(records: Sequence[Record]) -> Table:
    """List every finished run."""
    rows = []
    for record in records:
        loss = record.value("loss")
        where = "held-out data" if record.spec.validation else "test data"
        cells = (
            Cell(record.folder.name, Method.of(record.spec).full_label),
            Cell(str(record.spec.seed)),
            Cell(str(record.spec.epochs)),
            Cell(rounded(record.metrics["top1"], scale=100), where, "", 100 * record.metrics["top1"]),
            EMPTY if loss is None else Cell(f"{loss:.3f}", value=loss),
            EMPTY if record.seconds is None else Cell(format_seconds(record.seconds), value=record.seconds),
        )
        rows.append(Row(cells))
    columns = ("run", "seed", "epochs", "top-1, %", "loss", "time")
    return Table("runs", "All runs", columns, tuple(rows))


def _in_words(value: Any) -> str:
    """A value as one would say it; options are pairs of a name and a value.

    >>> _in_words([["threads", 1], ["compile_mode", "default"]]), _in_words("cpu")
    ('threads 1, compile mode default', 'cpu')
    """
    if not isinstance(value, list | tuple):
        return str(value)
    words = (" ".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value)
    return ", ".join(words).replace("_", " ")


def _list(values: Any) -> str:
    return ", ".join(dict.fromkeys(values)) or "none"
