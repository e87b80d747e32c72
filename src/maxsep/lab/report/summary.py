"""Write the first screen: which numbers of the paper were measured and reached, and the sentence that answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from maxsep.lab import recipes
from maxsep.lab.recipes import paper
from maxsep.lab.report import names
from maxsep.lab.report.controls import Method
from maxsep.lab.report.rows import FIRST_SEED, LOWER_IS_BETTER, Setting, matrix_methods
from maxsep.lab.report.statistics import Difference, MeanInterval, plural, signed
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table
from maxsep.lab.spec import ORDERED, RunSpec

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
_PLAN = (
    ("1. Table 1", "table1", None),
    ("2. Does the linear head start unstably?", "baseline", None),
    ("2. The same in float32", "arithmetic", None),
    ("3. Out-of-distribution detection", "ood", None),
    ("3. Open sets", "openset", None),
    ("4. AdamW: learning rates, fine-tuning", "adam", None),
    ("5. LDAM and MiSLAS", "longtail", "imbalance=0.1|0.02"),
    ("5. Learnable matrices", "fixed", "imbalance=0.01"),
    ("5. Optimised prototypes", "prototypes", "imbalance=0.01"),
)
"""The questions of docs/plan.md, the recipe of each, and which of its runs the plan names."""
_POOLED = {(dataset, tail, "resnet34") for dataset in ("cifar10", "cifar100") for tail in (0.01, 0.02)}
_POOLED_SEEDS = (FIRST_SEED, FIRST_SEED + 1, FIRST_SEED + 2)


@dataclass(frozen=True)
class Number:
    """A number of the paper, whether a run answers it, and how the best counted answer compares."""

    cell: paper.PaperNumber
    measured: bool
    repetitions: int = 0
    word: str = ""
    reached: bool | None = None


@dataclass(frozen=True)
class Gain:
    """Matrix minus linear in a cell of the paper: a row of the forest plot."""

    setting: Setting
    method: Method
    cell: paper.PaperNumber

    @property
    def counted(self) -> bool:
        """Return whether the runs count among the three seeds."""
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
        table = paper.FIVE_RUNS if self.cell.table == "Table 1" else self.cell.table
        same = [other for other in paper.cells() if (other.table, other.metric) == (table, self.cell.metric)]
        place = (*self.cell.key[:3], self.cell.imbalance)
        heads = {other.head: other.fraction for other in same if (*other.key[:3], other.imbalance) == place}
        return heads["maxsep"] - heads["plain"] if {"maxsep", "plain"} <= heads.keys() else None

    @property
    def reached(self) -> bool | None:
        """Return whether the paper's gain lies in our interval or is smaller; None without an interval."""
        ours = self.to_baseline
        if ours is None or ours.low is None or ours.high is None or self.paper is None or not self.counted:
            return None
        return self.paper >= ours.low if ours.lower_is_better else self.paper <= ours.high

    @property
    def scale(self) -> float:
        """The factor from fractions to points; 1 for a score."""
        return 1 if self.cell.metric == "angular_fisher" else 100

    def format(self, difference: Difference) -> str:
        """Write a difference of this cell in its units."""
        return difference.format(self.scale, 1 if self.scale == 100 else 2)

    @property
    def label(self) -> str:
        """The cell in a few words; a dagger marks an earlier draw of the subset."""
        cell, dataset = self.cell, names.dataset_label(self.setting.spec.dataset)
        balance = "balanced" if cell.imbalance == 1 else f"{cell.imbalance:g}"
        if cell.table in ("Table 1", "Angular Fisher score"):
            label = f"{dataset} {balance}, {names.network_label(cell.network)}"
        elif cell.table == "LDAM and MiSLAS":
            reading = {"cosine_maxsep": ", cosines", "maxsep_cosine": ", columns"}.get(self.method.head, "")
            label = f"{cell.method} {balance}{reading}"
        else:
            outliers, score, _ = cell.metric.split()
            where = {"svhn": "SVHN", "places": "Places", "unknown": dataset}.get(outliers, outliers.upper())
            label = f"{where}, {score.replace('max_', 'max ').replace('mahalanobis', 'Mahalanobis')}"
        return label if self.counted else f"{label} †"


def coverage(settings: Sequence[Setting]) -> list[Number]:
    """Join every number of the paper with the runs that answer it.

    Runs of an earlier draw of the subset are measured and not counted; runs of other lengths are neither. Where two
    methods answer one number, the one with more repetitions does.
    """
    answers: dict[paper.PaperNumber, list[tuple[Setting, Method]]] = {}
    for setting in settings:
        for method in setting.methods:
            if not paper.departures(setting.spec_of(method)):
                for cell in setting.cells(method):
                    if setting.values(method, cell.metric):
                        answers.setdefault(cell, []).append((setting, method))
    return [_number(cell, answers.get(cell, [])) for cell in paper.cells() if cell.table in paper.TABLES]


def _number(cell: paper.PaperNumber, answers: Sequence[tuple[Setting, Method]]) -> Number:
    counted = [(s, m) for s, m in answers if not s.earlier_draw]
    if not counted:
        return Number(cell, bool(answers))
    setting, method = max(counted, key=lambda pair: len(pair[0].values(pair[1], cell.metric)))
    values = list(setting.values(method, cell.metric).values())
    difference = Difference.to_printed(values, cell.fraction, lower=cell.metric.split()[-1] in LOWER_IS_BETTER)
    if cell.table == "Table 1":  # its cells are compared with the paper's mean over five runs
        difference = setting.reached(method, cell.metric) or difference
    return Number(cell, True, len(values), difference.agreement, difference.is_reached)


def coverage_table(numbers: Sequence[Number]) -> Table:
    """Count the numbers of every table of the paper, those measured, and what came of them."""
    rows = []
    for table in (*paper.TABLES, "all tables"):
        chosen = [number for number in numbers if table in (number.cell.table, "all tables")]
        enough = sum(number.repetitions >= ENOUGH for number in chosen)
        counts = (len(chosen), sum(number.measured for number in chosen), enough)
        words = [sum(number.word == word for number in chosen) for word in WORDS]
        cells = [Cell(f"{count}", tone="" if count else "muted", value=count) for count in counts]
        rows.append(Row((Cell(table), *cells, Cell(" / ".join(map(str, words))) if any(words) else EMPTY)))
    caption = (
        "Three seeds, or three splits of an open set. The words compare ours with the paper's number by the 95 % "
        "interval, as docs/plan.md defines them. Numbers with fewer than three seeds have no word; a dash stands "
        "where a table has no others."
    )
    columns = ("table of the paper", "numbers", "measured", "three seeds", " / ".join(WORDS))
    return Table("coverage", "What was reproduced", columns, tuple(rows), caption)


def plan_table(settings: Sequence[Setting]) -> Table:
    """Count the runs that docs/plan.md names, and those of them that are finished."""
    finished = [run.spec for s in settings for runs in s.runs.values() for run in runs.values()]
    done = {_official(spec) if spec.imbalance == 1 else spec for spec in finished}  # on full data it is a shuffle
    rows = []
    for question, name, only in _PLAN:
        specs = {_official(spec) for spec in recipes.get(name).specs(only=only, precision="bf16-mixed")}
        counts = len(specs), len(specs & done), len(specs - done)
        cells = (Cell(f"{count}", tone="" if count else "muted", value=count) for count in counts)
        rows.append(Row((Cell(question, f"maxsep reproduce {name}"), *cells)))
    caption = "Not counted: runs that the results of others select."
    return Table("plan", "What the plan asks for", ("question", "runs", "finished", "missing"), tuple(rows), caption)


def _official(spec: RunSpec) -> RunSpec:
    return spec.replace(data_order="official") if spec.dataset in ORDERED else spec


def gains(settings: Sequence[Setting]) -> list[Gain]:
    """List the paper's cells with the matrix that have a run here, in the order of its tables."""
    cells = [
        Gain(setting, method, cell)
        for setting in settings
        for method, _, _ in matrix_methods(setting)
        if not paper.departures(setting.spec_of(method))
        for cell in setting.cells(method)
        if cell.table in ("Table 1", "LDAM and MiSLAS", "Angular Fisher score") or cell.metric.endswith(" auroc")
    ]
    cells = [gain for gain in cells if gain.to_baseline is not None or gain.to_control is not None]
    return sorted(cells, key=lambda gain: paper.cells().index(gain.cell))


def headline(settings: Sequence[Setting]) -> str:
    """Answer in one sentence: what the radius does without the matrix, and what the matrix does at equal radius."""
    pairs = [s.difference(m, control, s.metric) for s in settings for m, _, control in matrix_methods(s)]
    matrix = [d for d in pairs if d is not None and d.n >= ENOUGH and d.low is not None]
    if not matrix:
        return "No comparison of the matrix with its control has three seeds yet: the page has estimates, no verdict."
    scaled = [(s, m) for s in settings for m in s.methods if m.head in ("scaled", "control") and m.radius != 1]
    radius = [s.difference(m, s.baseline(m), s.metric) for s, m in scaled]
    moves = sorted(d.estimate for d in radius if d is not None and d.n >= ENOUGH and d.excludes_zero)
    ends = " to ".join(dict.fromkeys(signed(100 * estimate) for estimate in moves[:1] + moves[-1:]))
    name = "mean accuracy over classes" if all(s.metric == "balanced" for s, _ in scaled) else "accuracy"
    first = f"The radius alone moves {name} by {ends} points. At" if moves else "At"
    same = sum(not difference.excludes_zero for difference in matrix)
    of = f"{same} of {plural(len(matrix), 'interval')} for what the matrix adds"
    return f"{first} equal radius, {of} {'contains' if len(matrix) == 1 else 'contain'} 0 (three seeds)."


def sentences(settings: Sequence[Setting], numbers: Sequence[Number], cells: Sequence[Gain]) -> list[str]:
    """Say at most four things about what was reproduced; of runs that the paper does not have only the theorem."""
    theorem = [THEOREM] if any(setting.spec.optimiser == "sgd" for setting in settings) else []
    enough = [number for number in numbers if number.repetitions >= ENOUGH]
    measured = sum(number.measured for number in numbers)
    if not measured:
        return theorem
    table1 = [gain for gain in cells if gain.cell.table == "Table 1" and gain.reached is not None]
    better = sum(gain.to_baseline is not None and gain.to_baseline.word == "better" for gain in table1)
    wide = sum(not gain.to_baseline.excludes_zero for gain in table1 if gain.reached and gain.to_baseline)
    return [
        f"Of the {len(numbers)} numbers in the paper's tables, {measured} have a run here and {len(enough)} have three "
        f"seeds; {sum(bool(number.reached) for number in enough)} of these are reached.",
        f"A gain over the linear head is shown in {better} of {plural(len(table1), 'cell')} of Table 1: its interval "
        f"excludes 0 there. By the plan's rule the paper's gain is reached in "
        f"{sum(bool(gain.reached) for gain in table1)}; {wide} of these intervals contain 0, too.",
        pooled_sentence(settings),
        *theorem,
    ]


def pooled(settings: Sequence[Setting]) -> MeanInterval | list[float]:
    """Return the one pooled number of the plan once its twelve differences matrix - control exist, else the list."""
    differences: list[float] = []
    matrix, control = Method("maxsep", 0.1), Method("control", 0.1)
    for setting in settings:
        place = setting.spec.dataset, setting.spec.imbalance, setting.spec.network
        if place in _POOLED and not setting.earlier_draw and matrix in setting.methods and setting.cells(matrix):
            ours, theirs = setting.values(matrix), setting.values(control)
            pairs = [(ours[key], theirs[key]) for s in _POOLED_SEEDS if (key := (s, 0)) in ours and key in theirs]
            differences += [a - b for a, b in pairs]
    return MeanInterval.of(differences) if len(differences) == len(_POOLED) * len(_POOLED_SEEDS) else differences


def pooled_sentence(settings: Sequence[Setting]) -> str:
    """Write the pooled number, or how many of its differences exist."""
    number = pooled(settings)
    if isinstance(number, list):
        return f"The plan pools twelve differences matrix \N{MINUS SIGN} control; {len(number)} are recorded so far."
    difference = Difference(number.mean, number.low, number.high, number.n, number.std, unit="difference")
    return f"Matrix \N{MINUS SIGN} control, the mean that was planned: {difference.text}."


def retrained(settings: Sequence[Setting]) -> list[str]:
    """Name the runs that were trained again after their scores were known, if they are here."""
    here = {run.spec.name for s in settings for runs in s.runs.values() for run in runs.values()}
    return [RETRAINED] if here.intersection(_RETRAINED_RUNS) else []


def to_dict(numbers: Sequence[Number], cells: Sequence[Gain]) -> dict[str, Any]:
    """Convert the coverage and the forest plot to plain JSON types."""
    rows = [{**asdict(n.cell), "measured": n.measured, "repetitions": n.repetitions, "word": n.word} for n in numbers]
    forest = []
    for gain in cells:
        differences = {"to_baseline": gain.to_baseline, "to_control": gain.to_control}
        row = {"table": gain.cell.table, "cell": gain.label, "paper": gain.paper, "counted": gain.counted}
        row["reached"] = gain.reached
        forest.append(row | {name: d.to_dict() if d else None for name, d in differences.items()})
    return {"coverage": rows, "forest": forest}
