"""A report as data, from which the page, the Markdown and the JSON are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from maxsep.lab.report.collect import Collection
from maxsep.lab.report.svg import Figure
from maxsep.lab.report.tables import Table


@dataclass(frozen=True)
class Section:
    """A heading, sentences, tables and figures, in this order."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What the numbers say: a headline, then sentences."""

    headline: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything a report says."""

    title: str
    finding: Finding
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    environment: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]
    definitions: tuple[tuple[str, str], ...]
    collection: Collection
    results: tuple[dict[str, Any], ...] = ()
    generated: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
