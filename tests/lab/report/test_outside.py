"""Tables and figures on images from outside: the paper's numbers, the controls, duplicates, and damaged files."""

import json
import re
from dataclasses import replace

import pytest

from maxsep.lab import recipes
from maxsep.lab.data import Dataset
from maxsep.lab.report import outliers_figures, render
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.features import features_section
from maxsep.lab.report.openset import openset_section, openset_sentences
from maxsep.lab.report.outliers import outlier_sentences, outliers_section


@pytest.fixture(scope="module")
def settings(outside):
    return settings_of(collect(outside).records)


@pytest.fixture(scope="module")
def page(outside, tmp_path_factory):
    return render(outside, tmp_path_factory.mktemp("page"))


def rows(table, group):
    """The rows of a block by their first two cells."""
    found, here = {}, ""
    for row in table.rows:
        here = row.group or here
        if here.startswith(group):
            found[row.cells[0].text, row.cells[1].text] = dict(zip(table.columns, row.cells, strict=True))
    return found


def test_outliers_stand_beside_the_paper_and_the_controls(settings):
    section = outliers_section(settings)
    table = section.tables[0]
    assert table.title == "CIFAR-100, WideResNet-40-2 against SVHN test, re-cropped · optimiser sgd"
    energy = rows(table, "energy")
    assert list(energy) == [
        ("plain", "1"),
        ("plain, centred", "1"),
        ("maxsep", "1"),
        ("scaled", "0.1"),
        ("maxsep", "0.1"),
    ]
    matrix = energy["maxsep", "1"]
    assert (matrix["FPR95, % (lower is better)"].detail, matrix["AUROC, %"].detail) == ("paper 78.86", "paper 85.42")
    assert energy["plain, centred", "1"]["AUROC, %"].detail == ""
    assert matrix["over scaled, same radius"].text == "= plain"
    values = {key: row["AUROC, %"].value for key, row in energy.items()}
    for other, column in (("plain", "AUROC over plain"), ("plain, centred", "over plain, centred")):
        assert matrix[column].value == pytest.approx(values["maxsep", "1"] - values[other, "1"])
    gain = energy["maxsep", "0.1"]["over scaled, same radius"].value
    assert gain == pytest.approx(values["maxsep", "0.1"] - values["scaled", "0.1"])
    softmax = rows(table, "max softmax")
    assert ("plain, centred", "1") not in softmax
    assert softmax["maxsep", "1"]["over plain, centred"].detail == "centring changes nothing"
    assert "3 draws of 200 of 400 outliers" in table.caption
    assert set(rows(table, "Mahalanobis, no step")) == set(softmax)


def test_a_step_of_zero_is_not_told_twice(outside):
    records = collect(outside).records
    for record in records:
        if record.detection and "mahalanobis" in record.detection:
            record.detection["mahalanobis"]["chosen"] = 0.0
    for table in outliers_section(settings_of(records)).tables:
        headings = [row.group for row in table.rows]
        assert "Mahalanobis, no step" not in headings
        if table.id.startswith("outliers-1") or table.id.startswith("outliers-full-1"):
            assert "Mahalanobis, step chosen on made-up outsiders: none" in headings


def test_other_conventions_and_all_images_are_folded_away(settings):
    section = outliers_section(settings)
    folded = [table for table in section.tables if table.folded]
    kinds = [table.id.rsplit("-", 1)[0] for table in section.tables]
    assert {kind: kinds.count(kind) for kind in kinds} == {"outliers": 6, "outliers-full": 6, "outliers-steps": 2}
    assert len(folded) == 8
    assert {"FPR95, recall at least 95 %", "AUPR, outliers positive", "FPR95, outliers positive"} <= set(
        folded[0].columns
    )
    assert rows(folded[0], "max logit")


def test_data_are_named_as_what_they_are(settings):
    titles = " ".join(table.title for table in outliers_section(settings).tables)
    for name in ("SVHN test, re-cropped", "MiniPlaces validation", "CIFAR-10 test"):
        assert name in titles
    assert "Places365" not in titles


def test_only_the_papers_optimiser_has_its_numbers(settings):
    for table in outliers_section(settings).tables:
        told = any("paper" in cell.detail for row in table.rows for cell in row.cells)
        assert told == ("sgd" in table.title and "CIFAR-10 test" not in table.title and not table.folded)


def test_energy_histograms_print_the_gap(settings):
    figures = outliers_section(settings).figures
    assert len(figures) == 6
    for figure in figures:
        assert figure.svg.count("mean gap") == 2
        assert "standard deviations" in figure.caption


def test_chosen_steps_and_sentences(settings):
    assert "plain: 0.002; maxsep: 0.002" in outliers_section(settings).after[0]
    first = outlier_sentences(settings)[0]
    assert first.startswith("Outliers of CIFAR-100, WideResNet-40-2 (sgd), AUROC of the energy")
    assert "on MiniPlaces validation" in first
    few, other = outlier_sentences([with_seeds(setting, 1) for setting in settings])[:2]
    assert "in points, from 1 common seed: not testable. Under SGD the matrix at radius 1 is a plain head" in few
    assert "(adamw)" in other
    assert other.endswith("from 1 common seed: not testable.")  # the theorem is about SGD
    enough = outlier_sentences([with_seeds(setting, 3) for setting in settings])
    assert all(told.endswith("in points.") for told in enough)


def with_seeds(setting, number):
    """A setting whose first run stands for that of every seed."""
    entries = {
        method: replace(entry, records=dict.fromkeys(range(number), next(iter(entry.records.values()))))
        for method, entry in setting.entries.items()
    }
    return replace(setting, entries=entries)


def test_open_sets_over_splits(settings):
    table, splits = openset_section(settings).tables
    groups = [row.group for row in table.rows if row.group]
    assert groups == [
        *("SVHN · splits 0 and 1 of five (not run: 2, 3 and 4)", "CIFAR10 · all five splits"),
        *("CIFAR+10 · all five splits", "CIFAR+50 · all five splits"),
    ]
    first = {row.cells[0].text: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows[5:10]}
    assert first["maxsep"]["AUROC of MLS, %"].detail == "paper 95.30"
    assert first["plain"]["AUROC of MSP, %"].detail == "paper 90.10"
    assert first["plain"]["accuracy, %"].text == "95.00 ± 1.58"
    difference = first["maxsep"]["AUROC of MLS, %"].value - first["plain"]["AUROC of MLS, %"].value
    assert first["maxsep"]["MLS over plain"].value == pytest.approx(difference)
    assert first["maxsep, radius 0.1"]["over scaled, same radius"].text != "= plain"
    assert table.rows[0].cells[1].notes == (
        "The paper's number is a mean over five splits, ours is that of splits 0 and 1.",
    )
    assert not table.rows[5].cells[1].notes
    assert "paired t-test" in table.caption
    assert table.caption.endswith("a little less to stand on than its p-value says.")
    assert not any(row.cells[0].detail for row in table.rows), "all heads have the same splits"
    assert splits.columns == ("head", "split 0", "split 1", "split 2", "split 3", "split 4")


def test_a_split_with_the_classes_of_another_is_marked(settings):
    _, splits = openset_section(settings).tables
    marked, here = {}, ""
    for row in splits.rows:
        here = row.group or here
        marked[here] = [place for place, cell in enumerate(row.cells[1:]) if cell.notes]
    assert marked == {"SVHN": [1], "CIFAR10": [1], "CIFAR+10": [2], "CIFAR+50": [2]}
    assert set(splits.notes) == {f"The same known classes as split {n}, in another order." for n in (0, 1)}


def measured(folder, run_folder, write_detection, only):
    """The open-set section and sentences of made-up runs."""
    for spec in recipes.get("openset").specs(only=only):
        sets = {name: f"{name} classes" for name in Dataset.parse(spec.dataset).open_set.unknown}
        write_detection(run_folder(folder, spec, top1=0.9), spec, sets)
    settings = settings_of(collect(folder).records)
    return openset_section(settings), openset_sentences(settings)


def test_one_split_says_what_is_missing_and_what_cannot_be_tested(tmp_path, run_folder, write_detection):
    only = "dataset=osr_cifar10_0|osr_cifar+_0"
    section, (told,) = measured(tmp_path, run_folder, write_detection, only)
    (table,) = section.tables  # a table of splits would repeat it
    groups = [row.group for row in table.rows if row.group]
    assert groups == [
        f"{name} · split 0 of five (not run: 1, 2, 3 and 4)" for name in ("CIFAR10", "CIFAR+10", "CIFAR+50")
    ]
    assert "Not run: SVHN." in section.text[0]
    assert section.text[1].endswith("splits 0 and 1 of SVHN, 0 and 1 of CIFAR10, 1 and 2 of CIFAR+.")
    assert table.notes == ("The paper's number is a mean over five splits, ours is that of split 0.",)
    assert "is not testable" in table.caption
    assert "t-test" not in table.caption
    assert "in points, not testable. Under SGD the matrix at radius 1 is a plain head" in told
    assert "1.20 (6 classes) or 1.33 (4 classes) times as large on the last layer" in told


def test_a_head_with_fewer_splits_than_others_says_so(tmp_path, run_folder, write_detection):
    measured(tmp_path, run_folder, write_detection, "dataset=osr_cifar10_0|osr_cifar10_2,head=plain")
    run_folder(tmp_path, recipes.get("openset").specs(only="dataset=osr_cifar10_3,head=plain")[0])  # without detection
    section, (told,) = measured(tmp_path, run_folder, write_detection, "dataset=osr_cifar10_0,head=maxsep")
    table, _ = section.tables
    assert table.rows[0].group == "CIFAR10 · splits 0 and 2 of five (not run: 1, 3 and 4)"
    details = {row.cells[0].text: row.cells[0].detail for row in table.rows}
    assert details == {
        **{"plain": "", "plain, centred": ""},
        **{"maxsep": "split 0 only", "maxsep, radius 0.1": "split 0 only"},
    }
    assert "stand on" not in table.caption, "these splits have different classes"
    assert "(1 split); in points, not testable" in told


def test_the_papers_number_is_that_of_five_splits_whatever_other_heads_have(tmp_path, run_folder, write_detection):
    measured(tmp_path, run_folder, write_detection, "dataset=osr_cifar10_0,head=maxsep")
    every = "|".join(f"osr_cifar10_{split}" for split in range(5))
    section, _ = measured(tmp_path, run_folder, write_detection, f"dataset={every},head=plain")
    notes = {row.cells[0].text: row.cells[2].notes for row in section.tables[0].rows}
    assert notes["plain"] == ()
    assert notes["maxsep"] == ("The paper's number is a mean over five splits, ours is that of split 0.",)


def test_enough_splits_are_told_without_doubt(settings):
    (told,) = openset_sentences(settings)
    assert "in points, not testable on SVHN. Under SGD" in told
    assert "(5 splits)" in told
    (told,) = openset_sentences([s for s in settings if "svhn" not in s.spec.dataset])
    assert told.endswith("in points.")


def test_energies_of_compared_heads_have_one_scale(settings, monkeypatch):
    shown, finish = [], outliers_figures.finish
    monkeypatch.setattr(
        outliers_figures,
        "finish",
        lambda figure, *told: shown.append([axes.get_xlim() for axes in figure.axes]) or finish(figure, *told),
    )
    outliers_section(settings)
    assert shown
    assert all(len(set(each)) == 1 for each in shown)


def test_open_sets_are_in_no_table_of_accuracies(page):
    told = json.loads((page.parent / "report.json").read_text())
    assert all("split" not in table["title"] for table in told["tables"] if table["id"].startswith("accuracy"))
    text = page.read_text()
    assert "maxsep reproduce ood --data DIR" in text
    assert "maxsep reproduce openset --data DIR" in text
    assert "maxsep reproduce features2d --data DIR" in text


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("detection", "{", "detection.json is not valid JSON"),
        ("detection", '{"in_distribution": {"top1": 7}}', "top1 must be a fraction in [0, 1], got 7"),
        ("detection", '{"in_distribution": {"top1": 1}, "sets": {"a": {}}}', "there is no field 'origin'"),
        (
            "detection",
            '{"in_distribution": {"top1": 1}, "sets": {"a": {"origin": "", "count": 1, "scores": {}, "histograms": {},'
            ' "sweep": {"0": {"auroc": 2}}}}}',
            "auroc at step 0 must be a fraction in [0, 1], got 2",
        ),
        ("features", '{"epochs": {"1": {"known": [], "labels": [], "unknown": []}}}', "epoch 1 lacks points or labels"),
    ],
)
def test_a_damaged_file_is_told_and_the_run_stays(tmp_path, run_folder, name, content, reason):
    spec = recipes.get("features2d").specs()[0]
    folder = run_folder(tmp_path, spec, top1=0.8)
    (folder / f"{name}.json").write_text(content)
    found = collect(tmp_path)
    assert [record.spec for record in found.records] == [spec]
    (problem,) = found.problems
    assert (problem.kind, problem.label) == (name, f"{spec.name}/{name}.json")
    assert reason in problem.reason
    assert "Runs without a result" in render(tmp_path, tmp_path / "report").read_text()


def test_other_lengths_and_parts_of_the_data_are_told(tmp_path, run_folder, write_detection):
    (spec, *_) = recipes.get("ood").specs(1, epochs=5, max_train=500)
    write_detection(run_folder(tmp_path, spec), spec, {"svhn": "SVHN test"})
    (table, *_) = outliers_section(settings_of(collect(tmp_path).records)).tables
    assert [note.split(":")[0] for note in table.notes] == [
        "The protocol trains 100 epochs, these runs 5",
        "These runs read a part of the data only",
    ]


def test_no_detection_no_section(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("openset").specs(only="dataset=osr_cifar10_0"))
    found = settings_of(collect(tmp_path).records)
    assert (outliers_section(found), openset_section(found), features_section(found)) == (None, None, None)


def test_it_fits_a_screen_and_a_phone(page, browser):
    for width in (1200, 390):
        tab = browser.new_page(viewport={"width": width, "height": 844})
        tab.goto(page.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        assert tab.evaluate(f"{wide}.map(e => e.ariaLabel)") == []
        tab.close()


def test_settings_of_one_name_are_told_apart(settings, page):
    labels = [setting.label for setting in settings]
    assert len(set(labels)) == len(labels)
    assert "CIFAR-100, WideResNet-40-2, balanced, optimiser adamw" in labels
    assert "CIFAR+ (5 splits), CIFAR10 (5 splits), SVHN (2 splits)" in page.read_text()


def with_losses(recipe, only):
    """The plain head and the matrix of a recipe, with cross-entropy and with adjusted logits."""
    specs = [spec for spec in recipes.get(recipe).specs(1, only=only) if spec.head in ("plain", "maxsep")]
    return [spec.replace(loss=loss) for spec in specs for loss in ("cross_entropy", "logit_adjusted")]


def test_losses_are_named_as_in_the_tables(tmp_path, run_folder, write_detection):
    for spec in with_losses("ood", "optimiser=sgd"):
        write_detection(run_folder(tmp_path, spec, top1=0.7), spec, {"svhn": "SVHN test"})
    section = outliers_section(settings_of(collect(tmp_path).records))
    names = {f"{head} ({loss})" for head in ("plain", "maxsep") for loss in ("cross-entropy", "logit adjusted")}
    table, *_, steps = section.tables
    assert {row.cells[0].text for row in table.rows} >= names
    assert {row.cells[0].text for row in steps.rows} >= names
    (figure,) = section.figures
    assert all(f"{head} (cross-entropy): mean gap" in figure.caption for head in ("plain", "maxsep"))
    assert "plain (cross-entropy): 0.002; maxsep (cross-entropy): 0.002" in section.after[0]


def test_open_sets_name_losses_where_any_split_has_several(tmp_path, run_folder, write_detection):
    specs = with_losses("openset", "dataset=osr_cifar10_0|osr_cifar10_1")
    for spec in specs:
        if spec.loss == "cross_entropy" or spec.dataset.endswith("_1"):
            write_detection(run_folder(tmp_path, spec, top1=0.9), spec, {"unknown": "unknown classes"})
    table, splits = openset_section(settings_of(collect(tmp_path).records)).tables
    names = [row.cells[0].text for row in table.rows]
    assert names[:2] == ["plain (cross-entropy)", "plain (cross-entropy), centred"]
    assert {"plain (logit adjusted)", "maxsep (cross-entropy)", "maxsep (logit adjusted)"} < set(names)
    assert [row.cells[0].text for row in splits.rows] == names


HEADS_BY_DIRECTION = ("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine")


def test_heads_that_compare_directions_meet_their_own_controls_on_outliers(tmp_path, run_folder, write_detection):
    (spec, *_) = with_losses("ood", "optimiser=sgd")
    for head in HEADS_BY_DIRECTION:
        run = spec.replace(head=head, radius=1.0, loss="ldam")
        write_detection(run_folder(tmp_path, run, top1=0.7), run, {"svhn": "SVHN test"})
    table = outliers_section(settings_of(collect(tmp_path).records)).tables[0]
    energy = rows(table, "energy")
    values = {head: energy[f"{head} (LDAM)", "1"]["AUROC, %"].value for head in HEADS_BY_DIRECTION}
    control = energy["maxsep_cosine (LDAM)", "1"]["over scaled, same radius"].value
    assert control == pytest.approx(values["maxsep_cosine"] - values["centred_cosine"])
    behind = energy["cosine_maxsep (LDAM)", "1"]
    assert behind["over scaled, same radius"].text == "= cosine"
    assert behind["AUROC over plain"].value == pytest.approx(values["cosine_maxsep"] - values["cosine"])


def test_open_sets_compare_heads_of_one_loss(tmp_path, run_folder, write_detection):
    for spec in with_losses("openset", "dataset=osr_cifar10_0"):
        write_detection(run_folder(tmp_path, spec, top1=0.9), spec, {"unknown": "unknown classes"})
    (table,) = openset_section(settings_of(collect(tmp_path).records)).tables
    cells = {row.cells[0].text: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows}
    plain, matrix = (cells[f"{head} (logit adjusted)"] for head in ("plain", "maxsep"))
    difference = matrix["AUROC of MLS, %"].value - plain["AUROC of MLS, %"].value
    assert matrix["MLS over plain"].value == pytest.approx(difference)
    assert matrix["over scaled, same radius"].text == "= plain"
    assert plain["MLS over plain"].value is None, "a loss is no head"


def test_the_long_name_of_a_method_stays_within_its_histogram():
    shape = {"edges": [0.0, 1.0, 2.0], "known": [0.2, 0.8], "outside": [0.7, 0.3], "known_mean": 1.3}
    shape |= {"outside_mean": 0.8, "gap": 0.46, "gap_in_stds": 0.96}
    name = "plain (label aware smoothing)"
    long, short = (outliers_figures.energy_figure("e", "T", {label: shape}) for label in (name, "plain"))
    told = f"{name}: mean gap 0.46 (0.96 standard deviations)"
    drawn = [line.strip() for line in re.findall(r">([^<>]*(?:plain|deviations)[^<>]*)</text>", long.svg)]
    assert " ".join(drawn) == told
    assert len(drawn) == 2
    assert all(len(line) <= 50 for line in drawn)
    assert told in long.caption
    heights = [float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', figure.svg)[1]) for figure in (long, short)]
    assert heights[0] - heights[1] == pytest.approx(72 * 0.18, abs=0.01), "the axes give no room to the second line"
