"""A run's identity: one name for equal specs, and stages that agree."""

import dataclasses
import json

import pytest

from maxsep.lab.spec import Execution, RunSpec, options

STAGED = RunSpec(
    dataset="cifar100",
    head="plain",
    epochs=10,
    backbone="frozen",
    logit_scaling=True,
    start_from=RunSpec(dataset="cifar100", head="plain", mixup=1.0, loss_options=options(label_smoothing=0.1)),
)


def test_equal_specs_have_one_name():
    floats = [field.name for field in dataclasses.fields(RunSpec) if field.type == "float"]
    assert {"radius", "learning_rate", "clip_norm", "head_start"} <= set(floats)
    assert RunSpec(radius=3).name == RunSpec(radius=3.0).name
    assert RunSpec(mixup=1, weight_decay=0).digest == RunSpec(mixup=1.0, weight_decay=0.0).digest
    assert RunSpec(class_order=[1, 0], features_at=[1]) == RunSpec(class_order=(1, 0), features_at=(1,))
    assert RunSpec(loss_options={"tau": 1.0, "a": [1]}).loss_options == options(a=(1,), tau=1.0)


def test_a_staged_run_survives_the_disk():
    again = RunSpec.from_dict(json.loads(json.dumps(STAGED.to_dict())))
    assert (again, hash(again), again.name) == (STAGED, hash(STAGED), STAGED.name)
    assert "-stage2-" in STAGED.name
    with pytest.raises(ValueError, match="colour"):
        RunSpec.from_dict({"colour": "red"})


def test_the_first_stage_is_part_of_the_identity_without_its_defaults():
    assert STAGED.replace(start_from=STAGED.start_from.replace(mixup=0.5)).digest != STAGED.digest
    assert STAGED.replace(start_from=None, backbone="trained").digest != STAGED.digest
    assert set(STAGED.changed_fields()["start_from"]) == {"dataset", "head", "mixup", "loss_options"}


def test_fields_that_stages_share_change_in_both():
    flat = STAGED.replace(network="vgg32", network_options={"feature_size": 2})
    assert flat.network_options == flat.start_from.network_options == (("feature_size", 2),)
    assert flat.name != STAGED.replace(network="vgg32").name
    changed = STAGED.replace(head="maxsep", radius=0.1, class_order="frequency", seed=7, epochs=3, calibration=0.1)
    first = changed.start_from
    assert (first.head, first.radius, first.class_order, first.seed) == ("maxsep", 0.1, "frequency", 7)
    assert (first.calibration, changed.epochs, first.epochs) == (0.1, 3, 20), "no stage may train on calibration data"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(("imbalance", {"imbalance": 0.0}), ("calibration", {"calibration": 1.0}), ("radius", {"radius": -1.0})),
        *(("data_order", {"data_order": "official"}), ("epochs", {"epochs": 2.5}), ("mixup", {"mixup": -1.0})),
        *(("momentum", {"nesterov": True, "momentum": 0.0}), ("sampler", {"sampler": "random"})),
        *(("backbone", {"backbone": "cold"}), ("backbone", {"backbone": "frozen"}), ("head_rate", {"head_rate": 0.0})),
        *(
            ("stop_after", {"stop_after": 21}),
            ("stop_after", {"stop_after": 0}),
            ("features_at", {"features_at": (0,)}),
        ),
        *(
            ("clip_norm", {"clip_norm": -1.0}),
            ("head_decay", {"head_decay": -1.0}),
            ("head_start", {"head_start": 0.0}),
        ),
        *(("class_order", {"class_order": "size"}), ("class_order", {"class_order": (0, 2)})),
        ("class_order", {"class_order": "frequency", "head": "plain"}),
        ("head, seed", {"start_from": RunSpec(seed=1, head="plain")}),
        ("calibration", {"calibration": 0.1, "start_from": RunSpec()}),
        ("start_from", {"start_from": "digits"}),
        ("imbalance", {"imbalance": True}),
        *(("seed", {"seed": "1"}), ("subset_seed", {"subset_seed": -1}), ("max_test", {"max_test": 0})),
        *(("max_train", {"max_train": 2.5}), ("learning_rate", {"learning_rate": float("nan")})),
        ("dataset", {"dataset": None}),
    ],
)
def test_values_that_no_run_can_have(name, fields):
    with pytest.raises(ValueError, match=name):
        RunSpec(**fields)


def test_columns_by_frequency_break_ties_by_class():
    counts = [7, 50, 7, 1]
    assert RunSpec().columns(counts) is None
    assert RunSpec(class_order=(3, 2, 1, 0)).columns(counts) == (3, 2, 1, 0)
    assert RunSpec(class_order="frequency").columns(counts) == (1, 0, 2, 3)
    assert RunSpec(class_order="reversed_frequency").columns(counts) == (3, 0, 2, 1)
    with pytest.raises(ValueError, match="class_order"):
        RunSpec(class_order="frequency").columns([])


@pytest.mark.parametrize(
    ("loss", "values", "scale"),
    [
        *(("cross_entropy", {}, 1.0), ("logit_adjusted", {"tau": 2.0}, 1.0), ("squared_cosine", {}, 1.0)),
        *(
            ("ldam", {}, 30.0),
            ("ldam", {"max_margin": 0.4, "reweight": "effective"}, 30.0),
            ("ldam", {"scale": 12}, 12),
        ),
    ],
)
def test_the_loss_decides_the_scale_of_the_softmax(loss, values, scale):
    spec = RunSpec(loss=loss, loss_options=options(**values))
    assert spec.softmax_scale == scale
    assert "softmax_scale" not in spec.to_dict(), "a field would rename every run"


def test_a_title_is_the_name_and_any_loss_but_mere_cross_entropy():
    assert RunSpec().title == RunSpec().name
    smooth = RunSpec(loss_options=options(label_smoothing=0.1))
    assert smooth.title == f"{smooth.name} (cross_entropy, label_smoothing=0.1)"


def test_an_execution_is_what_suits_the_device_unless_it_is_set():
    def chosen(execution):
        return execution.compile, execution.channels_last, execution.cuda_graph

    assert chosen(Execution().resolve("cuda")) == (True, True, True)
    assert chosen(Execution(devices=2).resolve("cuda")) == (True, True, False)
    assert chosen(Execution().resolve("cpu")) == (False, False, False)
    assert chosen(Execution(compile=False, cuda_graph=False).resolve("cuda")) == (False, True, False)
    assert chosen(Execution(compile=True).resolve("cpu")) == (True, False, False)
    for name in ("devices", "threads", "checkpoint_every", "checkpoint_steps"):
        with pytest.raises(ValueError, match=name):
            Execution(**{name: 0})
