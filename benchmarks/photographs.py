"""What the commands of the README reach on real photographs: a long tail of Imagenette, and five kinds of flowers.

    python benchmarks/photographs.py --imagenette DIR --flowers DIR --weights FILE --work DIR [--rows tail flowers ...]

`--imagenette` is Imagenette's folder (train/, val/), `--flowers` a folder with one folder of pictures per class, and
`--weights` the file of tf_efficientnet_lite0 that the guide names. The tail has 480 to 4 training images per class, in
the order of the classes, and all validation images as test images. Rows:

    tail      the long-tail command of the README
    flowers   the defaults of `train`
    compare   `compare` on the tail with three seeds; `--budget` stops it in time, and the same call goes on
    rates     the learning rate that `train` chooses for the linear head on the tail, beside nine rates

Runs that are finished are read, not trained again. A row replaces that of an earlier call; all others are kept.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from maxsep.lab.environment import commit, hardware, pick_device, versions
from maxsep.lab.reference import decisive_metric
from maxsep.lab.run import Run
from maxsep.lab.search import rates_of

LARGEST, IMBALANCE = 480, 0.01
LEAST, WITHIN = 0.60, 0.01
"""What the long-tail command has to reach, and how near a chosen rate has to come to the best of nine."""
METRICS = ("top1", "balanced")


def make_tail(imagenette: Path, folder: Path) -> Path:
    """Copy a long tail of Imagenette's training images and all of its validation images, unless that was done."""
    if folder.is_dir():
        return folder
    new = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(new, ignore_errors=True)
    classes = sorted(path.name for path in (imagenette / "train").iterdir())
    for number, name in enumerate(classes):
        count = int(LARGEST * IMBALANCE ** (number / (len(classes) - 1)))
        for source, part, images in (("train", "train", count), ("val", "test", None)):
            (new / part / name).mkdir(parents=True)
            for path in sorted((imagenette / source / name).iterdir())[:images]:
                shutil.copy(path, new / part / name)
    return new.rename(folder)


def ask(runs: Path, *arguments: str) -> dict:
    """Call maxsep and return its answer, with the command (of paths the last part), date, commit and machine."""
    command = [sys.executable, "-m", "maxsep", *arguments, "--runs", str(runs), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        sys.exit(done.returncode)
    words = [
        f"{a}{b}{Path(c).name if Path(c).is_absolute() else c}" for a, b, c in (w.rpartition(":") for w in arguments)
    ]
    about = {"command": shlex.join(["maxsep", *words]), "date": time.strftime("%Y-%m-%d")}
    about |= {"commit": commit(Path(__file__).parent), "versions": versions(), "hardware": hardware(pick_device())}
    return json.loads(done.stdout) | about


def train(runs: Path, title: str, *options: str) -> dict:
    """Run `maxsep train`; versions, machine and time are those of the training, which may be an earlier call's."""
    answer = ask(runs, "train", *options)
    run = Run(answer["run"])
    numbers = {name: run.metrics[name] for name in METRICS} | {"images": run.metrics["num_train"]}
    settings = {"epochs": run.spec.epochs, "learning_rate": run.spec.learning_rate}
    kept = {name: answer[name] for name in ("command", "date", "commit", "reference", "warnings")}
    kept |= {name: run.result[name] for name in ("seconds", "finished", "versions", "hardware")}
    metric = decisive_metric(run.metrics["class_counts"])
    return kept | {"metric": metric, "runs": [{"title": title} | settings | numbers]}


def compare(runs: Path, *options: str) -> dict | None:
    """Run `maxsep compare`, whose runs here are means over seeds; None if the budget was over before its end."""
    answer = ask(runs, "compare", *options)
    if answer["missing"]:
        print(f"{len(answer['missing'])} runs of compare are missing; the same call goes on")
        return None
    facts = {"epochs": answer["setting"]["epochs"], "images": answer["num_train"]}
    methods = [
        {"title": method["label"]} | facts | {name: method["metrics"][name] for name in METRICS}
        for method in answer["methods"]
    ]
    names = ("command", "date", "commit", "versions", "hardware", "metric", "reference", "warnings", "seeds")
    names += ("headline", "failure", "comparisons", "search")
    return {name: answer[name] for name in names} | {"runs": methods}


def try_rates(runs: Path, *options: str) -> dict:
    """Let `train` choose a rate, which is the first run of the row, and train nine rates to the end."""
    row = train(runs, "chosen rate", *options)
    fixed = [train(runs, f"rate {rate:g}", *options, "--learning-rate", f"{rate:g}") for rate in rates_of("adamw")]
    return row | {"runs": [run for one in (row, *fixed) for run in one["runs"]]}


def judge(rows: dict) -> dict[str, bool]:
    """Say which targets the rows meet, by the metric that decides for their data."""
    values = {name: [run[row["metric"]] for run in row["runs"]] for name, row in rows.items()}
    targets = {}
    if "tail" in rows:
        targets[f"tail: at least {LEAST:.0%}"] = values["tail"][0] >= LEAST
    if "flowers" in rows:
        least = rows["flowers"]["reference"][rows["flowers"]["metric"]]
        targets["flowers: at least logistic regression"] = values["flowers"][0] >= least
    if "compare" in rows:
        targets["compare: the baselines have trained"] = not rows["compare"]["failure"]
    if "rates" in rows:
        chosen, *fixed = values["rates"]
        targets[f"rates: the chosen one within {WITHIN:.0%} of the best"] = chosen >= max(fixed) - WITHIN
    return targets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("imagenette", "flowers", "weights", "work"):
        parser.add_argument(f"--{name}", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--rows", nargs="+", default=["tail", "flowers", "compare", "rates"], help="which; all")
    parser.add_argument("--budget", help="of compare, such as 2h")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "photographs.json")
    arguments = parser.parse_args()
    runs = arguments.work / "runs"
    tail = f"folder:{make_tail(arguments.imagenette, arguments.work / 'imagenette-tail')}"
    tuned = ["--head", "plain", "--loss", "logit_adjusted", "--epochs", "10"]
    tuned += ["--network", "timm/tf_efficientnet_lite0", "--weights", str(arguments.weights)]
    seeds = ["--epochs", "30", "--seeds", "3", "--out", str(arguments.work / "comparison")]
    seeds += ["--budget", arguments.budget] if arguments.budget else []
    measure = {
        "tail": lambda: train(runs, "README's command", "--dataset", tail, *tuned),
        "flowers": lambda: train(runs, "defaults", "--dataset", f"folder:{arguments.flowers}", "--epochs", "40"),
        "compare": lambda: compare(runs, tail, *seeds),
        "rates": lambda: try_rates(runs, "--dataset", tail, "--head", "plain", "--epochs", "30"),
    }
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.is_file() else {}
    for name in arguments.rows:
        if row := measure[name]():
            rows = {key: (rows | {name: row})[key] for key in measure if key in rows or key == name}
            arguments.out.write_text(json.dumps({"targets": judge(rows), "rows": rows}, indent=1) + "\n")
    targets = judge(rows)
    print(json.dumps(targets, indent=1))
    return 0 if all(targets.values()) and set(arguments.rows) <= set(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
