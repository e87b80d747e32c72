"""Logistic regression on pixels, and what is said over a baseline that did not reach it."""

import io
import json
import random
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from maxsep.lab.data import ImageSet
from maxsep.lab.reference import Reference, fit, load_reference, why_untrained
from maxsep.lab.report.own_data import verdict, write_page
from maxsep.lab.report.rows import Setting
from maxsep.lab.report.tables import BALANCED, MACRO_F1
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

HIGH = Reference(0.9, 0.9, 0.9, 1000, 12)
LOW = Reference(0.1, 0.1, 0.1, 1000, 12)


def write_run(runs, spec, top1, losses=(2.3, 0.5), counts=(100,) * 10):
    folder = runs / spec.name
    folder.mkdir(parents=True)
    rows = [{"epoch": epoch, "train_loss": loss} for epoch, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = {"top1": top1, "balanced": top1 / 2, "macro_f1": top1 / 2, "ece": 0.1, "num_test": 500, "loss": 1.0}
    metrics |= {"class_counts": list(counts), "per_class": [top1] * len(counts)}
    classes = {"shape": [1, 8, 8], "classes": [str(label) for label in range(len(counts))]}
    result = {"schema": 1, "spec": spec.to_dict(), "metrics": metrics, "preprocessing": classes}
    result |= {"hardware": {"device": "cpu"}, "versions": {"torch": "2"}, "seconds": 1.0}
    (folder / "result.json").write_text(json.dumps(result))
    return Run(folder)


def compare(folder, reference, baseline=0.5, ours=0.8, losses=(2.3, 0.5), **fields):
    jitter = (0.0, 0.002, 0.004)
    values = {RunSpec(head="plain", seed=s, **fields): baseline + jitter[s] for s in range(3)}
    values |= {RunSpec(head="control", radius=0.1, seed=s, **fields): ours - jitter[s] for s in range(3)}
    runs = [write_run(folder, spec, top1, losses) for spec, top1 in values.items()]
    return verdict(list(values), runs, reference)


def test_the_digits_are_fitted_once_and_nearly_as_well_as_full_pixels(tmp_path):
    spec = RunSpec(dataset="digits")
    found = load_reference(spec, tmp_path)
    assert found.top1 > 0.96
    assert (found.num_train, found.side) == (1198, 8)
    (path,) = tmp_path.glob("*/reference.json")
    written = path.stat().st_mtime_ns
    assert load_reference(spec.replace(head="plain", seed=3, epochs=1), tmp_path) == found
    assert path.stat().st_mtime_ns == written
    assert load_reference(spec.replace(imbalance=0.1), tmp_path) != found


def test_a_reference_that_was_changed_is_refused(tmp_path):
    """It decides whether anything can be said."""
    spec = RunSpec(dataset="digits", max_train=100, max_test=50)
    found = load_reference(spec, tmp_path)
    (path,) = tmp_path.glob("*/reference.json")
    path.write_text(path.read_text().replace(f"{found.top1}", "0.25"))
    with pytest.raises(ValueError, match=r"reference\.json is damaged"):
        load_reference(spec, tmp_path)


def test_images_are_shrunk_and_a_class_without_training_images_is_wrong():
    images = torch.randint(0, 60, (40, 3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    images[labels == 1, :, :10] += 100
    test = ImageSet(images, torch.where(torch.arange(40) < 4, 2, labels), ("a", "b", "c"))
    found = fit(ImageSet(images, labels, ("a", "b", "c")), test)
    assert (found.top1, found.balanced, found.side) == (0.9, pytest.approx(2 / 3), 12)


@pytest.mark.parametrize(
    ("losses", "counts", "trained"),
    [
        ((2.3, 0.5), [100] * 10, True),
        ((2.3, 2.1), [100] * 10, False),  # above 0.9 ln 10
        ((2.0, 1.9), [100] * 10, False),  # above 0.9 times the first epoch's
        ((1.9,), [100] * 10, True),  # one epoch has nothing to compare with
        ((0.06, 0.059), [100] * 10, True),  # learnt in the first epoch
        ((0.7, 0.3), [990, 10], False),  # the class frequencies alone have a loss of 0.06
    ],
)
def test_a_training_loss_that_hardly_fell(tmp_path, losses, counts, trained):
    run = write_run(tmp_path, RunSpec(head="plain"), 0.8, losses, counts)
    assert (why_untrained([run], LOW) == []) == trained


def test_unequal_classes_are_judged_by_their_mean(tmp_path):
    run = write_run(tmp_path, RunSpec(head="plain"), 0.8, (0.7, 0.05), [100, 10])
    assert {BALANCED.heading, MACRO_F1.heading} < set(verdict([run.spec], [run]).table.columns)
    assert why_untrained([run], Reference(0.79, 0.41, 0.4, 100, 12))
    assert why_untrained([run], Reference(0.81, 0.39, 0.4, 100, 12)) == []


@pytest.mark.parametrize("case", [{"reference": HIGH}, {"reference": LOW, "losses": (2.3, 2.25)}])
def test_no_number_and_no_colour_over_a_baseline_that_failed(tmp_path, case):
    found = compare(tmp_path / "runs", **case)
    answer = found.to_dict()
    assert (answer["headline"], answer["comparisons"]) == (found.headline, [])
    assert ("did not train" in found.headline) == (case["reference"] is LOW), "else it is worse than the reference"
    assert len(answer["failure"]) == 2, "why, and what to change"
    assert not any("to_baseline" in method or "to_control" in method for method in answer["methods"])
    text = io.StringIO()
    found.show(Console(file=text, width=200, force_terminal=True))
    assert found.headline in text.getvalue()
    assert "points" not in text.getvalue()
    page = write_page(found, tmp_path / "page")
    html, data = page.read_text(), json.loads(page.with_name("report.json").read_text())
    assert found.headline in html
    assert not re.search(r'class="n (up|down)"', html)
    assert (data["headline"], data["comparisons"]) == (found.headline, [])


@pytest.mark.parametrize("ruined", ["plain", "control", "maxsep"])
def test_a_rate_that_ruins_one_arm_is_never_called_a_gain(tmp_path, ruined):
    top1 = {"plain": 0.6, "control": 0.602, "maxsep": 0.601} | {ruined: 0.3}
    specs = [RunSpec(head=h, radius=1.0 if h == "plain" else 0.1, seed=s) for s in range(3) for h in top1]
    jitter = {"plain": (0, 1, 2), "control": (0, 0, 0), "maxsep": (0, 0, 1)}
    runs = [write_run(tmp_path, s, top1[s.head] + 0.001 * jitter[s.head][s.seed]) for s in specs]
    found = verdict(specs, runs, Reference(0.47, 0.47, 0.47, 1000, 12))
    answer = json.dumps(found.to_dict())
    assert '"word": "better"' not in answer
    assert "better" not in found.headline
    words = {(c.effect, c.difference.word) for c in found.comparisons}
    same = "no difference larger than 1 point"
    expected = {
        "plain": set(),
        "control": {("radius", "worse"), ("both", same)},
        "maxsep": {("radius", same), ("matrix", "worse"), ("both", "worse")},
    }
    assert words == expected[ruined]
    assert bool(found.warnings) == (ruined != "plain")


def test_of_a_thousand_comparisons_without_a_difference_about_fifty_exclude_zero(tmp_path):
    rng = random.Random(0)
    specs = [RunSpec(head=head, radius=r, seed=s) for s in range(3) for head, r in (("plain", 1.0), ("control", 0.1))]
    found = verdict(specs, [write_run(tmp_path, spec, rng.gauss(0.7, 0.01)) for spec in specs], LOW)
    words = []
    for _ in range(1000):
        rows = [replace(row, value=rng.gauss(0.7, 0.01)) for row in found.setting.rows if row.metric == "top1"]
        drawn = replace(found, setting=Setting(specs[0], rows))
        (comparison,) = drawn.to_dict()["comparisons"]
        words.append(comparison["word"])
    assert 30 <= sum(word in ("better", "worse") for word in words) <= 70
    assert {"too few seeds"} < set(words)


def test_methods_with_learning_rates_of_their_own_are_paired(tmp_path):
    values = {RunSpec(head="plain", learning_rate=0.01, seed=s): 0.6 + 0.001 * s for s in range(3)}
    values |= {RunSpec(head="control", radius=0.1, learning_rate=0.1, seed=s): 0.601 - 0.001 * s for s in range(3)}
    found = verdict(list(values), [write_run(tmp_path, spec, top1) for spec, top1 in values.items()], LOW)
    assert [(c.effect, c.difference.n) for c in found.comparisons] == [("radius", 3)]
