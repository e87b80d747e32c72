"""The batched program of benchmarks/adam_order.py trains every seed as a network with the library's head does."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead
from maxsep.heads import ControlHead

SCRIPT = Path(__file__).parents[2] / "benchmarks/adam_order.py"
HEADS = {
    "control": lambda linear: ControlHead.from_linear(linear, 0.3),
    "rare last": lambda linear: MaxSeparationHead.from_linear(linear, 0.3),
    "rare first": lambda linear: MaxSeparationHead.from_linear(linear, 0.3, class_order=range(9, -1, -1)),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_seed_is_trained_as_if_alone(head):
    program = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
    data = program.long_tailed_digits(3)
    images, labels, test, test_ranks = data.inputs, data.labels, data.test[2], data.test_ranks
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()
    with torch.no_grad():
        for parameter, values in zip(network.parameters(), program.start(3).values(), strict=True):
            parameter.copy_(values[2])
        network[2].weight *= 0.3 * (10 / 9) ** 0.5
        network[2].bias *= 0.3 * (10 / 9) ** 0.5
    network[2] = HEADS[head](network[2])
    update = torch.optim.AdamW(network.parameters(), 0.01, **program.ADAMW)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, 2 * len(images[0].split(16)))
    generator = torch.Generator().manual_seed(4000)
    for _ in range(2):
        for rows in torch.rand(3, len(labels), generator=generator).argsort(1)[2].split(16):
            update.zero_grad()
            F.cross_entropy(network(images[2, rows]), labels[rows]).backward()
            update.step()
            schedule.step()
    is_right = network(test).argmax(1) == test_ranks[2]
    expected = torch.stack([is_right[test_ranks[2] == rank].double().mean() for rank in range(10)])
    torch.testing.assert_close(program.train(data, "adamw", 0.01, 0.3, head, 2)[2], expected)
