"""The table of a comparison, line by line, from made numbers."""

import re

import pytest

from maxsep.cli.contest_table import about, table
from maxsep.lab.recipes.own_data import own_data
from maxsep.lab.report.collect import Record
from maxsep.lab.report.contest import contest

METRICS = {"class_counts": [30, 31], "num_test": 20}
ACCURACY = {("plain", 1.0): 0.6, ("maxsep", 1.0): 0.61, ("scaled", 0.1): 0.7, ("maxsep", 0.1): 0.7}
ACCURACY |= {
    ("cosine", 1.0): 0.6,
    ("cosine_maxsep", 1.0): 0.61,
    ("centred_cosine", 1.0): 0.7,
    ("maxsep_cosine", 1.0): 0.72,
}


def records(specs, tmp_path, **metrics):
    found = []
    for spec in specs:
        jitter = (0.0, 0.002, 0.001)[spec.seed] * (spec.head not in ("plain", "cosine")) + 0.01 * spec.seed
        top1 = ACCURACY[spec.head, spec.radius] + jitter
        found.append(Record(tmp_path / spec.name, spec, {**METRICS, "top1": top1, "balanced": top1 - 0.1, **metrics}))
    return found


def test_the_whole_table(tmp_path):
    specs = own_data("digits").specs()
    assert [line.replace("\N{MINUS SIGN}", "-") for line in table(contest(specs, records(specs, tmp_path)), specs)] == [
        "digits: 61 training images of 2 classes, 20 test images (a third of every class, set aside by a fixed seed).",
        "mlp, 30 epochs of sgd at 0.1, batches of 128, no augmentation.",
        "Accuracy after the last epoch; nothing was chosen on the test images, neither radius nor epoch.",
        "",
        "                    accuracy, %   seeds  over plain          over scaled, same radius",
        "plain               61.00 ± 1.00  3",
        "maxsep, radius 1    62.10 ± 1.05  3      +1.10 (p = 0.003)   = plain",
        "scaled, radius 0.1  71.10 ± 1.05  3      +10.10 (p < 0.001)",
        "maxsep, radius 0.1  71.10 ± 1.05  3      +10.10 (p < 0.001)  0.00",
        "scaled is the plain head times the radius: the control. At radius 1 it is plain itself.",
        "Differences in points; p of paired two-sided t-tests after Holm's correction for 3 tests (the report has p "
        "before it, too).",
        "",
        "maxsep, radius 1, against plain: better by 1.10 points, more than seed noise.",
        "scaled, radius 0.1, against plain: better by 10.10 points, more than seed noise.",
        "maxsep, radius 0.1, against plain: better by 10.10 points, more than seed noise.",
        "maxsep, radius 0.1, against scaled, radius 0.1: the same in all 3 seeds.",
    ]


def test_unequal_classes_have_a_column(tmp_path):
    specs = own_data("digits", radii=[1.0], imbalance=0.1).specs()
    lines = table(contest(specs, records(specs, tmp_path, class_counts=[50, 5])), specs)
    assert (
        "                  accuracy, %   mean over classes, %  seeds  over plain         over scaled, same radius"
        in lines
    )
    assert "plain             61.00 ± 1.00  51.00 ± 1.00          3" in lines
    assert "The classes are unequal: the mean over classes counts each alike. The tests are of the accuracy." in lines
    assert "Differences in points; p of a paired two-sided t-test." in lines
    assert lines[1].endswith("no augmentation, a long tail of 0.1.")


def test_frequent_and_rare_classes_have_a_column(tmp_path):
    specs = own_data("digits", radii=[1.0]).specs()
    told = {"class_counts": [150, 105, 6], "per_class": [0.9, 0.8, 0.125]}
    lines = table(contest(specs, records(specs, tmp_path, **told)), specs)
    assert (
        "                  accuracy, %   mean over classes, %  many / few, %  seeds  over plain         over scaled, "
        "same radius" in lines
    )
    assert "plain             61.00 ± 1.00  51.00 ± 1.00          85.0 / 12.5    3" in lines
    assert "Many: 2 classes with more than 100 training images; few: 1 with fewer than 20." in lines
    part = table(contest(specs, records([s for s in specs if s.head == "plain"], tmp_path, **told)), specs)
    assert any(
        line.split() == ["maxsep,", "radius", "1", "-", "-", "-", "/", "-", "-", "-", "=", "plain"] for line in part
    )
    equal = table(contest(specs, records(specs, tmp_path, **told | {"class_counts": [150, 140, 120]})), specs)
    assert not any("many" in line.lower() for line in equal)


def test_several_losses_are_named(tmp_path):
    specs = own_data("digits", radii=[1.0], losses=["cross_entropy", "logit_adjusted"]).specs()
    lines = table(contest(specs, records(specs, tmp_path)), specs)
    same = "Every head is compared with heads of the same loss;"
    assert f"{same} losses with cross-entropy, by the plain head." in lines
    others = own_data("digits", radii=[1.0], losses=["label_aware_smoothing", "logit_adjusted"]).specs()
    told = table(contest(others, []), others)
    assert f"{same} losses with none: add cross_entropy." in told
    assert not any("cross-entropy" in line for line in told)
    (row,) = (line for line in lines if line.startswith("plain (logit adjusted) "))
    assert row.endswith("over cross-entropy")
    assert [line.split(", against ")[1].split(":")[0] for line in lines[-3:]] == [
        "plain (cross-entropy)",
        "plain (cross-entropy)",
        "plain (logit adjusted)",
    ]


COSINE_NOTE = (
    "cosine is the plain head of LDAM, and the control of cosine_maxsep. The control of maxsep_cosine is "
    "centred_cosine, a plain layer whose logits are centred and normalised."
)


def test_the_table_of_heads_that_compare_directions(tmp_path):
    specs = own_data("digits", losses=["ldam"]).specs()
    lines = [line.replace("\N{MINUS SIGN}", "-") for line in table(contest(specs, records(specs, tmp_path)), specs)]
    assert lines[4:] == [
        "                       accuracy, %   seeds  over cosine         over its control",
        "cosine (LDAM)          61.00 ± 1.00  3",
        "cosine_maxsep (LDAM)   62.10 ± 1.05  3      +1.10 (p = 0.003)   = cosine",
        "centred_cosine (LDAM)  71.10 ± 1.05  3      +10.10 (p < 0.001)",
        "maxsep_cosine (LDAM)   73.10 ± 1.05  3      +12.10 (p < 0.001)  +2.00",
        COSINE_NOTE,
        "Differences in points; p of paired two-sided t-tests after Holm's correction for 3 tests (the report has p "
        "before it, too).",
        "",
        "cosine_maxsep (LDAM), against cosine (LDAM): better by 1.10 points, more than seed noise.",
        "centred_cosine (LDAM), against cosine (LDAM): better by 10.10 points, more than seed noise.",
        "maxsep_cosine (LDAM), against cosine (LDAM): better by 12.10 points, more than seed noise.",
        "maxsep_cosine (LDAM), against centred_cosine (LDAM): not testable: the difference is the same for every seed.",
    ]


def test_both_kinds_of_heads_in_one_table(tmp_path):
    specs = own_data("digits", losses=["cross_entropy", "ldam"], radii=[1.0]).specs()
    lines = table(contest(specs, records(specs, tmp_path)), specs)
    assert re.split(" {2,}", lines[4])[-2:] == ["over plain or cosine", "over its control"]
    scaled = "scaled is the plain head times the radius: the control. At radius 1 it is plain itself."
    start = lines.index(scaled)
    assert lines[start + 1 : start + 3] == [
        COSINE_NOTE,
        "Every head is compared with heads of the same loss; losses with cross-entropy, by the plain head.",
    ]
    rows = {line.split("  ")[0]: line for line in lines[5:start]}
    assert rows["maxsep (cross-entropy), radius 1"].endswith("= plain")
    assert rows["cosine_maxsep (LDAM)"].endswith("= cosine")
    assert rows["cosine (LDAM)"].endswith(" over cross-entropy")


def test_before_anything_is_finished():
    specs = own_data("cifar10", radii=[0.1]).specs()
    lines = table(contest(specs, []), specs)
    assert lines[0] == "resnet32, 30 epochs of sgd at 0.1, batches of 128, crop_flip."
    assert "maxsep, radius 0.1  -            -      -           -" in lines
    assert not any("tests" in line for line in lines)


@pytest.mark.parametrize("done", [True, False])
def test_what_was_compared_as_data(tmp_path, done):
    specs = own_data("digits").specs()
    told = about(contest(specs, records(specs, tmp_path) if done else []), specs)
    assert (told["num_train"], told["num_test"]) == ((61, 20) if done else (None, None))
    assert (told["seeds"], told["setting"]["epochs"]) == ([0, 1, 2], 30)


def test_the_setting_is_that_of_no_loss():
    specs = own_data("digits", losses=["ldam"], loss_options=(("scale", 20.0),)).specs()
    told = about(contest(specs, []), specs)["setting"]
    assert (told["head"], told["loss"], told["loss_options"]) == ("plain", "cross_entropy", [])
