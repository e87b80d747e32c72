"""Write the tables on fixed class coordinates: models that were trained apart, and federated clients.

python docs/write_coordinates.py           # rewrites docs/results.md
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from maxsep.lab import recipes
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import Method, Setting, settings_of
from maxsep.lab.report.federated import COMPARED, after_round, gains, has_clients
from maxsep.lab.report.statistics import Comparison, mean
from maxsep.lab.report.tables import p_text, rounded, signed
from maxsep.lab.spec import RunSpec, options

sys.path.insert(0, str(Path(__file__).parent))  # the script beside this one is found however this one is run

from write_results import ROOT, RUNS, collected, in_percent, of_any_seed

PAGE = ROOT / "docs" / "results.md"
APART = "<!-- apart: written from results/runs by docs/write_coordinates.py -->\n", "<!-- /apart -->"
FEDERATED = "<!-- federated: written from results/runs by docs/write_coordinates.py -->\n", "<!-- /federated -->"
_COSINES = options(normalise=True, temperature=0.1)
APART_ROWS = {
    "plain head, features": ("plain", (), "features"),
    "plain head, logits less their mean": ("plain", (), "logits"),
    "plain head, features aligned": ("plain", (), "aligned"),
    "`orthonormal`, features": ("orthonormal", (), "features"),
    "`orthonormal` by cosine, features": ("orthonormal", _COSINES, "features"),
    "`etf`, features": ("etf", options(rotation=0), "features"),
    "`etf` by cosine, features": ("etf", (*_COSINES, *options(rotation=0)), "features"),
    "`orthonormal` by cosine, logits": ("orthonormal", _COSINES, "logits"),
    "`etf` by cosine, logits": ("etf", (*_COSINES, *options(rotation=0)), "logits"),
    "`orthonormal` by cosine, features aligned": ("orthonormal", _COSINES, "aligned"),
    "`etf` by cosine, features aligned": ("etf", (*_COSINES, *options(rotation=0)), "aligned"),
}


def recalls(split: int, head: str, given: Any, kind: str, part: str, which: str) -> dict[int, float]:
    """Recalls at 1 of pairs of runs on a split of the digits, by the seed of the second run."""
    arm = {"dataset": f"osr_digits_{split}", "head": head, "head_options": options(**dict(given))}
    settings = {of_any_seed(spec) for spec in recipes.get("compatible").specs(1) if _has(spec, arm)}
    return {
        record.spec.seed: record.compatibility[part][kind][which]
        for setting in settings
        for record in collected(RUNS).get(setting, [])
        if record.compatibility is not None
    }


def _has(spec: RunSpec, fields: dict[str, Any]) -> bool:
    return all(getattr(spec, name) == value for name, value in fields.items())


def apart() -> str:
    """Recall across models that were trained apart, in Markdown."""
    columns = [(part, which, split) for part in ("known", "unseen") for which in ("self", "across") for split in (0, 1)]
    heads = (f"{part}, {which}, split {split}" for part, which, split in columns)
    rows = [f"| compared by | {' | '.join(heads)} |", "|---" * 9 + "|"]
    for name, (head, given, kind) in APART_ROWS.items():
        cells = []
        for part, which, split in columns:
            found = recalls(split, head, given, kind, part, which).values()
            cells.append(in_percent(found) if which == "across" else rounded(mean(list(found)), scale=100))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


FEDERATED_ROWS = {
    "plain head": Method("plain", 1.0),
    "plain head, times 0.3 (control)": Method("scaled", 0.3),
    "`maxsep`, radius 0.3": Method("maxsep", 0.3),
    "`maxsep`": Method("maxsep", 1.0),
    "`orthonormal` (control)": Method("orthonormal", 1.0),
    "`etf`": Method("etf", 1.0, options(rotation=0)),
    "`orthonormal` by cosine (control)": Method("orthonormal", 1.0, _COSINES),
    "`etf` by cosine": Method("etf", 1.0, options(**dict(_COSINES), rotation=0)),
}


@functools.cache
def clients_setting() -> Setting:
    """The runs of the recipe `federated`."""
    (found,) = filter(has_clients, settings_of(collect(RUNS).records))
    return found


def federated() -> str:
    """Accuracy by round where clients see different classes, in Markdown."""
    setting, rounds = clients_setting(), (5, 10, 20, 40)
    tests = gains(setting, COMPARED)
    over = f"over the plain head, round {COMPARED} | over its control"
    rows = [
        f"| | {' | '.join(f'round {number}' for number in rounds)} | {over} |",
        "|---" * (len(rounds) + 3) + "|",
    ]
    for name, method in FEDERATED_ROWS.items():
        told = [in_percent(after_round(setting.entries[method], number).values()) for number in rounds]
        told += [_tested(comparison) for comparison in tests[method]]
        rows.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(rows) + "\n"


def _tested(found: Comparison | None) -> str:
    if found is None:
        return "-"
    p = "" if found.adjusted is None else f" ({p_text(found.adjusted)})"
    return f"{signed(found.difference, scale=100)}{p}"


def rewritten() -> str:
    """The page with both tables replaced."""
    text = PAGE.read_text()
    for (begin, end), content in ((APART, apart), (FEDERATED, federated)):
        before, rest = text.split(begin)
        text = before + begin + content() + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(rewritten())
