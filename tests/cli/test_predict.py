"""`maxsep predict` and `maxsep export` as a user calls them, on real digits."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from maxsep.lab.data import Dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All test digits, named by their class, and as many pictures of noise."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "digits").mkdir()
    (folder / "noise").mkdir()
    test = Dataset.parse("digits").read().test
    noise = np.random.default_rng(0).integers(0, 256, (len(test), 8, 8)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(test.images, test.labels.tolist(), strict=True)):
        Image.fromarray(image[0].numpy()).save(folder / "digits" / f"{number:03d}_{label}.png")
        Image.fromarray(noise[number]).save(folder / "noise" / f"{number:03d}.png")
    return folder


@pytest.mark.parametrize("score", ["max_logit", "max_softmax", "energy"])
def test_about_one_known_image_in_twenty_is_unknown_and_noise_more_often(call, calibrated, folder, score):
    unknown = {}
    for name in ("digits", "noise"):
        answer = json.loads(call("predict", calibrated["run"], folder / name, "--score", score, "--json"))
        rows = answer["predictions"]
        unknown[name] = sum(row["unknown"] for row in rows) / len(rows)
        assert all(row["unknown"] == (row["score"] < answer["threshold"]) for row in rows)
        if name == "digits":
            right = sum(row["class"] == row["path"][-5] for row in rows) / len(rows)
            assert right == pytest.approx(calibrated["metrics"]["top1"], abs=0.004)
    assert 0.02 < unknown["digits"] < 0.09
    assert unknown["noise"] > max(0.3, 4 * unknown["digits"])


def test_a_line_holds_path_class_probability_and_score(invoke, calibrated, folder):
    files = [folder / "digits" / "000_3.png", folder / "noise" / "000.png"]
    rows = json.loads(invoke("predict", calibrated["run"], *files, "--json").stdout)["predictions"]
    lines = invoke("predict", calibrated["run"], *files).stdout.splitlines()
    for line, row in zip(lines, rows, strict=True):
        flag = ["unknown"] if row["unknown"] else []
        assert line.split() == [row["path"], row["class"], f"{row['probability']:.2%}", f"{row['score']:.4f}", *flag]
    assert len(invoke("predict", calibrated["run"], files[0], "--top", 5).stdout.splitlines()) == 5


def test_the_threshold_is_an_option(invoke, calibrated, run, folder):
    file = folder / "digits" / "000_3.png"
    for model in (calibrated["run"], run["run"]):
        assert invoke("predict", model, file, "--threshold", 1e6).stdout.rstrip().endswith("unknown")
        assert "unknown" not in invoke("predict", model, file, "--threshold", -1e6).stdout
    answer = json.loads(invoke("predict", run["run"], file, "--json").stdout)
    assert (answer["threshold"], answer["predictions"][0]["unknown"]) == (None, None)


def test_unreadable_images_are_named_at_the_end_and_the_exit_code_is_2_if_all_are(invoke, calibrated, folder, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "notes.txt").write_text("a file that is named is read whatever its suffix")
    good = folder / "digits" / "000_3.png"
    bad = [str(item) for item in (tmp_path / "broken.png", "gone.png", tmp_path / "*.gif", tmp_path / "notes.txt")]
    program = [sys.executable, "-m", "maxsep", "predict", calibrated["run"], good, *bad, "--device", "cpu"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith(str(good))
    assert all(done.stderr.count(path) == 1 for path in bad)
    assert "4 of 5" in done.stderr
    result = invoke("predict", calibrated["run"], good, *bad, "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [item["path"] for item in answer["predictions"]] == [str(good)]
    assert sorted(item["path"] for item in answer["unreadable"]) == sorted(bad)
    assert invoke("predict", calibrated["run"], *bad).exit_code == 2
