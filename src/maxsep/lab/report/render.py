"""Write a report: one page that needs nothing else, and the same as Markdown, JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from maxsep.files import read_json, replace_file
from maxsep.lab.report import provenance, sections, stability, summary
from maxsep.lab.report.rows import Measurement, Setting, settings_of, tidy, to_csv
from maxsep.lab.report.runs import Collection, collect
from maxsep.lab.report.sections import ONCE, Section
from maxsep.lab.report.svg import COLOURS
from maxsep.packages import load_package

TITLE = "Maximum class separation: results"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """Everything a report says."""

    title: str
    headline: str
    sentences: tuple[str, ...]
    sections: tuple[Section, ...]
    rows: tuple[Measurement, ...]
    collection: Collection
    data: dict[str, Any]
    """Numbers for machines."""
    generated: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that trained the runs."""
        return provenance.commands(self.collection.runs)

    @property
    def provenance(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """List what was run, on what, and the words of the page."""
        runs = self.collection.runs
        parts = {"facts": provenance.facts(self.collection), "environment": provenance.environment(runs)}
        return parts | {"definitions": provenance.definitions(runs, "\n".join(self._body))}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; values in `results` are fractions, in tables percent."""
        return {
            "schema": 2,
            **{name: getattr(self, name) for name in ("title", "generated", "headline", "sentences", "commands")},
            **self.data,
            "figures": [f"{figure.id}.svg" for section in self.sections for figure in section.figures],
            "tables": [table.to_dict() for section in self.sections for table in section.tables],
            "problems": [
                {"folder": str(p.folder), "kind": p.kind, "reason": p.reason} for p in self.collection.problems
            ],
            "runs": list(dict.fromkeys(row.run.spec.name for row in self.rows)),
            "environment": dict(self.provenance["environment"]),
        }

    def to_markdown(self) -> str:
        """Write the page as Markdown; figures are links to files."""
        about = self.provenance
        parts = [f"# {self.title}", f"*{self.generated}*", f"## {self.headline}", _list(self.sentences), ONCE]
        parts += self._body
        problems = [f"`{problem.label}` ({problem.kind}): {problem.reason}" for problem in self.collection.problems]
        parts += ["## Folders without a result", _list(problems)] if problems else []
        facts = [f"{name}: {value}" for name, value in (*about["facts"], *about["environment"])]
        parts += ["## Runs, machines, commands", _list([*facts, *(f"`{line}`" for line in self.commands)])]
        words = [f"**{name.strip()}**: {value}" for name, value in about["definitions"]]
        parts += ["Every number of every run is in `runs.csv`.", *(["## Definitions", _list(words)] if words else [])]
        return "\n\n".join(filter(None, parts)) + "\n"

    @property
    def _body(self) -> list[str]:
        """The sections as Markdown."""
        parts = []
        for section in self.sections:
            parts += [f"## {section.title}", *section.text]
            for table in section.tables:
                heading = "" if table.title == section.title else f"### {table.title}"
                parts += [heading, table.to_markdown(), table.caption]
            for figure in section.figures:
                parts += [f"![{figure.alt}](figures/{figure.id}.svg)", figure.caption]
            parts += section.after
        return parts

    def to_html(self) -> str:
        """The page, which needs no other file."""
        jinja = load_package("jinja2", "lab")
        options = {"undefined": jinja.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True, "autoescape": True}
        template = jinja.Environment(loader=jinja.FileSystemLoader(_HERE), **options).get_template("page.html.j2")
        style = COLOURS + (_HERE / "page.css").read_text(encoding="utf-8")
        return str(template.render(report=self, once=ONCE, style=style, **self.provenance))


def write_report(folders: str | Path | Sequence[str | Path], out: str | Path, *, title: str = TITLE) -> Path:
    """Read run folders, or folders of these; write `report.html`, `report.md`, `report.json`, `runs.csv`, `figures/`.

    Returns the path of `report.html`.
    """
    folders = [folders] if isinstance(folders, str | Path) else list(folders)
    collection = collect(*folders)
    if not collection.runs and not collection.problems:
        raise ValueError(f"there are no runs in {', '.join(map(str, folders))}. Train some first.")
    return write(build(collection, title), out)


def build(collection: Collection, title: str = TITLE) -> Report:
    """Work out everything a report says."""
    rows = tidy(collection)
    settings = settings_of(rows)
    test = [setting for setting in settings if setting.spec.validation == 0]
    numbers, cells = summary.coverage(test), summary.gains(test)
    explained = stability.explanations(stability.cells_of([s for s in test if s.unit == "seed"]))
    headline, *others = [*explained, summary.headline(test)] if settings else ["No run is finished."]
    return Report(
        title, headline, (*others, *summary.sentences(test, numbers, cells)),
        tuple(sections.build(settings)), tuple(rows), collection,
        summary.to_dict(numbers, cells) | {"results": [r for s in settings for r in results(s)]},
    )  # fmt: skip


def results(setting: Setting, metric: str = "top1") -> list[dict[str, Any]]:
    """List a metric of every method of a setting with its comparisons, for machines."""
    entries = []
    for method in setting.methods:
        values, ours, reached = setting.values(method, metric), setting.summary(method, metric), setting.reached(method)
        differences = {
            "to_baseline": setting.difference(method, setting.baseline(method), metric),
            "to_control": setting.difference(method, setting.control(method), metric),
            "to_paper": reached,
        }
        entry = {
            "setting": setting.spec.to_dict(),
            "subset": setting.subset,
            "counted": not setting.earlier_draw and setting.spec.validation == 0,
            **method._asdict(),
            "head_options": dict(method.head_options),
            "loss_options": dict(method.loss_options),
            metric: {str(seed) if not split else f"{seed}/{split}": value for (seed, split), value in values.items()},
            **{name: getattr(ours, name) for name in ("mean", "std", "low", "high", "n")},
            "paper": {cell.table: cell.value for cell in setting.cells(method) if cell.metric == "top1"},
            "reached": reached.agreement if reached else "",
        }
        entries.append(entry | {name: d.to_dict() if d else None for name, d in differences.items()})
    return entries


def write(report: Report, out: str | Path) -> Path:
    """Write a report's files; figures that an earlier report left there, and this one does not have, are removed."""
    folder = Path(out)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn = {f"{figure.id}.svg": figure.file for section in report.sections for figure in section.figures}
    for name in _former_figures(folder / "report.json") - drawn.keys():
        (folder / "figures" / name).unlink(missing_ok=True)
    files = {f"figures/{name}": text for name, text in drawn.items()}
    files |= {"report.md": report.to_markdown(), "report.html": report.to_html(), "runs.csv": to_csv(report.rows)}
    files["report.json"] = json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n"
    for name, text in files.items():
        replace_file(folder / name, text.encode())
    return folder / "report.html"


def _former_figures(former: Path) -> set[str]:
    """List the figures that an earlier report says it wrote: nothing else in the folder is ours to remove."""
    try:
        names = read_json(former)["figures"]
        return {name for name in names if Path(name).name == name and name.endswith(".svg")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
