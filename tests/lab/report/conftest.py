"""Run folders as the engine writes them, with made-up numbers that follow a seeded rule."""

import json
import math
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from maxsep.lab import recipes
from maxsep.lab.data import Dataset
from maxsep.lab.ood.evaluate import histogram, measure_scores
from maxsep.lab.ood.scores import logit_scores
from maxsep.lab.report import render
from maxsep.lab.spec import RunSpec


def accuracy(spec: RunSpec, rng: random.Random) -> float:
    base = 0.92 - 0.12 * -math.log10(spec.imbalance)
    bonus = {"plain": 0.0, "scaled": 0.03, "maxsep": 0.035, "hpn": -0.02}.get(spec.head, 0.01)
    penalty = 0.05 * abs(math.log10(spec.radius) - 0.5) if spec.radius != 1 else 0.02
    return min(0.99, max(0.05, base + bonus - penalty + rng.gauss(0, 0.004)))


def write_run(runs: Path, spec: RunSpec, /, top1: float | None = None, **changes) -> Path:
    rng = random.Random(spec.name)
    top1 = accuracy(spec, rng) if top1 is None else top1
    classes = 100 if spec.dataset == "cifar100" else 10
    counts = [max(2, int(500 * spec.imbalance ** (i / (classes - 1)))) for i in range(classes)]
    folder = runs / spec.name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()))
    shown = min(spec.epochs, 20)
    lines = [
        {
            "epoch": epoch,
            "learning_rate": 0.1,
            "train_loss": 2.3 * math.exp(-3 * (epoch + 1) / shown) + 0.02 * rng.random(),
            "seconds": 0.1,
            **({"top1": top1 * (1 - math.exp(-4 * (epoch + 1) / shown))} if epoch % 4 == 3 else {}),
        }
        for epoch in range(shown)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    per_class = [max(0.0, min(1.0, top1 - 0.2 * i / classes + rng.gauss(0, 0.03))) for i in range(classes)]
    result = {
        "schema": 1,
        "name": spec.name,
        "spec": spec.to_dict(),
        "metrics": {
            "top1": top1,
            "top5": min(1.0, top1 + 0.1),
            "loss": 1 - top1,
            "ece": 0.05,
            "balanced": top1,
            "per_class": per_class,
            "best_top1": top1,
            "best_epoch": spec.epochs - 1,
            "train_loss": lines[-1]["train_loss"],
            "angular_fisher": 1 - top1,
            "class_counts": counts,
            "num_train": sum(counts),
            "num_test": 1000,
            "parameters": 12345,
        },
        "execution": {"device": "cpu", "compile": False},
        "versions": {"maxsep": "0.1.0", "python": "3.12.3", "torch": "2.13.0"},
        "hardware": {"device": "cpu", "cpu": "an example processor", "threads": 2},
        "seconds": 12.5,
        "images_per_second": 1000.0 + rng.random() * 20,
        "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:00:12+00:00",
        "resumed": 0,
        **changes,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def make_detection(folder: Path, spec: RunSpec, sets: dict[str, str]) -> None:
    """Detection as the lab measures it, on made-up logits: known images have one high logit, outliers a lower one."""
    generator = torch.Generator().manual_seed(int(spec.digest, 16) % 2**40 + spec.seed)
    classes, scale = (
        (4 if "+" in spec.dataset else 6 if "osr" in spec.dataset else 100),
        1.0 if spec.radius == 1 else 0.6,
    )

    def logits(count: int, height: float) -> torch.Tensor:
        found = torch.randn(count, classes, generator=generator)
        peak = height + 2 * torch.randn(count, generator=generator)
        found[torch.arange(count), torch.randint(classes, (count,), generator=generator)] += peak
        if spec.head == "maxsep":
            return scale * (found - found.mean(1, keepdim=True))
        return scale * (found + torch.randn(count, 1, generator=generator))

    height = 7.0 + (0.8 if spec.head == "maxsep" else 0.0)
    known, correct = logit_scores(logits(600, height)), torch.rand(600, generator=generator) < 0.8
    record = {"schema": 1, "run": spec.name, "in_distribution": {"dataset": spec.dataset, "count": 600, "top1": 0.8}}
    far = {"svhn": 3.5, "places": 4.5, "cifar10": 5.5}
    record["sets"] = {}
    for name, origin in sets.items():
        outside = logit_scores(logits(400, far.get(name, 2.5)))
        if "osr" not in spec.dataset:
            for extra in ("mahalanobis", "mahalanobis_no_step"):
                outside[extra], known[extra] = outside["energy"], known["energy"] + 1
        measured = measure_scores(known, outside, correct, draw=200, repeats=0 if "osr" in spec.dataset else 3)
        shapes = {key: histogram(known[key], outside[key]) for key in ("energy", "energy_centred")}
        record["sets"][name] = {"origin": origin, "count": 400, "scores": measured, "histograms": shapes}
        if "mahalanobis" in measured:
            rows = {"0": "mahalanobis_no_step", "0.002": "mahalanobis"}
            record["sets"][name]["sweep"] = {step: measured[score]["full"] for step, score in rows.items()}
    record["mahalanobis"] = {"chosen": 0.002, "magnitudes": [0.0, 0.002]}
    (folder / "detection.json").write_text(json.dumps(record))


def write_features(folder: Path, spec: RunSpec) -> None:
    """Features in the plane that grow longer for known classes, and their norms in every epoch."""
    rng = random.Random(spec.name)

    def points(count: int, length: float, angle: float, spread: float) -> list[list[float]]:
        lengths = [abs(length * (1 + rng.gauss(0, 0.25))) for _ in range(count)]
        angles = [angle + rng.gauss(0, spread) for _ in range(count)]
        pairs = [(r * math.cos(a), r * math.sin(a)) for r, a in zip(lengths, angles, strict=True)]
        return [[max(x, 0.2 * x), max(y, 0.2 * y)] for x, y in pairs]

    epochs = {}
    for epoch, length, spread in ((15, 2.0, 0.25), (200, 6.0, 0.08)):
        clouds = [points(60, length, 0.25 * label, spread) for label in range(6)]
        labels = [label for label in range(6) for _ in range(60)]
        unknown = points(240, 0.5 * length, 0.7, 0.6)
        epochs[str(epoch)] = {"known": [p for cloud in clouds for p in cloud], "labels": labels, "unknown": unknown}
    names = ["airplane", "frog", "deer", "truck", "automobile", "horse"]
    (folder / "features.json").write_text(json.dumps({"schema": 1, "classes": names, "epochs": epochs}))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        growth = 1 - math.exp(-3 * (row["epoch"] + 1) / len(rows))
        bonus = 1.2 if spec.head == "maxsep" else 1.0
        row |= {"norm_known": 1 + 5 * bonus * growth, "norm_unknown": 1 + 2.2 * growth}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


OOD = {"svhn": "SVHN test, re-cropped", "places": "MiniPlaces validation", "cifar10": "CIFAR-10 test"}


def write_outside(runs: Path) -> Path:
    """The runs of the three recipes on images from outside, with all that the lab leaves beside them."""
    for spec in recipes.get("ood").specs():
        if spec.optimiser == "sgd" or spec.seed == 1:
            make_detection(write_run(runs, spec, top1=0.75 + 0.002 * spec.seed), spec, OOD)
    for spec in recipes.get("openset").specs():
        split = Dataset.parse(spec.dataset).open_set
        if split.benchmark != "svhn" or split.split < 2:
            sets = {name: f"{name} classes" for name in split.unknown}
            make_detection(write_run(runs, spec, top1=0.93 + 0.01 * split.split), spec, sets)
    for spec in recipes.get("features2d").specs():
        write_features(write_run(runs, spec, top1=0.8), spec)
    return runs


def write_all(runs: Path, specs: list[RunSpec]) -> Path:
    for spec in specs:
        if not (runs / spec.name).exists():
            write_run(runs, spec)
    return runs


@pytest.fixture
def run_folder():
    """Write one made-up run folder: `run_folder(runs, spec, top1=None, **changes_of_result)`."""
    return write_run


@pytest.fixture
def write_detection():
    """Write a made-up `detection.json`: `write_detection(folder, spec, {set: origin})`."""
    return make_detection


@pytest.fixture
def run_folders():
    """Write a made-up run folder for each spec."""
    return write_all


@pytest.fixture(scope="session")
def outside(tmp_path_factory):
    """A folder with the runs on images from outside."""
    return write_outside(tmp_path_factory.mktemp("outside") / "runs")


@pytest.fixture(scope="session")
def everything(tmp_path_factory):
    """A folder with the demo's runs, a slice of the paper's, weights and three bad folders."""
    runs = tmp_path_factory.mktemp("everything") / "runs"
    demo = recipes.get("demo")
    specs = demo.specs()
    write_all(runs, [*specs, *demo.final_specs({"maxsep": 3.0, "scaled": 1.0}, specs)])
    for name, only in (("table1", "dataset=cifar10,imbalance=1|0.02"), ("fixed", "dataset=cifar100,imbalance=1")):
        write_all(runs, recipes.get(name).specs(only=only))
    write_all(runs, recipes.get("prototypes").specs(only="dataset=cifar10,imbalance=1"))
    write_weights(runs, "cifar10-resnet34-hpn-s123", "head.prototypes", 9)
    write_weights(runs, "digits-lt0.02-mlp-plain-s0", "head.weight", 16)
    write_bad_folders(runs)
    return runs


@pytest.fixture(scope="session")
def page(everything, tmp_path_factory):
    """The report of everything, rendered once."""
    return render(everything, tmp_path_factory.mktemp("page"), title="A <b>bold</b> & fine title")


def write_weights(runs: Path, start: str, key: str, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for folder in runs.glob(f"{start}-*"):
        save_file({key: torch.randn(10, width, generator=generator)}, folder / "weights.safetensors")


def write_bad_folders(runs: Path) -> None:
    started = RunSpec(dataset="cifar10", network="resnet34", epochs=200, seed=7)
    (runs / "started").mkdir()
    (runs / "started" / "spec.json").write_text(json.dumps(started.to_dict()))
    (runs / "started" / "metrics.jsonl").write_text('{"epoch": 0, "train_loss": 2.0}\n')
    (runs / "failed").mkdir()
    (runs / "failed" / "failure.json").write_text('{"error": "RuntimeError: out of memory <b>here</b>"}')
    (runs / "broken").mkdir()
    (runs / "broken" / "result.json").write_text('{"spec": ')


@pytest.fixture(scope="module")
def browser():
    """A real browser; the only thing here that a machine may be without."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium was found")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()
