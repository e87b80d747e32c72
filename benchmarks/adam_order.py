"""Does the matrix, or the order of its columns, change anything under AdamW, where the theorem does not hold?

Long-tailed digits: ten classes, imbalance 0.02, an MLP 64-128-10. Every seed draws its images and the order of the
classes by frequency anew. All heads of a seed start from one plain layer, so that they have the same logits, and see
the same batches. Heads: `control` (no matrix), `rare last` and `rare first` (the matrix, with its columns in the order
of falling or rising frequency) and `rotated` (the matrix in randomly rotated coordinates). Under SGD all four are the
same by docs/theory.md; those rows check the program. It explores: question 4 of docs/plan.md is asked on CIFAR.

All seeds train in one batched program: parameters have the seed as first dimension. torch's optimisers work element by
element, so that every seed gets the steps it would get alone.

    python benchmarks/adam_order.py            # about 10 minutes of one core, writes results/adam_order.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch.nn import functional as F

from maxsep import simplex
from maxsep.lab.environment import commit, hardware, versions

CLASSES, WIDTH, HIDDEN, IMBALANCE, BATCH, EPOCHS = 10, 64, 128, 0.02, 16, 30
RAREST = 3
ARMS = ("control", "rare last", "rare first", "rotated")
ADAMW = {"weight_decay": 5e-4}
SGD = {"momentum": 0.9, "weight_decay": 5e-4}
RATES = {"adamw": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), "sgd": (0.01, 0.1)}
RADII = (0.3, 1.0, 3.0)


def long_tailed_digits(seeds):
    """Return training images (S, N, 64) and labels (N,), test images (T, 64) and labels (S, T).

    Labels are frequency ranks: 0 is the most frequent class of a seed. A third of every class is for testing.
    """
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
    most = min(map(len, pools))
    counts = [int(most * IMBALANCE ** (rank / (CLASSES - 1))) for rank in range(CLASSES)]
    images, ranks = [], []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(1000 + seed)
        order = torch.randperm(CLASSES, generator=generator)  # order[rank] is a digit
        pools_by_rank = [pools[digit][torch.randperm(len(pools[digit]), generator=generator)] for digit in order]
        images.append(x[torch.cat([pool[:count] for pool, count in zip(pools_by_rank, counts, strict=True)])])
        ranks.append(order.argsort()[digits[test]])
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor(counts))
    return torch.stack(images), labels, x[test], torch.stack(ranks), counts


def start(seeds):
    """Draw the layers of every seed as nn.Linear does; the head is a plain layer, centred over classes."""
    shapes = {"w1": (HIDDEN, WIDTH), "b1": (HIDDEN,), "w2": (CLASSES, HIDDEN), "b2": (CLASSES,)}
    bounds = {"w1": WIDTH**-0.5, "b1": WIDTH**-0.5, "w2": HIDDEN**-0.5, "b2": HIDDEN**-0.5}
    drawn = {name: [] for name in shapes}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(2000 + seed)
        for name, shape in shapes.items():
            uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
            drawn[name].append((2 * uniform - 1) * bounds[name])
    layers = {name: torch.stack(values) for name, values in drawn.items()}
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
    """Return the logits of images x (S, B, 64): (S, B, C)."""
    h = F.relu(torch.baddbmm(layers["b1"][:, None], x, layers["w1"].mT))
    return torch.baddbmm(layers["b2"][:, None], h, layers["w2"].mT) @ vectors


def train(data, optimiser, rate, radius, arm, epochs):
    """Train one head for all seeds; return accuracies per class, (S, C)."""
    images, labels, test, test_ranks, _ = data
    seeds, count = images.shape[:2]
    vectors = class_vectors(arm, seeds)
    layers = start(seeds)
    # one function for all heads: the pseudo-inverse of the class vectors is (C-1)/C times their transpose
    scale = math.sqrt((CLASSES - 1) / CLASSES)
    layers |= {"w2": scale * vectors @ layers["w2"], "b2": scale * (vectors @ layers["b2"][:, :, None])[:, :, 0]}
    layers = {name: values.contiguous().requires_grad_() for name, values in layers.items()}
    vectors = radius * vectors
    kinds = {"adamw": lambda p: torch.optim.AdamW(p, rate, **ADAMW), "sgd": lambda p: torch.optim.SGD(p, rate, **SGD)}
    update = kinds[optimiser](layers.values())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, epochs * math.ceil(count / BATCH))
    generator = torch.Generator().manual_seed(4000)
    for _ in range(epochs):
        order = torch.rand(seeds, count, generator=generator).argsort(1)
        for rows in order.split(BATCH, 1):
            batch = images.gather(1, rows[:, :, None].expand(-1, -1, WIDTH))
            logits = logits_of(layers, vectors, batch)
            loss = F.cross_entropy(logits.flatten(0, 1), labels[rows].flatten(), reduction="sum") / rows.shape[1]
            update.zero_grad()
            loss.backward()
            update.step()
            schedule.step()
    with torch.no_grad():
        predicted = logits_of(layers, vectors, test.expand(seeds, -1, -1)).argmax(-1)
    is_class = F.one_hot(test_ranks, CLASSES).double()
    return ((predicted == test_ranks).double()[:, :, None] * is_class).sum(1) / is_class.sum(1)


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
    parser.add_argument("--out", type=Path, default=Path("results/adam_order.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    started, data = time.process_time(), long_tailed_digits(options.seeds)
    rows = []
    for optimiser, rates in RATES.items():
        for rate, radius in itertools.product(rates, RADII):
            rows += rows_of(data, optimiser, rate, radius, options.epochs)
    about = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(Path(__file__).parent),
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "cpu_seconds": round(time.process_time() - started),
    }
    settings = {
        "data": "scikit-learn digits",
        "class_counts": data[4],
        "num_test": len(data[2]),
        "seeds": options.seeds,
        "epochs": options.epochs,
        "batch_size": BATCH,
        "schedule": "cosine",
        "adamw": ADAMW,
        "sgd": SGD,
        "precision": "float64",
        "interval": "mean, low, high in percent; over seeds, differences paired, Student's t, 95 %",
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    head = json.dumps({"about": about, "settings": settings}, indent=1)[:-2]
    options.out.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
