"""ImageNet end to end, measured on Imagenette: decoding JPEG, and training ResNet-50 from decoded or synthetic images.

`--data` holds imagenet/{train,val}/CLASS. As in production every picture is decoded once into an array, which training
maps into memory; no JPEG is read after that. Parts:

    decode    pictures that are decoded, hashed and written: for each second, and for each second of processor time
    train     images/s of ResNet-50 at 224 pixels with 1,000 classes, with the settings of the table on ImageNet, for
              the plain head and maxsep, from mapped images on the host and from random images in the device's memory

`--images` pictures are repeated in the loader until an epoch has `--steps` batches; the rate is that of the median of
three epochs, the first of which compiles. On a machine without a GPU a few steps show that all parts work:

    python benchmarks/imagenet.py --data DIR --parts decode
    python benchmarks/imagenet.py --data DIR --device cpu --images 64 --steps 2 --batch-size 8 --out tiny.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from maxsep.lab import recipes
from maxsep.lab.data import ImageSet, Splits
from maxsep.lab.data.folder import read_imagenet
from maxsep.lab.engine import train
from maxsep.lab.environment import commit, default_precision, hardware, pick_device, versions
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

SIZE, CLASSES, EPOCHS = 224, 1000, 3
HEADS = ("plain", "maxsep")
WITHIN = 0.01
"""Largest part of the speed that the head may cost."""


def decode(data: Path) -> tuple[Splits, dict]:
    """Decode all pictures as production does, and time it; one process, with a thread for every core."""
    folder = data / "decoded" / f"benchmark-{SIZE}"
    shutil.rmtree(folder, ignore_errors=True)
    clocks = time.perf_counter, time.process_time
    began = [clock() for clock in clocks]
    splits = read_imagenet("imagenet", "imagenet", folder, SIZE)
    wall, processor = (clock() - start for clock, start in zip(clocks, began, strict=True))
    count = len(splits.train) + len(splits.test)
    size = sum(path.stat().st_size for path in (data / "imagenet").rglob("*.*"))
    record = {"pictures": count, "bytes_per_picture": size / count, "side": SIZE}
    record |= {"seconds": wall, "processor_seconds": processor, "cores": os.cpu_count()}
    record |= {"images_per_second": count / wall, "images_per_core_second": count / processor}
    print(f"decoding: {count / wall:,.0f} images/s, {count / processor:,.0f} for each core", flush=True)
    return splits, record


def repeated(images: ImageSet, count: int, total: int) -> ImageSet:
    """Take the first images again and again, as if there were a thousand classes."""
    rows = torch.arange(total) % min(count, len(images))
    return replace(images, classes=tuple(map(str, range(CLASSES)))).subset(rows)


def random_images(count: int) -> ImageSet:
    """Draw images and labels; the pixels of real pictures take a network no other time."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % CLASSES, tuple(map(str, range(CLASSES))))


def speed(spec: RunSpec, splits: Splits, device: str, on_host: bool) -> float:
    """Train as `maxsep train` does, with these images, which stay on the host if they are too many for the device."""
    engine, trainer = (importlib.import_module(f"maxsep.lab.engine.{name}") for name in ("train", "trainer"))
    fits = (lambda *_: False) if on_host else trainer.fits
    with (
        tempfile.TemporaryDirectory() as runs,
        mock.patch.object(engine, "prepare", return_value=splits),
        mock.patch.object(trainer, "fits", fits),
    ):
        folder = train(spec, runs=runs, execution=Execution(device=device), progress=False)
        return Run(folder).result["images_per_second"]


def measure(splits: Splits, arguments: argparse.Namespace) -> dict:
    """Train with both heads and both kinds of images."""
    total, found = arguments.steps * arguments.batch_size, {}
    kinds = {"synthetic": random_images(min(arguments.images, total)), "decoded": splits.train}
    specs = {s.head: s for s in recipes.get("imagenet").specs(1) if (s.network, s.dataset) == ("resnet50", "imagenet")}
    for kind, images in kinds.items():
        test = repeated(images, arguments.images, arguments.batch_size)
        data = Splits("imagenet", repeated(images, arguments.images, total), test)
        for head in HEADS:
            spec = specs[head].replace(
                epochs=EPOCHS, batch_size=arguments.batch_size, precision=default_precision(arguments.device)
            )
            found[f"{kind}, {head}"] = rate = speed(spec, data, arguments.device, on_host=kind == "decoded")
            print(f"{kind} images, {head} head: {rate:,.1f} images/s", flush=True)
    ratios = {f"maxsep over plain, {kind}": found[f"{kind}, maxsep"] / found[f"{kind}, plain"] for kind in kinds}
    ratios |= {f"decoded over synthetic, {h}": found[f"decoded, {h}"] / found[f"synthetic, {h}"] for h in HEADS}
    return {"images_per_second": found, "ratios": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--parts", nargs="+", choices=("decode", "train"), default=["decode", "train"])
    parser.add_argument("--images", type=int, default=3000, help="pictures that the loader repeats")
    parser.add_argument("--steps", type=int, default=200, help="batches of each of three epochs")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("results/imagenet_loader.json"))
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    words = ["DIR" if word == str(arguments.data) else word for word in sys.argv]
    about = {"command": shlex.join(["python", *words]), "date": time.strftime("%Y-%m-%d")}
    about |= {"commit": commit(Path(__file__).parent), "versions": versions(), "hardware": hardware(device)}
    splits, decoding = decode(arguments.data)
    record, missed = {"about": about, "decode": decoding}, False
    if "train" in arguments.parts:
        settings = {"images": arguments.images, "steps": arguments.steps, "batch_size": arguments.batch_size}
        record["train"] = settings | measure(splits, arguments)
        missed = any(abs(r - 1) > WITHIN for name, r in record["train"]["ratios"].items() if "maxsep" in name)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
