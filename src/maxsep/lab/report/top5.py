"""Top-5 accuracy beside the paper's, where classes are many enough for it to say something."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.data import Dataset
from maxsep.lab.recipes import paper
from maxsep.lab.report.accuracy import cell_spec
from maxsep.lab.report.comparison import BASE_HEADS, Method, Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Comparison, adjust
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, percent

MANY_CLASSES = 200
_COLUMNS = ("head", "radius", "paper, %", "ours, %", "gain over plain", "gain over its control")
_CAPTION = (
    "The right class is among the five highest logits, on the test set after the last epoch. The control of maxsep is "
    "scaled, a plain head multiplied by the same radius, which at radius 1 is plain itself. Behind a p-value stands "
    "the one after Holm's correction for the tests of this table, where it is another; in colour: what is still more "
    "than noise after it."
)


def top5_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate top-5 accuracy for ImageNet and for other data of many classes; nothing if there are none."""
    shown = [(s, m) for s in settings if _has_many(s) for m in s.entries if s.entries[m].summary("top5") is not None]
    if not shown:
        return None
    pairs = [_comparisons(setting, method) for setting, method in shown]
    corrected = adjust([comparison for pair in pairs for comparison in pair])
    rows: list[Row] = []
    last: Setting | None = None
    for place, (setting, method) in enumerate(shown):
        number = paper.imagenet(cell_spec(setting, method), "top5")
        told = EMPTY if number is None else Cell(f"{number.value:.2f}", value=number.value, notes=(paper.UNTOLD,))
        ours = percent(setting.entries[method].summary("top5"))
        gains = [gain(comparison) for comparison in corrected[2 * place : 2 * place + 2]]
        if method.head not in BASE_HEADS and setting.control(method) is setting.plain(method) is not None:
            gains[1] = Cell(f"= {method.plain.head}", "the same control", "muted")
        cells = (Cell(setting.name(method)), Cell(f"{method.radius:g}"), told, ours, *gains)
        rows.append(Row(cells, "" if setting is last else setting.label))
        last = setting
    return Section("top5", "Top-5 accuracy", (), (Table("top5", "Top-5 accuracy", _COLUMNS, tuple(rows), _CAPTION),))


def _has_many(setting: Setting) -> bool:
    return Dataset.parse(setting.spec.dataset).is_imagenet or len(setting.class_counts) >= MANY_CLASSES


def _comparisons(setting: Setting, method: Method) -> tuple[Comparison | None, Comparison | None]:
    plain, control = setting.plain(method), setting.control(method)
    own = None if method.head in BASE_HEADS or control is plain else control
    return setting.against(method, plain, "top5"), setting.against(method, own, "top5")
