"""A run's identity: names that never change, and stages that agree."""

import json
import re
from pathlib import Path

import pytest

from maxsep.lab.spec import RunSpec, options

RECORDS = sorted((Path(__file__).parents[2] / "results" / "runs").glob("*/spec.json"))


def test_there_are_records():
    assert RECORDS


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_every_committed_run_keeps_its_name(path):
    assert RunSpec.from_dict(json.loads(path.read_text())).name == path.parent.name


STAGED = RunSpec(
    dataset="cifar100",
    head="plain",
    epochs=10,
    backbone="frozen",
    logit_scaling=True,
    start_from=RunSpec(dataset="cifar100", head="plain", mixup=1.0, loss_options=options(label_smoothing=0.1)),
)


def test_options_of_the_network_are_part_of_the_identity_of_both_stages():
    flat = STAGED.replace(network="vgg32", network_options={"feature_size": 2})
    assert flat.network_options == flat.start_from.network_options == (("feature_size", 2),)
    assert flat.name != STAGED.replace(network="vgg32").name
    assert RunSpec.from_dict(json.loads(json.dumps(flat.to_dict()))) == flat
    with pytest.raises(ValueError, match="these differ in network_options"):
        RunSpec(network="vgg32", network_options=options(feature_size=2), start_from=RunSpec(network="vgg32"))


def test_a_staged_run_survives_the_disk():
    again = RunSpec.from_dict(json.loads(json.dumps(STAGED.to_dict())))
    assert again == STAGED
    assert hash(again) == hash(STAGED)
    assert again.name == STAGED.name
    assert "-stage2-" in STAGED.name


def test_the_first_stage_is_part_of_the_identity():
    other = STAGED.replace(start_from=STAGED.start_from.replace(mixup=0.5))
    assert other.digest != STAGED.digest
    assert STAGED.replace(start_from=None, backbone="trained").digest != STAGED.digest


def test_a_field_added_later_would_not_rename_a_staged_run():
    told = STAGED._told()
    assert set(told["start_from"]) == {"dataset", "head", "mixup", "loss_options"}


def test_what_both_stages_share_changes_in_both():
    changed = STAGED.replace(head="maxsep", radius=0.1, seed=7, epochs=3, max_train=100)
    first = changed.start_from
    assert (first.head, first.radius, first.seed, first.max_train) == ("maxsep", 0.1, 7, 100)
    assert (changed.epochs, first.epochs) == (3, 20)


def test_data_held_out_for_calibration_names_another_run():
    assert RunSpec(calibration=0.0).digest == RunSpec().digest
    assert RunSpec(calibration=0.1).digest != RunSpec().digest
    assert STAGED.replace(calibration=0.1).start_from.calibration == 0.1, "no stage may train on it"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"calibration": 1.0}, "calibration must be a fraction in [0, 1), got 1.0"),
        ({"calibration": 0.1, "start_from": RunSpec()}, "these differ in calibration. Change both"),
        ({"mixup": -1.0}, "mixup must be 0 or a positive finite number, got -1.0"),
        ({"sampler": "random"}, "sampler must be one of instance, class_balanced, got 'random'"),
        ({"backbone": "cold"}, "backbone must be one of trained, frozen, frozen_shifted_norm, got 'cold'"),
        ({"backbone": "frozen"}, "backbone must be 'trained' unless start_from (--from) names a run, got 'frozen'"),
        ({"head_rate": 0.0}, "head_rate must be a positive finite number, got 0.0"),
        ({"start_from": RunSpec(seed=1, head="plain")}, "these differ in head, seed. Change both"),
    ],
)
def test_values_that_no_run_could_mean(fields, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        RunSpec(**fields)


@pytest.mark.parametrize(
    ("loss", "given", "scale"),
    [
        ("cross_entropy", {}, 1.0),
        ("logit_adjusted", {"tau": 2.0}, 1.0),
        ("squared_cosine", {}, 1.0),
        ("ldam", {}, 30.0),
        ("ldam", {"max_margin": 0.4, "reweight": "effective"}, 30.0),
        ("ldam", {"scale": 12}, 12.0),
    ],
)
def test_the_loss_decides_by_what_logits_are_multiplied_to_be_probabilities(loss, given, scale):
    spec = RunSpec(loss=loss, loss_options=options(**given))
    assert spec.softmax_scale == scale
    assert "softmax_scale" not in spec.to_dict(), "a field would rename every run"


def test_a_title_is_the_name_and_any_loss_but_mere_cross_entropy():
    assert RunSpec().title == RunSpec().name
    smooth = RunSpec(loss_options=options(label_smoothing=0.1))
    assert smooth.title == f"{smooth.name} (cross_entropy, label_smoothing=0.1)"
    balanced = RunSpec(loss="balanced_softmax")
    assert balanced.title == f"{balanced.name} (balanced_softmax)"
