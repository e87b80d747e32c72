"""From options to a spec: numbers and words of the loss, the batch of a folder, the second stage of a run."""

import json
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from maxsep.cli.run_spec import beside, count_images, first_stage, head_options, loss_options, second_stage
from maxsep.lab.data import Dataset, prepare
from maxsep.lab.engine import train
from maxsep.lab.engine.losses import loss_defaults, loss_names
from maxsep.lab.recipes import long_tail as longtail
from maxsep.lab.recipes.compare import usual_batch
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec, options

PLAIN = {"dataset": "digits", "loss": "cross_entropy"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run that is not all defaults."""
    spec = RunSpec(
        head="plain", epochs=2, batch_size=128, loss="logit_adjusted", loss_options=options(tau=0.5), mixup=0.2,
        schedule="step", schedule_options=options(every=1), learning_rate=0.05, momentum=0.8,
    )  # fmt: skip
    return train(spec, runs=tmp_path_factory.mktemp("runs"), progress=False)


@pytest.fixture
def tail(tmp_path, monkeypatch):
    """A folder of class folders, 45 training images in all, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAXSEP_DATA", raising=False)
    for name, count in (("often", 50), ("seldom", 6)):
        (tmp_path / "data" / "tail" / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "data" / "tail" / name / f"{i}.png")
    return tmp_path / "data"


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 500))
def test_numbers_come_out_as_they_were_written(margin, start):
    found = loss_options("ldam", [f"max_margin={margin!r}", f"reweight_from={start}", "reweight=effective"])
    assert dict(found) == {"max_margin": margin, "reweight_from": start, "reweight": "effective"}
    assert [type(value) for _, value in found] == [float, str, int]


@pytest.mark.parametrize("loss", loss_names())
def test_every_option_of_every_loss_can_be_given(loss):
    defaults = {name: "effective" if value is None else value for name, value in loss_defaults(loss).items()}
    found = loss_options(loss, [f"{name}={value}" for name, value in defaults.items()])
    assert dict(found) == defaults


def test_commas_and_repetitions_are_one():
    told = loss_options("label_aware_smoothing", ["smooth_tail=0, smooth_head = 0.3"])
    assert told == loss_options("label_aware_smoothing", ["smooth_head=0.3", "smooth_tail=0"])
    assert told == longtail._STAGE2[0.02][1], "a run of the recipe has the same name if it is typed"
    assert loss_options("ldam", None) == loss_options("ldam", []) == ()


@pytest.mark.parametrize(
    ("loss", "given", "told"),
    [
        (
            "ldam",
            ["tau=1"],
            r"does not take the options \['tau'\]. Known: max_margin=0.5, scale=30, reweight=effective ",
        ),
        ("ldam", ["reweight_from=1.5"], "reweight_from must be a whole number, got '1.5', such as reweight_from=0"),
        ("logit_adjusted", ["tau=much"], "--loss-option tau must be a number, got 'much', such as tau=1.0"),
        ("logit_adjusted", ["tau"], "must be NAME=VALUE, such as reweight=effective, got 'tau'"),
        ("logit_adjusted", ["=1"], "must be NAME=VALUE"),
        ("logit_adjusted", ["tau="], "must be NAME=VALUE"),
        ("logit_adjusted", ["tau=1,"], "--loss-option must name values with commas between them"),
        ("logit_adjusted", ["tau=1", "tau=2"], "--loss-option tau was given twice, as 1 and 2. Leave one out"),
    ],
)
def test_options_that_cannot_be_read(loss, given, told):
    with pytest.raises(ValueError, match=told):
        loss_options(loss, given)


def test_what_is_not_given_is_what_a_spec_has():
    nothing = dict.fromkeys(("learning_rate", "momentum", "nesterov", "batch_size", "loss_options"))
    assert first_stage(PLAIN | nothing) == RunSpec(batch_size=usual_batch(1198))
    assert first_stage(PLAIN | nothing | {"dataset": "cifar10"}) == RunSpec(dataset="cifar10")


@pytest.mark.parametrize(("epochs", "start"), [(20, 20), (5, 7)])
def test_weights_that_never_come_are_refused(epochs, start):
    given = {"loss": "ldam", "head": "cosine", "loss_options": [f"reweight_from={start}"], "epochs": epochs}
    with pytest.raises(
        ValueError, match=rf"={start} re-weighs none of {epochs} epochs.*_from={epochs * 4 // 5}, as 160"
    ):
        first_stage(PLAIN | given)
    assert first_stage(PLAIN | given | {"epochs": start + 1}).loss_options == (("reweight_from", start),)


def test_a_folder_gets_the_batch_of_a_comparison(tail, monkeypatch):
    monkeypatch.chdir(tail)
    spec = first_stage(PLAIN | {"dataset": "folder:tail"})
    assert count_images(spec) == len(prepare(spec).train) == 45
    assert (spec.dataset, spec.batch_size) == ("folder:tail", usual_batch(45))
    assert first_stage(PLAIN | {"dataset": "folder:tail", "batch_size": 7}).batch_size == 7
    assert first_stage(PLAIN | {"dataset": "cifar10"}).batch_size == RunSpec().batch_size, "as in the papers"


def test_many_images_have_larger_batches(tail, monkeypatch):
    monkeypatch.setattr(Dataset, "train_counts", lambda *_: [3000, 1500])
    assert first_stage(PLAIN | {"dataset": "folder:data/tail"}).batch_size == 128
    assert first_stage(PLAIN | {"dataset": "folder:data/tail", "imbalance": 0.1}).batch_size == 64


@pytest.mark.parametrize(("given", "named"), [("tail?size=8", "folder:{}/tail?size=8"), ("folder:tail", "folder:tail")])
def test_a_folder_below_the_data_folder_is_counted_there(tail, given, named):
    spec = first_stage(PLAIN | {"dataset": given}, tail)
    assert spec.dataset == named.format(tail)
    assert count_images(spec, tail) == 45


def test_images_that_nobody_counted_are_not_told():
    assert count_images(RunSpec(dataset="osr_cifar10_0")) is None


def test_a_second_stage_keeps_the_options_of_the_same_loss(tmp_path):
    given = options(reweight_from=1, max_margin=0.4)
    first = RunSpec(head="cosine", epochs=2, batch_size=128, loss="ldam", loss_options=given)
    folder = train(first, runs=tmp_path, progress=False)
    assert dict(second_stage({"loss_options": ["scale=20"]}, folder).loss_options) == dict(given) | {"scale": 20.0}
    assert second_stage({"loss": "ldam"}, folder).loss_options == given
    other = second_stage({"loss": "cross_entropy", "loss_options": ["label_smoothing=0.1"]}, folder)
    assert other.loss_options == options(label_smoothing=0.1)


def test_a_second_stage_is_as_the_first_but_for_what_is_given(finished):
    first = Run(finished).spec
    again = second_stage({}, finished)
    assert again == first.replace(start_from=first)
    given = {"epochs": 1, "sampler": "class_balanced", "backbone": "frozen_shifted_norm", "logit_scaling": True}
    spec = second_stage(given | {"mixup": 0.0, "head_rate": 0.2, "dataset": "digits", "seed": 0}, finished)
    assert spec == first.replace(start_from=first, mixup=0.0, head_rate=0.2, **given)


def test_a_new_loss_schedule_or_optimiser_comes_without_the_old_options(finished):
    assert second_stage({"loss": "cross_entropy"}, finished).loss_options == ()
    assert second_stage({"loss_options": ["tau=2"]}, finished).loss_options == (("tau", 2.0),)
    assert second_stage({"schedule": "cosine"}, finished).schedule_options == ()
    assert second_stage({"optimiser": "adamw"}, finished).learning_rate == 1e-3
    sgd = second_stage({"optimiser": "sgd", "nesterov": True}, finished)
    assert (sgd.learning_rate, sgd.momentum, sgd.nesterov) == (0.05, 0.8, True)
    assert second_stage({"learning_rate": 0.3}, finished).learning_rate == 0.3


def test_another_optimiser_does_not_take_over_momentum(tmp_path):
    """A run with AdamW has one name, whatever the momentum of the SGD before it."""
    first = RunSpec(head="plain", epochs=1, momentum=0.8, nesterov=True)
    folder = train(first, runs=tmp_path, progress=False)
    other = second_stage({"optimiser": "adamw"}, folder)
    assert (other.momentum, other.nesterov) == (RunSpec().momentum, False)
    assert (other.start_from.momentum, other.start_from.nesterov) == (0.8, True)
    again = second_stage({"optimiser": "sgd"}, folder)
    assert (again.momentum, again.nesterov) == (0.8, True)
    from_adamw = train(first.replace(optimiser="adamw", momentum=0.9, nesterov=False), runs=tmp_path, progress=False)
    back = second_stage({"optimiser": "sgd", "nesterov": True}, from_adamw)
    assert (back.momentum, back.nesterov, back.learning_rate) == (RunSpec().momentum, True, 0.1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"dataset": "cifar10"},
            r"was trained with dataset 'digits', got 'cifar10'. .* it starts from: leave --dataset",
        ),
        ({"head": "maxsep"}, r"was trained with head 'plain', got 'maxsep'"),
        ({"seed": 1}, r"was trained with seed 0, got 1"),
        ({"optimiser": "adamw", "momentum": 0.5}, r"adamw has no --momentum"),
        ({"backbone": "melted"}, r"backbone must be one of trained, frozen, frozen_shifted_norm, got 'melted'"),
        ({"loss_options": ["reweight_from=1"]}, r"loss 'logit_adjusted' does not take the options"),
        ({"loss": "ldam", "loss_options": ["reweight_from=2"]}, r"re-weighs none of 2 epochs"),
    ],
)
def test_what_a_second_stage_cannot_be(finished, given, told):
    with pytest.raises(ValueError, match=told):
        second_stage(given, finished)


def test_a_run_to_start_from_must_be_there_and_finished(finished, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        second_stage({}, tmp_path / "nowhere")
    half = shutil.copytree(finished, tmp_path / finished.name)
    (half / "result.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        second_stage({}, half)


def test_pictures_that_changed_are_no_second_stage(tail, monkeypatch):
    spec = first_stage(PLAIN | {"dataset": "folder:tail?size=8", "epochs": 1}, tail)
    folder = train(spec, data_root=tail, runs=tail.parent / "runs", progress=False)
    assert second_stage({}, folder, tail).start_from == spec
    (tail / "tail" / "seldom" / "0.png").unlink()
    told = r"the images of folder:tail\?size=8 have changed since .* was trained: .* Train the first stage anew"
    with pytest.raises(ValueError, match=told):
        second_stage({}, folder, tail)
    shutil.rmtree(tail / "tail")
    assert second_stage({}, folder, tail).start_from == spec, "what is not there says nothing; reading it will"


def test_a_second_stage_lies_beside_its_first(finished, tmp_path, monkeypatch):
    spec = second_stage({}, finished)
    assert beside(finished, spec, None) == beside(finished, spec, finished.parent) == finished.parent
    monkeypatch.chdir(finished)
    here = type(finished)(".")
    assert beside(here, second_stage({}, here), None) == finished.parent.resolve()
    with pytest.raises(ValueError, match=r"lies beside the run it starts from, in .*, got --runs .*Leave --runs out"):
        beside(finished, spec, tmp_path)
    renamed = shutil.copytree(finished, tmp_path / "mine")
    with pytest.raises(ValueError, match=rf"mine was called {finished.name}, and a second stage looks for that name"):
        beside(renamed, spec, None)


def test_the_second_stage_of_the_recipe_can_be_typed(finished, tmp_path):
    """Every field of it: the digest, and so the name, is the same."""
    (stage,) = longtail.LONG_TAIL.specs(1, only="imbalance=0.01,head=plain,loss=label_aware_smoothing")
    first = stage.start_from
    folder = shutil.copytree(finished, tmp_path / first.name)
    record = json.loads((folder / "result.json").read_text()) | {"spec": first.to_dict()}
    (folder / "result.json").write_text(json.dumps(record))
    given = {
        "loss": "label_aware_smoothing", "loss_options": ["smooth_head=0.4", "smooth_tail=0.1"], "mixup": 0.0,
        "sampler": "class_balanced", "epochs": 10, "schedule": "cosine", "backbone": "frozen_shifted_norm",
        "logit_scaling": True, "head_rate": 0.2,
    }  # fmt: skip
    assert second_stage(given, folder).name == stage.name


def test_options_of_a_head_are_read_as_what_they_are():
    found = head_options("etf", ["rotation=3,normalise=True", "reserved=2"])
    assert found == options(rotation=3, normalise=True, reserved=2)
    assert first_stage(
        {"dataset": "digits", "head": "etf", "loss": "cross_entropy", "head_options": ["rotation=3"]}
    ) == (
        first_stage({"dataset": "digits", "head": "etf", "loss": "cross_entropy"}).replace(
            head_options=options(rotation=3)
        )
    )
    assert head_options("plain", None) == head_options("nobody", ["a=1"]) == ()


@pytest.mark.parametrize(
    ("head", "given", "told"),
    [
        ("etf", ["rotated=1"], "the head 'etf' has no option rotated. It has: bias, normalise, reserved, rotation."),
        ("hpn", ["radius=1"], "the head 'hpn' has no option radius. It has: bias, iterations, normalise."),
        ("etf", ["rotation"], "--head-option must be NAME=VALUE, such as rotation=0, got 'rotation'."),
        ("etf", ["rotation=1", "rotation=2"], "--head-option rotation was given twice, as 1 and 2. Leave one out."),
        ("plain", ["bias=no"], "--head-option bias must be true or false, got 'no', such as bias=true."),
        ("etf", ["normalise=1"], "--head-option normalise must be true or false, got '1', such as normalise=true."),
        ("etf", ["rotation=abc"], "--head-option rotation must be a whole number, got 'abc', such as rotation=0."),
        ("etf", ["rotation=0.5"], "--head-option rotation must be a whole number, got '0.5', such as rotation=0."),
        ("etf", [f"rotation={2**63}"], f"--head-option rotation must be from 0 to {2**63 - 1}, got {2**63}, such as"),
        ("etf", ["rotation=-1"], f"--head-option rotation must be from 0 to {2**63 - 1}, got -1, such as rotation=0."),
    ],
)
def test_wrong_options_of_a_head(head, given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        head_options(head, given)
