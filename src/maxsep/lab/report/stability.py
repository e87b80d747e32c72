"""Answer question 2 of docs/plan.md: does the linear head start unstably, and which single change brings the gain?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from maxsep.lab.recipes.baseline import CHANGES, WARM_MATRIX
from maxsep.lab.recipes.cifar import CONTROL, CONVNET, PAIR, PLAIN, RADIUS, RESNET, RESNET_ARMS, cifar
from maxsep.lab.recipes.recipe import Arm
from maxsep.lab.report import names
from maxsep.lab.report.rows import Setting
from maxsep.lab.report.statistics import Difference
from maxsep.lab.report.tables import ACCURACY, EMPTY, Cell, Row, Table
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

EARLY = 40
"""The epoch, counted from 0, whose accuracy shows a slow start."""
_LINEAR, _MATRIX = "linear", "maxsep"
_RESNET_ARMS = {
    _LINEAR: PLAIN,
    **{f"linear, {name}": method for name, method in CHANGES.items()},
    f"linear times {RADIUS:g}, not centred": Arm(head="scaled", radius=RADIUS),
    "control": CONTROL,
    _MATRIX: RESNET_ARMS[1],
    "maxsep, warm-up": WARM_MATRIX,
}
_CONVNET_ARMS = dict(zip((_LINEAR, _MATRIX), PAIR, strict=True))
Arms = dict[str, dict[int, Run]]
"""The runs of every arm of a cell, by seed."""


def cells_of(settings: Sequence[Setting]) -> dict[RunSpec, Arms]:
    """Sort the runs of Table 1 and of the recipe `baseline` by cell, arm and seed; earlier draws do not count."""
    runs = [run for s in settings if not s.earlier_draw for finished in s.runs.values() for run in finished.values()]
    by_spec: dict[RunSpec, dict[int, Run]] = {}
    for run in runs:
        by_spec.setdefault(_without_repetition(run.spec), {})[run.spec.seed] = run
    cells = {}
    for network, arms in ((RESNET, _RESNET_ARMS), (CONVNET, _CONVNET_ARMS)):
        for cell in sorted(cifar(network), key=lambda cell: cell.dataset):
            known = {arm: by_spec.get(_without_repetition(method.on(cell)), {}) for arm, method in arms.items()}
            if known[_LINEAR]:
                cells[cell] = {arm: finished for arm, finished in known.items() if finished}
    return cells


def _without_repetition(spec: RunSpec) -> RunSpec:
    return spec.replace(seed=0, subset_seed=0, data_order="", precision="bf16-mixed")


def first_loss(run: Run) -> float:
    """Return the mean training loss of the first epoch."""
    return float(run.history[0]["train_loss"])


def blows_up(run: Run) -> bool:
    """Return whether a run's first epoch is worse than guessing: its mean loss is above ln C, or not finite."""
    return not first_loss(run) <= math.log(len(run.metrics["class_counts"]))


def stability_table(cells: Mapping[RunSpec, Arms]) -> Table:
    """List the arms of every cell: loss of the first epoch, early and last accuracy, and what separates them."""
    rows = []
    for cell, arms in cells.items():
        label = f"{names.dataset_label(cell.dataset)}, {names.network_label(cell.network)}, "
        label += f"imbalance {cell.imbalance:g}" if cell.imbalance < 1 else "balanced"
        for number, (arm, runs) in enumerate(arms.items()):
            rows.append(Row(tuple(_cells(arm, runs, arms)), label if number == 0 else ""))
    columns = (
        "method",
        "loss of epoch 0",
        f"accuracy at epoch {EARLY}, %",
        "at the end, %",
        "to linear",
        "maxsep minus this",
    )
    return Table("stability", "The first epoch and the gain", columns, tuple(rows))


def _cells(arm: str, runs: Mapping[int, Run], arms: Arms) -> list[Cell]:
    losses, accuracy = [first_loss(run) for run in runs.values()], _accuracy(runs)
    early = [row["top1"] for run in runs.values() for row in run.history if row["epoch"] == EARLY and "top1" in row]
    above = f"{sum(map(blows_up, runs.values()))} of {len(runs)} above guessing"
    to_linear = None if arm == _LINEAR else Difference.paired(accuracy, _accuracy(arms[_LINEAR]))
    matrix = {} if arm == _LINEAR or arm.startswith(_MATRIX) else _accuracy(arms.get(_MATRIX, {}))
    return [
        Cell(arm),
        Cell(f"{fmean(losses):.2f}", above, "", fmean(losses)),
        Cell(f"{100 * fmean(early):.1f}", "", "", 100 * fmean(early)) if early else EMPTY,
        Cell(f"{100 * fmean(accuracy.values()):.2f}", "", "", 100 * fmean(accuracy.values())),
        ACCURACY.difference(to_linear),
        ACCURACY.difference(Difference.paired(matrix, accuracy)),
    ]


def _accuracy(runs: Mapping[int, Run]) -> dict[int, float]:
    return {seed: run.metrics["top1"] for seed, run in runs.items()}


def sentences(cells: Mapping[RunSpec, Arms]) -> list[str]:
    """Say how often each head of Table 1 starts unstably, and which changes explain the gain."""
    messages = []
    for arm, name in ((_LINEAR, "the linear head"), (_MATRIX, "the matrix")):
        runs_by_cell = [arms.get(arm, {}) for cell, arms in cells.items() if cell.network == RESNET.network]
        unstable = [blows_up(run) for runs in runs_by_cell for run in runs.values()]
        if unstable:
            messages.append(f"With {name}, {sum(unstable)} of {len(unstable)} runs of the ResNet start above ln C.")
    return messages + explanations(cells)


def explanations(cells: Mapping[RunSpec, Arms]) -> list[str]:
    """Name the changes that explain the gain: they make the linear head better, and the matrix is not better still."""
    changed = f"{_LINEAR}, "
    tested = sum(any(arm.startswith(changed) for arm in arms) for arms in cells.values())
    messages = []
    for cell, arms in cells.items():
        where = f"On {names.dataset_label(cell.dataset)} at imbalance {cell.imbalance:g} "
        where += f"({names.network_label(cell.network)}{', the only cell tested' if tested == 1 else ''})"
        for arm in (arm for arm in arms if arm.startswith(changed)):
            change, gain = arm.removeprefix(changed), _difference(arms[arm], arms[_LINEAR])
            rest = _difference(arms.get(_MATRIX, {}), arms[arm])
            if gain and rest and gain.word == "better" != rest.word and rest.low is not None:
                messages.append(
                    f"{where}, {change} explains the gain of the matrix: it gives the linear head {gain.format()} "
                    f"points, and the matrix minus that is {rest.format()}, {rest.word}."
                )
    return messages


def _difference(runs: Mapping[int, Run], reference: Mapping[int, Run]) -> Difference | None:
    return Difference.paired(_accuracy(runs), _accuracy(reference))
