"""A model that says "unknown": train, predict and export as a user calls them, on real digits."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from maxsep.cli.app import app
from maxsep.lab.data import Dataset

runner = CliRunner()


def call(*arguments, status=0):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def trained(runs, *options):
    told = call("train", "--epochs", 10, "--batch-size", 64, "--device", "cpu", "--runs", runs, "--json", *options)
    return json.loads(told.stdout)["run"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"), "--calibration", 0.2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """All test digits, and as many pictures of nothing."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "digits").mkdir()
    (folder / "noise").mkdir()
    test = Dataset.parse("digits").read().test
    noise = np.random.default_rng(0).integers(0, 256, (len(test), 8, 8)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(test.images, test.labels.tolist(), strict=True)):
        Image.fromarray(image[0].numpy()).save(folder / "digits" / f"{number:03d}_{label}.png")
        Image.fromarray(noise[number]).save(folder / "noise" / f"{number:03d}.png")
    return folder


def shares(run, folder, *options):
    """The share that is unknown, and the share that is right."""
    found = json.loads(call("predict", run, folder, "--json", *options).stdout)["predictions"]
    right = [answer["class"] == answer["path"].rsplit("_", 1)[-1].removesuffix(".png") for answer in found]
    return sum(answer["unknown"] for answer in found) / len(found), sum(right) / len(found)


@pytest.mark.parametrize("score", ["max_logit", "max_softmax", "energy"])
def test_about_one_known_image_in_twenty_is_unknown_and_noise_far_more_often(run, place, score):
    known, right = shares(run, place / "digits", "--score", score)
    assert right == pytest.approx(json.loads(call("evaluate", run, "--json").stdout)["top1"], abs=0.004)
    assert 0.02 < known < 0.09, "5 %, but for what 239 and 599 images can tell"
    unknown, _ = shares(run, place / "noise", "--score", score)
    assert unknown > max(0.3, 4 * known)


def test_a_line_names_path_class_probability_and_score(run, place):
    threshold = json.loads(call("predict", run, place / "noise", "--json").stdout)["threshold"]
    result = call("predict", run, place / "digits", place / "noise" / "00*.png")
    assert result.stderr == (
        f"unknown: max_logit below {threshold:.4f}, which 95% of 239 held-out training images reach\n"
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 609
    unknown = 0
    for line in lines:
        path, label, probability, score, *flag = line.split()
        assert path.startswith(str(place))
        assert label in "0123456789"
        assert 10 <= float(probability.rstrip("%")) <= 100
        if abs(float(score) - threshold) > 1e-4:
            assert flag == (["unknown"] if float(score) < threshold else [])
        unknown += flag == ["unknown"]
    assert unknown > 10


def test_train_tells_the_threshold(tmp_path):
    arguments = ["train", "--epochs", 1, "--device", "cpu", "--runs", tmp_path, "--calibration", 0.1]
    told = call(*arguments).stdout
    unknown = json.loads(call(*arguments, "--json").stdout)["unknown"]
    assert unknown["images"] == 120
    limit = unknown["thresholds"]["max_logit"]
    assert told.endswith(f"unknown: max_logit below {limit:.4f}, set on 120 held-out images\n")


def test_the_threshold_can_be_given(run, place):
    digits = sorted((place / "digits").iterdir())[:20]
    everything = call("predict", run, *digits, "--threshold", 1e6)
    assert everything.stderr == "unknown: max_logit below 1e+06, as given\n"
    assert everything.stdout.count("unknown") == 20
    assert call("predict", run, *digits, "--threshold", -1e6).stdout.count("unknown") == 0
    found = json.loads(call("predict", run, *digits, "--threshold", 0.999, "--score", "max_softmax", "--json").stdout)
    assert (found["score"], found["threshold"]) == ("max_softmax", 0.999)
    assert all(answer["unknown"] == (answer["probability"] < 0.999) for answer in found["predictions"])


def test_top_names_more_classes(run, place):
    path = place / "digits" / "000_3.png"
    lines = call("predict", run, path, "--top", 5).stdout.splitlines()
    (answer,) = json.loads(call("predict", run, path, "--top", 5, "--json").stdout)["predictions"]
    assert [line.split()[-2 if index else -3] for index, line in enumerate(lines)] == [
        item["class"] for item in answer["top"]
    ]
    assert len(lines) == 5
    assert answer["top"][0] == {"class": answer["class"], "probability": answer["probability"]}


def test_a_run_without_calibration_data_calls_nothing_unknown(tmp_path, place):
    run = trained(tmp_path, "--epochs", 1)
    path = place / "noise" / "000.png"
    result = call("predict", run, path)
    assert result.stderr == (
        f"{run} has no threshold, because no data was held out for one: nothing is called unknown. "
        "--threshold gives one; maxsep train --calibration 0.1 sets one.\n"
    )
    assert "unknown" not in result.stdout
    found = json.loads(call("predict", run, path, "--json").stdout)
    assert found["threshold"] is None
    assert found["predictions"][0]["unknown"] is None
    assert call("predict", run, path, "--threshold", 1e6).stdout.rstrip().endswith("unknown")


def same_lines(one, other, *, last_digit):
    """Whether two outputs agree; another runtime adds in another order, which may round the last digit otherwise."""
    if not last_digit:
        return one == other
    words = [[line.split() for line in text.splitlines()] for text in (one, other)]
    assert [len(line) for line in words[0]] == [len(line) for line in words[1]]
    pairs = [pair for lines in zip(*words, strict=True) for pair in zip(*lines, strict=True) if pair[0] != pair[1]]
    assert len(pairs) < 0.01 * sum(map(len, words[0]))
    close = {True: 0.0101, False: 0.000101}  # percent have two digits, scores four
    return all(abs(float(a.rstrip("%")) - float(b.rstrip("%"))) < close[a.endswith("%")] for a, b in pairs)


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_an_export_prints_the_same_lines(run, place, tmp_path, format):
    assert call("export", run, "--out", tmp_path / "model", "--format", format).stdout == f"{tmp_path / 'model'}\n"
    arguments = [place / "digits" / "0*.png", place / "noise" / "0*.png", "--top", 2]
    ours, theirs = call("predict", run, *arguments), call("predict", tmp_path / "model", *arguments)
    assert same_lines(theirs.stdout, ours.stdout, last_digit=format == "onnx")
    assert theirs.stderr == ours.stderr
    assert ours.stdout.count("unknown") > 30
    given = call("predict", tmp_path / "model", place / "digits", "--threshold", 1e6)
    assert given.stdout.count("unknown") == 599


def test_unreadable_images_are_named_at_the_end_and_the_others_predicted(run, place, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    good = place / "digits" / "000_3.png"
    asked = [str(item) for item in (tmp_path / "broken.png", good, "gone.png", tmp_path / "*.gif")]
    program = [sys.executable, "-m", "maxsep", "predict", run, *asked, "--device", "cpu"]
    found = subprocess.run(program, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    (line,) = found.stdout.splitlines()
    assert line.startswith(str(good))
    told = found.stderr.splitlines()[1:]
    assert told[0] == "maxsep: gone.png does not exist."
    assert told[1] == f"maxsep: {tmp_path / '*.gif'} matches no file."
    assert told[2].startswith(f"maxsep: {tmp_path / 'broken.png'} cannot be read as an image")
    answer = json.loads(call("predict", run, *asked, "--json", status=2).stdout)
    assert [item["path"] for item in answer["predictions"]] == [str(good)]
    assert [item["path"] for item in answer["unreadable"]] == ["gone.png", asked[3], asked[0]]


def test_files_of_folders_that_are_no_images_are_counted(run, place, tmp_path):
    good = Image.open(place / "digits" / "000_3.png")
    (tmp_path / "deep").mkdir()
    good.save(tmp_path / "deep" / "a.png")
    good.save(tmp_path / "b", format="png")
    plain = call("predict", run, tmp_path / "deep").stderr
    told = call("predict", run, tmp_path)
    rest = "skipped: no suffix of an image. A file that is named itself is read whatever its suffix."
    assert told.stderr == f"{plain}1 file, {tmp_path / 'b'}, was {rest}\n"
    assert len(told.stdout.splitlines()) == 1
    (tmp_path / "deep" / "notes.txt").write_text("about")
    (tmp_path / ".hidden").write_text("x")
    told = call("predict", run, tmp_path)
    assert told.stderr == f"{plain}2 files, {tmp_path / 'b'} the first, were {rest}\n"
    answer = json.loads(call("predict", run, tmp_path, "--json").stdout)
    assert answer["skipped"] == [str(tmp_path / "b"), str(tmp_path / "deep" / "notes.txt")]
    assert len(answer["predictions"]) == 1


def test_a_file_that_is_named_itself_is_read_whatever_its_name_or_is_an_error(run, place, tmp_path):
    Image.open(place / "digits" / "000_3.png").save(tmp_path / "b", format="png")
    (tmp_path / "notes.txt").write_text("about")
    told = call("predict", run, tmp_path / "b", tmp_path / "notes.txt", status=2)
    assert "skipped" not in told.stderr
    assert told.stdout.startswith(str(tmp_path / "b"))
    assert f"maxsep: {tmp_path / 'notes.txt'} cannot be read as an image (UnidentifiedImageError" in told.stderr


def test_bad_input_is_one_clear_line(refuse_in_one_line):
    assert "nowhere is neither a finished run" in refuse_in_one_line("predict", "nowhere", "a.png")
