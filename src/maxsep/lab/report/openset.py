"""Open-set recognition: means over the splits of each benchmark, and every split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from maxsep.lab.data.open_set import SOURCES, SPLITS, OpenSetSplit
from maxsep.lab.recipes import paper
from maxsep.lab.report.accuracy import cell_spec
from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import BASE_HEADS, Entry, Method, Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.outliers import measured
from maxsep.lab.report.statistics import MIN_SEEDS, Comparison, Summary, adjust, compare, summarise
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, rounded, signed
from maxsep.lab.spec import RunSpec

_SETS = {("svhn", "unknown"): "svhn", ("cifar10", "unknown"): "cifar10"}
_SETS |= {("cifar+", name): name for name in ("cifar+10", "cifar+50")}
"""Benchmark and unknown set, and the paper's name for both; in the paper's order."""
_EPOCHS = 600
_COLUMNS = (
    *("head", "AUROC of MSP, %", "AUROC of MLS, %", "OSCR of MLS, %", "accuracy, %"),
    *("MLS over plain", "over plain, centred", "over scaled, same radius"),
)
_CAPTION = "Accuracy is that on known classes; all known against all unknown test images."
_SEVERAL = (
    "Means over splits, with the sample standard deviation. Gains in percentage points of AUROC over common splits, "
    "with a paired t-test below, p before correction; in colour: what holds after Holm's correction for the tests of "
    "this table, in grey: noise."
)
_ONE = "One run of each head: a gain is the difference of two runs, in percentage points of AUROC, and is not testable."
_SHARED = "Splits with the same known classes leave the test a little less to stand on than its p-value says."


@dataclass
class _Benchmark:
    """All runs of one benchmark that differ in split, head and seed alone."""

    spec: RunSpec
    splits: dict[int, Setting] = field(default_factory=dict)

    @property
    def methods(self) -> list[Method]:
        """Every method that some split has."""
        found = dict.fromkeys(method for setting in self.splits.values() for method in setting.entries)
        return sorted(found, key=lambda method: method.order)

    def name(self, method: Method) -> str:
        """A method as a setting with the methods of all splits names it."""
        return Setting(self.spec, {other: Entry(other) for other in self.methods}).full_name(method)

    def records(self, method: Method) -> Iterator[tuple[int, int, Record]]:
        """Give (split, seed, record) of a method's runs."""
        for split, setting in sorted(self.splits.items()):
            if method in setting.entries:
                yield from ((split, seed, record) for seed, record in sorted(setting.entries[method].records.items()))

    def values(self, method: Method, read: Callable[[Record], float | None]) -> dict[int, float]:
        """A number for each repetition, which is a split and a seed."""
        found = {1000 * seed + split: read(record) for split, seed, record in self.records(method)}
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True)
class _Line:
    """A row to be: a method on one set of unknown classes, and whether the mean logit was taken off."""

    benchmark: _Benchmark
    outliers: str
    method: Method
    centred: bool = False

    def auroc(self, score: str, measure: str = "auroc") -> dict[int, float]:
        name = f"{score}_centred" if self.centred and score == "max_logit" else score
        return self.benchmark.values(self.method, lambda r: measured(r, self.outliers, name, measure, "full"))

    @property
    def splits(self) -> tuple[int, ...]:
        """The splits that were measured."""
        return tuple(sorted({key % 1000 for key in self.auroc("max_logit")}))

    def accuracy(self) -> dict[int, float]:
        return self.benchmark.values(self.method, lambda r: r.value("top1") if r.detection else None)

    def other(self, method: Method, centred: bool = False) -> _Line:
        return _Line(self.benchmark, self.outliers, method, centred)


def openset_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate open-set recognition; nothing if no run on a split was asked about unknown classes."""
    lines = _all_lines(settings)
    if not lines:
        return None
    text = (
        "A few classes are trained on, and test images of others are to be told from theirs. MSP is the maximum "
        "softmax probability, MLS the maximum logit. CIFAR+10 and CIFAR+50 share their trained models."
        + _not_run(lines),
        "The benchmarks have five splits of classes each, of which two have the same known classes in another order: "
        f"{_same_classes()}.",
    )
    tables = (_table(lines), _split_table(lines)) if any(len(line.splits) > 1 for line in lines) else (_table(lines),)
    return Section("openset", "Open-set recognition", text, tables)


def _not_run(lines: Sequence[_Line]) -> str:
    shown = {_label(line) for line in lines}
    missing = [name.upper() for name in _SETS.values() if name.upper() not in shown]
    return f" Not run: {', '.join(missing)}." if missing else ""


def _same_classes() -> str:
    """Name the two splits of each benchmark that have the same known classes.

    >>> _same_classes()
    'splits 0 and 1 of SVHN, 0 and 1 of CIFAR10, 1 and 2 of CIFAR+'
    """
    found = [
        f"{twin} and {split} of {benchmark.upper()}"
        for benchmark in SOURCES
        for split in range(SPLITS)
        if (twin := OpenSetSplit(benchmark, split).same_classes_as) is not None
    ]
    return f"splits {', '.join(found)}"


def openset_sentences(settings: Sequence[Setting]) -> list[str]:
    """Say what the matrix does at radius 1 to the AUROC of MLS on each benchmark; the table has the tests."""
    words, few = [], {}
    for line in _all_lines(settings):
        over = compare(line.auroc("max_logit"), line.other(Method("plain", 1.0)).auroc("max_logit"))
        if line.method == Method("maxsep", 1.0) and over is not None:
            words.append(f"{signed(over.difference, scale=100)} on {_label(line)} ({_splits(over.n)})")
            if over.n < MIN_SEEDS:
                few[_label(line)] = _benchmark(line.benchmark)
    if not words:
        return []
    told = f"Open sets, AUROC of the maximum logit, the matrix at radius 1 over plain: {', '.join(words)}; in points"
    return [f"{told}{_doubt(few, among=len(words))}."]


def _doubt(few: Mapping[str, str], among: int) -> str:
    """Say what few splits cannot, and what the theorem lets one expect: the recipe trains with SGD.

    Args:
        few: Name and benchmark of the sets with too few splits for a test.
        among: How many sets there are.
    """
    if not few:
        return ""
    where = "" if len(few) == among else f" on {', '.join(few)}"
    classes = sorted({len(OpenSetSplit(benchmark, 0).known) for benchmark in few.values()}, reverse=True)
    rates = " or ".join(f"{number / (number - 1):.2f} ({number} classes)" for number in classes)
    return (
        f", not testable{where}. Under SGD the matrix at radius 1 is a plain head with its mean logit "
        f"removed and a learning rate {rates} times as large on the last layer, so that and other initial weights may "
        "be all there is to it"
    )


def _all_lines(settings: Sequence[Setting]) -> list[_Line]:
    groups: dict[RunSpec, _Benchmark] = {}
    for setting in settings:
        split = OpenSetSplit.parse(setting.spec.dataset)
        if split is not None:
            key = setting.spec.replace(dataset=OpenSetSplit(split.benchmark, 0).name)
            groups.setdefault(key, _Benchmark(key)).splits[split.split] = setting
    found = []
    for benchmark, outliers in _SETS:
        for group in groups.values():
            if _benchmark(group) != benchmark:
                continue
            for method in group.methods:
                lines = [_Line(group, outliers, method)]
                lines += [_Line(group, outliers, method, centred=True)] if method == Method("plain", 1.0) else []
                found += [line for line in lines if line.auroc("max_logit")]
    return found


def _benchmark(group: _Benchmark) -> str:
    split = OpenSetSplit.parse(group.spec.dataset)
    return split.benchmark if split else ""


def _label(line: _Line) -> str:
    benchmark = _benchmark(line.benchmark)
    return _SETS.get((benchmark, line.outliers), benchmark).upper()  # that of the digits is not the paper's


def _table(lines: Sequence[_Line]) -> Table:
    tests = adjust([found for line in lines for found in _comparisons(line)])
    rows: list[Row] = []
    last = ""
    for place, line in enumerate(lines):
        group = _measured_splits(line, lines)
        label = _group(line, group)
        cells = (
            _name(line, group),
            EMPTY if line.centred else _auroc(line, "max_softmax"),
            _auroc(line, "max_logit"),
            _percent(line.auroc("max_logit", "oscr")),
            EMPTY if line.centred else _percent(line.accuracy()),
            *(gain(comparison, brief=True) for comparison in tests[3 * place : 3 * place + 3]),
        )
        if line.method.head not in BASE_HEADS and line.method.control == line.method.plain:
            cells = (*cells[:-1], Cell(f"= {line.method.plain.head}", "at radius 1", "muted"))
        rows.append(Row(cells, label if label != last else ""))
        last = label
    return Table("openset", "Open-set recognition", _COLUMNS, tuple(rows), _caption(lines), 1)


def _caption(lines: Sequence[_Line]) -> str:
    several = any(len(line.auroc("max_logit")) > 1 for line in lines)
    splits = [(line, OpenSetSplit(_benchmark(line.benchmark), split)) for line in lines for split in line.splits]
    shared = any(split.same_classes_as in line.splits for line, split in splits)
    return " ".join([_CAPTION, _SEVERAL if several else _ONE, *([_SHARED] if shared else [])])


def _measured_splits(line: _Line, lines: Sequence[_Line]) -> tuple[int, ...]:
    """The splits that some head was measured on, with the benchmark and the unknown classes of this line."""
    alike = [other for other in lines if other.benchmark is line.benchmark and other.outliers == line.outliers]
    return tuple(sorted({split for other in alike for split in other.splits}))


def _group(line: _Line, splits: tuple[int, ...]) -> str:
    spec = line.benchmark.spec
    epochs = "" if spec.epochs == _EPOCHS else f" · {spec.epochs} epoch{'' if spec.epochs == 1 else 's'}"
    missing = [split for split in range(SPLITS) if split not in splits]
    told = f"{_numbered(splits)} of five (not run: {_numbers(missing)})" if missing else "all five splits"
    return f"{_label(line)} · {told}{epochs}"


def _numbered(splits: Sequence[int]) -> str:
    """Say which splits.

    >>> _numbered((0,)), _numbered((0, 2)), _numbered((0, 1, 4))
    ('split 0', 'splits 0 and 2', 'splits 0, 1 and 4')
    """
    return f"split{'' if len(splits) == 1 else 's'} {_numbers(splits)}"


def _numbers(splits: Sequence[int]) -> str:
    *first, last = map(str, splits)
    return f"{', '.join(first)} and {last}" if first else last


def _splits(count: int) -> str:
    return f"{count} split{'' if count == 1 else 's'}"


def _name(line: _Line, splits: tuple[int, ...]) -> Cell:
    """A head's name; below it the splits of its mean, if other heads have more."""
    name = line.benchmark.name(line.method)
    return Cell(
        f"{name}, centred" if line.centred else name, "" if line.splits == splits else f"{_numbered(line.splits)} only"
    )


def _comparisons(line: _Line) -> tuple[Comparison | None, Comparison | None, Comparison | None]:
    """Compare the AUROC of MLS with plain, plain centred, and the control at the same radius."""
    values, plain, method = line.auroc("max_logit"), line.method.plain, line.method
    over_plain = compare(values, line.other(plain).auroc("max_logit")) if line.centred or method != plain else None
    if method.head in BASE_HEADS:
        return over_plain, None, None
    centred = compare(values, line.other(plain, centred=True).auroc("max_logit"))
    control = line.other(method.control).auroc("max_logit")
    return over_plain, centred, None if method.control == plain else compare(values, control)


def _auroc(line: _Line, score: str) -> Cell:
    setting = next(iter(line.benchmark.splits.values()))
    number = paper.open_set(cell_spec(setting, line.method), _SETS[_benchmark(line.benchmark), line.outliers], score)
    cell = _percent(line.auroc(score))
    if number is None or line.centred:
        return cell
    return Cell(cell.text, f"paper {number.value:.2f}", cell.tone, cell.value, _notes(line))


def _notes(line: _Line) -> tuple[str, ...]:
    spec, notes = line.benchmark.spec, []
    if spec.epochs != _EPOCHS:
        notes.append(f"The protocol trains {_EPOCHS} epochs, these runs {spec.epochs}: not the same experiment.")
    if spec.max_train is not None or spec.max_test is not None:
        notes.append("These runs read a part of the data only: not the same experiment.")
    if len(line.splits) < SPLITS:
        notes.append(f"The paper's number is a mean over five splits, ours is that of {_numbered(line.splits)}.")
    return tuple(notes)


def _percent(values: dict[int, float]) -> Cell:
    if not values:
        return EMPTY
    summary: Summary = summarise(list(values.values()))
    spread = "" if summary.std is None else f" ± {rounded(summary.std, scale=100)}"
    return Cell(f"{rounded(summary.mean, scale=100)}{spread}", "", "", 100 * summary.mean)


def _split_table(lines: Sequence[_Line]) -> Table:
    """Every split by itself; one with the known classes of an earlier one is marked."""
    rows: list[Row] = []
    last = ""
    for line in lines:
        cells = [_name(line, line.splits), *(_split_cell(line, split) for split in range(SPLITS))]
        rows.append(Row(tuple(cells), _label(line) if _label(line) != last else ""))
        last = _label(line)
    columns = ("head", *(f"split {split}" for split in range(SPLITS)))
    caption = (
        "AUROC of MLS in percent; below it the accuracy on known classes; a dash where a split was not run. Means over "
        "seeds if there are several."
    )
    return Table("openset-splits", "Split by split", columns, tuple(rows), caption, 1)


def _split_cell(line: _Line, split: int) -> Cell:
    values = [value for key, value in line.auroc("max_logit").items() if key % 1000 == split]
    right = [value for key, value in line.accuracy().items() if key % 1000 == split]
    if not values:
        return EMPTY
    twin = OpenSetSplit(_benchmark(line.benchmark), split).same_classes_as
    notes = () if twin is None else (f"The same known classes as split {twin}, in another order.",)
    detail = "" if line.centred or not right else f"accuracy {rounded(summarise(right).mean, scale=100)}"
    mean = summarise(values).mean
    return Cell(rounded(mean, scale=100), detail, "", 100 * mean, notes)
