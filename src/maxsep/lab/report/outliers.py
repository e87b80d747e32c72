"""Out-of-distribution detection: each score on each set of outliers, beside the paper's numbers and the controls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from maxsep.lab.data.open_set import OpenSetSplit
from maxsep.lab.recipes import paper
from maxsep.lab.report.accuracy import cell_spec
from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import BASE_HEADS, Entry, Method, Setting, distinctions
from maxsep.lab.report.model import Section
from maxsep.lab.report.outliers_figures import energy_figure
from maxsep.lab.report.outliers_steps import chosen_steps, steps_table, steps_taken
from maxsep.lab.report.statistics import MIN_SEEDS, Comparison, adjust, compare, summarise
from maxsep.lab.report.svg import Figure
from maxsep.lab.report.tables import Cell, Row, Table, gain, rounded, signed

SCORES = {
    "max_softmax": "max softmax",
    "energy": "energy",
    "max_logit": "max logit",
    "mahalanobis": "Mahalanobis, step chosen on made-up outsiders",
    "mahalanobis_no_step": "Mahalanobis, no step",
    "odin": "ODIN",
}
_CENTRED = {"energy": "energy_centred", "max_logit": "max_logit_centred"}
_MAIN = tuple(score for score in SCORES if score != "max_logit")
"""Scores of the open table; the folded one has all."""
_MEASURES = ("fpr95", "auroc", "aupr")
_COLUMNS = (
    *("head", "radius", "FPR95, % (lower is better)", "AUROC, %", "AUPR, %"),
    *("AUROC over plain", "over plain, centred", "over scaled, same radius"),
)
_FULL = {
    "auroc": "AUROC, %",
    "aupr": "AUPR, %",
    "fpr95": "FPR95, %",
    "fpr95_at_least": "FPR95, recall at least 95 %",
    "aupr_ood_positive": "AUPR, outliers positive",
    "fpr95_ood_positive": "FPR95, outliers positive",
}
_CAPTION = (
    "AUPR and FPR95 take in-distribution images as positive, as the paper does; FPR95 at the recall closest to 95 %. "
    "Means over {draws}; ± is over seeds ({seeds}). Gains in percentage points of AUROC over common seeds, with a "
    "paired t-test below, p before correction; in colour: what holds after Holm's correction for the tests of this "
    "table, in grey: noise."
)


@dataclass(frozen=True)
class _Line:
    """A row to be: a method, and whether the mean logit was taken off."""

    entry: Entry
    score: str
    centred: bool = False

    def values(self, outliers: str, measure: str, part: str = "draws") -> dict[int, float]:
        """A measure for each seed."""
        name = _CENTRED[self.score] if self.centred else self.score
        found = {seed: measured(record, outliers, name, measure, part) for seed, record in self.entry.records.items()}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}


def measured(record: Record, outliers: str, score: str, measure: str, part: str = "draws") -> float | None:
    """A number of a run's `detection.json`: the mean over draws if there are any, or of all images."""
    told = (record.detection or {}).get("sets", {}).get(outliers, {}).get("scores", {}).get(score)
    if told is None:
        return None
    return float(told["draws"][measure]["mean"] if part == "draws" and "draws" in told else told["full"][measure])


def outliers_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate and draw what runs make of outliers; nothing if no run was asked."""
    shown = [s for s in settings if OpenSetSplit.parse(s.spec.dataset) is None and outlier_sets(s)]
    if not shown:
        return None
    labels = distinctions(shown)
    tables: list[Table] = []
    folded: list[Table] = []
    steps: list[Table] = []
    figures: list[Figure] = []
    after: list[str] = []
    for setting in shown:
        for name in outlier_sets(setting):
            number = len(tables) + 1
            title = f"{setting.title} against {_origin(setting, name)}" + _suffix(labels[setting.spec])
            tables.append(_table(f"outliers-{number}", title, setting, name))
            folded.append(_full_table(f"outliers-full-{number}", f"All images: {title}", setting, name))
            if shapes := _shapes(setting, name):
                figures.append(energy_figure(f"energy-{number}", title, shapes))
        where = setting.title + _suffix(labels[setting.spec])
        after += chosen_steps(setting, where)
        sets = {name: _origin(setting, name) for name in outlier_sets(setting)}
        if (table := steps_table(f"outliers-steps-{len(steps) + 1}", where, setting, sets)) is not None:
            steps.append(table)
    return Section("outliers", "Images from outside", _TEXT, (*tables, *folded, *steps), tuple(figures), tuple(after))


_TEXT = (
    "How well a trained network tells its own test images from images of no known class. Beside plain stands plain, "
    "centred: the mean logit taken off after training. Max softmax does not change by that, and a head with the matrix "
    "is centred by construction.",
    "The paper prints Places 365 also as Placed 365, and calls SVHN a near set, which the literature takes for a far "
    "one: each table says what its images are, and CIFAR-10 is the near set here.",
)


def outlier_sentences(settings: Sequence[Setting]) -> list[str]:
    """Say what the matrix does at radius 1 to the AUROC of the energy, over plain and over plain centred.

    The tables have the tests.
    """
    found = []
    for setting in settings:
        ours, plain = (setting.entries.get(Method(head, 1.0)) for head in ("maxsep", "plain"))
        if OpenSetSplit.parse(setting.spec.dataset) is not None or ours is None or plain is None:
            continue
        words, seeds = [], []
        for name in outlier_sets(setting):
            mine = _Line(ours, "energy").values(name, "auroc")
            over = compare(mine, _Line(plain, "energy").values(name, "auroc"))
            centred = compare(mine, _Line(plain, "energy", centred=True).values(name, "auroc"))
            if over is not None and centred is not None:
                points = " and ".join(signed(found.difference, scale=100) for found in (over, centred))
                words.append(f"{points} on {_origin(setting, name).split(',')[0]}")  # tables say the rest
                seeds.append(over.n)
        if words:
            found.append(
                f"Outliers of {setting.title} ({setting.spec.optimiser}), AUROC of the energy, the matrix at radius 1 "
                f"over plain and over plain centred after training: {'; '.join(words)}; in points"
                f"{_doubt(setting, min(seeds))}."
            )
    return found


def _doubt(setting: Setting, seeds: int) -> str:
    """Say what few seeds cannot, and under SGD what the theorem lets one expect."""
    if seeds >= MIN_SEEDS:
        return ""
    told = f", from {seeds} common seed{'s' * (seeds > 1)}: not testable"
    if setting.spec.optimiser != "sgd":
        return told
    return (
        f"{told}. Under SGD the matrix at radius 1 is a plain head with its mean logit removed and nearly the same "
        "learning rate, so other initial weights may be all there is to it"
    )


def outlier_sets(setting: Setting) -> list[str]:
    """The sets that runs of a setting were asked about, in the order of their records."""
    records = [record for entry in setting.entries.values() for record in entry.records.values()]
    return list(dict.fromkeys(name for r in records for name in (r.detection or {}).get("sets", {})))


def _origin(setting: Setting, name: str) -> str:
    records = [record for entry in setting.entries.values() for record in entry.records.values()]
    told = [r.detection["sets"][name]["origin"] for r in records if r.detection and name in r.detection["sets"]]
    return " or ".join(dict.fromkeys(told))


def _suffix(distinction: str) -> str:
    return f" · {distinction}" if distinction else ""


def _lines(setting: Setting, outliers: str, scores: Iterable[str] = SCORES) -> list[_Line]:
    """Every score, and in it every method; after plain the same run centred, where that changes the score."""
    found = []
    for score in scores:
        if score == "mahalanobis_no_step" and not any(map(steps_taken, setting.entries.values())):
            continue  # the same numbers again
        for method, entry in setting.entries.items():
            lines = [_Line(entry, score)]
            if method == Method("plain", 1.0) and score in _CENTRED:
                lines.append(_Line(entry, score, centred=True))
            found += [line for line in lines if line.values(outliers, "auroc")]
    return found


def _heading(setting: Setting, score: str) -> str:
    untouched = score == "mahalanobis" and not any(map(steps_taken, setting.entries.values()))
    return SCORES[score] + (": none" if untouched else "")


def _table(id: str, title: str, setting: Setting, outliers: str) -> Table:
    lines = _lines(setting, outliers, _MAIN)
    tests = adjust([found for line in lines for found in _comparisons(setting, line, outliers)])
    rows: list[Row] = []
    last = ""
    for place, line in enumerate(lines):
        cells = [*_name(setting, line), *(_measure(setting, line, outliers, measure) for measure in _MEASURES)]
        cells += [gain(comparison, brief=True) for comparison in tests[3 * place : 3 * place + 3]]
        heading = "" if line.score == last else _heading(setting, line.score)
        rows.append(Row((*cells[:5], *_equalities(line, cells[5:])), heading))
        last = line.score
    return Table(id, title, _COLUMNS, tuple(rows), _caption(setting, lines, outliers), 1)


def _name(setting: Setting, line: _Line) -> tuple[Cell, Cell]:
    label = setting.name(line.entry.method)
    return Cell(f"{label}, centred" if line.centred else label), Cell(f"{line.entry.method.radius:g}")


def _comparisons(setting: Setting, line: _Line, outliers: str) -> tuple[Comparison | None, ...]:
    """Compare a line's AUROC with plain, plain centred, and the control at the same radius."""
    method, values = line.entry.method, line.values(outliers, "auroc")
    plain = setting.plain(method)
    over_plain = None
    if plain is not None and (line.centred or plain.method != method):
        over_plain = compare(values, _Line(plain, line.score).values(outliers, "auroc"))
    centred = control = None
    if plain is not None and line.score in _CENTRED and method.head not in BASE_HEADS:
        centred = compare(values, _Line(plain, line.score, centred=True).values(outliers, "auroc"))
    other = None if method.head in BASE_HEADS else setting.control(method)
    if other is not None and other is not plain:
        control = compare(values, _Line(other, line.score).values(outliers, "auroc"))
    return over_plain, centred, control


def _equalities(line: _Line, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Say where a comparison would be one that is made already."""
    over_plain, centred, control = cells
    if line.entry.method.head in BASE_HEADS:
        return over_plain, centred, control
    if line.score not in _CENTRED:
        centred = Cell("= over plain", "centring changes nothing", "muted")
    method = line.entry.method
    if method.control == method.plain:
        told = "at radius 1" if method.plain.head == "plain" else "the same control"
        control = Cell(f"= {method.plain.head}", told, "muted")
    return over_plain, centred, control


def _measure(setting: Setting, line: _Line, outliers: str, measure: str) -> Cell:
    values = list(line.values(outliers, measure).values())
    summary = summarise(values)
    spread = "" if summary.std is None else f" ± {rounded(summary.std, scale=100)}"
    told = {} if line.centred else paper.detection(cell_spec(setting, line.entry.method), outliers, line.score)
    detail = f"paper {told[measure]:.2f}" if measure in told else ""
    return Cell(f"{rounded(summary.mean, scale=100)}{spread}", detail, "", 100 * summary.mean, _notes(setting, told))


def _notes(setting: Setting, told: dict[str, float]) -> tuple[str, ...]:
    if not told:
        return ()
    notes = []
    if setting.spec.epochs != _EPOCHS:
        notes.append(
            f"The protocol trains {_EPOCHS} epochs, these runs {setting.spec.epochs}: not the same experiment."
        )
    if setting.spec.max_train is not None or setting.spec.max_test is not None:
        notes.append("These runs read a part of the data only: not the same experiment.")
    return tuple(notes)


_EPOCHS = 100


def _caption(setting: Setting, lines: Sequence[_Line], outliers: str) -> str:
    counts = sorted({len(line.values(outliers, "auroc")) for line in lines})
    records = [record for line in lines for record in line.entry.records.values()]
    told = next(r.detection["sets"][outliers] for r in records if r.detection and outliers in r.detection["sets"])
    draws = next(iter(told["scores"].values())).get("draws")
    words = f"all {told['count']} outliers"
    if draws is not None:
        words = f"{draws['repeats']} draws of {draws['size']} of {told['count']} outliers"
    return _CAPTION.format(draws=words, seeds=" to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))))


def _full_table(id: str, title: str, setting: Setting, outliers: str) -> Table:
    """The same rows on all outliers, with the other conventions by name."""
    rows, last = [], ""
    for line in _lines(setting, outliers):
        cells = list(_name(setting, line))
        for measure in _FULL:
            summary = summarise(list(line.values(outliers, measure, "full").values()))
            spread = "" if summary.std is None else f" ± {rounded(summary.std, scale=100)}"
            cells.append(Cell(f"{rounded(summary.mean, scale=100)}{spread}", value=100 * summary.mean))
        rows.append(Row(tuple(cells), "" if line.score == last else _heading(setting, line.score)))
        last = line.score
    return Table(id, title, ("head", "radius", *_FULL.values()), tuple(rows), numeric_from=1, folded=True)


def _drawn(setting: Setting) -> list[Entry]:
    """Plain, and the matrix at radius 1, or else at the first radius that there is."""
    matrix = [entry for method, entry in setting.entries.items() if method.head == "maxsep"]
    matrix.sort(key=lambda entry: entry.method.radius != 1)
    plain = setting.entries.get(Method("plain", 1.0))
    return [entry for entry in (plain, *matrix[:1]) if entry is not None]


def _shapes(setting: Setting, outliers: str) -> dict[str, dict[str, Any]]:
    """The histograms of one seed, the lowest that all heads have."""
    found = {
        setting.full_name(entry.method): {s: shape for s, r in entry.records.items() if (shape := _shape(r, outliers))}
        for entry in _drawn(setting)
    }
    common = set.intersection(*map(set, found.values())) if found else set()
    return {label: shapes[min(common)] for label, shapes in found.items()} if common else {}


def _shape(record: Record, outliers: str) -> dict[str, Any] | None:
    found: dict[str, Any] = (record.detection or {}).get("sets", {}).get(outliers, {}).get("histograms", {})
    return found.get("energy")
