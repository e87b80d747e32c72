import json
import re
from pathlib import Path

import pytest
from PIL import Image

from maxsep import heads
from maxsep.cli.train import EPILOG
from maxsep.lab.spec import RunSpec


def test_a_run_that_diverges_leaves_its_reason(call, invoke, tmp_path):
    found = invoke("train", "--learning-rate", 1e30, "--runs", tmp_path / "runs", "--json")
    assert isinstance(found.exception, ArithmeticError)
    call("report", tmp_path / "runs", "--out", tmp_path)
    (problem,) = json.loads((tmp_path / "report.json").read_text())["problems"]
    assert problem["kind"] == "failed"
    assert problem["reason"].startswith("NonFiniteError: ")


def test_downloads_are_asked_for(call, asked, tmp_path):
    call("train", "--runs", tmp_path)
    call("train", "--runs", tmp_path, "--download")
    assert [settings.get("download") for _, settings in asked] == [None, True]


def test_options_reach_the_spec(call, asked, tmp_path):
    call("train", "--runs", tmp_path, "--momentum", 0.5, "--nesterov", "--mixup", 1, "--precision", "bf16-mixed")
    ((spec, _),) = asked
    assert (spec.momentum, spec.nesterov, spec.mixup, spec.precision) == (0.5, True, 1.0, "bf16-mixed")


def test_options_of_the_loss_reach_the_spec(call, asked, tmp_path):
    ldam = ["--head", "cosine", "--loss", "ldam", "--loss-option", "reweight=effective"]
    call("train", "--runs", tmp_path, *ldam, "--loss-option", "reweight_from=16", "--sampler", "class_balanced")
    ((spec, _),) = asked
    assert (spec.loss, spec.sampler) == ("ldam", "class_balanced")
    assert spec.loss_options == (("reweight", "effective"), ("reweight_from", 16))


def test_nothing_is_renamed_where_no_new_option_is_used(call, asked, tmp_path):
    call("train", "--runs", tmp_path, "--device", "cpu")
    assert asked[0][0] == RunSpec(batch_size=32)  # of the digits, as in a comparison


def test_the_loss_is_told_beside_the_folder(call, tmp_path):
    told = call("train", "--runs", tmp_path, "--epochs", 1, "--loss", "logit_adjusted", "--loss-option", "tau=2")
    (folder,) = tmp_path.glob("*/result.json")
    assert "on the test set (logit_adjusted, tau=2.0; mean over classes " in told
    assert told.endswith(f": {folder.parent}\n"), "to be copied"


def test_help_names_every_head_in_full(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert f"{', '.join(heads.names())}." in " ".join(call("train", "--help").split())


def test_the_examples_of_the_help_are_commands(call, asked, run, pictures, tmp_path):
    pictures.rename(tmp_path / "photos")
    for example in re.findall(r"maxsep (train .*?)[;.](?: |$)", EPILOG):
        call(*example.replace("runs/NAME", run["run"]).split())
    assert [spec.stage for spec, _ in asked] == [1, 1, 2]


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder of 20 images in two classes, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("dark", "light"):
        (tmp_path / "tail" / name).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (8, 8), ((name == "light") * 200 + i,) * 3).save(tmp_path / "tail" / name / f"{i}.png")
    return tmp_path / "tail"


@pytest.mark.parametrize("dataset", ["tail?size=8", "folder:tail?size=8", "./tail/?size=8"])
def test_a_folder_is_trained_in_small_batches_which_are_told_first(call, pictures, dataset):
    told = call("train", "--dataset", dataset, "--epochs", 1, "--device", "cpu")
    first = (
        "folder:tail?size=8: 16 training images, batches of 16, network resnet32, augmentation crop_flip "
        "(--batch-size, --network, --augmentation choose others)"
    )
    assert told.splitlines()[0] == first
    (path,) = pictures.parent.glob("runs/*/spec.json")
    spec = json.loads(path.read_text())
    assert (spec["batch_size"], spec["network"], spec["augmentation"]) == (16, "resnet32", "crop_flip")


def test_what_was_typed_for_a_folder_is_not_told(call, asked, pictures):
    network, augmentation = ["--network", "mlp"], ["--augmentation", "none"]
    told = call("train", "--dataset", "tail?size=8", *network)
    chosen = "batches of 16, augmentation crop_flip (--batch-size, --augmentation choose others)"
    assert told.startswith(f"folder:tail?size=8: 16 training images, {chosen}\n")
    told = call("train", "--dataset", "tail?size=8", "--batch-size", 8, *augmentation)
    assert told.startswith("folder:tail?size=8: 16 training images, network resnet32 (--network chooses another)\n")
    assert "choose" not in call("train", "--dataset", "tail?size=8", "--batch-size", 8, *network, *augmentation)
    assert [(spec.network, spec.augmentation) for spec, _ in asked] == [
        ("mlp", "crop_flip"),
        ("resnet32", "none"),
        ("mlp", "none"),
    ]


def test_a_folder_is_trained_as_compare_would(call, asked, pictures, monkeypatch):
    """The plain run of a comparison has the name of the same run by itself."""
    compared = []
    monkeypatch.setattr("maxsep.cli.compare._compare", lambda context, specs, *rest, **more: compared.extend(specs))
    call("compare", "tail", "--size", 8, "--seeds", 1, "--radius", 1, "--epochs", 30, "--device", "cpu")
    for head in ("plain", "maxsep"):
        call("train", "--dataset", "tail?size=8", "--head", head, "--epochs", 30, "--device", "cpu")
    names = {spec.head: spec.name for spec in compared}
    assert [spec.name for spec, _ in asked] == [names["plain"], names["maxsep"]]


@pytest.mark.parametrize("dataset", ["digits", "cifar10"])
def test_what_is_no_folder_has_the_network_and_the_augmentation_of_a_spec(call, asked, tmp_path, dataset):
    call("train", "--dataset", dataset, "--runs", tmp_path)
    ((spec, _),) = asked
    assert (spec.network, spec.augmentation) == (RunSpec().network, RunSpec().augmentation) == ("mlp", "none")


@pytest.mark.parametrize(("held", "images"), [([], 16), (["--calibration", 0.3], 12), (["--validation", 0.05], 14)])
def test_the_images_that_are_told_first_are_those_of_the_end(call, pictures, held, images):
    """What is held out of every class is rounded: 30 % of twice 8 images are twice 2, and 5 % are twice 1."""
    told = call("train", "--dataset", "tail?size=8", "--epochs", 1, "--device", "cpu", "--network", "mlp", *held)
    assert f"tail?size=8: {images} training images, " in told
    assert f"; {images} training and " in told


@pytest.mark.parametrize("change", ["gone", "another name", "another size"])
def test_a_finished_run_of_other_pictures_is_not_told_again(call, refuse, pictures, change):
    arguments = ["train", "--dataset", "tail?size=8", "--epochs", 1, "--device", "cpu", "--network", "mlp"]
    call(*arguments)
    (folder,) = Path("runs").glob("[!.]*")
    (pictures / "readme.txt").write_text("no picture")
    assert "this run was finished before; nothing was trained" in call(*arguments)
    old = pictures / "dark" / "0.png"
    if change == "another size":
        Image.new("RGB", (64, 64), (7, 90, 11)).save(old)
    else:
        old.rename(old.with_name("10.png") if change == "another name" else pictures.parent / "away.png")
    told = (
        f"maxsep: the images of folder:tail?size=8 have changed since {folder} was trained: files of other names or "
        f"sizes. Train anew with another --runs, or remove {folder}.\n"
    )
    assert refuse(*arguments) == refuse(*arguments, "--json") == told
    assert "this run was finished before" not in call(*arguments, "--runs", "others")


def test_a_record_that_says_nothing_of_its_files_is_told_again(call, pictures):
    arguments = ["train", "--dataset", "tail?size=8", "--epochs", 1, "--device", "cpu", "--network", "mlp"]
    call(*arguments)
    (path,) = Path("runs").glob("*/result.json")
    record = json.loads(path.read_text())
    del record["metrics"]["files"]
    path.write_text(json.dumps(record))
    (pictures / "dark" / "0.png").rename(pictures / "dark" / "10.png")
    assert "this run was finished before; nothing was trained" in call(*arguments)


def test_json_is_nothing_but_json(call, pictures):
    json.loads(call("train", "--dataset", "tail?size=8", "--epochs", 1, "--device", "cpu", "--json"))


@pytest.mark.parametrize("size", [16, 512])
def test_a_batch_of_all_images_is_warned_of(call, asked, pictures, size):
    with pytest.warns(UserWarning, match="^the batch holds all 16 training images: one step an epoch"):
        told = call("train", "--dataset", "tail?size=8", "--batch-size", size)
    assert "batches of" not in told
    call("train", "--dataset", "tail?size=8", "--batch-size", 15)
    assert [spec.batch_size for spec, _ in asked] == [size, 15]


def test_so_is_one_of_a_known_dataset(call, asked, tmp_path):
    with pytest.warns(UserWarning, match="^the batch holds all 1,198 training images"):
        call("train", "--runs", tmp_path, "--batch-size", 1198)
    call("train", "--runs", tmp_path, "--imbalance", 0.02)  # 333 images
    assert [spec.batch_size for spec, _ in asked] == [1198, 16]


def test_a_second_stage_goes_on_from_the_weights_of_the_first(call, tmp_path):
    first = json.loads(call("train", "--epochs", 3, "--head", "plain", "--runs", tmp_path, "--device", "cpu", "--json"))
    stage = ["train", "--from", first["run"], "--epochs", 1, "--backbone", "frozen", "--learning-rate", 1e-6]
    told = call(*stage, "--sampler", "class_balanced", "--logit-scaling", "--head-rate", 0.5, "--device", "cpu")
    (folder,) = tmp_path.glob("*-stage2-*")
    assert told.rstrip().endswith(str(folder)), "it lies beside the first, whatever --runs is by default"
    second = json.loads((folder / "result.json").read_text())
    assert second["spec"]["start_from"]["epochs"] == 3
    assert second["spec"]["batch_size"] == second["spec"]["start_from"]["batch_size"] == 32
    assert second["metrics"]["top1"] == pytest.approx(first["metrics"]["top1"], abs=0.01)
    again = call(*stage, "--sampler", "class_balanced", "--logit-scaling", "--head-rate", 0.5, "--device", "cpu")
    assert again.splitlines()[0] == told.splitlines()[0]
    assert again.splitlines()[1] == "this run was finished before; nothing was trained"


def test_a_second_stage_says_what_it_goes_on_from(call, asked, run):
    first = Path(run["run"]).name
    told = call("train", "--from", run["run"], "--epochs", 1, "--optimiser", "adamw", "--batch-size", 64)
    assert told.splitlines()[0] == (
        f"stage 2, from the weights of {first}: 1 epoch of adamw at 0.001, 1,198 training images, batches of 64; what "
        "is not given is as it was there"
    )
    told = call("train", "--from", run["run"])
    start = f"stage 2, from the weights of {first}: 2 epochs of sgd at 0.1, 1,198 training images, batches of 128 ("
    assert told.startswith(f"{start}--batch-size names another size); ")
    with pytest.warns(UserWarning, match="^the batch holds all 1,198 training images"):
        call("train", "--from", run["run"], "--batch-size", 2000)
    assert [spec.batch_size for spec, _ in asked] == [64, 128, 2000]
    assert not call("train", "--from", run["run"], "--json").startswith("stage")


@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 0.1), ("adamw", 0.001)])
def test_each_optimiser_has_its_own_learning_rate(call, asked, tmp_path, optimiser, rate):
    call("train", "--runs", tmp_path, "--optimiser", optimiser)
    call("train", "--runs", tmp_path, "--optimiser", optimiser, "--learning-rate", 0.3)
    assert [spec.learning_rate for spec, _ in asked] == [rate, 0.3]


def test_adamw_without_nesterov_is_adamw(call, asked, tmp_path):
    call("train", "--runs", tmp_path, "--optimiser", "adamw")
    call("train", "--runs", tmp_path, "--optimiser", "adamw", "--no-nesterov")
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--head", "nope"], "unknown head 'nope'. Known: "),
        (["--dataset", "nope"], "nope"),
        (["--imbalance", 2], "imbalance must be a number in (0, 1]"),
        (["--radius", 0], "radius must be a positive finite number, got 0.0"),
        (["--precision", "fp8"], "unknown precision 'fp8'. Known: "),
        (["--mixup", -1], "mixup must be"),
        (["--momentum", 1.5], "momentum must be a number in [0, 1), got 1.5"),
        (["--momentum", "nan"], "momentum must be a number in [0, 1), got nan"),
        (["--momentum", 0, "--nesterov"], "momentum must be a number in (0, 1), as Nesterov's form needs it, got 0.0"),
        (["--optimiser", "adamw", "--momentum", 0.9], "adamw has no --momentum and no --nesterov. Leave them out"),
        (["--optimiser", "adamw", "--nesterov"], "or use --optimiser sgd"),
        (["--precision", "16-mixed", "--device", "cpu"], "unknown precision '16-mixed'"),
        (["--loss-option", "tau=1"], "does not take the options ['tau']. Known: label_smoothing=0."),
        (["--loss", "hinge", "--loss-option", "a=1"], "unknown loss 'hinge'. Known: balanced_softmax, "),
        (["--loss-option", "label_smoothing=2"], "label_smoothing must be a number in [0, 1], got 2.0"),
        (["--sampler", "balanced"], "sampler must be one of instance, class_balanced, got 'balanced'"),
        (["--backbone", "frozen"], "backbone must be 'trained' unless start_from names a run, got 'frozen'"),
        (["--from", "runs/nowhere"], "there is no folder runs/nowhere"),
        (
            ["--dataset", "folder:nowhere"],
            "'nowhere' is neither a known dataset (digits, cifar10, cifar100, svhn, imagenet, imagenet_lt) nor a",
        ),
        (["--calibration", 1], "calibration must be a fraction in [0, 1), got 1.0"),
    ],
)
def test_bad_input_is_one_clear_line(refuse_in_one_line, arguments, told):
    assert told in refuse_in_one_line("train", *arguments)


def test_options_of_the_head_are_trained_with(call, tmp_path):
    call("train", "--runs", tmp_path, "--head", "etf", "--head-option", "rotation=0", "--epochs", 1)
    spec = RunSpec.from_dict(json.loads(next(tmp_path.glob("*/spec.json")).read_text()))
    assert dict(spec.head_options) == {"rotation": 0}
