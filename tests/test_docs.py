"""What the pages say is true: their code runs, their numbers are those of the records, their rooms exist."""

import json
import operator
import re
import runpy
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from maxsep.lab.spec import RunSpec

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


def test_the_readme_runs_in_a_process_of_its_own():
    """Without what the tests set up: as somebody would paste it."""
    code = "\n".join(snippets(ROOT / "README.md"))
    assert code
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_code_runs_from_top_to_bottom(page, capsys):
    namespace = {}
    for code in snippets(page):
        exec(compile(code, str(page), "exec"), namespace)
        promised = re.findall(r"print\(.*\)\s+# (.*)", code)
        printed = capsys.readouterr().out.splitlines()
        assert printed == promised


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_the_results_tables_are_those_of_the_records(page):
    script = runpy.run_path(str(ROOT / "docs" / "write_results.py"))
    assert script["rewritten"](page) == (ROOT / page).read_text(), "run: python docs/write_results.py"


def test_a_run_that_is_its_own_control_is_told_once():
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| MiSLAS")]
    assert len(rows) == 4
    for _, _, without, _, matrix, control in rows:
        assert control == 'same run as "without"'
        assert without != matrix


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((3, 3), "3"),
        ((0, 3), "3 (CIFAR-100 only)"),
        ((2, 0), "2 (CIFAR-10 only)"),
        ((1, 3), "CIFAR-10: 1, CIFAR-100: 3"),
        ((0, 0), "0"),
    ],
)
def test_seeds_are_told_for_the_columns_that_have_runs(counts, told):
    seeds = runpy.run_path(str(ROOT / "docs" / "write_results.py"))["_seeds"]
    assert seeds(dict(zip(("CIFAR-10", "CIFAR-100"), counts, strict=True))) == told


TABLES = ("table", "methods", "beyond", "ablation", "cells", "outside", "open_sets")
OTHERS = (
    {"epochs": 20},
    {"validation": 0.2},
    {"calibration": 0.1},
    {"max_train": 100},
    {"max_test": 100},
    {"subset_seed": 1},
    {"augmentation": "crop"},
    {"normalisation": "auto"},
    {"mixup": 0.5},
    {"weight_decay": 0.0},
    {"learning_rate": 0.01},
    {"optimiser": "adamw"},
    {"batch_size": 64},
    {"loss": "balanced_softmax"},
    {"radius": 0.3},
)
"""What no run of the tables has."""


@pytest.fixture
def script(tmp_path):
    """What writes the tables, from a copy of the records to which a test may add."""
    for path in (ROOT / "results" / "runs").glob("*/*.json"):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.parent.name)
    script = runpy.run_path(str(ROOT / "docs" / "write_results.py"))
    script["_records"].__globals__["RUNS"] = tmp_path
    return script


def add(script, folder, **changes):
    """Put a run beside another: the same but for these fields, and right by chance alone."""
    result = json.loads((folder / "result.json").read_text())
    spec = RunSpec.from_dict(result["spec"]).replace(**changes)
    other = folder.with_name(spec.name)
    if not other.exists():
        shutil.copytree(folder, other)
        result["spec"], result["metrics"]["top1"] = spec.to_dict(), 0.01
        (other / "spec.json").write_text(json.dumps(spec.to_dict()))
        (other / "result.json").write_text(json.dumps(result))
    script["collected"].cache_clear()


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_tables_hold_no_run_of_another_kind(script, tmp_path, changes):
    expected = {name: script[name]() for name in TABLES}
    for folder in sorted(tmp_path.iterdir()):
        add(script, folder, seed=7, **changes)
    for name in TABLES:
        assert script[name]() == expected[name], name


def test_the_paper_s_table_holds_no_run_with_the_strongest_augmentation(script, tmp_path):
    expected = script["table"]()
    for folder in tmp_path.glob("*-resnet34-*"):
        add(script, folder, seed=7, augmentation=script["STRONG"])
    assert script["table"]() == expected


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_runs_of_every_seed_and_precision(script, tmp_path, name):
    expected = script[name]()
    for folder in sorted(tmp_path.iterdir()):
        add(script, folder, seed=7, precision="16-mixed")
    assert script[name]() != expected


def test_one_seed_does_not_count_twice(script, tmp_path):
    for folder in sorted(tmp_path.glob("*-resnet34-*")):
        add(script, folder, precision="16-mixed")
    with pytest.raises(ValueError, match=r"are one run in two precisions\. Keep one of them"):
        script["table"]()


def test_a_table_asks_for_one_run_of_a_recipe(script):
    with pytest.raises(LookupError, match=r"2 runs of the recipe ood have .*; name fields that single out one"):
        script["_records"]("ood", head="plain")


def test_other_draws_of_outliers_do_not_count(script, tmp_path):
    assert len(script["_auroc"]("plain", 1.0, "energy", "svhn")) == 1
    (path,) = tmp_path.glob("cifar100-wrn40_2-plain-*/detection.json")
    told = json.loads(path.read_text())
    told["sets"]["svhn"]["scores"]["energy"]["draws"]["size"] = 100
    del told["sets"]["places"]
    path.write_text(json.dumps(told))
    script["collected"].cache_clear()
    assert [len(script["_auroc"]("plain", 1.0, "energy", name)) for name in ("svhn", "places", "cifar10")] == [0, 0, 1]
    assert "| energy, plain head | 73.94 | - | 75.17 | - | 76.27 | 1 (CIFAR-10 only) |" in script["outside"]()


def test_open_sets_stand_beside_the_paper_with_the_splits_of_each(script):
    rows = script["open_sets"]().splitlines()
    assert rows[0].count("paper, 5 splits") == 2
    assert "| CIFAR10, maxsep, radius 1 | 97.35 | 91.05 | 91.63 | 95.30 | 93.81 | 0 alone |" in rows
    names = [row.strip("| ").split(" | ")[0] for row in rows if row.startswith("| CIFAR")]
    heads = ("plain head", "plain head, centred", "maxsep, radius 1", "plain head, times 0.1", "maxsep, radius 0.1")
    assert names == [f"{name}, {head}" for name in ("CIFAR10", "CIFAR+10", "CIFAR+50") for head in heads]
    assert rows[-1] == "Not run: SVHN."


def test_open_sets_without_detection_do_not_count(script, tmp_path):
    for path in tmp_path.glob("osr_cifar10_0-vgg32-maxsep-*/detection.json"):
        path.unlink()
    for path in tmp_path.glob("osr_cifar+_0-*/detection.json"):
        told = json.loads(path.read_text())
        del told["sets"]["cifar+10"]
        path.write_text(json.dumps(told))
    script["collected"].cache_clear()
    text = script["open_sets"]()
    assert "CIFAR10, plain head" in text
    assert "CIFAR10, maxsep" not in text
    assert "CIFAR+50, maxsep" in text
    assert text.endswith("\nNot run: SVHN, CIFAR+10.\n")


def test_several_splits_and_seeds_are_named(script, tmp_path):
    (folder,) = tmp_path.glob("osr_cifar10_0-vgg32-scaled-*")
    add(script, folder, dataset="osr_cifar10_3")
    assert "times 0.1 | 49.14 ± 68.08 | - | 91.66 ± 0.00 | - | 93.37 ± 0.00 | 0, 3 |" in script["open_sets"]()
    add(script, folder, seed=1)
    assert "| 0, 3 (3 runs) |" in script["open_sets"]()


def open_set_differences(script, score, head, other):
    """What one head has over another on every benchmark that was run, in points, as the page writes them."""
    found = []
    for (benchmark, outliers), name in script["BENCHMARKS"].items():
        runs = [script["open_set_runs"](benchmark, *method) for method in (head, other)]
        values = [script["open_set_auroc"](each, outliers, score) for each in runs]
        if all(values):
            mine, theirs = map(statistics.mean, values)
            found.append((name, 100 * (mine - theirs)))
    return dict(found)


def three(numbers):
    first, second, third = (f"{number:+.2f}".replace("-", "\N{MINUS SIGN}") for number in numbers)
    return f"{first}, {second} and {third}"


PLAIN, UNIT, SCALED, SMALL = ("plain", 1.0), ("maxsep", 1.0), ("scaled", 0.1), ("maxsep", 0.1)


@pytest.mark.parametrize(("score", "row"), [("max_softmax", "msp"), ("max_logit", "mls")])
def test_what_the_page_says_about_open_sets_is_in_the_records(score, row):
    script = runpy.run_path(str(ROOT / "docs" / "write_results.py"))
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["open_set"][row]
    assert three(paper["maxsep"][name] - paper["plain"][name] for name in ("cifar10", "cifar+10", "cifar+50")) in text
    for heads in ((UNIT, PLAIN), (SMALL, SCALED)):
        assert three(open_set_differences(script, score, *heads).values()) in text
    small = [
        value for head in (SCALED, SMALL) for value in open_set_differences(script, "max_logit", head, PLAIN).values()
    ]
    assert f"stands {-max(small):.2f} to {-min(small):.2f} points below the plain head" in text


def test_what_the_page_says_about_the_error_of_an_auroc():
    """The standard error of Hanley and McNeil (1982), for every benchmark and score of the plain head."""
    script = runpy.run_path(str(ROOT / "docs" / "write_results.py"))
    errors = []
    for benchmark, outliers, known, unknown in (
        ("cifar10", "unknown", 6000, 4000),
        ("cifar+", "cifar+10", 4000, 1000),
        ("cifar+", "cifar+50", 4000, 5000),
    ):
        runs = script["open_set_runs"](benchmark, *PLAIN)
        for score in ("max_softmax", "max_logit"):
            (a,) = script["open_set_auroc"](runs, outliers, score)
            one, two = a / (2 - a), 2 * a * a / (1 + a)
            errors.append((a * (1 - a) + (known - 1) * (one - a * a) + (unknown - 1) * (two - a * a)) / known / unknown)
        (centred,) = script["open_set_auroc"](runs, outliers, "max_logit_centred")
        assert abs(a - centred) < 2e-5, "moves no number by more than 0.002"
    assert [f"{100 * error**0.5:.1f}" for error in (min(errors), max(errors))] == ["0.2", "0.3"]


def test_what_the_page_says_about_the_step_of_mahalanobis_is_in_the_records():
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    told = [json.loads(path.read_text()) for path in (ROOT / "results/runs").glob("cifar100-wrn40_2-*/detection.json")]
    assert {each["mahalanobis"]["chosen"] for each in told} == {0.0}
    found = {each["run"].split("-s1-")[0]: each["sets"] for each in told}
    for outliers, sentence in (
        ("svhn", "would be {} with the plain head and {} with"),
        ("places", "Places at {} and {}"),
    ):
        runs = (found[f"cifar100-wrn40_2-{head}"] for head in ("plain", "maxsep"))
        assert sentence.format(*(f"{100 * run[outliers]['sweep']['0.01']['auroc']:.2f}" for run in runs)) in text


def test_what_the_summary_of_results_says_about_outliers_is_in_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "write_results.py"))
    text = " ".join((ROOT / "docs/results.md").read_text().split())

    def only(values):
        (value,) = values
        return 100 * value

    places = ("svhn", "places", "cifar10")
    plain, matrix, centred = (
        [only(script["_auroc"](head, 1.0, score, place)) for place in places]
        for head, score in (("plain", "energy"), ("maxsep", "energy"), ("plain", "energy_centred"))
    )
    svhn, near, cifar10 = (ours - theirs for ours, theirs in zip(matrix, plain, strict=True))
    assert f"is {svhn:.2f} points above the plain head's on SVHN, {near:.2f} on Places and {cifar10:.2f} on" in text
    assert max(abs(ours - theirs) for ours, theirs in zip(centred, plain, strict=True)) < 0.01
    known = [only(script["_top1"]("ood", optimiser="sgd", head=head, radius=1.0)) for head in ("plain", "maxsep")]
    assert f"at {known[0] - known[1]:.2f} points less accuracy" in text


def test_what_the_page_says_about_adamw_is_in_the_record():
    found = json.loads((ROOT / "results/adamw_digits.json").read_text())
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    assert f"`{found['about']['command'].removesuffix(' --json')}`" in text
    arms = {(arm["head"], arm["radius"]): arm for arm in found["arms"]}
    over = {radius: arms["maxsep", radius]["over_control"] for radius in (0.1, 0.3, 3.0)}
    points = {radius: f"{100 * told['difference']:.2f}" for radius, told in over.items()}
    assert f"at radius 0.1 it is {points[0.1]} points above its control and at 0.3 {points[0.3]}, more than" in text
    assert all(over[radius]["p_after_correction"] < 0.05 for radius in (0.1, 0.3))
    assert over[3.0]["p_after_correction"] > 0.5, "adds nothing"
    assert all(arms["maxsep", radius]["over_plain"]["difference"] < -0.01 for radius in (0.1, 0.3)), "well below plain"
    for head in ("scaled", "maxsep"):
        means = {radius: arm["top1"]["mean"] for (name, radius), arm in arms.items() if name == head}
        assert max(means, key=means.get) == 3.0
    assert f"the control alone gains {100 * arms['scaled', 3.0]['over_plain']['difference']:.2f} over" in text
    assert all(arm["top1"]["seeds"].keys() == set(map(str, range(10))) for arm in found["arms"])


def test_every_cell_of_the_papers_network_is_run_and_above_the_papers_best(script):
    rows = [row.strip("| ").split(" | ") for row in script["cells"]().splitlines()[2:]]
    assert len(rows) == 8
    gains = []
    for _, best, ours, seeds in rows:
        gains.append(float(ours.split(" ")[0]) - float(best))
        assert int(seeds) >= 1
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    assert f"in all eight long-tailed cells, by {min(gains):.1f} to {max(gains):.1f} points" in text


def test_what_pages_say_each_part_brings_is_in_the_records():
    from maxsep.lab.report.tables import signed

    part = runpy.run_path(str(ROOT / "docs" / "write_results.py"))["part"]
    columns = [
        (dataset, kind) for dataset in ("cifar10", "cifar100") for kind in ("crop_flip", "crop_flip_auto_cutout")
    ]

    def over(ours, theirs, chosen=None):
        """Means over the seeds that both have; a recipe's first seeds are the same."""
        return [
            100 * statistics.mean(map(operator.sub, part(*column, chosen, **ours), part(*column, chosen, **theirs)))
            for column in columns
        ]

    def said(gains, digits=1):
        first, *rest, last = (signed(gain, digits).removeprefix("+") for gain in gains)
        return f"{', '.join([first, *rest])} and {last}"

    recipe = {}
    small, control = {"head": "maxsep", "radius": 0.1}, {"head": "scaled", "radius": 0.1}
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    assert f"brings {said(over(recipe, {'loss': 'cross_entropy'}))} points over cross-entropy" in text
    for chosen, told in ((None, "over weak as each was chosen"), ({}, "at a decay of 5e-4 without mixup")):
        found = [part(*column, chosen) for column in columns]
        gains = [100 * statistics.mean(map(operator.sub, found[i + 1], found[i])) for i in (0, 2)]
        assert f"{said(gains)} {told}" in text
    assert f"radius 1 stands {said(over({'head': 'maxsep'}, recipe))} points beside the plain head" in text
    costs = over(recipe, small) + over(recipe, control)
    assert f"costs {min(costs):.1f} to {max(costs):.1f} points, with the matrix and without" in text
    assert "costs points, one to nine, with" in " ".join((ROOT / "README.md").read_text().split())
    assert [round(cost) for cost in (min(costs), max(costs))] == [1, 9]
    first, second, *rest = over(small, control)
    assert f"{second:.1f} points above its control, in the other three {said([first, *rest])}" in text
    cosine = over({"head": "cosine", "radius": 16.0}, recipe)
    assert f"cosine head gains {said(cosine[::3])} points in the first and the last column" in text
    assert f"loses {said([-gain for gain in cosine[1:3]])} in the others" in text


def test_architecture_names_every_file_of_the_library():
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "maxsep"
    lab = [path.name for path in (source / "lab").iterdir() if not path.name.startswith("_")]
    library = [path for path in source.rglob("*.py") if path.relative_to(source).parts[0] not in ("lab", "cli")]
    for name in [*lab, *(path.name for path in library if not path.name.startswith("_"))]:
        assert name in text, f"docs/architecture.md does not name {name}"


def test_architecture_names_files_and_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in re.findall(r"`((?:ops|heads|surgery|losses|detect|analysis|sklearn|lab)/[\w/]+\.py)`", text):
        assert (ROOT / "src" / "maxsep" / path).exists(), path
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "maxsep").rglob("*.py"))
    for name in re.findall(
        r"`(?:\w+\.)?(_?[a-zA-Z]\w+)`", text.partition("## Decisions")[0].partition("## One call")[2]
    ):
        assert re.search(rf"\b{name}\b", source), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", page.read_text()):
        link = target[0] or target[1]
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_verdict_in_the_readme_is_that_of_the_records():
    from scipy.stats import ttest_rel

    accuracies = runpy.run_path(str(ROOT / "docs" / "write_results.py"))["accuracies"]
    plain, scaled, maxsep = (accuracies("cifar10", *arm) for arm in (("plain", 1.0), ("scaled", 0.1), ("maxsep", 0.1)))
    mean = {name: 100 * statistics.mean(found) for name, found in (("p", plain), ("s", scaled), ("m", maxsep))}
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["table1_cifar"]["cifar10"]
    theirs = {head: paper["resnet"][head]["0.01"] for head in ("plain", "maxsep")}
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{mean['m'] - mean['p']:+.1f} points instead of {theirs['maxsep'] - theirs['plain']:+.1f}" in text
    assert f"our plain head is {mean['p'] - theirs['plain']:.1f} points better" in text
    assert f"times the same 0.1 gains {mean['s'] - mean['p']:+.1f}" in text
    found = ttest_rel(maxsep, scaled)
    assert f"the {mean['m'] - mean['s']:+.1f} that the matrix adds to that cannot be told from nothing" in text
    assert f"p = {found.pvalue:.2f}; two points are not ruled out" in text
    assert found.confidence_interval(0.95).high * 100 > 2


def test_what_the_readme_says_about_the_radius_elsewhere_is_in_the_records():
    mislas = runpy.run_path(str(ROOT / "docs" / "write_results.py"))["mislas"]
    plain, scaled = (mislas(*head, "mislas_stage1") for head in (("plain", 1.0), ("scaled", 0.1)))
    assert f"{float(plain.split()[0]) - float(scaled.split()[0]):.1f}" == "2.5"
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "the same 0.1 costs 2.5 points (three seeds), on the digits of `maxsep compare` six (five seeds)" in text
