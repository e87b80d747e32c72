"""Records of detection and features with made-up numbers, a folder of everything, and its page."""

import json
import math
import shutil
from pathlib import Path

import pytest

from maxsep.lab import recipes
from maxsep.lab.report import write_report
from maxsep.lab.report.rows import settings_of, tidy
from maxsep.lab.report.runs import collect
from maxsep.lab.spec import RunSpec

RUNS = Path(__file__).parents[3] / "results" / "runs"


def add_detection(folder: Path, sets: tuple[str, ...], shift: float = 0.0, draws: bool = False) -> None:
    """Write a `detection.json` with two scores on every set."""
    content = {}
    for name in sets:
        full = {"auroc": 0.8 + shift, "aupr": 0.9, "fpr95": 0.5 - shift, "oscr": 0.7}
        means = {key: {"mean": value + 0.01} for key, value in full.items() if key != "oscr"}
        told = {"full": full, **({"draws": {"size": 200, "repeats": 3, **means}} if draws else {})}
        shape = {"edges": [0, 1, 2], "known": [0.2, 0.8], "outside": [0.9, 0.1], "gap": 1.0}
        shape |= {"known_mean": 1.5, "outside_mean": 0.5, "gap_in_stds": 1.2}
        scores = dict.fromkeys(("max_softmax", "max_logit", "energy", "mahalanobis"), told)
        content[name] = {"origin": f"{name} images", "count": 400, "scores": scores, "histograms": {"energy": shape}}
    (folder / "detection.json").write_text(json.dumps({"schema": 1, "sets": content}))


def add_features(folder: Path) -> None:
    """Write features in the plane of two classes, and their norms."""
    cloud = {"known": [[1.0, 0.2], [0.1, 1.0]] * 5, "labels": [0, 1] * 5, "unknown": [[0.3, 0.3]] * 4}
    text = json.dumps({"schema": 1, "classes": ["a", "b"], "epochs": {"15": cloud, "200": cloud}})
    (folder / "features.json").write_text(text)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) | {"norm_known": 2.0, "norm_unknown": 1.0} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run_folders(run_folder):
    """Write a made-up run folder for each spec."""
    return lambda runs, specs: [run_folder(runs, spec) for spec in specs]


@pytest.fixture
def write_detection():
    """Write a made-up `detection.json`: `write_detection(folder, sets, shift, draws)`."""
    return add_detection


@pytest.fixture
def settings():
    """Read the settings of a folder of runs."""
    return lambda folder: settings_of(tidy(collect(folder)))


@pytest.fixture(scope="session")
def recorded():
    """The settings of the recorded runs on test data."""
    return [setting for setting in settings_of(tidy(collect(RUNS))) if setting.spec.validation == 0]


@pytest.fixture(scope="session")
def everything(run_folder, tmp_path_factory):
    """A folder with a slice of every recipe, detection, features and three bad folders."""
    runs = tmp_path_factory.mktemp("everything") / "runs"
    slices = {"table1": "dataset=cifar10,imbalance=1|0.02", "longtail": "imbalance=0.01", "prototypes": "imbalance=0.1"}
    for name, only in slices.items():
        for spec in recipes.get(name).specs(2, only=only):
            if not (runs / spec.name).exists():
                run_folder(runs, spec)
    for spec in recipes.get("ood").specs(2, only="optimiser=sgd"):
        add_detection(run_folder(runs, spec), ("svhn", "places"), 0.01 * math.log(spec.seed + 1), draws=True)
    for spec in recipes.get("openset").specs(only="dataset=osr_cifar10_0|osr_cifar10_1"):
        add_detection(run_folder(runs, spec), ("unknown",), 0.02 * (spec.head == "maxsep"))
    for spec in recipes.get("features2d").specs():
        add_features(run_folder(runs, spec))
    for radius in (3.0, 1.0, 0.1):
        run_folder(runs, RunSpec(imbalance=0.02, head="maxsep", radius=radius))
        run_folder(runs, RunSpec(imbalance=0.02, head="control", radius=radius))
    run_folder(runs, RunSpec(imbalance=0.02, head="plain", validation=0.2))
    started = RunSpec(dataset="cifar10", network="resnet34", epochs=200, seed=7)
    for name in ("started", "failed", "broken"):
        (runs / name).mkdir()
    (runs / "started" / "spec.json").write_text(json.dumps(started.to_dict()))
    (runs / "started" / "metrics.jsonl").write_text('{"epoch": 0, "train_loss": 2.0}\n')
    (runs / "failed" / "failure.json").write_text('{"error": "RuntimeError: out of memory <b>here</b>"}')
    (runs / "broken" / "result.json").write_text('{"spec": ')
    return runs


@pytest.fixture(scope="session")
def page(everything, tmp_path_factory):
    """The report of everything, written once."""
    return write_report(everything, tmp_path_factory.mktemp("page"), title="A <b>bold</b> & fine title")


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
