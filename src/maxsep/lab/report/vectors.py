"""The geometry of class vectors: the simplex, what trained heads learn and optimised prototypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import Setting, duel
from maxsep.lab.report.geometry import angles_figure, ideal_angle_figure, plane_figure, space_figure
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import summarise
from maxsep.lab.report.svg import Figure
from maxsep.lab.report.tables import Cell, Row, Table
from maxsep.ops import separate

_KEYS = {"plain": "head.weight", "scaled": "head.weight", "maxsep": "head.weight", "hpn": "head.prototypes"}
"""Where the weights of a run hold its class vectors: one row for each class, but one less where the matrix follows."""


def geometry_section(settings: Sequence[Setting]) -> Section:
    """Draw the simplex, and the angles between the class vectors of trained heads beside it."""
    text = (
        "For C classes the matrix holds C unit vectors, any two at the same angle, the largest that C vectors can all "
        "keep. It is never trained. Its cosine is \N{MINUS SIGN}1/(C \N{MINUS SIGN} 1).",
        "A trained layer in front turns and stretches them: what meets the features of a maxsep head is the layer "
        "times the matrix. Learned angles are those of that product, as they are of a plain layer's rows.",
    )
    figures = [plane_figure(), space_figure(), ideal_angle_figure()]
    for number, setting in enumerate(settings[:4], 1):
        figure = _trained_angles(f"angles-{number}", setting)
        figures += [] if figure is None else [figure]
    return Section("geometry", "The geometry", text, figures=tuple(figures))


def prototypes_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate the spread of the angles between optimised prototypes beside the closed form's."""
    rows, seen = [], set()
    for setting in settings:
        for method, entry in setting.entries.items():
            record = next(iter(entry.records.values()))
            vectors = class_vectors(record) if method.head == "hpn" else None
            if vectors is None or (setting.spec.dataset, len(vectors)) in seen:
                continue
            seen.add((setting.spec.dataset, len(vectors)))
            angles = pairwise_angles(vectors)
            count = len(vectors)
            rows.append(_spread_row(f"{count} classes", "optimised (hpn)", angles))
            rows.append(_spread_row("", "closed form", [_ideal(count)] * 3))
    if not rows:
        return None
    columns = ("vectors", "mean angle", "standard deviation", "smallest", "largest")
    table = Table("prototypes", "Pairwise angles, degrees", columns, tuple(rows))
    text = (
        "The paper says that optimised prototypes keep an angular variance of over one degree at 100 classes. The "
        "accuracies of hpn are in the tables above.",
        *filter(None, (duel(settings, "maxsep", "hpn"),)),
    )
    return Section("prototypes", "Optimised class vectors", text, (table,))


def class_vectors(record: Record) -> list[list[float]] | None:
    """Read the vector that features are multiplied by for each class, or nothing if a run has no weights.

    Behind the trained layer W of a maxsep head that is a row of P^T W, not a column of the matrix.
    """
    key, path = _KEYS.get(record.spec.head), record.folder / "weights.safetensors"
    if key is None or not path.is_file():
        return None
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError('reading weights needs safetensors: pip install "maxsep[lab]"') from error
    found: Any = next((t for name, t in load_file(path).items() if name == key or name.endswith("." + key)), None)
    if found is None or found.dim() != 2:
        return None
    rows = found.double()
    return (separate(rows.T).T if record.spec.head == "maxsep" else rows).tolist()


def pairwise_angles(vectors: Sequence[Sequence[float]]) -> list[float]:
    """All angles between two of some vectors, in degrees.

    >>> [round(angle, 6) for angle in pairwise_angles([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])]
    [90.0, 180.0, 90.0]
    """
    import torch

    unit = torch.nn.functional.normalize(torch.tensor(vectors, dtype=torch.float64), dim=1)
    rows, columns = torch.triu_indices(len(unit), len(unit), offset=1)
    cosines = (unit @ unit.T)[rows, columns].clamp(-1, 1)
    return torch.rad2deg(torch.acos(cosines)).tolist()


def _trained_angles(id: str, setting: Setting) -> Figure | None:
    angles: dict[str, Sequence[float]] = {}
    classes = 0
    for method, entry in setting.entries.items():
        vectors = class_vectors(entry.records[min(entry.records)])
        if vectors is not None and len(vectors) > 2 and len(angles) < 5:
            angles[setting.full_name(method)] = pairwise_angles(vectors)
            classes = len(vectors)
    if not angles:
        return None
    return angles_figure(id, f"Learned angles: {setting.label}", angles, _ideal(classes))


def _ideal(num_classes: int) -> float:
    return math.degrees(math.acos(-1 / (num_classes - 1)))


def _spread_row(group: str, name: str, angles: Sequence[float]) -> Row:
    summary = summarise(angles)
    numbers = (summary.mean, summary.std or 0.0, min(angles), max(angles))
    return Row((Cell(name), *(Cell(f"{number:.2f}", value=number) for number in numbers)), group)
