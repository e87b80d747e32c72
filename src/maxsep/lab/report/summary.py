"""The first screen: which numbers of the paper were measured and reached, and the sentence that answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from maxsep.lab.recipes import paper
from maxsep.lab.report import names
from maxsep.lab.report.controls import BASELINES, Method
from maxsep.lab.report.rows import FIRST_SEED, LOWER_IS_BETTER, Setting, matrix_methods
from maxsep.lab.report.statistics import Difference, Reached, Summary, plural, signed
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table

ENOUGH = 3
"""Seeds that a cell needs to count as measured with repetitions."""
WORDS = ("agrees", "above", "below", "undecided")
THEOREM = (
    "Under SGD, maxsep at radius r trains as its control does, a linear head times r·sqrt(C/(C \N{MINUS SIGN} 1)) "
    "started centred (docs/theory.md). There, matrix against control compares a method with itself and measures noise."
)
RETRAINED = (
    "Two CIFAR-10 runs of seed 125 (ResNet, imbalance 0.01) were trained again after their scores were known: maxsep "
    "at radius 0.1 went from 69.29 to 70.89, linear \N{MULTIPLICATION SIGN} 0.1 from 69.66 to 69.78. The table has the "
    "second runs."
)
_RETRAINED_RUNS = (
    "cifar10-lt0.01-resnet34-maxsep-r0.1-s125-bf6dd41f3a", "cifar10-lt0.01-resnet34-scaled-r0.1-s125-5a522c0b54",
)  # fmt: skip
_POOLED = tuple((dataset, imbalance) for dataset in ("cifar10", "cifar100") for imbalance in (0.01, 0.02))
_POOLED_SEEDS = (FIRST_SEED, FIRST_SEED + 1, FIRST_SEED + 2)


@dataclass(frozen=True)
class Number:
    """A number of the paper: the method that answers it best, how many counted repetitions, and the word."""

    cell: paper.Cell
    measured: bool
    repetitions: int = 0
    word: str = ""
    reached: bool | None = None


@dataclass(frozen=True)
class Gain:
    """Matrix minus linear in a cell of the paper: a row of the forest plot."""

    setting: Setting
    method: Method
    cell: paper.Cell

    @property
    def counted(self) -> bool:
        """Whether the runs count among the three seeds."""
        return not self.setting.earlier_draw

    @property
    def to_baseline(self) -> Difference | None:
        """Against the linear head, or the cosine head."""
        return self.setting.difference(self.method, self.setting.baseline(self.method), self.cell.metric)

    @property
    def to_control(self) -> Difference | None:
        """Against the control, where that is another than the baseline."""
        control = self.setting.control(self.method)
        other = None if control == self.setting.baseline(self.method) else control
        return self.setting.difference(self.method, other, self.cell.metric)

    @property
    def paper(self) -> float | None:
        """The paper's gain as a fraction: of its means over five runs where it prints them."""
        cell = self.cell
        table = paper.FIVE_RUNS if cell.table == "Table 1" else cell.table
        heads = {
            other.head: other.fraction
            for other in paper.cells()
            if (other.table, other.metric, *other.key[:3], other.imbalance)
            == (table, cell.metric, *cell.key[:3], cell.imbalance)
        }
        return heads["maxsep"] - heads["plain"] if {"maxsep", "plain"} <= heads.keys() else None

    @property
    def reached(self) -> bool | None:
        """Whether the paper's gain lies in our interval or below it; None without an interval."""
        ours = self.to_baseline
        if ours is None or ours.high is None or self.paper is None or not self.counted:
            return None
        return self.paper <= ours.high

    @property
    def label(self) -> str:
        """The cell in a few words; a dagger marks an earlier draw of the subset."""
        cell, dataset = self.cell, names.dataset_label(self.setting.spec.dataset)
        if cell.table == "Table 1":
            balance = "balanced" if cell.imbalance == 1 else f"{cell.imbalance:g}"
            label = f"{dataset} {balance}, {names.network_label(cell.network)}"
        elif cell.table == "LDAM and MiSLAS":
            reading = {"cosine_maxsep": ", cosines", "maxsep_cosine": ", columns"}.get(self.method.head, "")
            label = f"{cell.method} {cell.imbalance:g}{reading}"
        else:
            outliers, score, _ = cell.metric.split()
            where = {"svhn": "SVHN", "places": "Places", "unknown": dataset}.get(outliers, outliers.upper())
            label = f"{where}, {score.replace('max_', 'max ').replace('mahalanobis', 'Mahalanobis')}"
        return label if self.counted else f"{label} †"


def coverage(settings: Sequence[Setting]) -> list[Number]:
    """Join every number of the paper with the runs that answer it; runs of earlier draws and other lengths count not.

    Where two methods answer one number, the one with more repetitions does.
    """
    answers: dict[paper.Cell, list[tuple[Setting, Method]]] = {}
    for setting in settings:
        for method in setting.methods:
            if not paper.departures(setting.spec_of(method)):
                for number in setting.cells(method):
                    if setting.values(method, number.metric):
                        answers.setdefault(number, []).append((setting, method))
    return [_number(cell, answers.get(cell, [])) for cell in paper.cells() if cell.table in paper.TABLES]


def _number(cell: paper.Cell, answers: Sequence[tuple[Setting, Method]]) -> Number:
    counted = [pair for pair in answers if not pair[0].earlier_draw]
    if not counted:
        return Number(cell, bool(answers))
    setting, method = max(counted, key=lambda pair: len(pair[0].values(pair[1], cell.metric)))
    values = list(setting.values(method, cell.metric).values())
    if cell.table == "Table 1":  # its cells are compared with the paper's mean over five runs
        reached = setting.reached(method, cell.metric)
    else:
        reached = Reached.of(values, cell.fraction, lower=cell.metric.split()[-1] in LOWER_IS_BETTER)
    assert reached is not None
    return Number(cell, True, len(values), reached.word, reached.reached)


def coverage_table(numbers: Sequence[Number]) -> Table:
    """Count the numbers of every table of the paper, those measured, and what came of them."""
    rows = []
    for table in (*paper.TABLES, "all tables"):
        found = [number for number in numbers if table in (number.cell.table, "all tables")]
        counts = [len(found), sum(number.measured for number in found)]
        counts += [sum(number.repetitions >= ENOUGH for number in found)]
        cells = [Cell(f"{count}", tone="" if count else "muted", value=count) for count in counts]
        words = [sum(number.word == word for number in found) for word in WORDS]
        cells.append(Cell(" / ".join(map(str, words))) if any(words) else EMPTY)
        rows.append(Row((Cell(table), *cells)))
    caption = (
        "Three seeds, or three splits of an open set. The words compare ours with the paper's number by the 95 % "
        "interval, as docs/plan.md defines them; one seed has no word."
    )
    columns = ("table of the paper", "numbers", "measured", "three seeds", " / ".join(WORDS))
    return Table("coverage", "What was reproduced", columns, tuple(rows), caption)


def gains(settings: Sequence[Setting]) -> list[Gain]:
    """List the paper's cells with the matrix that have a run here, in the order of its tables."""
    found = [
        Gain(setting, method, cell)
        for setting in settings
        for method, _, _ in matrix_methods(setting)
        if not paper.departures(setting.spec_of(method))
        for cell in setting.cells(method)
        if cell.table in ("Table 1", "LDAM and MiSLAS") or cell.metric.endswith(" auroc")
    ]
    found = [gain for gain in found if gain.to_baseline is not None or gain.to_control is not None]
    return sorted(found, key=lambda gain: paper.cells().index(gain.cell))


def headline(settings: Sequence[Setting]) -> str:
    """Answer in one sentence what the matrix adds to its control, and what the radius does."""
    matrix, radius = list(_matrix(settings)), [d for d in _radius(settings) if d.excludes_zero]
    if not matrix:
        return "No comparison of the matrix with its control has three seeds yet: the page has estimates, no verdict."
    count = f"{plural(len(matrix), 'comparison')} with three seeds"
    better, worse = (sum(difference.word == word for difference in matrix) for word in ("better", "worse"))
    told = f"makes no visible difference to accuracy in {count}"
    if better or worse:
        parts = [f"raises accuracy in {better}"] * bool(better) + [f"lowers it in {worse}"] * bool(worse)
        told = f"{' and '.join(parts)} of {count}"
    if radius:
        ends = sorted({signed(100 * difference.estimate) for difference in radius}, key=lambda text: float(
            text.replace("\N{MINUS SIGN}", "-")
        ))  # fmt: skip
        told += f"; the radius alone moves it by {' to '.join(dict.fromkeys((ends[0], ends[-1])))} points"
    return f"At equal radius, the matrix {told}."


def _matrix(settings: Sequence[Setting]) -> Iterator[Difference]:
    for setting in settings:
        for method, _, control in matrix_methods(setting):
            found = setting.difference(method, control)
            if found is not None and found.n >= ENOUGH and found.low is not None:
                yield found


def _radius(settings: Sequence[Setting]) -> Iterator[Difference]:
    """What a radius does without the matrix: linear heads with a factor against linear heads without."""
    for setting in settings:
        for method in setting.methods:
            if method.head in BASELINES[1:3] and method.radius != 1:
                found = setting.difference(method, setting.baseline(method))
                if found is not None and found.n >= ENOUGH:
                    yield found


def sentences(settings: Sequence[Setting], numbers: Sequence[Number], cells: Sequence[Gain]) -> list[str]:
    """Say at most four things about what was reproduced; nothing for runs that the paper does not have."""
    measured = [number for number in numbers if number.measured]
    if not measured:
        return [THEOREM] if any(setting.spec.optimiser == "sgd" for setting in settings) else []
    enough = [number for number in measured if number.repetitions >= ENOUGH]
    told = [
        f"Of the {len(numbers)} numbers in the paper's tables, {len(measured)} have a run here and {len(enough)} have "
        f"three seeds; {sum(bool(number.reached) for number in enough)} of these are reached."
    ]
    table1 = [gain for gain in cells if gain.cell.table == "Table 1" and gain.reached is not None]
    if table1:
        reached = sum(bool(gain.reached) for gain in table1)
        told.append(
            f"The paper's gain over the linear head is reached in {reached} of {plural(len(table1), 'cell')} of "
            "Table 1 that have three seeds."
        )
    return [*told, pooled_sentence(settings), THEOREM]


def pooled(settings: Sequence[Setting]) -> Summary | list[float]:
    """Return the one pooled number of the plan once its twelve differences matrix - control exist, else the list."""
    found = []
    for setting in settings:
        spec = setting.spec
        if spec.network == "resnet34" and (spec.dataset, spec.imbalance) in _POOLED and not setting.earlier_draw:
            matrix, control = (setting.values(Method(head, 0.1)) for head in ("maxsep", "control"))
            if Method("maxsep", 0.1) in setting.methods and setting.cells(Method("maxsep", 0.1)):
                found += [matrix[seed, 0] - control[seed, 0] for seed in _POOLED_SEEDS
                          if (seed, 0) in matrix and (seed, 0) in control]  # fmt: skip
    return Summary.of(found) if len(found) == len(_POOLED) * len(_POOLED_SEEDS) else found


def pooled_sentence(settings: Sequence[Setting]) -> str:
    """Write the pooled number, or how many of its differences exist."""
    found = pooled(settings)
    if isinstance(found, list):
        return f"The plan pools twelve differences matrix \N{MINUS SIGN} control; {len(found)} are recorded so far."
    difference = Difference(found.mean, found.low, found.high, found.n, found.std, unit="difference")
    return f"Matrix \N{MINUS SIGN} control, the mean that was planned: {difference.text}."


def retrained(settings: Sequence[Setting]) -> list[str]:
    """Name the runs that were trained again after their scores were known, if they are here."""
    here = {run.spec.name for s in settings for runs in s.runs.values() for run in runs.values()}
    return [RETRAINED] if here.intersection(_RETRAINED_RUNS) else []


def to_dict(numbers: Sequence[Number], cells: Sequence[Gain]) -> dict[str, Any]:
    """The coverage and the forest plot as plain JSON types."""
    return {
        "coverage": [
            {**{name: getattr(number.cell, name) for name in ("table", "dataset", "network", "method", "head")},
             "imbalance": number.cell.imbalance, "metric": number.cell.metric, "paper": number.cell.value,
             "measured": number.measured, "repetitions": number.repetitions, "word": number.word}
            for number in numbers
        ],
        "forest": [
            {"table": gain.cell.table, "cell": gain.label, "paper": gain.paper, "counted": gain.counted,
             "reached": gain.reached,
             "to_baseline": gain.to_baseline.to_dict() if gain.to_baseline else None,
             "to_control": gain.to_control.to_dict() if gain.to_control else None}
            for gain in cells
        ],
    }  # fmt: skip
