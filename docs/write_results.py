"""Write the README's table of results from the run records, so that no number in it is typed by hand.

python docs/write_results.py           # rewrites README.md
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- results: written from results/runs by docs/write_results.py -->\n", "<!-- /results -->"
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
ARMS = {
    ("plain", 1.0): "plain head",
    ("scaled", 0.1): "plain head, times 0.1 (control)",
    ("maxsep", 0.1): "maxsep, radius 0.1",
}


def accuracies(dataset: str, head: str, radius: float) -> list[float]:
    """Top-1 accuracies in percent, one per seed, of the paper's ResNet at imbalance 0.01."""
    wanted = {"dataset": dataset, "head": head, "radius": radius, "imbalance": 0.01, "network": "resnet34"}
    wanted |= {"loss": "cross_entropy", "epochs": 200, "validation": 0.0}
    results = (json.loads(path.read_text()) for path in sorted((ROOT / "results" / "runs").glob("*/result.json")))
    return [
        100 * result["metrics"]["top1"]
        for result in results
        if all(result["spec"][key] == value for key, value in wanted.items())
    ]


def table() -> str:
    """The table in Markdown."""
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["table1_cifar"]
    rows = ["| | paper | ours | seeds |", "|---|---|---|---|"]
    for dataset, title in TITLES.items():
        for (head, radius), name in ARMS.items():
            found = accuracies(dataset, head, radius)
            theirs = paper[dataset]["resnet"].get(head, {}).get("0.01")
            spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
            ours = f"{statistics.mean(found):.2f}{spread}" if found else "-"
            rows.append(f"| {title}, {name} | {'-' if theirs is None else f'{theirs:.2f}'} | {ours} | {len(found)} |")
    return "\n".join(rows) + "\n"


def rewritten(text: str) -> str:
    """The README with its table replaced."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(rewritten(readme.read_text()))
