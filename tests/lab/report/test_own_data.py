"""The result of `compare`: the same differences as the report, in three renderings."""

import io
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from class_folders import write_classes
from rich.console import Console
from sklearn.calibration import calibration_curve

from maxsep.lab.data import prepare
from maxsep.lab.engine import train
from maxsep.lab.engine.evaluate import load_pipeline, predict
from maxsep.lab.report import figures, write_report
from maxsep.lab.report.own_data import verdict, write_page
from maxsep.lab.report.runs import check_data
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec, options

ROOT = Path(__file__).parents[3]
EXCLUDE_ZERO = ("better", "worse")
ACCURACY = {("plain", 1.0): 0.80, ("maxsep", 1.0): 0.801, ("control", 0.1): 0.85, ("maxsep", 0.1): 0.8503}
JITTER = {
    ("maxsep", 1.0): (0.001, -0.002, 0.001), ("control", 0.1): (0.001, 0.0, -0.001), ("maxsep", 0.1): (0, 0.002, 0),
}  # fmt: skip


def specs_of(seeds=3, **fields):
    base = RunSpec(**fields)
    return [base.replace(head=h, radius=r, seed=seed) for seed in range(seeds) for h, r in ACCURACY]


@pytest.fixture
def compared(tmp_path, run_folder):
    """Write made-up runs of some specs and compare them."""

    def make(specs, written=None):
        runs = []
        for spec in specs if written is None else written:
            kind = (spec.head, spec.radius)
            top1 = ACCURACY[kind] + 0.01 * spec.seed + JITTER.get(kind, (0, 0, 0))[spec.seed]
            runs.append(Run(run_folder(tmp_path / "runs", spec, top1)))
        return verdict(specs, runs)

    return make


def test_the_radius_helps_and_the_matrix_adds_nothing(compared):
    found = compared(specs_of())
    assert [(c.effect, c.method, c.other, c.difference.word) for c in found.comparisons] == [
        ("matrix", "maxsep, radius 1", "linear", "no difference larger than 1 point"),
        ("radius", "control, radius 0.1", "linear", "better"),
        ("matrix", "maxsep, radius 0.1", "control, radius 0.1", "no difference larger than 1 point"),
        ("both", "maxsep, radius 0.1", "linear", "better"),
    ]
    assert "none is larger than 1 point" in found.headline
    assert (found.missing, found.warnings) == ([], [])


def test_a_gain_over_a_control_that_lost_to_the_linear_head_is_no_gain(compared, monkeypatch):
    for kind, accuracy in {("control", 0.1): 0.70, ("maxsep", 0.1): 0.72}.items():
        monkeypatch.setitem(ACCURACY, kind, accuracy)
    headline = compared(specs_of()).headline
    assert headline.startswith("maxsep, radius 0.1 is better than control, radius 0.1")
    assert ", but worse than linear (" in headline


def test_equal_differences_of_three_seeds_have_a_word_and_are_no_finding(tmp_path, run_folder):
    """All seeds differ by as much, as happens with few test images: there is no spread to take an interval from."""
    specs = specs_of()
    found = verdict(specs, [Run(run_folder(tmp_path, s, ACCURACY[s.head, s.radius] + 0.01 * s.seed)) for s in specs])
    assert {c.difference.word for c in found.comparisons} == {"too few seeds"}
    assert found.headline.startswith("Too few seeds")
    specs = [RunSpec(head="plain", seed=seed) for seed in (0, 1)]
    wide = verdict(specs, [Run(run_folder(tmp_path / "wide", s, 0.2 + 0.6 * s.seed)) for s in specs])
    assert wide.table.rows[0].cells[1].text == "50.00", "an interval of all of 0 to 100 says nothing"


def test_a_test_set_too_small_for_a_point_is_not_blamed_on_the_seeds(tmp_path, run_folder):
    """One of 30 test images is 3.3 points: more seeds narrow an interval, but never show 1 point."""
    base, counts = RunSpec(), {"num_test": 30, "class_counts": [100] * 10}
    specs = [base.replace(head=head, seed=seed) for seed in range(3) for head in ("plain", "maxsep")]
    changes = [0, 1, -1, 1, 0, -1]
    metrics = [{"top1": 0.8 + n / 30, "balanced": 0.8, **counts} for n in changes]
    runs = [Run(run_folder(tmp_path / "runs", s, metrics=m)) for s, m in zip(specs, metrics, strict=True)]
    found, text = verdict(specs, runs), io.StringIO()
    found.show(Console(file=text, width=200))
    data = json.loads(write_page(found, tmp_path / "page").with_name("report.json").read_text())
    page = (tmp_path / "page" / "report.md").read_text().partition("About one interval")[2]
    assert (data["comparisons"][0]["word"], data["comparisons"][0]["repetitions_needed"]) == (
        "too few test images",
        None,
    )
    for written in (text.getvalue(), page):
        assert "3.3 points" in written
        assert "too few test images" in written
        assert "too few seeds" not in written.lower()


def test_terminal_json_page_and_report_say_the_same(compared, tmp_path):
    found = compared(specs_of())
    text = io.StringIO()
    found.show(Console(file=text, width=200))
    page = write_page(found, tmp_path / "page")
    data = json.loads(page.with_name("report.json").read_text())
    assert data["comparisons"] == json.loads(json.dumps(found.to_dict()))["comparisons"]
    for comparison in found.comparisons:
        assert comparison.text in text.getvalue()
        assert comparison.text in page.with_name("report.md").read_text()
    write_report(tmp_path / "runs", tmp_path / "report")
    results = json.loads((tmp_path / "report" / "report.json").read_text())["results"]
    assert [r["to_control"] for r in results] == [m["to_control"] for m in found.to_dict()["methods"]]


def test_missing_runs_are_named_and_losses_do_not_mix(compared):
    specs = specs_of(loss="logit_adjusted") + specs_of()
    found = compared(specs, [s for s in specs if (s.head, s.loss) != ("plain", "logit_adjusted")])
    assert {(spec.head, spec.loss) for spec in found.missing} == {("plain", "logit_adjusted")}
    adjusted = [c for c in found.comparisons if "logit adjustment" in c.method]
    assert all("logit adjustment" in c.other for c in adjusted)
    assert {c.effect for c in adjusted} == {"matrix"}


def test_a_loss_is_compared_by_the_mean_over_unequal_classes(tmp_path, run_folder):
    specs = [RunSpec(head="plain", loss=loss) for loss in ("cross_entropy", "balanced_softmax")]
    runs = [
        Run(run_folder(tmp_path, spec, metrics={"top1": 0.8, "balanced": balanced, "class_counts": [90, 9],
                                                "num_test": 500, "per_class": [0.9, 0.1]}))
        for spec, balanced in zip(specs, (0.5, 0.6), strict=True)
    ]  # fmt: skip
    found = verdict(specs, runs, test_counts=[490, 10])
    (comparison,) = found.comparisons
    assert (comparison.effect, comparison.difference.estimate) == ("loss", pytest.approx(0.1))
    assert found.points == 5, "one of ten test images of one of two classes"


def test_cosine_heads_meet_their_own_controls(tmp_path, run_folder):
    heads = ("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine")
    specs = [RunSpec(head=head, loss="ldam", loss_options=options(max_margin=0.4)) for head in heads]
    found = verdict(specs, [Run(run_folder(tmp_path, spec)) for spec in specs])
    name = {spec.head: found.setting.name(method) for spec, method in zip(specs, found.setting.methods, strict=True)}
    assert [(c.effect, c.method, c.other) for c in found.comparisons] == [
        ("matrix", name["cosine_maxsep"], name["cosine"]),
        ("radius", name["centred_cosine"], name["cosine"]),
        ("matrix", name["maxsep_cosine"], name["centred_cosine"]),
        ("both", name["maxsep_cosine"], name["cosine"]),
    ]


@pytest.mark.parametrize(
    ("top1", "balanced", "tests", "count"),
    [(0.8, 0.8, 1000, 0), (0.5, 0.12, 1000, 2), (0.5, 0.5, 1000, 2), (0.8, 0.8, 18, 1)],
)
def test_what_makes_a_comparison_doubtful(tmp_path, run_folder, top1, balanced, tests, count):
    specs = [RunSpec(head="plain"), RunSpec(head="maxsep")]
    shared = {"class_counts": [100] * 10, "num_test": tests, "per_class": [0.5] * 10}
    metrics = [{"top1": 0.8, "balanced": 0.8, **shared}, {"top1": top1, "balanced": balanced, **shared}]
    runs = [Run(run_folder(tmp_path, s, metrics=m)) for s, m in zip(specs, metrics, strict=True)]
    assert len(verdict(specs, runs).warnings) == count


@pytest.mark.parametrize("change", [{"class_counts": [50] * 10}, {"num_test": 7}, {"files": "b"}])
def test_pictures_that_changed_are_refused(tmp_path, run_folder, change):
    metrics = {"top1": 0.5, "class_counts": [100] * 10, "num_test": 1000, "files": "a"}
    runs = [Run(run_folder(tmp_path, RunSpec(seed=s), metrics=metrics | (change if s else {}))) for s in (0, 1)]
    with pytest.raises(ValueError, match="have changed"):
        verdict([run.spec for run in runs], runs)
    check_data(runs[:1], metrics["class_counts"], 1000, "a")
    with pytest.raises(ValueError, match="have changed"):
        check_data(runs[:1], **change)


def test_the_page_shows_confusions_and_the_most_confident_mistakes(tmp_path, monkeypatch):
    draw, drawn = figures.calibration_figure, {}
    monkeypatch.setattr(figures, "calibration_figure", lambda *a: drawn.update(a[2]) or draw(*a))
    base = RunSpec(epochs=1, max_train=200, head="plain")
    specs = [base, base.replace(head="maxsep")]
    folders = [train(spec, runs=tmp_path / "runs", execution=Execution(device="cpu"), progress=False) for spec in specs]
    found = verdict(specs, [Run(folder) for folder in folders])
    page = write_page(found, tmp_path / "page")
    data = json.loads(page.with_name("report.json").read_text())
    assert {"confusion-0.svg", "confusion-1.svg"} <= set(data["figures"])
    tables = {table["id"]: table["rows"] for table in data["tables"]}
    shares = [float(row["cells"][2]["text"]) for row in tables["mistakes-0"]]
    assert shares == sorted(shares, reverse=True)
    assert all(row["cells"][0]["text"] != row["cells"][1]["text"] for row in tables["mistakes-0"])
    assert len(tables["class-accuracy"]) == 10
    assert [float(row["cells"][2]["text"].replace(",", "")) for row in tables["class-accuracy"]] == pytest.approx(
        [60] * 10, abs=2
    )
    assert "calibration.svg" in data["figures"]
    for folder, (_, bins) in zip(folders, drawn.values(), strict=True):  # the curve is that of scikit-learn
        outputs = predict(load_pipeline(folder), prepare(base).test)
        confidence, predicted = outputs.logits.softmax(1).max(1)
        confidences, accuracies, counts = zip(*bins, strict=True)
        expected = calibration_curve(predicted == outputs.labels, confidence, n_bins=10)
        assert [accuracies, confidences] == pytest.approx(np.array(expected), abs=1e-5)
        assert list(counts) == [n for n in np.histogram(confidence, 10, (0, 1))[0] if n]
    assert "data:image/png;base64," in page.read_text()


@pytest.fixture(scope="module")
def of_pictures(tmp_path_factory, browser):
    """The page of a comparison on pictures whose classes have names that a page must escape, in a browser."""
    place = tmp_path_factory.mktemp("own")
    names = ("<img src=x onerror=alert(1)>", "costs $5 & $6", "a class with quite a long name")
    write_classes(place / "pictures", (40, 30), **dict.fromkeys(names, 10))
    base = RunSpec(dataset=f"folder:{place / 'pictures'}?size=16", epochs=1, batch_size=8, head="plain", network="mlp")
    how = {"runs": place / "runs", "execution": Execution(device="cpu"), "progress": False}
    folders = [train(base.replace(head=head, seed=seed), **how) for head in ("plain", "maxsep") for seed in (0, 1)]
    runs = [Run(folder) for folder in folders]
    page = write_page(verdict([run.spec for run in runs], runs), place / "page")
    tab, complaints, requests = browser.new_page(viewport={"width": 390, "height": 844}), [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("dialog", lambda dialog: (complaints.append("a class name ran as code"), dialog.dismiss()))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    yield tab, complaints, [url for url in requests if not url.startswith("data:")], names
    tab.close()


def test_class_names_are_text_and_nothing_is_fetched(of_pictures):
    tab, complaints, requests, names = of_pictures
    assert (complaints, len(requests)) == ([], 1)
    assert set(tab.locator("#table-class-accuracy tbody th span").all_inner_texts()) == set(names)
    assert tab.locator("#table-class-accuracy img").count() == 0
    assert "costs $5 & $6" in tab.locator("#confusion-0").inner_text()
    assert tab.locator("#table-mistakes-0 img.thumb").count() > 0
    assert all(tab.locator(f"#{name} svg").count() == 1 for name in ("confusion-0", "confusion-1", "calibration"))


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_of_pictures_fits_its_width_and_pictures_stand_beside_their_names(of_pictures, width):
    tab = of_pictures[0]
    tab.set_viewport_size({"width": width, "height": 844})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [
        tab.locator(f"#table-mistakes-0 tbody tr:first-child {part}").first.bounding_box() for part in ("img", "small")
    ]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


def test_the_keyboard_reaches_tables_and_opens_what_is_folded(of_pictures):
    tab, reached = of_pictures[0], []
    tab.evaluate("document.activeElement.blur()")
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.tagName + ' ' + (document.activeElement.ariaLabel || '')"))
        if reached[-1].startswith("SUMMARY"):
            break
    assert {"A ", "DIV Methods", "DIV Classes"} <= set(reached)
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.parentElement.open")


def words_of(entries):
    assert len(entries) == 20
    assert {entry["n"] for entry in entries} == {3}
    return [entry["word"] for entry in entries]


@pytest.mark.nightly
def test_of_twenty_trained_comparisons_without_a_difference_at_most_three_exclude_zero(tmp_path):
    program = runpy.run_path(str(ROOT / "benchmarks" / "null_comparisons.py"))
    assert sum(word in EXCLUDE_ZERO for word in words_of(program["compare_nothing"](tmp_path))) <= 3


def test_the_record_of_twenty_trained_comparisons():
    record = json.loads((ROOT / "results" / "null_comparisons.json").read_text())
    exclude = sum(word in EXCLUDE_ZERO for word in words_of(record["comparisons"]))
    assert exclude == record["exclude_zero"] <= 3
