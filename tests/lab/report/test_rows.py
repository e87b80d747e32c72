import csv

import pytest

from maxsep.lab.report.controls import USUAL, Method, several_losses
from maxsep.lab.report.rows import settings_of, tidy, to_csv
from maxsep.lab.report.runs import collect
from maxsep.lab.spec import RunSpec, options

CIFAR = RunSpec(dataset="cifar10", network="resnet34", imbalance=0.01, head="plain")


def arms(base, **fields):
    heads = (("plain", 1.0), ("scaled", 0.1), ("maxsep", 0.1), ("maxsep", 1.0))
    return [base.replace(head=head, radius=radius, **fields) for head, radius in heads]


def test_runs_that_differ_in_more_than_method_and_seed_are_not_compared(tmp_path, run_folders, settings):
    base = RunSpec(head="plain")
    run_folders(tmp_path, [*arms(base), *arms(base, epochs=5), *arms(base, imbalance=0.1), *arms(base, seed=1)])
    found = settings(tmp_path)
    assert [len(setting.methods) for setting in found] == [4, 4, 4]
    full = next(s for s in found if s.spec.epochs == 20 and s.spec.imbalance == 1)
    assert all(list(full.values(method)) == [(0, 0), (1, 0)] for method in full.methods)
    assert full.distinction == "20 epochs"


def test_the_control_is_the_best_that_was_run(tmp_path, run_folder, settings):
    for spec in arms(RunSpec(head="plain")):
        run_folder(tmp_path, spec)
    (setting,) = settings(tmp_path)
    assert setting.control(Method("maxsep", 0.1)) == Method("scaled", 0.1)
    assert setting.control(Method("maxsep")) == setting.baseline(Method("maxsep")) == USUAL
    assert setting.control(Method("maxsep", 0.3)) is None
    assert setting.baseline(USUAL) is None
    for radius in (1.0, 0.1):
        run_folder(tmp_path, RunSpec(head="control", radius=radius))
    (setting,) = settings(tmp_path)
    assert setting.control(Method("maxsep", 0.1)) == Method("control", 0.1), "the exact control comes first"
    assert setting.control(Method("maxsep")) == Method("control")


def test_every_method_has_a_baseline_and_controls_of_its_own_loss():
    ldam = {"loss": "ldam", "loss_options": options(max_margin=0.4)}
    cosine, behind, centred, columns = (
        Method(head, **ldam) for head in ("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine")
    )
    assert {method.baseline for method in (cosine, behind, centred, columns)} == {cosine}
    assert (behind.controls, columns.controls, centred.controls) == ((cosine,), (centred,), ())
    assert Method("maxsep", 0.1, loss="logit_adjusted").controls[1] == Method("scaled", 0.1, loss="logit_adjusted")
    assert Method("hpn", loss="squared_cosine").baseline == USUAL
    assert Method.of(RunSpec(head="scaled")) == USUAL


def test_losses_meet_by_their_baselines_and_are_named_where_there_are_several(tmp_path, run_folder, settings):
    for loss in ("cross_entropy", "logit_adjusted"):
        run_folder(tmp_path, RunSpec(head="plain", loss=loss))
    (setting,) = settings(tmp_path)
    adjusted = Method("plain", loss="logit_adjusted")
    assert adjusted.brings_loss
    assert setting.baseline(adjusted) == USUAL
    assert len({setting.name(method) for method in setting.methods}) == 2
    assert not several_losses([USUAL, Method("hpn", loss="squared_cosine")])


def test_rows_come_as_pairs_after_the_linear_head(tmp_path, run_folders, settings):
    extra = [RunSpec(head="etf"), RunSpec(head="control", radius=0.1), RunSpec(head="learnable_matrix", radius=0.1)]
    run_folders(tmp_path, [*extra, *arms(RunSpec(head="plain"))])
    (setting,) = settings(tmp_path)
    heads = ["plain", "maxsep", "scaled", "control", "maxsep", "learnable_matrix", "etf"]
    assert [method.head for method in setting.methods] == heads


def test_subsets_of_one_seed_are_not_merged(tmp_path, run_folder, settings):
    for seed in (123, 124, 125):
        run_folder(tmp_path, CIFAR.replace(seed=seed, subset_seed=0), top1=0.5)
    (shared,) = settings(tmp_path)
    assert (len(shared.values(USUAL)), shared.subset) == (3, "one subset for all seeds")
    for seed in (124, 125):
        run_folder(tmp_path, CIFAR.replace(seed=seed, subset_seed=seed - 123), top1=0.7)
    found = {setting.subset: setting.values(USUAL) for setting in settings(tmp_path)}
    assert {name: sorted(values.values()) for name, values in found.items()} == {
        "subset 0 for all seeds": [0.5, 0.5, 0.5],
        "a subset for every seed": [0.5, 0.7, 0.7],
    }


def test_orders_of_the_images_are_joined_on_full_data_alone(tmp_path, run_folders, settings):
    base = RunSpec(dataset="cifar100", network="resnet34", head="plain")
    full = [base.replace(seed=1), base.replace(seed=2, data_order="official")]
    tail = [base.replace(imbalance=0.01, data_order=order) for order in ("", "official")]
    run_folders(tmp_path, [*full, *tail])
    joined, official, earlier = settings(tmp_path)
    assert (len(joined.values(USUAL)), joined.earlier_draw) == (2, False)
    assert (official.earlier_draw, earlier.earlier_draw) == (False, True)
    assert "earlier draw of the subset" in earlier.balance


def test_splits_of_an_open_set_are_repetitions(tmp_path, run_folders, settings):
    run_folders(tmp_path, [RunSpec(dataset=f"osr_cifar10_{split}", network="vgg32", head="plain") for split in (0, 3)])
    (setting,) = settings(tmp_path)
    assert (setting.unit, list(setting.values(USUAL))) == ("split", [(0, 0), (0, 3)])


def test_a_calibration_error_of_other_probabilities_is_left_out(tmp_path, run_folder, settings):
    run_folder(tmp_path, RunSpec(head="cosine", loss="ldam"))
    run_folder(tmp_path, RunSpec(head="cosine"))
    (setting,) = settings(tmp_path)
    assert [bool(setting.values(method, "ece")) for method in setting.methods] == [True, False]


def test_the_tidy_table_has_every_number_once(tmp_path, run_folder, write_detection):
    write_detection(run_folder(tmp_path, RunSpec(head="plain"), top1=0.8), ("svhn",), draws=True)
    rows = list(csv.DictReader(to_csv(tidy(collect(tmp_path))).splitlines()))
    values = {row["metric"]: float(row["value"]) for row in rows}
    assert len(values) == len(rows)
    assert values["top1"] == 0.8
    assert values["svhn energy auroc"] == pytest.approx(0.81), "the mean over draws"
    assert values["svhn energy oscr"] == pytest.approx(0.7), "all images, where there are no draws"


def test_data_with_a_tail_of_their_own_are_tailed(tmp_path, run_folder, settings):
    for name, counts in {"birds": [150, 105, 6], "digits": [122, 116, 119]}.items():
        run_folder(tmp_path, RunSpec(dataset=f"folder:{name}"), metrics={"top1": 0.5, "class_counts": counts})
    birds, digits = settings(tmp_path)
    assert (birds.is_tailed, digits.is_tailed) == (True, False)
    assert birds.balance == "unequal, 150 to 6 images a class"
    assert settings_of([]) == []


def test_the_order_of_the_classes_is_part_of_the_method_and_rates_of_adamw_may_differ(tmp_path, run_folders, settings):
    adam = RunSpec(optimiser="adamw", imbalance=0.1, learning_rate=1e-3, head="control")
    last = adam.replace(head="maxsep", class_order="frequency", learning_rate=3e-3)
    run_folders(tmp_path / "a", [adam, last])
    (setting,) = settings(tmp_path / "a")
    control, matrix = setting.methods
    assert setting.name(matrix) == "maxsep, radius 1 (rare last)"
    assert setting.control(matrix) == control
    assert setting.difference(matrix, control).n == 1
    run_folders(tmp_path / "a", [adam.replace(learning_rate=3e-3)])
    apart = settings(tmp_path / "a")
    assert [(s.spec.learning_rate, len(s.methods)) for s in apart] == [(1e-3, 1), (3e-3, 2)], (
        "several rates of one method"
    )
