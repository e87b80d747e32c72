"""Open-set recognition: means over the splits of each benchmark, every split, and features in the plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from maxsep.lab.data.open_set import SPLITS, OpenSet, parse_open_set
from maxsep.lab.recipes import paper
from maxsep.lab.report.accuracy import cell_spec
from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import BASE_HEADS, Method, Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.outliers import measured
from maxsep.lab.report.outliers_figures import norms_figure, plane_features_figure
from maxsep.lab.report.statistics import Comparison, Summary, adjust, compare, summarise
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
_CAPTION = (
    "Accuracy is that on known classes. Means over splits, with the sample standard deviation; all known against all "
    "unknown test images. Gains in percentage points of AUROC over common splits, with a paired t-test below; in "
    "colour: what holds after correction for the tests of this table, in grey: noise. Two of the five splits share "
    "their classes, so the test has a little less to stand on than its p-value says."
)


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
        "softmax probability, MLS the maximum logit. CIFAR+10 and CIFAR+50 share their trained models.",
    )
    return Section("openset", "Open-set recognition", text, (_table(lines), _split_table(lines)))


def openset_sentences(settings: Sequence[Setting]) -> list[str]:
    """Say what the matrix does at radius 1 to the AUROC of MLS on each benchmark; the table has the tests."""
    words = []
    for line in _all_lines(settings):
        over = compare(line.auroc("max_logit"), line.other(Method("plain", 1.0)).auroc("max_logit"))
        if line.method == Method("maxsep", 1.0) and over is not None:
            words.append(f"{signed(over.difference, scale=100)} on {_label(line)} ({_splits(over.n)})")
    if not words:
        return []
    return [f"Open sets, AUROC of the maximum logit, the matrix at radius 1 over plain: {', '.join(words)}; in points."]


def features_section(settings: Sequence[Setting]) -> Section | None:
    """Draw features in the plane and their norms over the epochs, for runs that kept them."""
    records: dict[str, Record] = {}
    for setting in settings:
        for method, entry in setting.entries.items():
            found = [r for _, r in sorted(entry.records.items()) if _is_plane(r)]
            if found and method.full_label not in records:
                records[method.full_label] = found[0]
    if not records:
        return None
    figures = [plane_features_figure("features-plane", records)]
    logged = {label: r for label, r in records.items() if any("norm_unknown" in line for line in r.history)}
    if logged:
        histories = {label: r.history for label, r in logged.items()}
        figures.append(norms_figure("features-norms", histories, {label: r.spec.head for label, r in logged.items()}))
    text = (
        "A network whose last features are two numbers. The paper says that features of unknown classes become shorter "
        "than those of known ones; the curves show the mean norms of both.",
    )
    return Section("features", "Features in the plane", text, figures=tuple(f for f in figures if f is not None))


def _is_plane(record: Record) -> bool:
    found = (record.features or {}).get("epochs", {})
    return bool(found) and all(len(point) == 2 for told in found.values() for point in told["known"])


def _all_lines(settings: Sequence[Setting]) -> list[_Line]:
    groups: dict[RunSpec, _Benchmark] = {}
    for setting in settings:
        split = parse_open_set(setting.spec.dataset)
        if split is not None:
            key = setting.spec.replace(dataset=OpenSet(split.benchmark, 0).name)
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
    split = parse_open_set(group.spec.dataset)
    return split.benchmark if split else ""


def _label(line: _Line) -> str:
    return _SETS[_benchmark(line.benchmark), line.outliers].upper()


def _table(lines: Sequence[_Line]) -> Table:
    tests = adjust([found for line in lines for found in _comparisons(line)])
    rows: list[Row] = []
    last = ""
    for place, line in enumerate(lines):
        label = _group(line)
        cells = (
            _name(line),
            EMPTY if line.centred else _auroc(line, "max_softmax"),
            _auroc(line, "max_logit"),
            _percent(line.auroc("max_logit", "oscr")),
            EMPTY if line.centred else _percent(line.accuracy()),
            *(gain(comparison, brief=True) for comparison in tests[3 * place : 3 * place + 3]),
        )
        if line.method.head not in BASE_HEADS and line.method.radius == 1:
            cells = (*cells[:-1], Cell("= plain", "at radius 1", "muted"))
        rows.append(Row(cells, label if label != last else ""))
        last = label
    return Table("openset", "Open-set recognition", _COLUMNS, tuple(rows), _CAPTION, 1)


def _group(line: _Line) -> str:
    splits = sorted(line.benchmark.splits)
    spec = line.benchmark.spec
    epochs = "" if spec.epochs == _EPOCHS else f" · {spec.epochs} epoch{'' if spec.epochs == 1 else 's'}"
    numbers = ", ".join(map(str, splits))
    some = f"only split {numbers} of five" if len(splits) == 1 else f"splits {numbers} of five"
    told = "all five splits" if len(splits) == SPLITS else some
    return f"{_label(line)} · {told}{epochs}"


def _splits(count: int) -> str:
    return f"{count} split{'' if count == 1 else 's'}"


def _name(line: _Line) -> Cell:
    return Cell(f"{line.method.full_label}, centred" if line.centred else line.method.full_label)


def _comparisons(line: _Line) -> tuple[Comparison | None, Comparison | None, Comparison | None]:
    """Compare the AUROC of MLS with plain, plain centred, and the control at the same radius."""
    values, plain, method = line.auroc("max_logit"), Method("plain", 1.0), line.method
    over_plain = compare(values, line.other(plain).auroc("max_logit")) if line.centred or method != plain else None
    if method.head in BASE_HEADS:
        return over_plain, None, None
    centred = compare(values, line.other(plain, centred=True).auroc("max_logit"))
    control = line.other(Method("scaled", method.radius, (), method.loss, method.loss_options))
    return over_plain, centred, compare(values, control.auroc("max_logit")) if method.radius != 1 else None


def _auroc(line: _Line, score: str) -> Cell:
    setting = next(iter(line.benchmark.splits.values()))
    number = paper.open_set(cell_spec(setting, line.method), _SETS[_benchmark(line.benchmark), line.outliers], score)
    cell = _percent(line.auroc(score))
    if number is None or line.centred:
        return cell
    return Cell(cell.text, f"paper {number.value:.2f}", cell.tone, cell.value, _notes(line.benchmark))


def _notes(benchmark: _Benchmark) -> tuple[str, ...]:
    spec, notes = benchmark.spec, []
    if spec.epochs != _EPOCHS:
        notes.append(f"The protocol trains {_EPOCHS} epochs, these runs {spec.epochs}: not the same experiment.")
    if spec.max_train is not None or spec.max_test is not None:
        notes.append("These runs read a part of the data only: not the same experiment.")
    if len(benchmark.splits) < SPLITS:
        notes.append("The paper's number is a mean over five splits.")
    return tuple(notes)


def _percent(values: dict[int, float]) -> Cell:
    if not values:
        return EMPTY
    summary: Summary = summarise(list(values.values()))
    spread = "" if summary.std is None else f" ± {rounded(summary.std, scale=100)}"
    return Cell(f"{rounded(summary.mean, scale=100)}{spread}", "", "", 100 * summary.mean)


def _split_table(lines: Sequence[_Line]) -> Table:
    """Every split by itself; one with the classes of an earlier one is marked."""
    rows: list[Row] = []
    last = ""
    for line in lines:
        cells = [_name(line), *(_split_cell(line, split) for split in range(SPLITS))]
        rows.append(Row(tuple(cells), _label(line) if _label(line) != last else ""))
        last = _label(line)
    columns = ("head", *(f"split {split}" for split in range(SPLITS)))
    caption = "AUROC of MLS in percent; below it the accuracy on known classes. Means over seeds if there are several."
    return Table("openset-splits", "Split by split", columns, tuple(rows), caption, 1)


def _split_cell(line: _Line, split: int) -> Cell:
    values = [value for key, value in line.auroc("max_logit").items() if key % 1000 == split]
    right = [value for key, value in line.accuracy().items() if key % 1000 == split]
    if not values:
        return EMPTY
    twin = OpenSet(_benchmark(line.benchmark), split).same_classes_as
    notes = () if twin is None else (f"The same classes as split {twin}, in another order.",)
    detail = "" if line.centred or not right else f"accuracy {rounded(summarise(right).mean, scale=100)}"
    mean = summarise(values).mean
    return Cell(rounded(mean, scale=100), detail, "", 100 * mean, notes)
