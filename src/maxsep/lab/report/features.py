"""Features in the plane: known and unknown classes of networks whose last features are two numbers."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.outliers_figures import norms_figure, plane_features_figure


def features_section(settings: Sequence[Setting]) -> Section | None:
    """Draw features in the plane and their norms over the epochs, for runs that kept them."""
    records: dict[str, Record] = {}
    for setting in settings:
        for method, entry in setting.entries.items():
            found = [r for _, r in sorted(entry.records.items()) if _is_plane(r)]
            if found:
                records.setdefault(setting.full_name(method), found[0])
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
