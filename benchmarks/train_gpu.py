"""Training speed on one GPU: the paper's ResNet at batch 512, from the plainest loop to a captured, compiled step.

Each row adds one thing to the row before. Images are random bytes of CIFAR's shape
that lie on the device; every step gathers, augments, normalises, runs forward and backward and updates, as in a real
run. Captured forms are measured again while every core of the host is kept busy.

    python benchmarks/train_gpu.py
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from maxsep.lab.data import ImageSet, Splits
from maxsep.lab.engine.train import make_fabric
from maxsep.lab.engine.trainer import Progress, StopRequest, Trainer
from maxsep.lab.environment import commit, hardware, versions
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

TARGET, TOWARD, MOST_LOST = 46_000, 60_000, 0.05
CAPTURED = {"channels_last": True, "compile": True, "cuda_graph": True}
PLAIN = dict.fromkeys(CAPTURED, False)
ROWS = {
    "float32": ("32-true", {}),
    "+ bfloat16": ("bf16-mixed", {}),
    "+ channels last": ("bf16-mixed", {"channels_last": True}),
    "+ torch.compile": ("bf16-mixed", {"channels_last": True, "compile": True}),
    "+ CUDA graph": ("bf16-mixed", CAPTURED),
}
IN_GRAPHS = ("+ CUDA graph",)


def images(number, num_classes):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (number, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(num_classes, (number,), generator=generator)
    return ImageSet(pixels, labels, tuple(map(str, range(num_classes))))


def build(precision, ways, arguments):
    spec = RunSpec(
        dataset="cifar10", network=arguments.network, head=arguments.head, radius=0.1, batch_size=arguments.batch,
        augmentation="crop_flip", normalisation="cifar10", precision=precision,
    )  # fmt: skip
    execution = Execution(**PLAIN | ways)
    train = images(8 * arguments.batch, 10)
    fabric = make_fabric(spec, execution)
    run = Run(Path(tempfile.mkdtemp()) / spec.name)
    return Trainer(
        fabric, spec, execution, Splits("folder:random", train, train), run, Progress(spec, None), StopRequest()
    )


def speed(trainer, arguments):
    """Images per second: median and extremes of several timed stretches, after a warm-up."""
    batch = arguments.batch
    order = torch.randperm(8 * batch, device=trainer.fabric.device).split(batch)
    trainer.pipeline.train()

    def stretch(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for step in range(steps):
            trainer.step.at(0, step, 1e-4)
            trainer.step(order[step % 8])
        torch.cuda.synchronize()
        return steps * batch / (time.perf_counter() - start)

    stretch(8)
    found = sorted(stretch(arguments.steps) for _ in range(arguments.stretches))
    return {"images_per_second": statistics.median(found), "least": found[0], "most": found[-1]}


def burn(stop):
    while not stop.is_set():
        sum(i * i for i in range(20_000))


def busy(trainer, arguments):
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    workers = [context.Process(target=burn, args=(stop,), daemon=True) for _ in range(os.cpu_count() or 1)]
    for worker in workers:
        worker.start()
    time.sleep(5)
    try:
        return speed(trainer, arguments)
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def verdict(idle, loaded):
    print(f"{'with the host busy':>24}: {loaded:>9,.0f} images/s")
    print(f"lost to a busy host: {1 - loaded / idle:.1%} (at most {MOST_LOST:.0%})")
    print(f"target {TARGET:,}, toward {TOWARD:,}: {'met' if idle >= TARGET else 'MISSED'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet34")
    parser.add_argument("--head", default="maxsep")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stretches", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated; names as printed")
    parser.add_argument("--out", type=Path, default=Path("results/train_gpu.json"))
    arguments = parser.parse_args()
    found = {}
    for name in arguments.rows.split(","):
        precision, ways = ROWS[name]
        start = time.perf_counter()
        torch._dynamo.reset()  # else the program of the row before could be taken again
        trainer = build(precision, ways, arguments)
        found[name] = speed(trainer, arguments) | {"seconds_to_warm_up_and_measure": time.perf_counter() - start}
        print(f"{name:>24}: {found[name]['images_per_second']:>9,.0f} images/s", flush=True)
        if name in IN_GRAPHS:
            found[f"{name}, host busy"] = busy(trainer, arguments)
            verdict(found[name]["images_per_second"], found[f"{name}, host busy"]["images_per_second"])
        del trainer
        torch.cuda.empty_cache()
        write(found, arguments)  # a row that is cut off costs no other


def write(found, arguments):
    about: dict[str, object] = {"command": shlex.join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d")}
    about["commit"] = commit(Path(__file__).parent)
    about |= {"versions": versions(), "hardware": hardware(torch.device("cuda"), 1)}
    about |= {"network": arguments.network, "head": arguments.head, "batch": arguments.batch}
    arguments.out.write_text(json.dumps({"about": about, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
