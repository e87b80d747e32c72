"""Memory of training on many photographs: images of 224 pixels stay on the disk."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

TRAIN = """
import json, re, sys, threading, time
from pathlib import Path
from maxsep.lab.engine import train
from maxsep.lab.spec import Execution, RunSpec

peak, running = [0], True
def watch():  # memory that is not backed by a file, in kB
    while running:
        peak[0] = max(peak[0], int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
        time.sleep(0.01)
thread = threading.Thread(target=watch)
thread.start()
spec = RunSpec(dataset=f"folder:{sys.argv[1]}?size=224", network="mlp", epochs=1, batch_size=64, optimiser="sgd",
               learning_rate=1e-4, validation=0.2, calibration=0.1)
folder = train(spec, runs=sys.argv[2], execution=Execution(device="cpu"), progress=False)
running = False
thread.join()
print(json.dumps({"kb": peak[0], "images": json.loads((folder / "result.json").read_text())["metrics"]["num_train"]}))
"""


def write_photographs(folder, count):
    for i in range(count):
        (folder / str(i % 2)).mkdir(parents=True, exist_ok=True)
        small = Image.effect_noise((14, 14), 40 + i % 60).convert("RGB")
        small.putpixel((i % 14, i // 14 % 14), (i % 256, i // 256, 0))
        small.resize((224, 224)).save(folder / str(i % 2) / f"{i}.jpg", quality=60)


@pytest.mark.nightly
def test_a_hundred_thousand_photographs_fit_into_eight_gigabytes(tmp_path):
    """Measured at two sizes: what an image adds, times 100,000, and what all runs need."""
    peaks, cache = {}, {"MAXSEP_CACHE": str(tmp_path / "cache")}
    for count in (2500, 7500):
        write_photographs(tmp_path / str(count), count)
        command = [sys.executable, "-c", TRAIN, tmp_path / str(count), tmp_path / "runs"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | cache, check=False)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["images"] > 0.55 * count, "held-out images are those of a fifth and a tenth"
        peaks[count] = answer["kb"] / 1e6
    each = max(0.0, peaks[7500] - peaks[2500]) / 5000
    print(
        f"{peaks} GB without files; an image adds {1e6 * each:.1f} kB, 100,000 need {peaks[2500] + 1e5 * each:.1f} GB"
    )
    assert peaks[2500] + 100_000 * each < 8
    assert each < 224 * 224 * 3 / 1e9 / 3, "less than a third of an image in memory"
