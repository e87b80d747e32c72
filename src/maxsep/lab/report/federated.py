"""Federated averaging with clients that see different classes: accuracy after some rounds, by head."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from maxsep.lab.report.comparison import Entry, Method, Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Comparison, adjust, compare, summarise
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, rounded, seeds_text

ROUNDS = (5, 10, 20)
"""After so many rounds accuracies are shown, and after the last."""
COMPARED = 10
"""After so many rounds heads are compared, or after the last where there are fewer."""
_PLAIN = Method("plain", 1.0)
_CAPTION = (
    "Test accuracy of the common weights in percent, means and standard deviations over seeds. Gains are in points "
    "after round {}, over common seeds. The control of maxsep is scaled, a plain head times the same radius; that of "
    "etf is orthonormal with the same options. Behind a p-value stands the one after Holm's correction for the tests "
    "of this table, where it is another; in colour: what is still more than noise after it."
)
_TEXT = (
    "In every round each client trains on its own images from the common weights, and the mean of what all have made "
    "of them, weighted by images, becomes the next common weights. Clients share each class in proportions from a "
    "Dirichlet distribution; where its concentration is small a client has few classes, and may move the class vectors "
    "of a trained classifier away from where the others move them. Vectors that are fixed beforehand stay, at right "
    "angles (orthonormal) as in a simplex (etf); the matrix of maxsep is fixed, the layer before it is trained.",
)


def federated_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate every setting with clients; nothing if there are none."""
    tables = [_table(number, setting) for number, setting in enumerate(filter(has_clients, settings), 1)]
    return Section("federated", "Clients that see different classes", _TEXT, tuple(tables)) if tables else None


def federated_sentences(settings: Sequence[Setting]) -> list[str]:
    """Say for every setting with clients how accurate each head is when heads are compared, and at last."""
    return [_sentence(setting) for setting in settings if has_clients(setting)]


def has_clients(setting: Setting) -> bool:
    """Whether a setting's runs were trained by federated averaging."""
    return setting.spec.clients > 0


def after_round(entry: Entry | None, number: int) -> dict[int, float]:
    """Give the test accuracy after a round, counted from 1, of each seed that was evaluated there."""
    records = {} if entry is None else entry.records
    return {
        seed: float(row["top1"])
        for seed, record in sorted(records.items())
        for row in record.history
        if row.get("epoch") == number - 1 and "top1" in row
    }


def control(method: Method) -> Method | None:
    """Give the control of a head with fixed vectors; nothing for those that are controls themselves.

    >>> control(Method("etf", 1.0, (("rotation", 0),))), control(Method("plain", 1.0))
    (Method(head='orthonormal', radius=1.0, head_options=(), loss='cross_entropy', loss_options=()), None)
    """
    if method.head == "etf":
        alike = tuple(option for option in method.head_options if option[0] != "rotation")
        return dataclasses.replace(method, head="orthonormal", head_options=alike)
    return method.control if method.head == "maxsep" else None


def gains(setting: Setting, after: int) -> dict[Method, tuple[Comparison | None, Comparison | None]]:
    """Compare every head after a round with the plain head and with its control, corrected for all these tests."""
    found = adjust([each for method in setting.entries for each in _comparisons(setting, method, after)])
    return dict(zip(setting.entries, zip(found[::2], found[1::2], strict=True), strict=True))


def _table(number: int, setting: Setting) -> Table:
    rounds, compared = _rounds(setting)
    tests = gains(setting, compared)
    rows = []
    for place, (method, entry) in enumerate(setting.entries.items()):
        accuracies = [_accuracy(after_round(entry, after)) for after in rounds]
        found = [gain(comparison) for comparison in tests[method]]
        if control(method) == method.plain and method.plain in setting.entries:
            found[1] = Cell("= plain", "the same control", "muted")
        rows.append(Row((Cell(setting.full_name(method)), *accuracies, *found), "" if place else _group(setting)))
    columns = ("head", *(f"round {after}" for after in rounds), "gain over plain", "gain over its control")
    return Table(f"federated-{number}", setting.label, columns, tuple(rows), _CAPTION.format(compared))


def _rounds(setting: Setting) -> tuple[list[int], int]:
    """Say after which rounds accuracies are shown, and after which heads are compared."""
    last = setting.spec.epochs
    return [*(number for number in ROUNDS if number < last), last], min(COMPARED, last)


def _group(setting: Setting) -> str:
    spec = setting.spec
    counts = sorted({len(entry.records) for entry in setting.entries.values()})
    told = seeds_text(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    local = f"{spec.local_epochs} local epoch{'' if spec.local_epochs == 1 else 's'} a round"
    return f"{local}, {spec.epochs} round{'' if spec.epochs == 1 else 's'}, {told}"


def _accuracy(found: dict[int, float]) -> Cell:
    if not found:
        return EMPTY
    summary = summarise(list(found.values()))
    spread = "" if summary.std is None else f"± {rounded(summary.std, scale=100)}"
    return Cell(rounded(summary.mean, scale=100), spread, value=100 * summary.mean)


def _comparisons(setting: Setting, method: Method, after: int) -> tuple[Comparison | None, Comparison | None]:
    """Compare with the plain head and with the control; where that is the plain head, once."""
    ours = after_round(setting.entries[method], after)
    plain = {} if method == _PLAIN else after_round(setting.entries.get(_PLAIN), after)
    other = control(method)
    theirs = {} if other is None or other == _PLAIN else after_round(setting.entries.get(other), after)
    return compare(ours, plain), compare(ours, theirs)


def _sentence(setting: Setting) -> str:
    rounds, compared = _rounds(setting)
    shown = dict.fromkeys((compared, rounds[-1]))
    told = []
    for method, entry in setting.entries.items():
        found = [list(after_round(entry, number).values()) for number in shown]
        if all(found):
            means = " and ".join(rounded(summarise(values).mean, scale=100) for values in found)
            told.append(f"{setting.full_name(method)} {means} %")
    when = " and ".join(str(number) for number in shown)
    return f"{setting.label}, accuracy after round {when}: {'; '.join(told)}."
