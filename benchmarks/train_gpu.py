"""Training speed of one run: `maxsep.lab.engine.train(spec)` from Python against `maxsep train` on the command line.

Both train the paper's ResNet with the defaults of the device: on a GPU compiled, channels last, in a CUDA graph and in
bfloat16. The images are random bytes in the official format of CIFAR-10. `images_per_second` is that of the median
epoch, as the run records it, so compilation in the first epoch does not count; `epochs` has every epoch.

    python benchmarks/train_gpu.py
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from maxsep.lab.engine import train
from maxsep.lab.environment import commit, default_precision
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

MOST_LOST = 0.05
"""Largest difference of the two speeds, as a part of the command line's."""


def write_cifar10(root, train_images, test_images):
    """Write random images as the official files of CIFAR-10; every class has equally many."""
    folder, random = root / "cifar-10-batches-py", np.random.default_rng(0)
    folder.mkdir(parents=True)
    batches = {f"data_batch_{number}": train_images // 5 for number in range(1, 6)} | {"test_batch": test_images}
    for name, images in batches.items():
        data = random.integers(256, size=(images, 3072), dtype=np.uint8)
        labels = [label % 10 for label in range(images)]
        (folder / name).write_bytes(pickle.dumps({"data": data, "labels": labels}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))


def from_command_line(spec, data, runs):
    """Train with `maxsep train` in a process of its own; return its run."""
    fields = {name: getattr(spec, name) for name in ("dataset", "network", "radius", "augmentation", "epochs", "seed")}
    options = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "maxsep", "train", *options, "--batch-size", str(spec.batch_size)]
    command += ["--data", str(data), "--runs", str(runs)]
    subprocess.run(command, check=True)
    return Run(runs / spec.name)  # the folder is there only if both ways mean the same spec


def from_python(spec, data, runs):
    """Train with `engine.train` in this process; return its run."""
    return Run(train(spec, data_root=data, runs=runs))


def measure(way, spec, data, runs):
    """Train by one way; return its speed and what it was computed with."""
    start = time.perf_counter()
    run = way(spec, data, runs)
    wall, result = time.perf_counter() - start, run.result
    epochs = [run.metrics["num_train"] / row["seconds"] for row in run.history]
    record = {"images_per_second": result["images_per_second"], "epochs": epochs, "wall_seconds": wall}
    print(f"{way.__name__}: {record['images_per_second']:,.0f} images/s, {wall:.0f} s in all", flush=True)
    return record | {name: result[name] for name in ("execution", "versions", "hardware")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet34")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--images", type=int, default=50_000, help="a multiple of 50")
    parser.add_argument("--out", type=Path, default=Path("results/train_gpu.json"))
    arguments = parser.parse_args()
    spec = RunSpec(
        dataset="cifar10", network=arguments.network, radius=0.1, augmentation="crop_flip", epochs=arguments.epochs,
        batch_size=arguments.batch_size, precision=default_precision(),
    )  # fmt: skip
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_cifar10(data, arguments.images, arguments.images // 5)
        for way in (from_command_line, from_python):  # the first one compiles, the second one may reuse its kernels
            results[way.__name__] = measure(way, spec, data, Path(folder) / way.__name__)
    ratio = results["from_python"]["images_per_second"] / results["from_command_line"]["images_per_second"]
    is_met = abs(ratio - 1) <= MOST_LOST
    about = {"command": shlex.join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d")}
    about |= {"commit": commit(Path(__file__).parent), "spec": spec.to_dict(), "cores": os.cpu_count()}
    target = {"name": "Python over the command line", "value": ratio, "within": MOST_LOST, "met": is_met}
    arguments.out.write_text(json.dumps({"about": about, "results": results, "targets": [target]}, indent=1) + "\n")
    print(f"Python over the command line: {ratio:.3f} ({'met' if is_met else 'MISSED'}: within {MOST_LOST:.0%})")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
