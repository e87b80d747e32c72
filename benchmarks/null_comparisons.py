"""How often does a verdict find a difference where there is none? Twenty comparisons on digits, of three seeds each.

Under SGD the matrix at radius 1 trains as its control does (docs/theory.md), and both start from the same distribution.
So every interval that excludes 0 is chance: one in twenty is expected.

    python benchmarks/null_comparisons.py      # three minutes of one core, writes results/null_comparisons.json
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from maxsep.lab import grid
from maxsep.lab.environment import commit, hardware, versions
from maxsep.lab.recipes.compare import compare
from maxsep.lab.reference import load_reference
from maxsep.lab.report.own_data import verdict
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution

COMPARISONS, SEEDS = 20, 3


def compare_nothing(runs):
    """Train twenty comparisons in a folder of runs, and return what their verdicts say about the matrix."""
    found = []
    for number in range(COMPARISONS):
        recipe = compare("digits", epochs=10, radii=[1.0], batch_size=64, learning_rate=0.05)
        specs = recipe.specs(range(SEEDS * number, SEEDS * (number + 1)))
        grid.run(specs, runs=runs, execution=Execution(device="cpu", threads=1))
        result = verdict(specs, [Run(Path(runs) / spec.name) for spec in specs], load_reference(specs[0], runs))
        assert not result.missing, "every run has to be finished"
        assert not result.failure, result.failure
        (matrix,) = [entry for entry in result.to_dict()["comparisons"] if entry["effect"] == "matrix"]
        found.append(matrix | {"headline": result.headline})
    return found


def main():
    with tempfile.TemporaryDirectory() as runs:
        found = compare_nothing(runs)
    about = {"command": " ".join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d")}
    about |= {
        "commit": commit(Path(__file__).parent),
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
    }
    exclude = sum(entry["word"] in ("better", "worse") for entry in found)
    record = {"about": about, "exclude_zero": exclude, "comparisons": found}
    out = Path(__file__).parents[1] / "results" / "null_comparisons.json"
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{exclude} of {len(found)} intervals exclude 0; {out}")


if __name__ == "__main__":
    main()
