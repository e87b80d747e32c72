"""Write a report of finished runs: one page that needs nothing else, and the same as Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from maxsep.lab.data.open_set import OpenSetSplit
from maxsep.lab.report import features, fisher, openset, outliers, provenance, sections, vectors
from maxsep.lab.report.accuracy import results
from maxsep.lab.report.beyond import beyond_section, search_section
from maxsep.lab.report.collect import Collection, collect
from maxsep.lab.report.commands import commands as training_commands
from maxsep.lab.report.comparison import Setting, settings_of
from maxsep.lab.report.family import Family, family
from maxsep.lab.report.findings import find
from maxsep.lab.report.model import Finding, Report
from maxsep.lab.report.shots import shots_section
from maxsep.lab.report.statistics import TEST
from maxsep.lab.report.svg import HEAD_COLOURS
from maxsep.lab.report.top5 import top5_section

TITLE = "Maximum class separation: results"


def render(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    title: str = TITLE,
    commands: Sequence[str] = (),
) -> Path:
    """Read run folders and write `report.html`, `report.md`, `report.json` and `figures/`.

    Args:
        runs: A run folder, a folder that holds run folders, or several of these.
        out: The folder to write to; made if need be.
        title: The page's title.
        commands: The command lines that made the runs; worked out from the recipes if left out.

    Returns:
        The path of `report.html`.
    """
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    collection = collect(*folders)
    if not collection.records and not collection.problems:
        places = ", ".join(map(str, folders))
        raise ValueError(f"there are no runs in {places}. Train some first, or name the folder that holds them.")
    report = build(collection, title=title, folders=[str(folder) for folder in folders], commands=commands)
    return write(report, out)


def build(
    collection: Collection, *, title: str = TITLE, folders: Sequence[str] = (), commands: Sequence[str] = ()
) -> Report:
    """Work out everything a report says from the runs that were collected."""
    settings = settings_of(collection.records)
    test = [setting for setting in settings if setting.spec.validation == 0]
    validation = [setting for setting in settings if setting.spec.validation > 0]
    chosen = sections.chosen_radii(validation)
    closed = [setting for setting in test if OpenSetSplit.parse(setting.spec.dataset) is None]
    for setting in closed:
        setting.chosen = chosen.get(setting.spec, {})
    tests = family(closed)
    found = (
        sections.accuracy_section(closed, tests),
        top5_section(closed),
        beyond_section(closed),
        search_section(validation),
        shots_section(closed),
        sections.radius_section(validation, closed),
        sections.frequency_section(closed),
        sections.fixed_section(closed),
        fisher.fisher_section(closed),
        vectors.prototypes_section(closed),
        vectors.geometry_section(closed),
        outliers.outliers_section(test),
        openset.openset_section(test),
        features.features_section(test),
        sections.curves_section(closed),
    )
    return Report(
        title=title,
        finding=_finding(closed, tests, test),
        facts=provenance.facts(collection),
        sections=tuple(section for section in found if section is not None),
        environment=provenance.environment(collection.records),
        commands=training_commands(collection.records, folders, commands),
        definitions=provenance.DEFINITIONS,
        collection=collection,
        results=tuple(results(settings, tests)),
        generated=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        extra={"chosen_radii": [{"setting": s.to_dict(), "radii": radii} for s, radii in chosen.items()]},
    )


def _finding(closed: list[Setting], tests: Family, test: list[Setting]) -> Finding:
    """What the accuracies say, and after that what was found outside the known classes."""
    outside = [*outliers.outlier_sentences(test), *openset.openset_sentences(test)]
    if not closed and outside:
        return Finding("Known against unknown classes", tuple(outside))
    found = find(closed, tests)
    return Finding(found.headline, (*found.sentences, *outside))


def write(report: Report, out: str | Path) -> Path:
    """Write a report's files; figures that an earlier report left there, and this one does not have, are removed."""
    folder = Path(out)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    figures = {f"{figure.id}.svg": figure for section in report.sections for figure in section.figures}
    for name in _figures_of(folder / "report.json") - figures.keys():
        (folder / "figures" / name).unlink(missing_ok=True)
    for name, figure in figures.items():
        (folder / "figures" / name).write_text(figure.file, encoding="utf-8")
    (folder / "report.md").write_text(_fill("page.md.j2", report, escape=False), encoding="utf-8")
    text = json.dumps(to_json(report), indent=1, ensure_ascii=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    page = folder / "report.html"
    page.write_text(_fill("page.html.j2", report, escape=True), encoding="utf-8")
    return page


def _figures_of(former: Path) -> set[str]:
    """The figures that an earlier report says it wrote: nothing else in the folder is ours to remove."""
    try:
        found = json.loads(former.read_text(encoding="utf-8"))["figures"]
        return {name for name in found if Path(name).name == name and name.endswith(".svg")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain JSON types; accuracies in `results` are fractions, in tables percent."""
    return {
        "schema": 1,
        "title": report.title,
        "generated": report.generated,
        "finding": dataclasses.asdict(report.finding),
        "test": TEST,
        "facts": dict(report.facts),
        "results": list(report.results),
        "figures": [f"{figure.id}.svg" for section in report.sections for figure in section.figures],
        "tables": [table.to_dict() for section in report.sections for table in section.tables],
        "problems": [
            {"folder": str(problem.folder), "kind": problem.kind, "reason": problem.reason}
            for problem in report.collection.problems
        ],
        "runs": [record.spec.name for record in report.collection.records],
        "environment": dict(report.environment),
        "commands": list(report.commands),
        **report.extra,
    }


def _fill(template: str, report: Report, *, escape: bool) -> str:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise ImportError('reports need Jinja2: pip install "maxsep[lab]"') from error
    environment = Environment(
        loader=PackageLoader("maxsep.lab.report", "."),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        report=report,
        runs=provenance.runs_table(report.collection.records),
        style=resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8"),
        heads=tuple(HEAD_COLOURS),
        test=TEST,
    )
