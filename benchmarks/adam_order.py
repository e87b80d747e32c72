"""Does the matrix, or the order of its columns, change anything under AdamW, where the theorem does not hold?

Two studies of an MLP with 128 hidden units and ten classes: long-tailed digits (64 pixels, imbalance 0.02), and ten
random classes of CIFAR-100 (imbalance 0.01) as the frozen features of a network trained on ImageNet. Every seed draws
its images and the order of the classes by frequency anew; on CIFAR-100 it draws the classes, too. All heads of a seed
start from one plain layer, so that they have the same logits, and see the same batches. Heads: `control` (no matrix),
`rare last` and `rare first` (the matrix, with its columns in the order of falling or rising frequency) and `rotated`
(the matrix in randomly rotated coordinates). Under SGD all four are the same by docs/theory.md; those rows check the
program. It explores: question 4 of docs/plan.md is asked of networks trained on CIFAR from scratch.

All seeds train in one batched program: parameters have the seed as first dimension. torch's optimisers work element by
element, so that every seed gets the steps it would get alone.

    python benchmarks/adam_order.py            # about 10 minutes of one core, writes results/adam_order.json
    python benchmarks/adam_order.py --data DIR --weights FILE --seeds 40 --radii 1 --out FILE.json

`DIR` holds CIFAR-100, and `FILE` the weights of tf_efficientnet_lite0 that docs/guide/command_line.md names. The
features are kept in DIR/features.safetensors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from sklearn.datasets import load_digits
from torch.nn import functional as F

from maxsep import simplex
from maxsep.files import sha256_of
from maxsep.lab.data import prepare
from maxsep.lab.engine.evaluate import predict
from maxsep.lab.engine.model import Pipeline, build_model, load_pretrained, statistics_of
from maxsep.lab.environment import commit, hardware, versions
from maxsep.lab.spec import RunSpec

CLASSES, HIDDEN, EPOCHS, RAREST = 10, 128, 30, 3
ARMS = ("control", "rare last", "rare first", "rotated")
ADAMW = {"weight_decay": 5e-4}
SGD = {"momentum": 0.9, "weight_decay": 5e-4}
RATES = {"adamw": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), "sgd": (0.01, 0.1)}
RADII = (0.3, 1.0, 3.0)
NETWORK, SIDE = "timm/tf_efficientnet_lite0", 128


@dataclass
class Study:
    """Training inputs (S, N, D) and labels (N,), test inputs (S, T, D) and labels (S, T), of S seeds.

    Labels are frequency ranks: 0 is the most frequent class of a seed.
    """

    name: str
    inputs: torch.Tensor
    labels: torch.Tensor
    test: torch.Tensor
    test_ranks: torch.Tensor
    counts: list[int]
    batch_size: int
    rates: dict[str, tuple[float, ...]]


def long_tail(most, imbalance):
    """Return how many images every class has, by falling frequency."""
    return [int(most * imbalance ** (rank / (CLASSES - 1))) for rank in range(CLASSES)]


def long_tailed_digits(seeds):
    """Return the study of digits; a third of every class is for testing."""
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float64)
    digits = torch.tensor(data.target)
    generator = torch.Generator().manual_seed(0)
    rows_of_digit = [(digits == digit).nonzero()[:, 0] for digit in range(CLASSES)]
    shuffled = [rows[torch.randperm(len(rows), generator=generator)] for rows in rows_of_digit]
    test = torch.cat([rows[: len(rows) // 3] for rows in shuffled])
    pools = [rows[len(rows) // 3 :] for rows in shuffled]
    mean, std = x[torch.cat(pools)].mean(), x[torch.cat(pools)].std()
    x = (x - mean) / std
    counts = long_tail(min(map(len, pools)), 0.02)
    images, ranks = [], []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(1000 + seed)
        order = torch.randperm(CLASSES, generator=generator)  # order[rank] is a digit
        pools_by_rank = [pools[digit][torch.randperm(len(pools[digit]), generator=generator)] for digit in order]
        images.append(x[torch.cat([pool[:count] for pool, count in zip(pools_by_rank, counts, strict=True)])])
        ranks.append(order.argsort()[digits[test]])
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor(counts))
    test_images = x[test].expand(seeds, -1, -1)
    return Study("scikit-learn digits", torch.stack(images), labels, test_images, torch.stack(ranks), counts, 16, RATES)


def frozen_features(root, weights):
    """Return the features of all images of CIFAR-100 and their labels, standardised; kept in a file."""
    file = root / "features.safetensors"
    if not file.exists():
        spec = RunSpec(dataset="cifar100", network=NETWORK, weights=sha256_of(weights), image_size=SIDE)
        splits = prepare(spec, root)
        network = build_model(spec, splits.train.shape, splits.train.num_classes)
        load_pretrained(spec, network, splits.train.shape, weights)
        pipeline = Pipeline(network, *statistics_of(spec, splits))
        parts = {"train": splits.train, "test": splits.test}
        found = {name: predict(pipeline, part).features for name, part in parts.items()}
        save_file(found | {f"{name}_labels": part.labels for name, part in parts.items()}, file)
    found = load_file(file)
    std, mean = torch.std_mean(found["train"], 0)
    return {name: value if name.endswith("labels") else (value - mean) / std for name, value in found.items()}


def long_tailed_features(seeds, root, weights):
    """Return the study of ten random classes of CIFAR-100, with all of their test images."""
    found = frozen_features(root, weights)
    rows_of_class = {
        part: [(found[f"{part}_labels"] == c).nonzero()[:, 0] for c in range(100)] for part in ("train", "test")
    }
    counts = long_tail(500, 0.01)
    inputs, tests = [], []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(1000 + seed)
        chosen = torch.randperm(100, generator=generator)[:CLASSES]  # by falling frequency
        pools = [rows_of_class["train"][c][torch.randperm(500, generator=generator)] for c in chosen]
        inputs.append(found["train"][torch.cat([pool[:count] for pool, count in zip(pools, counts, strict=True)])])
        tests.append(found["test"][torch.cat([rows_of_class["test"][c] for c in chosen])])
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor(counts))
    ranks = torch.arange(CLASSES).repeat_interleave(100).expand(seeds, -1)
    name = f"ten random classes of CIFAR-100, frozen features of {NETWORK} at {SIDE} pixels"
    rates = {"adamw": RATES["adamw"]}
    return Study(name, torch.stack(inputs), labels, torch.stack(tests), ranks, counts, 64, rates)


def start(seeds, width=64, dtype=torch.float64):
    """Draw the layers of every seed as nn.Linear does; the head is a plain layer, centred over classes."""
    shapes = {"w1": (HIDDEN, width), "b1": (HIDDEN,), "w2": (CLASSES, HIDDEN), "b2": (CLASSES,)}
    bounds = {"w1": width**-0.5, "b1": width**-0.5, "w2": HIDDEN**-0.5, "b2": HIDDEN**-0.5}
    drawn = {name: [] for name in shapes}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(2000 + seed)
        for name, shape in shapes.items():
            uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
            drawn[name].append((2 * uniform - 1) * bounds[name])
    layers = {name: torch.stack(values).to(dtype) for name, values in drawn.items()}
    return layers | {name: layers[name] - layers[name].mean(1, keepdim=True) for name in ("w2", "b2")}


def class_vectors(arm, seeds):
    """Return what turns a trained layer into logits at radius 1, (S, outputs, C), for every seed."""
    if arm == "control":
        return (math.sqrt(CLASSES / (CLASSES - 1)) * torch.eye(CLASSES, dtype=torch.float64)).expand(seeds, -1, -1)
    matrix = simplex(CLASSES, dtype=torch.float64)
    if arm == "rare first":
        return matrix.flip(1).expand(seeds, -1, -1)
    if arm == "rare last":
        return matrix.expand(seeds, -1, -1)
    rotations = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(3000 + seed)
        q, r = torch.linalg.qr(torch.randn(CLASSES - 1, CLASSES - 1, generator=generator, dtype=torch.float64))
        rotations.append(q * r.diagonal().sign())
    return torch.stack(rotations) @ matrix


def logits_of(layers, vectors, x):
    """Return the logits of inputs x (S, B, D): (S, B, C)."""
    h = F.relu(torch.baddbmm(layers["b1"][:, None], x, layers["w1"].mT))
    return torch.baddbmm(layers["b2"][:, None], h, layers["w2"].mT) @ vectors


def train(data, optimiser, rate, radius, arm, epochs):
    """Train one head for all seeds; return accuracies per class, (S, C)."""
    seeds, count, width = data.inputs.shape
    vectors = class_vectors(arm, seeds).to(data.inputs.dtype)
    layers = start(seeds, width, data.inputs.dtype)
    # one function for all heads: the pseudo-inverse of the class vectors is (C-1)/C times their transpose
    scale = math.sqrt((CLASSES - 1) / CLASSES)
    layers |= {"w2": scale * vectors @ layers["w2"], "b2": scale * (vectors @ layers["b2"][:, :, None])[:, :, 0]}
    layers = {name: values.contiguous().requires_grad_() for name, values in layers.items()}
    vectors = radius * vectors
    kinds = {"adamw": lambda p: torch.optim.AdamW(p, rate, **ADAMW), "sgd": lambda p: torch.optim.SGD(p, rate, **SGD)}
    update = kinds[optimiser](layers.values())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, epochs * math.ceil(count / data.batch_size))
    generator = torch.Generator().manual_seed(4000)
    for _ in range(epochs):
        order = torch.rand(seeds, count, generator=generator).argsort(1)
        for rows in order.split(data.batch_size, 1):
            batch = data.inputs.gather(1, rows[:, :, None].expand(-1, -1, width))
            logits = logits_of(layers, vectors, batch)
            loss = F.cross_entropy(logits.flatten(0, 1), data.labels[rows].flatten(), reduction="sum") / rows.shape[1]
            update.zero_grad()
            loss.backward()
            update.step()
            schedule.step()
    with torch.no_grad():
        predicted = logits_of(layers, vectors, data.test).argmax(-1)
    is_class = F.one_hot(data.test_ranks, CLASSES).double()
    return ((predicted == data.test_ranks).double()[:, :, None] * is_class).sum(1) / is_class.sum(1)


def interval(values):
    """Return the mean with its 95 % t-interval."""
    mean, half = values.mean(), stats.t.ppf(0.975, len(values) - 1) * values.std() / math.sqrt(len(values))
    return [round(100 * float(number), 3) for number in (mean, mean - half, mean + half)]


def rows_of(data, optimiser, rate, radius, epochs):
    """Return a row for every head: accuracies in percent, and paired differences to the control."""
    rows, control = [], {}
    for arm in ARMS:
        per_class = train(data, optimiser, rate, radius, arm, epochs)
        measures = {"balanced": per_class.mean(1), "rarest": per_class[:, -RAREST:].mean(1)}
        row = {"optimiser": optimiser, "learning_rate": rate, "radius": radius, "head": arm}
        for name, values in measures.items():
            row[name] = interval(values)
            row[f"{name}_minus_control"] = interval(values - control[name]) if arm != "control" else None
        row["balanced_by_seed"] = [round(100 * value, 2) for value in measures["balanced"].tolist()]
        control = measures if arm == "control" else control
        rows.append(row)
        print({key: value for key, value in row.items() if key != "balanced_by_seed"}, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--radii", type=float, nargs="+", default=RADII)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-100; default: digits")
    parser.add_argument("--weights", type=Path, help="weights of the network that makes features of its images")
    parser.add_argument("--out", type=Path, default=Path("results/adam_order.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = (options.data, options.weights)
    data = long_tailed_features(options.seeds, *images) if options.data else long_tailed_digits(options.seeds)
    started, rows = time.process_time(), []
    for optimiser, rates in data.rates.items():
        for rate, radius in itertools.product(rates, options.radii):
            rows += rows_of(data, optimiser, rate, radius, options.epochs)
    about = {
        "command": " ".join(["python", sys.argv[0], *(Path(text).name for text in sys.argv[1:])]),  # no machine's paths
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(Path(__file__).parent),
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "cpu_seconds": round(time.process_time() - started),
    }
    settings = {
        "data": data.name,
        "class_counts": data.counts,
        "num_test": data.test.shape[1],
        "seeds": options.seeds,
        "epochs": options.epochs,
        "batch_size": data.batch_size,
        "schedule": "cosine",
        "adamw": ADAMW,
        "sgd": SGD,
        "precision": str(data.inputs.dtype).removeprefix("torch."),
        "interval": "mean, low, high in percent; over seeds, differences paired, Student's t, 95 %",
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    head = json.dumps({"about": about, "settings": settings}, indent=1)[:-2]
    options.out.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
