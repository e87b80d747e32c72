"""Picture files of strangers: bombs, strips, odd formats and names; a hundred thousand of them."""

import json
import os
import re
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
from class_folders import write_classes
from PIL import Image, UnidentifiedImageError

from maxsep.lab.data.decoding import decode
from maxsep.packages import printable

NAMES = [
    *("a\nb.png", "\x1b[31mred\x1b[0m.png", "\u202egnp.exe.png", os.fsdecode(b"\xff\xfe.png"), "-rf.png", "$(id).png")
]


def png(path, size=(8, 8), mode="RGB", **options):
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels), np.uint8)
    Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels).save(path, **options)


@pytest.mark.parametrize("size", [(30_000, 1), (1, 30_000)])
def test_a_strip_needs_no_more_memory_than_its_centre(tmp_path, size):
    """Enlarged as a whole it would have 1.5 billion pixels."""
    png(tmp_path / "strip.png", size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    array, errors = decode([tmp_path / "strip.png"], (3, 224, 224))
    assert not errors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    whole = np.asarray(Image.open(tmp_path / "strip.png"))
    centre = whole[:, 14_999:15_001] if size[0] > 1 else whole[14_999:15_001]
    assert abs(array.mean() - centre.mean()) < 40


def test_frames_bits_and_bombs(tmp_path, monkeypatch):
    frames = [Image.new("RGB", (8, 8), (level, 0, 0)) for level in (200, 0)]
    for name in ("gif", "webp", "png"):
        frames[0].save(tmp_path / f"moves.{name}", save_all=True, append_images=frames[1:], duration=10)
    deep = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    png(tmp_path / "large.png", (200, 200))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert (decode([tmp_path / "deep.png"], (3, 16, 16))[0] == deep // 256).all()
    names = ["moves.gif", "moves.webp", "moves.png", "large.png"]
    array, errors = decode([tmp_path / name for name in names], (3, 8, 8))
    assert sorted(errors) == [3]
    assert "DecompressionBomb" in str(errors[3])
    assert (abs(array[:3, 0].astype(int) - 200) < 10).all(), "the first frame of an animation"


def test_what_is_no_picture_is_not_opened(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png", "EPS")  # Ghostscript would run it
    (tmp_path / "1.png").symlink_to("/dev/null")
    (tmp_path / "2.png").touch()
    os.truncate(tmp_path / "2.png", 3 << 30)
    _, errors = decode([tmp_path / f"{i}.png" for i in range(3)], (3, 8, 8))
    assert [type(errors[i].__cause__) for i in range(3)] == [UnidentifiedImageError, OSError, OSError]


def test_names_are_never_printed_raw(invoke, run, tmp_path):
    folder = tmp_path / "pic\x1b]0;title\x07tures"
    folder.mkdir()
    for name in NAMES:
        png(folder / name, mode="L")
        (folder / f"broken {name}").write_bytes(b"no picture")
    (folder / "note\x1b[2J.doc").write_bytes(b"")
    answer = invoke("predict", run["run"], folder)
    assert answer.exit_code == 0
    lines = answer.output.splitlines()
    assert len([line for line in lines if line.startswith("maxsep: ")]) == len(NAMES) + 1, "one line for a broken file"
    assert len(lines) == 3 + 2 * len(NAMES)
    assert all(line.isprintable() for line in lines)
    found = json.loads(invoke("predict", run["run"], folder, "--json").stdout)
    assert {row["path"] for row in found["predictions"]} == {str(folder / name) for name in NAMES}
    assert (len(found["unreadable"]), len(found["skipped"])) == (len(NAMES), 1)
    write_classes(tmp_path, other=2)
    problems, lines = invoke("train", "--dataset", tmp_path).exception, invoke("evaluate", run["run"], "--ood", folder)
    assert str(problems).count("\n") == len(problems.problems)
    assert all(line.isprintable() for line in (*str(problems).split("\n"), *lines.output.splitlines()))


def test_names_of_data_and_classes_are_never_printed_raw(call, tmp_path):
    for shift, label in enumerate(("es\x1b[32mc", "new\nli|ne")):
        folder = tmp_path / "pic\x1b[31m|tures" / label
        folder.mkdir(parents=True)
        for number in range(10):
            png(folder / f"{number}\x1b[33m.png", (8, 8 + 10 * shift + number))
    options = ["--network", "mlp", "--seeds", 1, "--radius", 1, "--epochs", 1, "--learning-rate", 0.01]
    options += ["--device", "cpu", "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    printed = call("compare", f"{folder.parent}?size=8", *options)
    pages = {path.name: path.read_text() for path in (tmp_path / "out").rglob("*.*") if path.suffix != ".csv"}
    assert len(pages) > 5
    assert not [name for name, text in pages.items() if "\x1b" in text + printed]
    assert re.search(r"\n\| new.*\|\n", pages["report.md"])


def test_errors_and_warnings_are_never_printed_raw(refuse, tmp_path):
    assert refuse("predict", tmp_path / "\x1b[31mred\nblue", "x").rstrip("\n").isprintable()
    assert printable("é ü 中") == "é ü 中"


@pytest.mark.nightly
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["lines", "json"])
def test_memory_is_flat_over_a_hundred_thousand_files(run, tmp_path, options):
    png(tmp_path / "one.png", mode="L")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "all").mkdir()
    peaks, seconds, done = [], [], 0
    for count in (1_000, 100_000):
        while done < count:
            source = tmp_path / ("broken.png" if done % 1000 == 999 else "one.png")
            if done % 10_000 == 0:  # a file has a limited number of names
                links = tmp_path / f"{done}{source.name}"
                links.write_bytes(source.read_bytes())
            os.link(source if "broken" in source.name else links, tmp_path / "all" / f"{done}.png")
            done += 1
        code = (
            "import resource, sys\nfrom maxsep.cli import main\n"
            f"sys.argv = ['maxsep', 'predict', {run['run']!r}, {str(tmp_path / 'all')!r}, *{list(options)}]\n"
            "try:\n    main()\nfinally:\n"
            "    print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        began = time.monotonic()
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        seconds.append(time.monotonic() - began)
        assert ended.returncode == 2, ended.stderr[-1000:]
        errors = ended.stderr.splitlines()
        assert sum(line.startswith("maxsep: ") for line in errors) == count // 1000
        assert len(json.loads(ended.stdout)["predictions"] if options else ended.stdout.splitlines()) == 0.999 * count
        peaks.append(int(errors[-1].split()[1]))
    assert peaks[1] - peaks[0] < 100_000, "kibibytes for the names of 99,000 files"
    rate = 99_000 / (seconds[1] - seconds[0])
    print(f"{rate:,.0f} files per second, {(peaks[1] - peaks[0]) / 1024:.0f} MiB more")
    assert rate > 100
