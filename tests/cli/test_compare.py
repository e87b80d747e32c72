"""`maxsep compare`: from one command to a verdict, on real digits and on folders of pictures."""

import json
import re

import pytest
from PIL import Image

from maxsep.cli.app import app
from maxsep.cli.compare import EPILOG

SHORT = ["--epochs", 2, "--device", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def first(call, place):
    """A comparison on digits, trained once; what it printed."""
    return call("compare", *SHORT, "--runs", place / "runs", "--out", place / "out")


def again(call, place, *more):
    return call("compare", *SHORT, "--runs", place / "runs", "--out", place / "out", *more)


def test_trains_every_arm_and_tells_what_came_of_it(first, place):
    assert len(list((place / "runs").glob("*/result.json"))) == 12
    assert "1,198 training images of 10 classes, 599 test images (a third of every class, set aside by a fixed" in first
    assert "nothing was chosen on the test images" in first
    for label in ("plain", "maxsep, radius 1", "scaled, radius 0.1", "maxsep, radius 0.1"):
        assert re.search(rf"^{label} +\d\d\.\d\d ± \d+\.\d\d  3\b", first, re.MULTILINE), label
    verdicts = r"^.*, against .*: (?:better|worse|.* points, p|no difference|the same|not testable)"
    assert len(re.findall(verdicts, first, re.M)) == 4
    assert len(re.findall(r"^On this data .*\.$", first, re.M)) == 1
    assert "missing" not in first


def test_writes_the_report_with_the_command_that_leads_to_it(first, place):
    assert first.endswith(f"report: {place / 'out' / 'report.html'}\n")
    assert (place / "out" / "report.html").is_file()
    report = json.loads((place / "out" / "report.json").read_text())
    assert len(report["runs"]) == 12
    places = f"--runs {place / 'runs'} --out {place / 'out'}"
    assert report["commands"] == [f"maxsep compare --epochs 2 {places} --device cpu"], "what was typed, no defaults"


def test_nothing_is_trained_again(call, first, place):
    before = {path: path.stat().st_mtime_ns for path in (place / "runs").glob("*/result.json")}
    told = again(call, place)
    assert told.strip() == first[first.index("digits: 1,198") :].strip()
    assert {path: path.stat().st_mtime_ns for path in (place / "runs").glob("*/result.json")} == before


def test_the_same_as_data(call, first, place):
    told = json.loads(again(call, place, "--json"))
    assert (told["data"], told["num_train"], told["num_test"]) == ("digits", 1198, 599)
    assert told["test_images"] == "a third of every class, set aside by a fixed seed"
    assert told["seeds"] == [0, 1, 2]
    assert told["setting"]["network"] == "mlp"
    assert (told["missing"], told["failed"]) == ([], [])
    assert told["report"] == str(place / "out" / "report.html")
    assert told["conclusion"][0] in first
    for arm in told["arms"]:
        assert f"{arm['label']}  " in first
        assert set(arm["top1"]["seeds"]) == {"0", "1", "2"}
    for arm in told["arms"][1:]:
        assert f"{arm['label']}, against plain: {arm['over_plain']['verdict']}." in first


def test_runs_of_others_play_no_part(call, first, place):
    call("train", "--epochs", 1, "--head", "plain", "--seed", 7, "--runs", place / "runs", "--json")
    assert len(list((place / "runs").glob("*/result.json"))) > 12
    assert again(call, place).strip() == first[first.index("digits: 1,198") :].strip()
    assert len(json.loads((place / "out" / "report.json").read_text())["runs"]) == 12


def test_another_seed_trains_only_what_is_new(call, first, place):
    told = json.loads(again(call, place, "--seeds", 4, "--dry-run", "--json"))
    assert [row["state"] for row in told] == ["finished"] * 12 + ["new"] * 4


def test_a_dry_run_trains_nothing(call, tmp_path):
    told = call("compare", *SHORT, "--dry-run", "--runs", tmp_path / "runs", "--out", tmp_path / "out")
    assert re.search(r"12 of 12 runs to train, about .* s in all \(a first guess\)\.", told)
    assert list(tmp_path.iterdir()) == []


def test_too_little_time_says_what_is_missing_and_the_same_command_goes_on(call, tmp_path):
    arguments = ["compare", *SHORT, "--seeds", 1, "--radius", 1, "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    told = call(*arguments, "--budget", "0.001s")
    assert "2 of 2 runs are missing, and the same command goes on with them: digits-mlp-plain-s0" in told
    assert "On this data nothing can be told yet: no seed has both runs." in told
    assert re.search(r"^plain +-  ", told, re.M)
    assert not (tmp_path / "out").exists()
    assert len(json.loads(call(*arguments, "--budget", "0.001s", "--json"))["missing"]) == 2
    told = call(*arguments, "--budget", "5m")
    assert "missing" not in told
    assert "maxsep, radius 1, against plain: not testable: fewer than 3 seeds." in told
    assert "On this data nothing can be told yet: fewer than 3 seeds." in told


def test_losses_radii_and_a_long_tail(call, tmp_path):
    options = ["--loss", "cross_entropy,logit_adjusted", "--radius", 1, "--radius", "0.5,1", "--imbalance", 0.1]
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    told = call("compare", *SHORT, "--seeds", 1, *options, *places)
    assert "mean over classes, %" in told
    assert "The classes are unequal" in told
    assert "a long tail of 0.1" in told
    assert "On this data, with the loss cross_entropy, " in told
    assert "On this data, with the loss logit_adjusted, " in told
    assert "maxsep (logit adjusted), radius 0.5" in told
    told = json.loads(call("compare", *SHORT, "--seeds", 1, *options, *places, "--json"))
    assert [(arm["head"], arm["radius"]) for arm in told["arms"][:4]] == [
        ("plain", 1.0), ("maxsep", 1.0), ("scaled", 0.5), ("maxsep", 0.5),
    ]  # fmt: skip
    assert all(0 < arm["balanced"]["mean"] < 1 for arm in told["arms"])


def test_the_loss_is_told_beside_a_run_and_is_no_part_of_its_name(call, tmp_path):
    losses = ["--loss", "cross_entropy,logit_adjusted", "--radius", 1, "--seeds", 1]
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    planned = call("compare", *SHORT, *losses, *places, "--dry-run").splitlines()
    assert [line.endswith(" (logit_adjusted)") for line in planned[:4]] == [False, False, True, True]
    told = call("compare", *SHORT, *losses, *places, "--budget", "0.001s")
    assert re.search(r"left for next time .*: digits-mlp-plain-s0-\w{10}$", told, re.M)
    assert re.search(r"left for next time .*: digits-mlp-plain-s0-\w{10} \(logit_adjusted\)$", told, re.M)
    assert re.search(r"missing.*: digits-mlp-plain-s0-\w{10}, digits-mlp-maxsep-s0-\w{10}, .* \(logit_adjusted\)", told)


def test_ldam_is_compared_by_its_own_heads(call, tmp_path):
    options = ["--loss", "cross_entropy,ldam", "--radius", 1, "--loss-option", "reweight_from=1", "--imbalance", 0.1]
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    told = call("compare", *SHORT, "--seeds", 3, *options, *places)
    for head in ("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine"):
        assert re.search(rf"^{head} \(LDAM, re-weighted from epoch 1\) +\d", told, re.MULTILINE), head
    assert "maxsep_cosine (LDAM, re-weighted from epoch 1), against centred_cosine (LDAM, re-weighted" in told
    assert re.search(r"^On this data, with the loss ldam, .*Cosine with this loss against plain \(cross-", told, re.M)
    found = json.loads(call("compare", *SHORT, "--seeds", 3, *options, *places, "--json"))
    assert [(arm["head"], arm["loss"]) for arm in found["arms"]][2:] == [
        (head, "ldam") for head in ("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine")
    ]
    assert found["arms"][2]["over_cross_entropy"]["seeds"] == found["arms"][5]["over_control"]["seeds"] == 3
    assert "--loss-option reweight_from=1" in (tmp_path / "out" / "report.md").read_text()
    alone = call("compare", *SHORT, "--seeds", 3, "--loss", "ldam", *options[4:], *places)
    assert "training, " not in alone, "the runs of ldam are there already"
    assert "gain over its control" in (tmp_path / "out" / "report.md").read_text()


def test_two_processes_share_the_runs(call, tmp_path):
    arguments = ["compare", *SHORT, "--seeds", 2, "--radius", 1, "--radius", "0.1"]
    arguments += ["--runs", tmp_path / "runs", "--out", tmp_path / "out", "--jobs", 2, "--json"]
    told = json.loads(call(*arguments))
    assert told["missing"] == []
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 8
    assert (tmp_path / "out" / "report.html").is_file()


def test_reading_the_data_counts_as_time(call, tmp_path, monkeypatch):
    from maxsep.cli import compare

    clock = iter([0.0, 3600.0])
    monkeypatch.setattr(compare.time, "monotonic", lambda: next(clock, 3600.0))
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    told = json.loads(call("compare", *SHORT, "--radius", 1, "--seeds", 1, *places, "--budget", "59m", "--json"))
    assert len(told["missing"]) == 2


def test_a_run_that_fails_is_named_and_the_others_are_told(invoke, tmp_path, monkeypatch):
    from maxsep.lab import engine

    def train(spec, **settings):
        if spec.head == "maxsep":
            raise ArithmeticError("the loss is not finite")
        return real(spec, **settings)

    real = engine.train
    monkeypatch.setattr("maxsep.lab.engine.train", train)
    arguments = ["--seeds", 1, "--radius", 1, "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    found = invoke("compare", *SHORT, *arguments)
    assert found.exit_code == 1
    assert re.search(r"failed: digits-mlp-maxsep-s0-\w+: ArithmeticError: the loss is not finite", found.stderr)
    assert "1 of 2 runs are missing" in found.stdout
    assert (tmp_path / "out" / "report.html").is_file()


def fill(folder, count, shades=(40, 200)):
    for name, shade in zip(("dark", "light"), shades, strict=True):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (shade + i,) * 3).save(folder / name / f"{i}.png")


@pytest.fixture
def compare_folder(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def ask(folder, *more):
        places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
        return call("compare", folder, "--network", "mlp", "--size", 8, "--seeds", 1, *SHORT, *places, *more)

    return ask


def test_pictures_without_a_test_split(compare_folder, tmp_path):
    fill(tmp_path / "pictures", 10)
    told = compare_folder(tmp_path / "pictures")
    assert "16 training images of 2 classes, 4 test images (a fifth of every class, set aside by a fixed seed)" in told
    assert (tmp_path / "out" / "report.html").is_file()
    assert "batches of 16" in told
    assert "batches of 5," in compare_folder(tmp_path / "pictures", "--batch-size", 5)


def test_pictures_with_a_test_split(compare_folder, tmp_path):
    fill(tmp_path / "pictures" / "train", 6)
    fill(tmp_path / "pictures" / "val", 3)
    told = compare_folder(tmp_path / "pictures")
    assert f"12 training images of 2 classes, 6 test images (those of {tmp_path / 'pictures' / 'val'})" in told


@pytest.mark.parametrize("more", [[], ["--radius", "0.5"]], ids=["nothing to train", "two runs to train"])
def test_pictures_that_changed_are_not_compared_with_what_they_were(compare_folder, refuse, tmp_path, more):
    fill(tmp_path / "pictures", 10)
    compare_folder("pictures")
    (tmp_path / "pictures" / "dark" / "0.png").unlink()
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    told = refuse("compare", "pictures", "--network", "mlp", "--size", 8, "--seeds", 1, *SHORT, *places, *more)
    assert (
        "the images of folder:pictures?size=8 have changed since some of these runs were trained (16 training" in told
    )
    assert told.endswith("Name another folder with --runs to compare anew.\n")


@pytest.mark.parametrize("more", [[], ["--radius", "0.5"]], ids=["nothing to train", "two runs to train"])
@pytest.mark.parametrize("change", ["another name", "another size"])
def test_pictures_replaced_one_for_one_are_noticed(compare_folder, refuse, tmp_path, change, more):
    fill(tmp_path / "pictures", 10)
    first = compare_folder("pictures")
    (tmp_path / "pictures" / "readme.txt").write_text("no picture")
    assert compare_folder("pictures") == first[first.index("folder:pictures?size=8: 16") - 1 :], "nothing has changed"
    old = tmp_path / "pictures" / "dark" / "0.png"
    if change == "another name":
        old.rename(old.with_name("10.png"))
    else:
        Image.new("RGB", (64, 64), (7, 90, 11)).save(old)
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    told = refuse("compare", "pictures", "--network", "mlp", "--size", 8, "--seeds", 1, *SHORT, *places, *more)
    assert told == (
        "maxsep: the images of folder:pictures?size=8 have changed since some of these runs were trained (as many, but "
        "files of other names or sizes). Name another folder with --runs to compare anew.\n"
    )


def test_runs_that_say_nothing_of_their_files_are_compared_by_counts(compare_folder, tmp_path):
    fill(tmp_path / "pictures", 10)
    first = compare_folder("pictures")
    for path in (tmp_path / "runs").glob("*/result.json"):
        record = json.loads(path.read_text())
        assert len(record["metrics"].pop("files")) == 12
        path.write_text(json.dumps(record))
    assert compare_folder("pictures") == first[first.index("folder:pictures?size=8: 16") - 1 :]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "'nowhere' is neither a known dataset (digits, cifar10, cifar100, svhn, imagenet, "),
        (["--size", 16], "size of the images of digits must be 8"),
        (["--radius", "1,big"], "--radius must be numbers with commas, such as 1,0.1, got '1,big'"),
        (["--radius", "0"], "radius must be a positive finite number, got 0.0"),
        (["--loss", "hinge"], "unknown loss 'hinge' for a comparison. Known: cross_entropy"),
        (["--loss", "ldam", "--radius", "0.1"], "its heads have radius 1, got radius 0.1. Leave --radius out"),
        (
            ["--loss", "ldam", "--loss-option", "tau=1"],
            "loss 'ldam' does not take the options ['tau']. Known: max_marg",
        ),
        (["--loss", "ldam", "--loss-option", "reweight_from=30"], "reweight_from=30 re-weighs none of 30 epochs"),
        (["--loss", "cross_entropy,ldam", "--loss-option", "scale=-1"], "scale must be"),
        (
            ["--loss", "logit_adjusted", "--loss-option", "tau=2"],
            "ldam alone takes options, got tau with logit_adjusted",
        ),
        (["--loss-option", "reweight_from=2"], "does not take the options ['reweight_from']"),
        (
            ["--loss", "logit_adjusted,balanced_softmax"],
            "balanced_softmax and logit_adjusted (tau 1) are the same function, got both: train one of them",
        ),
        (["--loss", "cross_entropy,"], "--loss must name values with commas between them"),
        (["--network", "nope"], "unknown network 'nope'"),
        (["--network", "convnet"], "convnet needs images of at least 16 x 16 pixels, got 8 x 8"),
        (["--augmentation", "nope"], "unknown augmentation 'nope'"),
        (["--optimiser", "adam"], "unknown optimiser 'adam'"),
        (["--learning-rate", -1], "the learning rate must be a positive finite number, got -1"),
        (["--imbalance", 2], "imbalance must be a number in (0, 1]"),
        (["--budget", "0s"], "0s"),
        (["--budget", "soon"], "soon"),
        (["--device", "tpu"], "unknown device 'tpu'. Known: auto, cpu, cuda"),
        (["cifar10", "--data", "nowhere"], "cifar10 is not in nowhere"),
    ],
)
def test_bad_input_is_one_clear_line(refuse_in_one_line, arguments, told):
    assert told in refuse_in_one_line("compare", *arguments)


def test_a_folder_that_cannot_be_used_is_one_clear_line(refuse, tmp_path):
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    told = refuse("compare", "pictures")
    assert told == "maxsep: pictures needs at least two class folders with images in them, found only cat/.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


def test_the_example_of_the_help_runs(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = re.search(r"Examples: maxsep (.*?);", EPILOG)[1]
    assert "On this data" in call(*example.split())
    assert (tmp_path / "comparison" / "report.html").is_file()
    fill(tmp_path / "my" / "pictures", 4)
    second, third = re.search(r"; maxsep (.*); maxsep (.*)\.$", EPILOG).groups()
    assert "12 of 12 runs to train" in call(*second.split(), "--dry-run")
    assert "24 of 24 runs to train" in call(*third.split(), "--dry-run")


def test_it_is_a_verb():
    assert "compare" in {command.name for command in app.registered_commands}
